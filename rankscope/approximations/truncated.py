"""Full attention, and what bounds every low-rank method: P_low, the best output, one mean row."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import torch

from rankscope.approximations.base import (
    MASKED,
    Approximation,
    Cost,
    Shape,
    check_budget,
)
from rankscope.approximations.ranks import read_ranks
from rankscope.attention import Attention
from rankscope.exceptions import UsageError
from rankscope.truncation import Decomposition, clip_and_renormalise, decompose

_BYTES = 2**30

KEPT_BYTES = 2**28
"""Largest decomposition of a layer that is kept for the next rank."""

# attention compares by identity, and what is known of it goes when it goes
_known: WeakKeyDictionary[Attention, dict[int, Decomposition]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[Attention, threading.Lock] = WeakKeyDictionary()
_guard = threading.Lock()


@dataclass(frozen=True)
class Full(Approximation):
    """Full attention itself: the reference, whose error is zero."""

    name: ClassVar[str] = "full"
    causal: ClassVar[bool] = True

    def matrix(self, attention: Attention) -> torch.Tensor:
        return attention.weights

    def apply(self, attention: Attention) -> torch.Tensor:
        return attention.output

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        return Cost(n * m * (d + d_v), 4 * n * m)


@dataclass(frozen=True)
class Uniform(Approximation):
    """Every token attends alike to all that its mask allows: what is left without attention."""

    name: ClassVar[str] = "uniform"
    causal: ClassVar[bool] = True

    def matrix(self, attention: Attention) -> torch.Tensor:
        whole = attention.reduced()
        batch, heads, n, _ = whole.query.shape
        allowed = whole.query.new_ones(batch, heads, n, whole.key.shape[2])
        if whole.bias is not None:
            allowed = allowed * (whole.bias >= MASKED)
        return allowed / allowed.sum(dim=-1, keepdim=True)

    def apply(self, attention: Attention) -> torch.Tensor:
        whole = attention.reduced()
        value = whole.values
        if whole.bias is None or bool((whole.bias >= MASKED).all()):
            mean = value.mean(dim=2, keepdim=True)
            return mean.expand(-1, -1, whole.query.shape[2], -1)
        return self.matrix(attention) @ value

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        return Cost(m * d_v, 4 * d_v)


@dataclass(frozen=True)
class MeanRow(Approximation):
    """P's mean row in every row: the simplest matrix of rank one, 1p̄ᵀ."""

    name: ClassVar[str] = "mean-row"

    def matrix(self, attention: Attention) -> torch.Tensor:
        weights = attention.weights
        return weights.mean(dim=-2, keepdim=True).expand_as(weights)

    def apply(self, attention: Attention) -> torch.Tensor:
        row = attention.weights.mean(dim=-2, keepdim=True)
        n = attention.shape[0]
        return (row @ attention.values).expand(-1, -1, n, -1)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        return Cost(m * d_v, 4 * (m + d_v))


@dataclass(frozen=True)
class Truncated(Approximation):
    """P_low: the k leading singular triplets of P, the best matrix of rank k.

    A bound of all low-rank methods and not one to run: it needs P and its decomposition first.

    Attributes
    ----------
    k : int, optional
        Rank of every head; P itself where it is n or more.
    ranks : Path, optional
        Instead of `k`: a file with a rank for every layer and head, from ``choose-rank``.
    rows : {"raw", "clipped"}
        ``clipped`` sets negative entries to zero and divides every row by its sum, which makes
        distributions of them again and is no longer of rank k.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, equation 6.
    """

    k: int | None = None
    ranks: Path | None = None
    rows: Literal["raw", "clipped"] = "raw"

    name: ClassVar[str] = "truncated"
    budget: ClassVar[str | None] = "k"

    def __post_init__(self) -> None:
        if (self.k is None) == (self.ranks is None):
            raise UsageError(
                "truncated needs a rank or a file of ranks, and not both",
                "write truncated:k=128 or truncated:ranks=ranks.json",
            )
        if self.k is not None:
            check_budget(self.name, "k", self.k)

    def check(self, shape: Shape) -> None:
        if self.ranks is not None:
            read_ranks(self.ranks).check(shape)

    def at_budget(self, budget: int) -> Truncated:
        if self.ranks is not None:
            raise UsageError("truncated with a file of ranks has no single k", "leave out ranks=")
        return super().at_budget(budget)

    def matrix(self, attention: Attention) -> torch.Tensor:
        ranks = self._ranks(attention)

        def low(whole: Decomposition, heads: slice) -> torch.Tensor:
            found = whole.truncate(ranks[heads])
            return clip_and_renormalise(found) if self.rows == "clipped" else found

        return _over_decomposed_heads(attention, low)

    def apply(self, attention: Attention) -> torch.Tensor:
        value = attention.values
        if self.rows == "clipped":
            return self.matrix(attention) @ value
        ranks = self._ranks(attention)

        def low(whole: Decomposition, heads: slice) -> torch.Tensor:
            return whole.output(ranks[heads], value[:, heads])

        return _over_decomposed_heads(attention, low)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of applying the factors; finding them costs a decomposition of P."""
        k = min(n, m, self.k if self.k is not None else n)
        return Cost(k * (m + n) * d_v, 4 * k * d_v)

    def _ranks(self, attention: Attention) -> torch.Tensor:
        found: tuple[int, ...]
        if self.k is not None:
            found = (self.k,) * attention.n_heads
        else:
            assert self.ranks is not None
            found = read_ranks(self.ranks).of(attention.layer)
        return torch.tensor(found, device=attention.query.device)


@dataclass(frozen=True)
class BestOutput(Approximation):
    """The best output of rank k: P·V truncated, what no method with k-dimensional outputs beats.

    Attributes
    ----------
    k : int
        Rank of the output.
    """

    k: int

    name: ClassVar[str] = "best-output"
    budget: ClassVar[str | None] = "k"

    def __post_init__(self) -> None:
        check_budget(self.name, "k", self.k)

    def matrix(self, attention: Attention) -> torch.Tensor:
        value = attention.values

        def low(weights: torch.Tensor, heads: slice) -> torch.Tensor:
            weights = weights.to(torch.float64)
            left = self._left(weights @ value[:, heads].to(torch.float64))
            return left @ (left.mT @ weights)

        return _over_heads(attention, low)

    def apply(self, attention: Attention) -> torch.Tensor:
        value = attention.values

        def low(weights: torch.Tensor, heads: slice) -> torch.Tensor:
            product = weights.to(torch.float64) @ value[:, heads].to(torch.float64)
            left = self._left(product)
            return left @ (left.mT @ product)

        return _over_heads(attention, low)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of multiplying the factors; finding them costs full attention."""
        k = min(self.k, n, d_v)
        return Cost(n * k * d_v, 4 * k * (n + d_v))

    def _left(self, product: torch.Tensor) -> torch.Tensor:
        # what is not finite never reaches the solver, nor spoils its neighbours
        good = torch.isfinite(product).all(dim=-1).all(dim=-1)[..., None, None]
        left: torch.Tensor = torch.linalg.svd(torch.where(good, product, 0.0), full_matrices=False)[
            0
        ]
        return torch.where(good, left, torch.nan)[..., : self.k]


def _head_slices(attention: Attention) -> list[slice]:
    """A few heads at a time, as many as a GPU wants and the memory allows."""
    n, m = attention.shape
    per_head = 8 * n * m * len(attention.query)
    step = 1 if attention.query.device.type == "cpu" else max(1, _BYTES // (4 * per_head))
    starts = range(0, attention.n_heads, step)
    return [slice(start, min(start + step, attention.n_heads)) for start in starts]


def _over_heads(
    attention: Attention, work: Callable[[torch.Tensor, slice], torch.Tensor]
) -> torch.Tensor:
    """`work` on P of a few heads at a time."""
    parts = [
        work(attention.heads(heads).weights, heads).to(attention.dtype)
        for heads in _head_slices(attention)
    ]
    return torch.cat(parts, dim=1)


def _over_decomposed_heads(
    attention: Attention, work: Callable[[Decomposition, slice], torch.Tensor]
) -> torch.Tensor:
    """`work` on the decomposition of a few heads at a time.

    Several ranks of one attention, or its matrix and its output, ask for the same decomposition: it
    is kept as long as the attention lives, if it is not too large.
    """
    n, m = attention.shape
    keep = 8 * attention.n_heads * len(attention.query) * m * (n + min(n, m)) <= KEPT_BYTES
    with _guard:
        lock = _locks.setdefault(attention, threading.Lock())
    parts = []
    for heads in _head_slices(attention):
        with lock:
            known = _known.setdefault(attention, {}) if keep else {}
            whole = known.get(heads.start)
            if whole is None:
                whole = known[heads.start] = decompose(attention.heads(heads).weights)
        parts.append(work(whole, heads).to(attention.dtype))
    return torch.cat(parts, dim=1)
