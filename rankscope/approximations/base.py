"""What every approximation is: a value with parameters, a matrix, and a cheap way to apply it."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_type_hints

import torch

from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError

MASKED = -1e4
"""A bias below this hides an entry: it is a mask, and not a position's weight."""


@dataclass(frozen=True)
class Cost:
    """What one head of one window costs.

    Attributes
    ----------
    multiply_adds : int
        Of the products; exponentials, sorts and comparisons are not counted.
    bytes : int
        Largest intermediate result in float32, beside query, key, value and output.
    """

    multiply_adds: int
    bytes: int


@dataclass(frozen=True)
class Shape:
    """What a run knows of its model and windows before it computes anything.

    Attributes
    ----------
    model : str
        Name; of drawn weights with their seed.
    weights_sha256 : str or None
        Checksum of the model's weights; None for drawn ones.
    layers : tuple of int
        Numbers of the layers that will be approximated.
    n_heads : int
    length : int
        Tokens of the longest window.
    causal : bool
        Whether a token may only attend to itself and to earlier ones.
    """

    model: str
    weights_sha256: str | None
    layers: tuple[int, ...]
    n_heads: int
    length: int
    causal: bool = False

    def check_weights(self, what: str, model: str, weights_sha256: str | None) -> None:
        """Refuse a file that was made for other weights; drawn ones go by name and seed.

        Parameters
        ----------
        what : str
            Such as "ranks", for the message.
        model, weights_sha256 : str, str or None
            What it was made for.

        Raises
        ------
        MethodError
        """
        if weights_sha256 != self.weights_sha256 or (
            weights_sha256 is None and model != self.model
        ):
            raise MethodError(
                f"the {what} were made for {model} (weights {_short(weights_sha256)}), this is "
                f"{self.model} ({_short(self.weights_sha256)})",
                f"make {what} for this model",
            )


@dataclass(frozen=True)
class Approximation(ABC):
    """A way to approximate attention; a frozen dataclass of its parameters.

    Attributes
    ----------
    name : str
        Under which it stands in ``METHODS`` and in ``--method``.
    budget : str or None
        Name of the parameter that says how much it may spend for each query: a rank, a number of
        score entries, features or landmarks. None for a method without.
    causal : bool
        Whether the future stays hidden when it is applied to a causal model.
    linear : bool
        Whether the output is a matrix times the values; there is no ``matrix`` without.
    """

    name: ClassVar[str]
    budget: ClassVar[str | None] = None
    causal: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    @abstractmethod
    def matrix(self, attention: Attention) -> torch.Tensor:
        """The implied attention matrix, what the output multiplies the values with.

        Parameters
        ----------
        attention : Attention

        Returns
        -------
        (batch, head, n, m) tensor, in the type and on the device of ``attention.weights``

        Raises
        ------
        MethodError
            Where the method cannot be used on this attention, with the reason.
        """

    @abstractmethod
    def apply(self, attention: Attention) -> torch.Tensor:
        """The approximate output, computed in the method's own cheap form.

        Parameters
        ----------
        attention : Attention
            With its values.

        Returns
        -------
        (batch, head, n, d_v) tensor

        Raises
        ------
        MethodError
            Where the method cannot be used on this attention, with the reason.
        """

    @abstractmethod
    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of one head for n queries, m keys of width d and values of width d_v."""

    def check(self, shape: Shape) -> None:  # noqa: B027 most have nothing to refuse
        """Refuse before the long work what cannot work on a model's windows.

        Raises
        ------
        MethodError
        """

    def at_budget(self, budget: int) -> Self:
        """The same method with another budget.

        Raises
        ------
        UsageError
            If the method has none.
        """
        if self.budget is None:
            raise UsageError(f"{self.name} has no budget that could be set", "leave it out")
        return replace(self, **{self.budget: budget})

    def settings(self) -> dict[str, Any]:
        """Name and all parameters, and the checksum of a file among them: what a result records."""
        found: dict[str, Any] = {"method": self.name}
        for field in fields(self):
            value = getattr(self, field.name)
            # a file is what is in it, wherever it lies
            found[field.name] = value.name if isinstance(value, Path) else value
            if isinstance(value, Path):
                found[f"{field.name}_sha256"] = file_sha256(value)
        return found

    def __str__(self) -> str:
        """The text that :func:`parse` takes, with the parameters that are not at their default."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or (field.name == self.budget and value is not None):
                parts.append(f"{field.name}={_spelled(value)}")
        return f"{self.name}:{','.join(parts)}" if parts else self.name


def reason(error: Exception) -> str:
    """Why a file could not be understood, in a few words."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]}"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    words = str(error) or type(error).__name__
    return words if len(words) <= 160 else words[:160] + " …"


def file_sha256(path: Path) -> str:
    """Checksum of a file that a method reads.

    Raises
    ------
    MethodError
        If it cannot be read.
    """
    try:
        stamp = path.stat()
        return _digest(path, stamp.st_mtime_ns, stamp.st_size)
    except OSError as error:
        raise MethodError(
            f"the file {path} cannot be read: {error.strerror}", "check its name"
        ) from error


@lru_cache(maxsize=64)
def _digest(path: Path, _changed: int, _size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def parse(text: str, methods: dict[str, type[Approximation]]) -> Approximation:
    """A method from its text, ``NAME`` or ``NAME:PARAMETER=VALUE,PARAMETER=VALUE``.

    Parameters
    ----------
    text : str
        Such as ``linformer:k=128,projection=mean``; whole numbers for each layer are joined with a
        slash, ``k=128/96/64``.
    methods : dict of str to type
        The known ones.

    Returns
    -------
    Approximation

    Raises
    ------
    UsageError
        For an unknown method or parameter, a value of the wrong kind, or one that is missing.
    """
    name, _, rest = text.strip().partition(":")
    if name not in methods:
        raise UsageError(f"unknown method {name!r}", f"one of {', '.join(sorted(methods))}")
    method = methods[name]
    known = {field.name: field for field in fields(method)}
    hints = get_type_hints(method)
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        key = key.strip()
        if key not in known:
            offered = ", ".join(known) or "none"
            raise UsageError(f"{name} has no parameter {key!r}", f"it has: {offered}")
        if not equals or key in given:
            raise UsageError(
                f"{part!r} in {text!r} is no setting" if not equals else f"{key} is set twice",
                f"write {key}=VALUE once",
            )
        given[key] = _value(name, key, value.strip(), hints[key])
    needed = [
        key
        for key, field in known.items()
        if key not in given and field.default is MISSING and field.default_factory is MISSING
    ]
    if needed:
        raise UsageError(f"{name} needs {', '.join(needed)}", f"such as {name}:{needed[0]}=128")
    return method(**given)


def check_budget(name: str, what: str, value: int) -> None:
    """Refuse a budget below 1.

    Raises
    ------
    UsageError
    """
    if value < 1:
        raise UsageError(f"{name} with {what} {value} holds nothing", "use 1 or more")
    if value >= 2**31:
        raise UsageError(f"{name} with {what} {value} is beyond any window", "use a smaller one")


def refuse_causal(name: str, attention: Attention, why: str) -> None:
    """Refuse a causal model for a method that would look ahead.

    Raises
    ------
    MethodError
    """
    if attention.causal:
        raise MethodError(
            f"{name} cannot be used on a causal model: {why}", "choose a method that keeps order"
        )


def has_mask(attention: Attention) -> bool:
    """Whether the bias hides entries, as a causal or local mask does."""
    return attention.bias is not None and bool((attention.bias < MASKED).any())


def _short(digest: str | None) -> str:
    return "drawn at random" if digest is None else f"sha256 {digest:.12}"


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, key: str, text: str, hint: Any) -> Any:
    """A parameter from its text, by the type that the dataclass names."""
    options = get_args(hint)
    # Literal["a", "b"]: its arguments are the words themselves
    if options and all(isinstance(option, str) for option in options):
        if text in options:
            return text
        raise UsageError(f"{name} knows no {key} {text!r}", f"one of {', '.join(options)}")
    kinds = {one for one in (options or (hint,)) if isinstance(one, type)}
    wants_tuple = any(getattr(one, "__origin__", None) is tuple for one in options or (hint,))
    try:
        if wants_tuple and "/" in text:
            return tuple(int(part) for part in text.split("/"))
        if bool in kinds and text in ("true", "false"):
            return text == "true"
        if int in kinds and re.fullmatch(r"[+-]?\d+", text):
            return int(text)
        if float in kinds:
            return float(text)
    except ValueError as error:
        raise UsageError(f"{name} cannot read {key}={text!r}", _expected(hint)) from error
    if Path in kinds and text:
        return Path(text)
    if str in kinds:
        return text
    raise UsageError(f"{name} cannot read {key}={text!r}", _expected(hint))


def _expected(hint: Any) -> str:
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    words = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    for kind, word in words.items():
        if re.search(rf"\b{kind}\b", name):
            return f"it must be {word}"
    return f"it must be {name}"
