"""What a run's dataset holds, and the hash that tells one set of settings from another.

The dimensions of every run start with ``model, corpus, sample``; a sample is one window of tokens.
In a run of spectra ``layer, head, index`` follow, and ``index`` is k, the number of singular values
that are kept: ``cumulative_ratio.sel(index=128)`` is the sum of the first 128 over that of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankscope.status import State, Status
from rankscope.store.layout import Layout, VariableLayout

WINDOW = ("model", "corpus", "sample")
MATRIX = (*WINDOW, "layer", "head")
CURVE = (*MATRIX, "index")

LARGEST_BLOCK = 256
"""windows a chunk"""

Variables = Mapping[str, tuple[tuple[str, ...], str, str]]
"""name: dimensions, type, what it is"""

STATE: Variables = {"state": (WINDOW, "int8", "what became of the window")}
"""What every run has."""

SPECTRA: Variables = {
    "singular_value": (CURVE, "float64", "singular value of the attention matrix"),
    "cumulative_ratio": (CURVE, "float64", "sum of the first k singular values over all"),
    "energy_ratio": (CURVE, "float64", "sum of the first k squared singular values over all"),
    "row_entropy": (MATRIX, "float64", "mean entropy of the rows, in nats"),
    "effective_rank": (MATRIX, "float64", "exponential of the entropy of the singular values"),
    "stable_rank": (MATRIX, "float64", "squared Frobenius norm over squared spectral norm"),
    "spectral_gap": (MATRIX, "float64", "first minus second singular value, over the first"),
    "numerical_rank": (MATRIX, "float64", "number of singular values above the tolerance"),
    "rank_90": (MATRIX, "float64", "smallest k whose cumulative ratio reaches 0.9"),
    "n_tokens": (WINDOW, "int32", "size n of the window's matrices"),
    "status": (MATRIX, "int8", "what became of the matrix"),
}
"""Variables of a run of spectra."""

CENTRED: Variables = {
    "centred_singular_value": (CURVE, "float64", "singular value of the matrix less its mean row")
}
"""What a run of spectra has beside them when it was asked for."""


@dataclass(frozen=True)
class RunSchema:
    """Everything about a run's dataset that is known before it starts.

    Parameters
    ----------
    model, corpus : str
        Their names.
    text_id, window, token_start, token_end : (n_samples,) int64
        Where each window comes from; at least one.
    axes : mapping of str to (size,) array
        Dimensions beyond model, corpus and sample, in order, each with its coordinate; none empty.
    variables : mapping
        What every window gives: dimensions, type and description. All start with the dimensions
        model, corpus and sample; ``status``, an int8, is among them. The store adds ``state``, what
        became of each window, by itself.
    labels : mapping of str to (dimension, values)
        Further coordinates on those dimensions.
    attrs : mapping
        Attributes of the dataset; ``settings_hash`` is required, and ``recipe_json`` lets a
        refused resume say which settings differ.
    block : int
        Windows that one chunk of the store holds, 1 to 256: windows of a few tokens are written
        many at a time, so that they do not become as many files.
    """

    model: str
    corpus: str
    text_id: np.ndarray
    window: np.ndarray
    token_start: np.ndarray
    token_end: np.ndarray
    axes: Mapping[str, np.ndarray]
    variables: Variables
    labels: Mapping[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    block: int = 1

    def __post_init__(self) -> None:
        if min([self.n_samples, *map(len, self.axes.values())]) < 1:
            raise ValueError("a run has at least one sample, and no empty axis")
        for name, (dim, values) in self.labels.items():
            if len(values) != len(self.axes[dim]):
                raise ValueError(f"{name} needs one label a {dim}")
        for name in ("window", "token_start", "token_end"):
            if np.shape(getattr(self, name)) != (self.n_samples,):
                raise ValueError(f"{name} needs one number a sample")
        for name, (dims, *_) in self.variables.items():
            if dims[:3] != WINDOW or not {*dims[3:]} <= {*self.axes}:
                raise ValueError(f"{name} has dimensions {dims} that the run does not have")
        if "settings_hash" not in self.attrs or "status" not in self.variables:
            raise ValueError("a run needs settings_hash among its attrs, and a status")
        if "state" in self.variables:
            raise ValueError("a run needs no variable state of its own: the store adds it")
        if self.block not in range(1, LARGEST_BLOCK + 1):
            raise ValueError(f"a block has at least 1 and at most {LARGEST_BLOCK} windows")

    @property
    def n_samples(self) -> int:
        """Number of windows."""
        return len(self.text_id)

    def coords(self) -> dict[str, tuple[str, np.ndarray]]:
        """Dimension and values of each coordinate."""

        def whole(values: np.ndarray) -> tuple[str, np.ndarray]:
            return "sample", np.asarray(values, dtype=np.int64)

        return {
            "model": ("model", np.array([self.model])),
            "corpus": ("corpus", np.array([self.corpus])),
            "sample": whole(np.arange(self.n_samples)),
            **{name: (name, np.asarray(values)) for name, values in self.axes.items()},
            "text_id": whole(self.text_id),
            "window": whole(self.window),
            "token_start": whole(self.token_start),
            "token_end": whole(self.token_end),
            **{name: (dim, np.asarray(values)) for name, (dim, values) in self.labels.items()},
        }

    def layout(self) -> Layout:
        """Description of the dataset; every type and width is fixed by it."""
        sizes = dict(zip(WINDOW, (1, 1, self.n_samples), strict=True))
        sizes |= {name: len(values) for name, values in self.axes.items()}
        coords = {
            name: VariableLayout((dim,), _dtype_name(values), coord=True)
            for name, (dim, values) in self.coords().items()
        }
        variables = {
            name: VariableLayout(dims, dtype, attrs={"long_name": what, **_flags(name)})
            for name, (dims, dtype, what) in {**self.variables, **STATE}.items()
        }
        return Layout(sizes, coords | variables, dict(self.attrs))


def canonical_json(settings: Mapping[str, Any]) -> str:
    """Settings as JSON text that does not depend on the order of keys or on NumPy's types.

    Parameters
    ----------
    settings : mapping
        Text, numbers, bools, None, and lists, tuples and mappings of them.

    Returns
    -------
    str
        Sorted JSON; tuples are written as lists.

    Examples
    --------
    >>> canonical_json({"b": (1, 2), "a": None})
    '{"a":null,"b":[1,2]}'
    """

    def plain(value: Any) -> Any:
        if isinstance(value, (np.generic, np.ndarray)):
            return value.tolist()
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"a setting of type {type(value).__name__} has no place in a recipe")

    return json.dumps(
        dict(settings), default=plain, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of `canonical_json`, in hexadecimal: equal for equal settings only.

    Examples
    --------
    >>> settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Which settings differ between two recipes, one text each.

    Examples
    --------
    >>> differences({"text": {"length": 512}}, {"text": {"length": 256}})
    ['text.length is 512 there and 256 here']
    """
    here, there = _flat(json.loads(canonical_json(wanted))), _flat(stored)
    absent = object()
    lines = []
    for key in sorted({*here, *there}):
        old, new = there.get(key, absent), here.get(key, absent)
        if old is absent or new is absent:
            lines.append(f"{key} is only {'here' if old is absent else 'there'}")
        elif json.dumps(old) != json.dumps(new):
            lines.append(f"{key} is {json.dumps(old)} there and {json.dumps(new)} here")
    return lines


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _dtype_name(values: np.ndarray) -> str:
    return values.dtype.str if values.dtype.kind == "U" else values.dtype.name


def _flags(name: str) -> dict[str, Any]:
    """The CF conventions' way to name codes."""
    codes: type[Status] | type[State]
    if name == "status":
        codes = Status
    elif name == "state":
        codes = State
    else:
        return {}
    return {
        "flag_values": np.array([int(one) for one in codes], dtype=np.int8),
        "flag_meanings": " ".join(one.name for one in codes),
    }
