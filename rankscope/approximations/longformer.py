"""Global tokens, alone and with Longformer's band: all attend to them, and they attend to all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch

from rankscope.approximations import patterns
from rankscope.approximations.base import check_budget
from rankscope.approximations.sparse import Dilated, Sparse, check_several, each
from rankscope.approximations.strips import Pattern
from rankscope.exceptions import UsageError


@dataclass(frozen=True)
class Global(Sparse):
    """Global tokens alone: every token attends to them and to itself, and they attend to all.

    Attributes
    ----------
    entries : int
        Score entries a query: entries/2 tokens, rounded up, are global. 0 only with `ids`.
    place : {"first", "even"}
        Where they stand: at the beginning, or evenly over the text.
    ids : int or tuple of int, optional
        Token ids that are global wherever they stand, beside the others.

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1, "global attention".
    """

    entries: int = 0
    place: Literal["first", "even"] = "first"
    ids: int | tuple[int, ...] | None = None

    name: ClassVar[str] = "global"
    budget: ClassVar[str | None] = "entries"

    def __post_init__(self) -> None:
        if self.ids is None:
            check_budget(self.name, "entries", self.entries)
        _check_globals(self.name, self.entries, self.ids)

    def at_budget(self, budget: int) -> Self:
        if self.ids is not None:
            raise UsageError("global tokens by their ids have no budget", "leave out ids=")
        return super().at_budget(budget)

    @property
    def g(self) -> int:
        """Global tokens by position."""
        return (self.entries + 1) // 2

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        chosen = _global_tokens(self.name, n, self.g, self.place, self.ids, tokens)
        return patterns.with_globals(Pattern(n, (patterns.band(n, 0),)), chosen)

    @property
    def _by_tokens(self) -> bool:
        return self.ids is not None

    def _typical(self, n: int) -> Iterator[Pattern]:
        yield self.layout(n, tokens=_stand_in(n, self.ids))


@dataclass(frozen=True)
class Longformer(Dilated):
    """Longformer's attention: a band, dilated by head where wanted, and symmetric global tokens.

    The global tokens use the model's own query, key and value; Longformer trains further
    projections for them.

    Attributes
    ----------
    w : int or tuple of int
        Even; a tuple has one for each layer. Global tokens come on top of it.
    dilation : int or tuple of int
        1 for no gaps; a tuple is gone through by the heads.
    g : int
        Global tokens by position; 0 for none.
    place : {"first", "even"}
        Where the g tokens stand: at the beginning, or evenly over the text.
    ids : int or tuple of int, optional
        Token ids that are global wherever they stand, such as that of [CLS], beside the g tokens.

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
    """

    dilation: int | tuple[int, ...] = 1
    g: int = 1
    place: Literal["first", "even"] = "first"
    ids: int | tuple[int, ...] | None = None

    name: ClassVar[str] = "longformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_globals(self.name, self.g, self.ids)

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        chosen = _global_tokens(self.name, n, self.g, self.place, self.ids, tokens)
        return patterns.with_globals(super().layout(n, head, layer), chosen)

    @property
    def _by_tokens(self) -> bool:
        return self.ids is not None

    def _typical(self, n: int) -> Iterator[Pattern]:
        for layer in range(len(each(self.w))):
            for head in range(len(each(self.dilation))):
                yield self.layout(n, head, layer, _stand_in(n, self.ids))


def _check_globals(name: str, g: int, ids: int | tuple[int, ...] | None) -> None:
    check_several(name, "ids", ids)
    if g < 0:
        raise UsageError(f"{name} cannot have {g} global tokens", "use 0 or more")


def _global_tokens(
    name: str,
    n: int,
    g: int,
    place: patterns.Place,
    ids: int | tuple[int, ...] | None,
    tokens: torch.Tensor | None,
) -> torch.Tensor:
    """Positions of global tokens, by position and by id, each once and in order."""
    found = patterns.positions(n, g, place)
    if ids is None:
        return found
    if tokens is None or len(tokens) != n:
        raise UsageError(f"{name} with ids needs the ids of the {n} tokens", "give tokens=")
    chosen = torch.isin(tokens, torch.tensor(each(ids)))
    chosen[found] = True
    return chosen.nonzero().squeeze(-1)


def _stand_in(n: int, ids: int | tuple[int, ...] | None) -> torch.Tensor:
    """Tokens of which one has each id, at the end, and the others none of them."""
    several = () if ids is None else each(ids)
    tokens = torch.full((n,), -1)
    if several:
        tokens[-len(several) :] = torch.tensor(several)[-n:]
    return tokens
