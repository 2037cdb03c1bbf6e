"""`Attention`: what one layer did with one batch of windows; P and P·V on demand.

An `Attention` never holds padding. It holds query, key and value, which are small, and computes
the n × n matrices when asked: for all heads (`weights`), or for one (`matrix`), so that a run need
never keep more than the matrices at work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.exceptions import CaptureError, MethodError, UsageError

Group = Literal["encoder", "decoder", "cross"]
Special = Literal["keep", "drop", "renormalise"]

ROW_SUM_TOLERANCE = 1e-5
"""Largest distance of a row sum of P from 1 that float32 rounding explains."""


def check_special(special: str) -> None:
    """Refuse a treatment of special tokens that does not exist.

    Raises
    ------
    UsageError
        If `special` is not one of ``keep``, ``drop``, ``renormalise``.
    """
    if special not in get_args(Special):
        raise UsageError(
            f"unknown treatment of special tokens {special!r}",
            f"one of {', '.join(get_args(Special))}",
        )


@dataclass(frozen=True, eq=False)
class Attention:
    """One layer's attention for a batch of windows of equal length, without padding.

    P = softmax(scale · Q Kᵀ + bias), computed in float32 at least.

    Attributes
    ----------
    query : (batch, head, n, d)
    key : (batch, head, m, d)
        Key heads that several query heads share are repeated; m = n but for cross-attention.
    value : (batch, head, m, d_v), or None
        None where it was captured without values, for spectra alone.
    scale : float
        Factor of the scores, usually d^(-1/2).
    bias : tensor broadcastable to (batch, head, n, m), or None
        Additive: causal or local mask, relative position.
    layer : int
        Counted from 0, from the module's place in the model.
    group : {"encoder", "decoder", "cross"}
    causal : bool
        Whether a token may only attend to itself and to earlier ones.
    local : int or None
        For a layer whose tokens attend to near neighbours only: how far to each side.
    samples : tuple of int
        Which of the captured windows the rows of the batch are.
    tokens : (batch, n) int64
        Token ids of the queries.
    keep_rows, keep_columns : (n,) and (m,) bool, or None
        Tokens that stay when special tokens are dropped; None where all stay.
    special : {"keep", "drop", "renormalise"}
        ``drop`` takes rows and columns of special tokens out of P, whose rows then sum to less than
        1; ``renormalise`` takes them out before the softmax, so that rows sum to 1 again.

    References
    ----------
    Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None
    scale: float
    bias: torch.Tensor | None
    layer: int
    tokens: torch.Tensor
    group: Group = "encoder"
    causal: bool = False
    local: int | None = None
    samples: tuple[int, ...] = (0,)
    keep_rows: torch.Tensor | None = None
    keep_columns: torch.Tensor | None = None
    special: Special = "keep"

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return int(self.query.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of P, after special tokens are dropped."""
        rows, columns = self.query.shape[2], self.key.shape[2]
        if self.keep_rows is not None:
            rows = int(self.keep_rows.sum())
        if self.keep_columns is not None:
            columns = int(self.keep_columns.sum())
        return rows, columns

    @property
    def weights(self) -> torch.Tensor:
        """The attention matrices P of all heads.

        Returns
        -------
        (batch, head, n, m) tensor, float32 or float64
        """
        return self._weights(slice(None), slice(None))

    def matrix(self, row: int, head: int) -> torch.Tensor:
        """The attention matrix P of one head, without touching the others.

        Parameters
        ----------
        row : int
            Place in the batch.
        head : int

        Returns
        -------
        (n, m) tensor, float32 or float64
        """
        return self._weights(slice(row, row + 1), slice(head, head + 1))[0, 0]

    @property
    def output(self) -> torch.Tensor:
        """P·V of all heads, special tokens dropped as in P.

        Returns
        -------
        (batch, head, n, d_v) tensor, float32 or float64

        Raises
        ------
        UsageError
            If the values were not captured.
        """
        value = self.values
        return self.weights @ value

    @property
    def values(self) -> torch.Tensor:
        """The value vectors that P is multiplied with, in the type that P is computed in.

        Returns
        -------
        (batch, head, m, d_v) tensor, float32 or float64

        Raises
        ------
        UsageError
            If the values were not captured.
        """
        if self.value is None:
            raise UsageError("there is no P·V without values", "capture with values=True")
        value = self.value if self.keep_columns is None else self.value[:, :, self.keep_columns]
        return value.to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Type that P is computed in: float32 at least."""
        # half precision would round away the tail of every row
        return torch.promote_types(self.query.dtype, torch.float32)

    def heads(self, chosen: slice) -> Attention:
        """The same attention with some of its heads only.

        Parameters
        ----------
        chosen : slice

        Returns
        -------
        Attention
        """
        bias = self.bias
        if bias is not None and bias.ndim >= 3 and bias.shape[-3] > 1:
            bias = bias[..., chosen, :, :]
        return replace(
            self,
            query=self.query[:, chosen],
            key=self.key[:, chosen],
            value=None if self.value is None else self.value[:, chosen],
            bias=bias,
        )

    def reduced(self) -> Attention:
        """The same attention with special tokens taken out of query, key, value and bias.

        Returns
        -------
        Attention
            Without `keep_rows` and `keep_columns`, in the type that P is computed in.

        Raises
        ------
        MethodError
            For ``special="drop"``, whose P is no softmax of what is left.
        """
        if self.special == "drop" and self.keep_columns is not None:
            raise MethodError(
                "with special tokens dropped after the softmax, P is no softmax of the tokens "
                "that stay, and only methods that take P itself can approximate it",
                "use special=keep or special=renormalise",
            )
        query, key, value, bias = self.query, self.key, self.value, self.bias
        tokens = self.tokens
        if self.keep_rows is not None:
            query, tokens = query[:, :, self.keep_rows], tokens[:, self.keep_rows]
            bias = None if bias is None else _select(bias, self.keep_rows, -2)
        if self.keep_columns is not None:
            key = key[:, :, self.keep_columns]
            value = None if value is None else value[:, :, self.keep_columns]
            bias = None if bias is None else _select(bias, self.keep_columns, -1)
        return replace(
            self,
            query=query.to(self.dtype),
            key=key.to(self.dtype),
            value=None if value is None else value.to(self.dtype),
            bias=None if bias is None else bias.to(self.dtype),
            tokens=tokens,
            keep_rows=None,
            keep_columns=None,
            special="keep",
        )

    def _weights(self, rows: slice, heads: slice) -> torch.Tensor:
        dtype = self.dtype
        query, key = self.query[rows, heads].to(dtype), self.key[rows, heads].to(dtype)
        bias = self._bias(rows, heads)
        if self.keep_rows is not None:
            query = query[:, :, self.keep_rows]
            bias = None if bias is None else _select(bias, self.keep_rows, -2)
        if self.keep_columns is not None and self.special == "renormalise":
            key = key[:, :, self.keep_columns]
            bias = None if bias is None else _select(bias, self.keep_columns, -1)
        scores = query @ key.mT
        scores *= self.scale
        if bias is not None:
            scores += bias.to(dtype)
        # the softmax in place: at any time a worker holds one matrix, not two
        scores -= scores.amax(dim=-1, keepdim=True)
        weights = scores.exp_()
        weights /= weights.sum(dim=-1, keepdim=True)
        if self.keep_columns is not None and self.special == "drop":
            weights = weights[..., self.keep_columns]
        return weights

    def _bias(self, rows: slice, heads: slice) -> torch.Tensor | None:
        bias = self.bias
        if bias is None:
            return None
        bias = bias.expand(*([1] * (4 - bias.ndim)), *bias.shape)
        if bias.shape[0] > 1:
            bias = bias[rows]
        if bias.shape[1] > 1:
            bias = bias[:, heads]
        return bias


def check_matrix(matrix: torch.Tensor, attention: Attention, head: int) -> None:
    """Refuse a P whose rows are no distributions, or that looks ahead in a causal model.

    Matrices that are not finite pass: they are reported one by one with their spectra.

    Parameters
    ----------
    matrix : (n, m) tensor
        P of one head, as :meth:`Attention.matrix` gives it.
    attention : Attention
        Where it comes from.
    head : int
        For the message.

    Raises
    ------
    CaptureError
        If a row sum differs from 1 by more than 1e-5 (above 1 when special tokens were dropped),
        or an entry above the diagonal of a causal matrix is not 0.
    """
    sums = matrix.sum(dim=-1)
    low, high = (float(sums.min()), float(sums.max())) if sums.numel() else (1.0, 1.0)
    ahead = attention.causal and bool((torch.triu(matrix, diagonal=1) > 0).any())
    _refuse(attention, head, low, high, ahead)


def row_measures(weights: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """What is asked of the rows of many P at once, on their device.

    Parameters
    ----------
    weights : (count, n, m) tensor
        Attention matrices.
    causal : bool
        Whether it matters what lies above the diagonal.

    Returns
    -------
    (count, 4) tensor
        :func:`row_entropy`; the smallest and the largest row sum; the largest entry above the
        diagonal, 0 where it does not matter.
    """
    sums = weights.sum(dim=-1)
    ahead = torch.zeros_like(sums[:, 0])
    if causal:
        ahead = torch.triu(weights, diagonal=1).amax(dim=(-2, -1))
    logarithm = weights.clamp_min(torch.finfo(weights.dtype).tiny).log_()
    entropy = -logarithm.mul_(weights).sum(dim=(-2, -1)) / weights.shape[-2]
    return torch.stack([entropy, sums.amin(dim=-1), sums.amax(dim=-1), ahead], dim=1)


def check_measures(measures: NDArray[np.float64], attention: Attention) -> None:
    """:func:`check_matrix` for every head, from what :func:`row_measures` found.

    Parameters
    ----------
    measures : (batch · head, 4) array
    attention : Attention

    Raises
    ------
    CaptureError
    """
    for number, (_, low, high, ahead) in enumerate(measures.tolist()):
        _refuse(attention, number % attention.n_heads, low, high, ahead > 0)


def _refuse(attention: Attention, head: int, low: float, high: float, ahead: bool) -> None:
    where = f"{attention.group} layer {attention.layer}, head {head}"
    worst = high if high - 1.0 > 1.0 - low or attention.special == "drop" else low
    excess = worst - 1.0 if attention.special == "drop" else abs(worst - 1.0)
    if excess > ROW_SUM_TOLERANCE:
        raise CaptureError(
            f"a row of the attention of {where} sums to {worst:.6g} instead of 1",
            "dropout or a wrong mask reached the attention; report the model's family",
        )
    if attention.causal and ahead:
        raise CaptureError(
            f"the causal attention of {where} looks ahead", "the captured mask is not the model's"
        )


def row_entropy(matrix: torch.Tensor) -> float:
    """Mean over the rows of the entropy −Σ_j p_ij ln p_ij.

    Parameters
    ----------
    matrix : (n, m) tensor
        Rows are distributions; entries of 0 count 0.

    Returns
    -------
    float
        In nats, 0 … ln m; NaN for an empty or non-finite matrix.

    Examples
    --------
    >>> import torch, math
    >>> math.isclose(row_entropy(torch.full((4, 4), 0.25)), math.log(4), rel_tol=1e-6)
    True
    """
    if matrix.numel() == 0:
        return float("nan")
    # an entry of 0 gives 0 times a finite logarithm; torch.xlogy does the same three times slower
    logarithm = matrix.clamp_min(torch.finfo(matrix.dtype).tiny).log_()
    return -float(logarithm.mul_(matrix).sum()) / matrix.shape[0]


def _select(bias: torch.Tensor, keep: torch.Tensor, dim: int) -> torch.Tensor:
    # an axis of length 1 is broadcast and has nothing to drop
    return bias if bias.shape[dim] == 1 else bias.index_select(dim, keep.nonzero().squeeze(-1))
