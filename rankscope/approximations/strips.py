"""What a sparse pattern is made of, and attention over it: strips of dense blocks.

A :class:`Pattern` is a few disjoint :class:`Strip`, and a strip is blocks of queries that share
their keys, so that scores are products of small dense matrices. Memory and time grow with the
number of entries, never with n².
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch

from rankscope.approximations.base import Cost

_LARGEST = 2**20
"""Numbers in one intermediate result on a CPU: more of them at a time are no faster."""


@dataclass(frozen=True, eq=False)
class Strip:
    """Blocks of queries, each with the keys that its queries may score.

    Attributes
    ----------
    rows : (blocks, b) int64
        Queries of each block; -1 where there is none. No query stands in a strip twice.
    columns : (blocks, c) int64
        Keys of each block; -1 where there is none. No key stands in a block twice.
    reach : int or None
        Largest ``|i - j|`` of a query i and a key j; None where every pair of a block counts.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    reach: int | None = None

    def allowed(self, chosen: slice) -> torch.Tensor:
        """Whether a query of a block may score a key of it: (blocks, b, c) bool."""
        rows, columns = self.rows[chosen, :, None], self.columns[chosen, None, :]
        found = (rows >= 0) & (columns >= 0)
        if self.reach is not None:
            found &= (rows - columns).abs() <= self.reach
        return found

    def pieces(self, width: int, copies: int, largest: int = _LARGEST) -> Iterator[slice]:
        """Runs of blocks whose scores, keys and values each stay below `largest` numbers.

        Parameters
        ----------
        width : int
            The larger of the widths of keys and values.
        copies : int
            Matrices computed at a time.
        largest : int
        """
        total = len(self.rows)
        step = max(1, largest // max(1, copies * self.columns.shape[1] * self._side(width)))
        for start in range(0, total, step):
            yield slice(start, min(start + step, total))

    def cost(self, d: int, d_v: int) -> Cost:
        """What the strip costs for one head; hidden entries are computed like the others."""
        total, b = self.rows.shape
        c = self.columns.shape[1]
        piece = next(self.pieces(max(d, d_v), 1), slice(0, 0))
        return Cost(total * b * c * (d + d_v), 4 * piece.stop * c * self._side(max(d, d_v)))

    def _side(self, width: int) -> int:
        return max(self.rows.shape[1], width)


@dataclass(frozen=True, eq=False)
class Pattern:
    """The entries of one head's attention matrix that are computed; the others are zero.

    Attributes
    ----------
    n : int
        Tokens.
    strips : tuple of Strip
        No entry stands in two of them, and each query's own key in one.
    """

    n: int
    strips: tuple[Strip, ...]

    def sparse(self) -> scipy.sparse.csr_array:
        """The pattern as a matrix.

        Returns
        -------
        (n, n) csr_array of bool
            With sorted column indices; no entry is stored that is False.

        Examples
        --------
        >>> whole = Strip(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), reach=0)
        >>> Pattern(2, (whole,)).sparse().toarray().astype(int)
        array([[1, 0],
               [0, 1]])
        """
        found = [torch.cat(pairs) for pairs in zip(*self._pairs(), strict=True)]
        rows, columns = (one.numpy() for one in found)
        order = np.lexsort((columns, rows))
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=self.n))])
        ones = np.ones(len(order), dtype=bool)
        return scipy.sparse.csr_array((ones, columns[order], starts), shape=(self.n, self.n))

    def mask(self) -> torch.Tensor:
        """The pattern as an (n, n) bool tensor, True where an entry is computed."""
        found = torch.zeros(self.n, self.n, dtype=torch.bool)
        for rows, columns in self._pairs():
            found[rows, columns] = True
        return found

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """softmax(scale · Q Kᵀ + bias) V, the softmax over the pattern's entries alone.

        Strips are computed one after the other, and their results joined by the largest score and
        the sum of exponentials so far.

        Parameters
        ----------
        query, key : (batch, head, n, d) tensor, float32 or float64
        value : (batch, head, n, d_v) tensor
        scale : float
        bias : tensor broadcastable to (batch, head, n, n), or None
            Only the pattern's entries are read.

        Returns
        -------
        (batch, head, n, d_v) tensor
        """
        lowest = torch.finfo(query.dtype).min
        peak = query.new_full(query.shape[:-1], lowest)
        total = query.new_zeros(query.shape[:-1])
        output = value.new_zeros(*query.shape[:-1], value.shape[-1])
        if bias is not None:
            bias = bias.expand(*bias.shape[:-2], self.n, self.n)
        width, copies = max(key.shape[-1], value.shape[-1]), query.shape[0] * query.shape[1]
        largest = _LARGEST if query.device.type == "cpu" else 64 * _LARGEST
        for strip in self._filled():
            there = replace(
                strip, rows=strip.rows.to(query.device), columns=strip.columns.to(query.device)
            )
            for piece in there.pieces(width, copies, largest):
                rows, columns = there.rows[piece], there.columns[piece]
                scores = blocks_of(query, rows) @ blocks_of(key, columns).mT
                scores *= scale
                if bias is not None:
                    scores += bias[
                        ..., rows.clamp_min(0)[:, :, None], columns.clamp_min(0)[:, None]
                    ]
                scores.masked_fill_(~there.allowed(piece), -torch.inf)
                # a row without an entry in this strip keeps a finite peak and a sum of zero
                highest = scores.amax(dim=-1).clamp_min_(lowest)
                weights = scores.sub_(highest[..., None]).exp_()
                part = weights @ blocks_of(value, columns)
                real = rows >= 0
                to = rows[real]
                before, now = peak[:, :, to], highest[:, :, real]
                joint = torch.maximum(before, now)
                old, new = (before - joint).exp_(), (now - joint).exp_()
                peak[:, :, to] = joint
                total[:, :, to] = total[:, :, to] * old + weights.sum(dim=-1)[:, :, real] * new
                output[:, :, to] = (
                    output[:, :, to] * old[..., None] + part[:, :, real] * new[..., None]
                )
        return output / total[..., None]

    def cost(self, d: int, d_v: int) -> Cost:
        """What the pattern costs for one head, blocks filled up and all."""
        parts = [strip.cost(d, d_v) for strip in self._filled()]
        return Cost(sum(one.multiply_adds for one in parts), max(one.bytes for one in parts))

    def _filled(self) -> Iterator[Strip]:
        return (strip for strip in self.strips if strip.columns.shape[1])

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Rows and columns of the entries, a piece at a time."""
        for strip in self.strips:
            for piece in strip.pieces(1, 1):
                block, row, column = strip.allowed(piece).nonzero(as_tuple=True)
                yield strip.rows[piece][block, row], strip.columns[piece][block, column]


def blocks_of(vectors: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The vectors of each block: (batch, head, n, d) by (blocks, c) → (batch, head, blocks, c, d).

    Those of the index -1 are some vector or other.
    """
    found = vectors.index_select(2, index.clamp_min(0).flatten())
    return found.view(*vectors.shape[:2], *index.shape, vectors.shape[-1])
