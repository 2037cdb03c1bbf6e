"""Sparse and low rank together: a band exactly, and what is outside of it at low rank.

:class:`BandPlusLowRank` takes the band of P and the best matrix of low rank for the rest: a bound.
:class:`Scatterbrain` takes exponentials in the band and a kernel's features elsewhere, and can run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from rankscope.approximations import patterns
from rankscope.approximations.base import Approximation, Cost, check_budget, refuse_causal
from rankscope.approximations.draws import check_seed
from rankscope.approximations.kernel import directions
from rankscope.approximations.sparse import check_square
from rankscope.approximations.strips import Pattern, blocks_of
from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError
from rankscope.truncation import Decomposition, decompose


@dataclass(frozen=True)
class BandPlusLowRank(Approximation):
    """A band of P, and the best matrix of rank k for what is outside of it.

    P̃ = B + (P − B)_k, where B has P's own entries in the band and zeros elsewhere. It bounds what a
    band and a low-rank matrix can do together and is not one to run: it needs P and a decomposition
    first. Rows need not sum to 1, entries outside the band may be negative, and in a causal model
    the second part looks ahead.

    Attributes
    ----------
    entries : int
        Width of the band and rank together, what a query costs.
    k : int, optional
        The rank; half of `entries` by default. The band has the rest, less one if that is odd.

    References
    ----------
    Chen et al. 2021, arXiv:2110.15343 (Scatterbrain), whose second part are a kernel's features.
    """

    entries: int
    k: int | None = None

    name: ClassVar[str] = "band-plus-low-rank"
    budget: ClassVar[str | None] = "entries"

    def __post_init__(self) -> None:
        check_split(self.name, self.entries, "k", self.k)

    @property
    def rank(self) -> int:
        """Rank of what stands beside the band."""
        return self.k if self.k is not None else max(1, self.entries // 2)

    @property
    def w(self) -> int:
        """Width of the band: w/2 neighbours on each side, beside the token itself."""
        return (self.entries - self.rank) // 2 * 2

    def matrix(self, attention: Attention) -> torch.Tensor:
        parts = [
            near + rest.truncate(self.rank).to(near.dtype)
            for near, rest, _ in self._by_head(attention)
        ]
        return torch.cat(parts, dim=1)

    def apply(self, attention: Attention) -> torch.Tensor:
        parts = [
            near @ value + rest.output(self.rank, value).to(near.dtype)
            for near, rest, value in self._by_head(attention)
        ]
        return torch.cat(parts, dim=1)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of applying band and factors; finding them costs full attention and more."""
        near = Pattern(n, (patterns.band(n, self.w),)).cost(0, d_v)
        k = min(self.rank, n)
        return Cost(near.multiply_adds + 2 * n * k * d_v, max(near.bytes, 4 * k * d_v))

    def _by_head(
        self, attention: Attention
    ) -> Iterator[tuple[torch.Tensor, Decomposition, torch.Tensor]]:
        """The band of P, what is outside decomposed, and the values; one head at a time."""
        n = check_square(self.name, attention)
        mask = Pattern(n, (patterns.band(n, self.w),)).mask().to(attention.query.device)
        for head in range(attention.n_heads):
            one = attention.heads(slice(head, head + 1))
            weights = one.weights
            near = torch.where(mask, weights, 0.0)
            yield near, decompose(weights - near), one.values


@dataclass(frozen=True)
class Scatterbrain(Approximation):
    """exp(scale·qᵀk) in a band, Performer's features outside of it, then rows that sum to 1.

    P̃ = D⁻¹(S + φ(Q)φ(K)ᵀ), where S is exp(scale·qᵀk) - φ(q)ᵀφ(k) in the band and zero elsewhere.
    The features are positive and orthogonal, those of ``performer`` with the same seed,
    and exponents are shifted by a maximum of each row that cancels in D⁻¹. What is computed for all
    pairs and subtracted in the band is in float64.

    Attributes
    ----------
    entries : int
        Width of the band and number of features together.
    features : int, optional
        Half of `entries` by default. The band has the rest, less one if that is odd.
    seed : int
        Features differ between layers and heads, and are the same for every window.

    References
    ----------
    Chen et al. 2021, arXiv:2110.15343; there the sparse part comes from hashing.
    """

    entries: int
    features: int | None = None
    seed: int = 0

    name: ClassVar[str] = "scatterbrain"
    budget: ClassVar[str | None] = "entries"

    def __post_init__(self) -> None:
        check_seed(self.name, self.seed)
        check_split(self.name, self.entries, "features", self.features)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.features if self.features is not None else max(1, self.entries // 2)

    @property
    def w(self) -> int:
        """Width of the band: w/2 neighbours on each side, beside the token itself."""
        return (self.entries - self.width) // 2 * 2

    def matrix(self, attention: Attention) -> torch.Tensor:
        whole = self._plain(attention)
        of_query, of_key, shift = self._features(whole)
        query, key = whole.query.to(of_query), whole.key.to(of_key)
        n = query.shape[2]
        near = Pattern(n, (patterns.band(n, self.w),)).mask().to(query.device)
        scores = (query @ key.mT * whole.scale).masked_fill(~near, -torch.inf)
        peak = torch.maximum(shift, scores.amax(dim=-1, keepdim=True))
        far = of_query @ of_key.mT * (shift - peak).exp()
        weights = torch.where(near, (scores - peak).exp(), far)
        return (weights / weights.sum(dim=-1, keepdim=True)).to(whole.dtype)

    def apply(self, attention: Attention) -> torch.Tensor:
        whole = self._plain(attention)
        of_query, of_key, shift = self._features(whole)
        query, key = whole.query.to(of_query), whole.key.to(of_key)
        # the column of ones gathers the row sums
        value = whole.values.to(of_key)
        value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        output = of_query @ (of_key.mT @ value)
        strip = patterns.band(query.shape[2], self.w)
        rows, columns = strip.rows.to(query.device), strip.columns.to(query.device)
        strip = replace(strip, rows=rows, columns=columns)
        widest = max(query.shape[-1], value.shape[-1], self.width)
        for piece in strip.pieces(widest, query.shape[0] * query.shape[1]):
            row, column = rows[piece], columns[piece]
            hidden = ~strip.allowed(piece)
            scores = blocks_of(query, row) @ blocks_of(key, column).mT * whole.scale
            scores.masked_fill_(hidden, -torch.inf)
            start = blocks_of(shift, row)
            peak = torch.maximum(start, scores.amax(dim=-1, keepdim=True))
            far = blocks_of(of_query, row) @ blocks_of(of_key, column).mT
            fall = (start - peak).exp()
            weights = (scores - peak).exp() - (far * fall).masked_fill(hidden, 0.0)
            near = weights @ blocks_of(value, column)
            real = row >= 0
            to = row[real]
            output[:, :, to] = output[:, :, to] * fall[:, :, real] + near[:, :, real]
        return (output[..., :-1] / output[..., -1:]).to(whole.dtype)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        f = self.width
        near = Pattern(n, (patterns.band(n, self.w),)).cost(d + f, d_v + 1)
        return Cost(
            near.multiply_adds + (n + m) * f * (d + d_v + 1), max(2 * near.bytes, 8 * max(n, m) * f)
        )

    def _features(self, whole: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """φ(Q), φ(K), and the logarithm of what each row of φ(Q) was divided by."""
        drawn = directions(
            self.width,
            whole.query.shape[-1],
            heads=whole.n_heads,
            seed=self.seed,
            layer=whole.layer,
            group=whole.group,
        ).to(whole.query.device)
        of_query, of_key = (
            x @ drawn.mT - x.square().sum(dim=-1, keepdim=True) / 2
            for x in (one.to(torch.float64) * whole.scale**0.5 for one in (whole.query, whole.key))
        )
        highest = of_key.amax(dim=2, keepdim=True)
        of_query = of_query + highest - math.log(self.width)
        shift = of_query.amax(dim=-1, keepdim=True)
        return (of_query - shift).exp(), (of_key - highest).exp(), shift

    def _plain(self, attention: Attention) -> Attention:
        refuse_causal(self.name, attention, "its features sum over the keys of the future as well")
        check_square(self.name, attention)
        whole = attention.reduced()
        if whole.bias is not None and bool((whole.bias != 0).any()):
            raise MethodError(
                f"{self.name} has features of single tokens, and no place for a mask or for terms "
                "that depend on pairs, such as this model's relative positions",
                "choose a method that looks at single pairs",
            )
        return whole


def check_split(name: str, entries: int, what: str, given: int | None) -> None:
    """Refuse a budget below 1, or a part of it that is larger than the whole.

    Raises
    ------
    UsageError
    """
    check_budget(name, "entries", entries)
    if given is not None:
        check_budget(name, what, given)
        if given > entries:
            raise UsageError(
                f"{name} with {what}={given} spends more than its {entries} entries",
                f"raise entries or lower {what}",
            )
