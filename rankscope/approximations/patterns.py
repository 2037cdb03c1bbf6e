"""Patterns of sparse attention: which keys each query of a head may score, by rule.

:func:`band`, :func:`blocks` and :func:`random_keys` make the strips of a pattern
(:mod:`rankscope.approximations.strips`); :func:`with_globals` adds tokens that see all and are seen
by all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch

from rankscope.approximations.strips import Pattern, Strip
from rankscope.exceptions import UsageError

Place = Literal["first", "even"]
Trend = Literal["rising", "falling", "fixed"]

_BLOCK = 64
"""Queries in one block where the pattern leaves the choice."""


def band(n: int, w: int, dilation: int = 1) -> Strip:
    """The w/2 neighbours on each side at a distance of `dilation`, 2·`dilation`, …, and the token.

    Tokens of the same remainder modulo the dilation are made neighbours first, so that a dilated
    band is cut into dense blocks like any other.

    Parameters
    ----------
    n : int
        Tokens.
    w : int
        Even; 0 leaves the token itself.
    dilation : int
        1 for neighbours without gaps.

    Returns
    -------
    Strip

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1.

    Examples
    --------
    >>> Pattern(5, (band(5, 2, dilation=2),)).mask().int()[0]
    tensor([1, 0, 1, 0, 0], dtype=torch.int32)
    """
    step = min(dilation, n)
    longest = -(-n // step)
    side = min(w // 2, longest - 1)
    # a block as long as the band computes twice the entries, a shorter one copies keys more often
    b = min(max(2 * side, 1), _BLOCK, longest)
    first = torch.arange(0, longest, b)[None, :, None]
    rest = torch.arange(step)[:, None, None]
    rows = rest + step * (first + torch.arange(b))
    columns = rest + step * (first + torch.arange(-side, b + side))
    return Strip(
        torch.where(rows < n, rows, -1).flatten(0, 1),
        torch.where((columns >= 0) & (columns < n), columns, -1).flatten(0, 1),
        reach=step * side,
    )


def blocks(n: int, b: int, chosen: torch.Tensor) -> Strip:
    """Every block of queries with the blocks of keys that are chosen for it.

    Parameters
    ----------
    n : int
        Tokens; where it is no multiple of b, the last block is shorter.
    b : int
        Block size.
    chosen : (⌈n/b⌉, number) int64
        Blocks of keys of each block of queries, none twice; -1 for none.

    Returns
    -------
    Strip
    """
    number = -(-n // b)
    rows = torch.arange(number * b).view(number, b)
    columns = chosen[:, :, None] * b + torch.arange(b)
    real = (chosen >= 0)[:, :, None] & (columns < n)
    return Strip(torch.where(rows < n, rows, -1), torch.where(real, columns, -1).flatten(1))


def random_keys(n: int, r: int, w: int, generator: torch.Generator) -> Strip:
    """r random keys for every query, none of them in its band.

    Parameters
    ----------
    n : int
        Tokens.
    r : int
        Different keys a query, each set equally likely; all there are where that is fewer.
    w : int
        The w/2 neighbours on each side, and the token itself, are not drawn.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Strip
        Blocks of one query.
    """
    place = torch.arange(n)
    low, high = (place - w // 2).clamp_min(0), (place + w // 2 + 1).clamp_max(n)
    return Strip(place[:, None], draw_outside(low, high, 0, n, r, generator))


def with_globals(pattern: Pattern, tokens: torch.Tensor) -> Pattern:
    """The pattern, and some tokens that attend to all and that all attend to.

    Parameters
    ----------
    pattern : Pattern
    tokens : (g,) int64
        Their positions, each once.

    Returns
    -------
    Pattern

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1, "global attention".

    Examples
    --------
    >>> with_globals(Pattern(4, (band(4, 0),)), torch.tensor([0])).mask().int()
    tensor([[1, 1, 1, 1],
            [1, 1, 0, 0],
            [1, 0, 1, 0],
            [1, 0, 0, 1]], dtype=torch.int32)
    """
    if not len(tokens):
        return pattern
    n = pattern.n
    chosen = torch.zeros(n + 1, dtype=torch.bool)
    chosen[tokens] = True
    # the index -1 reads the last place, which is never chosen
    kept = tuple(
        replace(
            strip,
            rows=torch.where(chosen[strip.rows], -1, strip.rows),
            columns=torch.where(chosen[strip.columns], -1, strip.columns),
        )
        for strip in pattern.strips
    )
    others = (~chosen[:n]).nonzero().squeeze(-1)
    seen = _in_blocks(others, max(_BLOCK, len(tokens)))
    seeing = _in_blocks(tokens, _BLOCK)
    everything = torch.arange(n)
    return Pattern(
        n,
        (
            *kept,
            Strip(seen, tokens.expand(len(seen), -1)),
            Strip(seeing, everything.expand(len(seeing), -1)),
        ),
    )


def positions(n: int, g: int, place: Place) -> torch.Tensor:
    """Positions of g global tokens among n: the first ones, or evenly over the text.

    Returns
    -------
    (min(g, n),) int64

    Examples
    --------
    >>> positions(12, 3, "even")
    tensor([ 2,  6, 10])
    """
    g = min(g, n)
    if place == "first" or g == 0:
        return torch.arange(g)
    return (2 * torch.arange(g) + 1) * n // (2 * g)


def draw_outside(
    low: torch.Tensor,
    high: torch.Tensor,
    first: int,
    last: int,
    r: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """For every row r different numbers of [first, last) outside [low, high), at random.

    Every set of r numbers is equally likely.

    Parameters
    ----------
    low, high : (rows,) int64
    first, last : int
    r : int
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    (rows, at most r) int64
        -1 in rows that have fewer to choose from.
    """
    last = max(first, last)
    low, high = low.clamp(first, last), high.clamp(first, last)
    gap = (high - low)[:, None]
    drawn = _draw(last - first - gap[:, 0], r, generator)
    found = first + drawn
    return torch.where(drawn < 0, -1, found + gap * (found >= low[:, None]))


def schedule(kind: Trend, low: int, high: int, layers: int) -> tuple[int, ...]:
    """Width of the band in every layer, in even steps.

    Parameters
    ----------
    kind : {"rising", "falling", "fixed"}
        ``rising`` goes from `low` in the first layer to `high` in the last, ``falling`` the other
        way; ``fixed`` is their mean in every layer, so that all three cost about the same.
    low, high : int
        Even, 2 or more.
    layers : int
        2 or more.

    Returns
    -------
    tuple of int
        Even numbers.

    Raises
    ------
    UsageError

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, the ablation of windows over layers.

    Examples
    --------
    >>> schedule("rising", 32, 64, 3), schedule("falling", 32, 64, 3), schedule("fixed", 32, 64, 3)
    ((32, 48, 64), (64, 48, 32), (48, 48, 48))
    """
    if kind not in get_args(Trend):
        raise UsageError(f"unknown schedule {kind!r}", f"one of {', '.join(get_args(Trend))}")
    if layers < 2 or not 2 <= low <= high or low % 2 or high % 2:
        raise UsageError(
            f"no schedule leads from {low} to {high} over {layers} layers",
            "use even widths, low not above high, and 2 layers or more",
        )
    rising = [2 * round((low + (high - low) * i / (layers - 1)) / 2) for i in range(layers)]
    if kind == "fixed":
        return (2 * round(sum(rising) / layers / 2),) * layers
    return tuple(rising if kind == "rising" else reversed(rising))


def _in_blocks(tokens: torch.Tensor, b: int) -> torch.Tensor:
    """(number,) → (blocks, at most b), filled up with -1."""
    b = max(1, min(b, len(tokens)))
    short = -len(tokens) % b
    return torch.cat([tokens, tokens.new_full((short,), -1)]).view(-1, b)


def _draw(counts: torch.Tensor, r: int, random: torch.Generator) -> torch.Tensor:
    """For every row r different numbers below its count, -1 where there are none left."""
    most, least = int(counts.max()), int(counts.min())
    width = min(r, most)
    if width == 0:
        return counts.new_empty(len(counts), 0)
    if 4 * width >= least:
        keys = torch.rand(len(counts), most, generator=random, dtype=torch.float64)
        keys[torch.arange(most) >= counts[:, None]] = 2.0
        found = keys.argsort(dim=1)[:, :width]
        return torch.where(torch.arange(width) < counts[:, None], found, -1)

    def fresh(of: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(len(of), generator=random, dtype=torch.float64)
        return (drawn * of).long()

    # the first r different numbers of a stream of independent draws: what is there twice, draw anew
    every = counts[:, None].expand(-1, width)
    found = fresh(every.flatten()).view(-1, width)
    while True:
        found = found.sort(dim=1).values
        twice = torch.zeros_like(found, dtype=torch.bool)
        twice[:, 1:] = found[:, 1:] == found[:, :-1]
        if not bool(twice.any()):
            return found
        found[twice] = fresh(every[twice])
