"""Random keys, and Big Bird: random keys or blocks with a band and global ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from rankscope.approximations import patterns
from rankscope.approximations.base import check_budget
from rankscope.approximations.draws import check_seed, generator
from rankscope.approximations.sparse import Sparse
from rankscope.approximations.strips import Pattern, Strip
from rankscope.exceptions import UsageError


@dataclass(frozen=True)
class RandomKeys(Sparse):
    """r random keys for every query, beside itself: Big Bird's building block R, by token.

    Drawn by itself for every head and layer, and the same for every window of a length.

    Attributes
    ----------
    r : int
        Different keys, each set equally likely.
    seed : int

    References
    ----------
    Zaheer et al. 2020, arXiv:2007.14062, section 2.
    """

    r: int
    seed: int = 0

    name: ClassVar[str] = "random"
    budget: ClassVar[str | None] = "r"

    def __post_init__(self) -> None:
        check_budget(self.name, "r", self.r)
        check_seed(self.name, self.seed)

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        drawn = patterns.random_keys(n, self.r, 0, generator(self.seed, layer, head))
        return Pattern(n, (replace(drawn, columns=torch.cat([drawn.rows, drawn.columns], dim=1)),))

    def _kind(self, head: int) -> int:
        return head

    def _typical(self, n: int) -> Iterator[Pattern]:
        # only the size counts: nothing needs to be drawn
        yield Pattern(n, (_drawn_size(n, min(self.r + 1, n)),))


@dataclass(frozen=True)
class RandomBand(Sparse):
    """A band and random keys outside it: Big Bird's R + W, by token.

    Drawn by itself for every head and layer, and the same for every window of a length.

    Attributes
    ----------
    entries : int
        Score entries a query: the band has a width of 2⌊entries/4⌋, the rest is random.
    seed : int

    References
    ----------
    Zaheer et al. 2020, arXiv:2007.14062, section 2.
    """

    entries: int
    seed: int = 0

    name: ClassVar[str] = "random-band"
    budget: ClassVar[str | None] = "entries"

    def __post_init__(self) -> None:
        check_budget(self.name, "entries", self.entries)
        check_seed(self.name, self.seed)

    @property
    def w(self) -> int:
        """Width of the band."""
        return 2 * (self.entries // 4)

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        random = generator(self.seed, layer, head)
        drawn = patterns.random_keys(n, self.entries - self.w, self.w, random)
        return Pattern(n, (patterns.band(n, self.w), drawn))

    def _kind(self, head: int) -> int:
        return head

    def _typical(self, n: int) -> Iterator[Pattern]:
        width = max(0, min(self.entries - self.w, n - 1 - self.w // 2))
        yield Pattern(n, (patterns.band(n, self.w), _drawn_size(n, width)))


@dataclass(frozen=True)
class BigBird(Sparse):
    """Big Bird in blocks: three of a band, random ones, and global ones.

    The band of a block is itself and one block on each side. In mode ``itc`` the first and the last
    block are global; in mode ``etc`` the first g tokens are, which stand in for the further tokens
    that the paper adds to the text. Random blocks are neither global nor of the band; there are
    fewer where too few are left. They are drawn by themselves for every head and layer, and are the
    same for every window of a length. The last block is shorter where the length is no multiple.

    Attributes
    ----------
    entries : int
        Score entries a query, which gives the block size: ⌊entries / (7 + r)⌋ for ``itc``,
        ⌊entries / (9 + r)⌋ for ``etc``, whose global tokens are what is left; 1 at least. The
        paper's sizes are 640 for ``itc`` (blocks of 64) and 764 for ``etc`` (blocks of 84, 256
        global tokens).
    mode : {"itc", "etc"}
        Global tokens within the text, or beside it.
    r : int, optional
        Random blocks; by default the paper's, 3 for ``itc`` and 0 for ``etc``.
    seed : int

    References
    ----------
    Zaheer et al. 2020, arXiv:2007.14062, section 2 and its implementation in blocks.
    """

    entries: int
    mode: Literal["itc", "etc"] = "itc"
    r: int | None = None
    seed: int = 0

    name: ClassVar[str] = "bigbird"
    budget: ClassVar[str | None] = "entries"

    def __post_init__(self) -> None:
        check_budget(self.name, "entries", self.entries)
        check_seed(self.name, self.seed)
        if self.mode not in ("itc", "etc"):
            raise UsageError(f"bigbird knows no mode {self.mode!r}", "one of itc, etc")
        if self.r is not None and self.r < 0:
            raise UsageError(f"bigbird cannot have {self.r} random blocks", "use 0 or more")

    @property
    def random_blocks(self) -> int:
        """Random blocks of every block."""
        if self.r is not None:
            return self.r
        return 3 if self.mode == "itc" else 0

    @property
    def block(self) -> int:
        """Tokens of a block."""
        fixed = 7 if self.mode == "itc" else 9
        return max(1, self.entries // (fixed + self.random_blocks))

    def global_tokens(self, n: int) -> torch.Tensor:
        """Positions of the global tokens among n: (g,) int64."""
        place, b = torch.arange(n), self.block
        if self.mode == "itc":
            return place[(place < b) | (place >= (n - 1) // b * b)]
        return place[: max(0, self.entries - (3 + self.random_blocks) * b) // 2]

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        b, number = self.block, -(-n // self.block)
        chosen = self.global_tokens(n)
        place = torch.arange(number)
        near = place[:, None] + torch.arange(-1, 2)
        window = torch.where((near >= 0) & (near < number), near, -1)
        # blocks that are global as a whole are scored anyway
        first, last = (1, number - 1) if self.mode == "itc" else (len(chosen) // b, number)
        drawn = patterns.draw_outside(
            place - 1,
            place + 2,
            first,
            last,
            self.random_blocks,
            generator(self.seed, layer, head),
        )
        strip = patterns.blocks(n, b, torch.cat([window, drawn], dim=1))
        return patterns.with_globals(Pattern(n, (strip,)), chosen)

    def _kind(self, head: int) -> Hashable:
        return head if self.random_blocks else None


def _drawn_size(n: int, width: int) -> Strip:
    """A strip of the size of drawn keys, for its cost alone."""
    place = torch.arange(n)[:, None]
    return Strip(place, place.expand(-1, width))
