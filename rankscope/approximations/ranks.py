"""A rank for every layer and head, as a file: what `choose-rank` writes and `truncated` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from rankscope.approximations.base import Shape, file_sha256, reason
from rankscope.atomic import write_whole, writing
from rankscope.exceptions import MethodError, UsageError

FORMAT = "rankscope ranks 1"

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Truncation ranks of a model's heads.

    Attributes
    ----------
    model : str
        Name of the model that they were chosen for.
    weights_sha256 : str or None
        Checksum of its weights; None for drawn ones.
    layers : tuple of int
        Numbers of the layers.
    ranks : tuple of tuple of int
        One row a layer, one rank a head.
    length : int
        Tokens of the windows that they were chosen on.
    how : mapping
        How they were chosen; JSON values.
    """

    model: str
    weights_sha256: str | None
    layers: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    length: int
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        heads = {len(row) for row in self.ranks}
        if len(self.ranks) != len(self.layers) or len(heads) != 1 or 0 in heads:
            raise UsageError("ranks need one row a layer, all rows with one rank a head")
        if len(set(self.layers)) != len(self.layers):
            raise UsageError("ranks name a layer twice", "give every layer one row")
        if min(min(row) for row in self.ranks) < 1:
            raise UsageError("a rank below 1 holds nothing", "use ranks of 1 or more")

    @property
    def total(self) -> int:
        """Σk over all layers and heads."""
        return sum(map(sum, self.ranks))

    def of(self, layer: int) -> tuple[int, ...]:
        """Ranks of one layer's heads.

        Raises
        ------
        MethodError
            If the file has no ranks for the layer.
        """
        if layer not in self.layers:
            raise MethodError(
                f"the ranks were chosen for the layers {', '.join(map(str, self.layers))}, "
                f"not for layer {layer}",
                "choose the layers with --layers",
            )
        return self.ranks[self.layers.index(layer)]

    def check(self, shape: Shape) -> None:
        """Refuse another model, other layers or another number of heads.

        Raises
        ------
        MethodError
        """
        shape.check_weights("ranks", self.model, self.weights_sha256)
        if len(self.ranks[0]) != shape.n_heads:
            raise MethodError(
                f"the ranks are for {len(self.ranks[0])} heads, {shape.model} has {shape.n_heads}",
                "choose ranks for this model",
            )
        for layer in shape.layers:
            self.of(layer)

    def write(self, path: str | Path) -> Path:
        """Write the file, whole or not at all."""
        text = json.dumps(
            {
                "format": FORMAT,
                "model": self.model,
                "weights_sha256": self.weights_sha256,
                "length": self.length,
                "layers": list(self.layers),
                "ranks": [list(row) for row in self.ranks],
                "total": self.total,
                "how": dict(self.how),
            },
            indent=1,
            allow_nan=False,
        )

        def save(temporary: Path) -> None:
            temporary.write_text(text + "\n", encoding="utf-8")

        with writing(Path(path)):
            write_whole(Path(path), save)
        return Path(path)


def read_ranks(path: Path) -> Ranks:
    """Read the file of `Ranks.write`.

    Raises
    ------
    MethodError
        If it cannot be read, or is no such file.
    """
    return _read(path, file_sha256(path))


@lru_cache(maxsize=16)
def _read(path: Path, _digest: str) -> Ranks:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']!r}")
        found = Ranks(
            model=_of(str, tree["model"]),
            weights_sha256=None
            if tree["weights_sha256"] is None
            else _of(str, tree["weights_sha256"]),
            layers=tuple(_of(int, layer) for layer in _of(list, tree["layers"])),
            ranks=tuple(tuple(_of(int, k) for k in _of(list, row)) for row in tree["ranks"]),
            length=_of(int, tree["length"]),
            how=_of(dict, tree["how"]),
        )
        if found.total != tree["total"]:
            raise ValueError(f"its ranks sum to {found.total}, not to {tree['total']}")
        return found
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        raise MethodError(
            f"{path} is no file of ranks: {reason(error)}", "write one with rankscope choose-rank"
        ) from error


def _of(kind: type[T], value: object) -> T:
    """A value that is of a kind already: a rank of 1.5 is no rank."""
    # True is an int to Python
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
