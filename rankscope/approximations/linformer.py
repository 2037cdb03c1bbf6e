"""Linformer: attention to k projected rows instead of n tokens, softmax(scale·Q(EK)ᵀ)(FV)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from rankscope.approximations.base import (
    Approximation,
    Cost,
    Shape,
    check_budget,
    has_mask,
    refuse_causal,
)
from rankscope.approximations.fitted import Projections, projections_for
from rankscope.approximations.projections import (
    CAUSAL,
    Pair,
    Sharing,
    check_causal,
    check_length,
    check_parameters,
    drawn,
    pool_max,
    pooling,
    stride,
)
from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError

_DRAWN = ("gaussian", "theorem2", "conv")
_FITTED = ("svd", "learned")


def linformer_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    e: torch.Tensor,
    f: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention with projected keys and values, softmax(scale · Q(EK)ᵀ + BEᵀ)(FV).

    Parameters
    ----------
    query : (batch, head, n, d) tensor
    key : (batch, head, m, d) tensor
        After the key layer with its bias.
    value : (batch, head, m, d_v) tensor
    e, f : (k, M), (1, k, M) or (head, k, M) tensor, M >= m
        Their first m columns are used.
    scale : float
    mask : (batch, m) tensor, optional
        1 for tokens, 0 for padding. Padded rows of key and value (and columns of the bias) are set
        to zero before they are mixed in: no mask can take them out of the k rows afterwards.
    bias : tensor broadcastable to (batch, head, n, m), optional
        Position terms of the scores. Projecting them costs n·m·k multiply-adds.

    Returns
    -------
    (batch, head, n, d_v) tensor
        Rows of padded queries mean nothing.

    Raises
    ------
    MethodError
        If the projections have fewer columns than there are keys.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, equation 7.

    Examples
    --------
    >>> v = torch.tensor([1.0, 3.0, 100.0, 100.0]).reshape(1, 1, 4, 1)
    >>> mean = torch.full((1, 4), 0.25)
    >>> linformer_attention(v, v, v, mean, mean, 1.0, torch.tensor([[1, 1, 0, 0]])).unique()
    tensor([1.])
    """
    if mask is not None:
        padded = ~mask.bool()[:, None, :, None]
        # not a product with the mask: padding may hold infinities
        key, value = key.masked_fill(padded, 0.0), value.masked_fill(padded, 0.0)
        if bias is not None:
            bias = bias.masked_fill(padded.mT, 0.0)
    weights = projected_weights(query, key, e, scale, bias)
    output: torch.Tensor = weights @ (_first_columns(f, value.shape[2]) @ value)
    return output


def projected_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    e: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """P̄ = softmax(scale · Q(EK)ᵀ + BEᵀ), what each query gives to each projected row.

    Parameters
    ----------
    query, key, e, scale, bias
        As in :func:`linformer_attention`.

    Returns
    -------
    (batch, head, n, k) tensor
        Rows are distributions.
    """
    e = _first_columns(e, key.shape[2])
    scores = (query @ (e @ key).mT) * scale
    if bias is not None:
        scores = scores + bias.expand(*bias.shape[:-2], query.shape[2], key.shape[2]) @ e.mT
    return scores.softmax(dim=-1)


@dataclass(frozen=True)
class Linformer(Approximation):
    """Attention to k projected keys and values, with an implied matrix P̄F.

    Attributes
    ----------
    k : int or tuple of int
        Rows that n tokens are projected to; a tuple has one for every layer, from layer 0.
    projection : str
        ``gaussian``: E and F with independent N(0, 1/k) entries, those of theorem 1's R.
        ``theorem2``: E = δR, F = e^{−δ}R. ``mean``, ``max``: pooling over k segments of equal or
        nearly equal length; ``max`` is not linear and has no matrix. ``conv``: kernel = stride
        = ⌈n/k⌉, one scalar kernel for all channels, drawn from U(−1/√s, 1/√s) as an untrained one;
        it leaves ⌈n/s⌉ ≤ k rows. ``identity``: k = n, full attention. ``svd``: E = F, the leading
        right singular vectors of P over calibration windows. ``learned``: fitted to the output.
    sharing : {"none", "headwise", "key-value", "layerwise"}
        What has a projection of its own: every head and side; every side (E and F) of a layer;
        every layer, with E = F; nothing, one for all. Without meaning for pooling and identity;
        ``theorem2`` ties E and F anyway. With a file it must be the file's.
    seed : int
        Of drawn projections. All windows see the same draw; one for a shorter window is made of
        the first columns. Layers, sides and heads that do not share have independent ones.
    delta : float
        δ of ``theorem2``, greater than 0.
    file : Path, optional
        Fitted projections, for ``svd`` and ``learned``.
    bias : {"refuse", "project"}
        What happens to position terms in the scores (MPNet): ``project`` adds BEᵀ, which costs
        n·m·k multiply-adds, as many as a cheap method must not.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, equation 7, theorem 2, section 4.

    Examples
    --------
    >>> Linformer(k=128).cost(512, 512, 64, 64).multiply_adds
    8454144
    """

    k: int | tuple[int, ...]
    projection: Literal[
        "gaussian", "theorem2", "mean", "max", "conv", "identity", "svd", "learned"
    ] = "mean"
    sharing: Sharing = "headwise"
    seed: int = 0
    delta: float = 0.01
    file: Path | None = None
    bias: Literal["refuse", "project"] = "refuse"

    name: ClassVar[str] = "linformer"
    budget: ClassVar[str | None] = "k"

    def __post_init__(self) -> None:
        ranks = self.k if isinstance(self.k, tuple) else (self.k,)
        for rank in ranks or (0,):
            check_budget(self.name, "k", rank)
        check_parameters(self.name, self.projection, self.seed, self.file)
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise UsageError(f"delta {self.delta} is no small positive number", "such as 0.01")
        if self.projection == "max" and self.bias == "project":
            raise UsageError("max pooling has no projection for position terms", "use mean pooling")
        if len(set(ranks)) > 1 and self.sharing == "layerwise":
            raise UsageError("one projection for all layers has one k", "use another sharing")

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Whether there is a matrix: not for max pooling."""
        return self.projection != "max"

    def check(self, shape: Shape) -> None:
        check_causal(self.name, shape)
        stored = projections_for(self.file, self.projection, self.sharing)
        if stored is not None:
            stored.check(shape)
        for layer in shape.layers:
            self._check_rank(layer, shape.length, stored)

    def settings(self) -> dict[str, Any]:
        """Name and the parameters that have a meaning for the projection."""
        found = super().settings()
        if self.projection not in _DRAWN:
            del found["seed"]
            if self.projection not in _FITTED:
                del found["sharing"]
        if self.projection != "theorem2":
            del found["delta"]
        return found

    def projections(self, attention: Attention) -> Pair:
        """E and F for the windows at hand.

        Parameters
        ----------
        attention : Attention

        Returns
        -------
        two (h, k, m) tensors
            h is 1 or the number of heads.

        Raises
        ------
        MethodError
            For max pooling, which has none, and where :meth:`apply` refuses.
        """
        return self._pair(attention.reduced())

    def matrix(self, attention: Attention) -> torch.Tensor:
        whole = self.usable(attention)
        e, f = self._pair(whole)
        return projected_weights(whole.query, whole.key, e, whole.scale, whole.bias) @ f

    def apply(self, attention: Attention) -> torch.Tensor:
        whole = self.usable(attention)
        query, key, value = whole.query, whole.key, whole.values
        if self.projection == "max":
            k = self._check_rank(whole.layer, key.shape[2], None)
            scores = (query @ pool_max(key, k).mT) * whole.scale
            return scores.softmax(dim=-1) @ pool_max(value, k)
        e, f = self._pair(whole)
        return linformer_attention(query, key, value, e, f, whole.scale, bias=whole.bias)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of one head: EK and FV, the scores, the output.

        Pooling and convolution touch every key and value once. With one k a layer, the
        multiply-adds are the mean over the layers and the bytes the largest.
        """
        ranks = self.k if isinstance(self.k, tuple) else (self.k,)
        rows = [min(rank, m) for rank in ranks]
        if self.projection == "conv":
            rows = [math.ceil(m / stride(m, row)) for row in rows]
        # multiply-adds a projected channel
        once = {"max": 0, "identity": 0, "mean": m, "conv": m}
        products = [
            (once.get(self.projection, row * m) + n * row) * (d + d_v)
            + (n * m * row if self.bias == "project" else 0)
            for row in rows
        ]
        return Cost(round(sum(products) / len(products)), 4 * max(rows) * max(n, d, d_v))

    def usable(self, attention: Attention) -> Attention:
        """The attention without special tokens, or a refusal of what cannot be projected.

        Raises
        ------
        MethodError
            For causal or local attention, and position terms unless they are projected.
        """
        refuse_causal(self.name, attention, CAUSAL)
        whole = attention.reduced()
        if has_mask(whole):
            raise MethodError(
                f"linformer cannot keep the mask of layer {whole.layer}: "
                "no mask over tokens fits the projected rows",
                "leave layers with local attention out",
            )
        if whole.bias is not None and self.bias == "refuse":
            raise MethodError(
                f"layer {whole.layer} adds position terms to its scores, and projecting them "
                "costs n·m·k",
                "use bias=project",
            )
        return whole

    def _pair(self, whole: Attention) -> Pair:
        m = whole.key.shape[2]
        stored = projections_for(self.file, self.projection, self.sharing)
        if stored is not None and stored.sharing == "none":
            stored.check_heads(whole.n_heads)
        k = self._check_rank(whole.layer, m, stored)
        if self.projection == "max":
            raise MethodError(
                "max pooling is not linear and has no matrix", "use projection=mean for a matrix"
            )
        like = whole.query
        if stored is not None:
            pair = stored.of(whole.layer, m)
        elif self.projection == "mean":
            pair = (pooling(m, k)[None],) * 2
        elif self.projection == "identity":
            pair = (torch.eye(m, dtype=like.dtype)[None],) * 2
        else:
            e, f = drawn(
                "conv" if self.projection == "conv" else "gaussian",
                self.sharing,
                self.seed,
                (k, m),
                (whole.group, whole.layer, whole.n_heads),
                (like.dtype, like.device),
            )
            if self.projection == "theorem2":
                return self.delta * e, math.exp(-self.delta) * e
            return e, f
        return pair[0].to(like), pair[1].to(like)

    def _check_rank(self, layer: int, m: int, stored: Projections | None) -> int:
        """The k of a layer, if m tokens can be projected to it."""
        if isinstance(self.k, tuple):
            if layer >= len(self.k):
                raise MethodError(
                    f"k = {'/'.join(map(str, self.k))} has a rank for {len(self.k)} layers "
                    f"and none for layer {layer}",
                    "give one k for every layer",
                )
            k = self.k[layer]
        else:
            k = self.k
        if stored is not None:
            stored.check_rank(layer, k)
        check_length(self.name, k, m)
        if self.projection == "identity" and k != m:
            raise MethodError(
                f"the identity projects n = {m} tokens to as many rows, not to k = {k}",
                f"use k={m} and windows of equal length",
            )
        return k


def _first_columns(projection: torch.Tensor, m: int) -> torch.Tensor:
    if projection.shape[-1] < m:
        raise MethodError(
            f"a projection with {projection.shape[-1]} columns cannot take n = {m} tokens",
            "make one for that length, or use shorter windows",
        )
    return projection[..., :m]
