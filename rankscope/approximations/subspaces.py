"""The best fixed subspace for the rows of P, and how much of unseen windows lies in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from rankscope import linalg, rank
from rankscope.approximations.projections import Sharing, check_length
from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError


@dataclass(frozen=True, eq=False)
class Subspace:
    """The best fixed subspace for the rows of P over calibration windows.

    Attributes
    ----------
    basis : (h, k, n) float64
        Orthonormal rows; h is the number of heads without sharing, and 1 with it.
    kept : (heads,) float64
        Share of each head's energy ‖P‖² over those windows that lies in it, 0 … 1.
    """

    basis: torch.Tensor
    kept: torch.Tensor


def svd_projections(
    windows: Iterable[Attention], k: int, sharing: Sharing = "headwise"
) -> Subspace:
    """The k leading right singular vectors of all P of the windows, stacked on each other.

    They are the eigenvectors of Σ PᵀP, summed over windows, and over heads or layers that share.

    Parameters
    ----------
    windows : iterable of Attention
        Of one layer (of all, to share layerwise), all of one length n; taken one at a time.
    k : int
        1 … n.
    sharing : {"none", "headwise", "key-value", "layerwise"}
        ``none`` gives every head a subspace; the others differ only in what `windows` holds.

    Returns
    -------
    Subspace

    Raises
    ------
    MethodError
        For windows of different lengths or layers, k > n, or attention that is not finite.

    Examples
    --------
    >>> q = torch.zeros(1, 1, 4, 2)
    >>> uniform = Attention(q, q, q, 1.0, None, 0, torch.zeros(1, 4, dtype=torch.int64))
    >>> svd_projections([uniform], 1).basis.abs()
    tensor([[[0.5000, 0.5000, 0.5000, 0.5000]]], dtype=torch.float64)
    """
    total: torch.Tensor | None = None
    for attention in alike(windows, sharing):
        m = attention.shape[1]
        check_length("svd", k, m)
        if total is None:
            shape = (attention.n_heads, m, m)
            total = torch.zeros(shape, dtype=torch.float64, device=attention.query.device)
        for head, matrices in _matrices(attention):
            stacked = matrices.reshape(-1, m)
            total[head] += stacked.mT @ stacked
    if total is None:
        raise UsageError("there is no window to fit to", "give one at least")
    if not bool(torch.isfinite(total).all()):
        raise MethodError("the attention of a window is not finite", "leave that window out")
    sums = total if sharing == "none" else total.sum(dim=0, keepdim=True)
    _, vectors = torch.linalg.eigh(sums)
    basis = vectors[..., -k:].flip(-1).mT.contiguous()
    # tr(E G Eᵀ) of what each head has in the subspace
    kept = ((basis @ total) * basis).sum(dim=(-2, -1))
    return Subspace(basis, kept / total.diagonal(dim1=-2, dim2=-1).sum(dim=-1))


def kept_energy(
    windows: Iterable[Attention], basis: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How much of P's energy a fixed subspace keeps, against the best subspace of its own.

    Parameters
    ----------
    windows : iterable of Attention
        Of one layer, not those that the subspace comes from.
    basis : (h, k, n) tensor
        Orthonormal rows.

    Returns
    -------
    fixed : (window, head) float64
        ‖P·EᵀE‖² / ‖P‖², in [0, 1].
    own : (window, head) float64
        Σ_{i≤k} σ_i² / Σ_i σ_i², which no fixed subspace exceeds. NaN where P has no spectrum.
    """
    fixed, own = [], []
    for attention in windows:
        k = basis.shape[-2]
        rows = basis.to(torch.float64)
        ours, best = [], []
        for head, matrices in _matrices(attention):
            mine = rows[head if len(rows) > 1 else 0]
            part = (matrices @ mine.mT).square().sum(dim=(-2, -1))
            ours.append(part / matrices.square().sum(dim=(-2, -1)))
            values = linalg.singular_values(matrices).singular_values
            best.append(torch.as_tensor(rank.energy_ratio(values)[..., k - 1]))
        fixed.append(torch.stack(ours, dim=-1).cpu())
        own.append(torch.stack(best, dim=-1))
    return torch.cat(fixed), torch.cat(own)


def alike(windows: Iterable[Attention], sharing: Sharing) -> Iterator[Attention]:
    """The windows one by one, as long as they can have one projection.

    Parameters
    ----------
    windows : iterable of Attention
    sharing : str
        Layers may differ for ``layerwise`` alone.

    Raises
    ------
    MethodError
        At the first window of another length, number of heads or layer.
    """
    first: tuple[int, ...] | None = None
    for attention in windows:
        layer = -1 if sharing == "layerwise" else attention.layer
        here = (attention.shape[1], attention.n_heads, layer)
        first = first or here
        if here != first:
            raise MethodError(
                f"windows of {first[0]} tokens, {first[1]} heads, layer {first[2]} and of "
                f"{here[0]} tokens, {here[1]} heads, layer {here[2]} share no projection",
                "fit to windows of one length and layer, or with sharing=layerwise to all layers",
            )
        yield attention


def _matrices(attention: Attention) -> Iterator[tuple[int, torch.Tensor]]:
    """P of one head after the other, (batch, n, m) in float64."""
    for head in range(attention.n_heads):
        weights = attention.heads(slice(head, head + 1)).weights
        yield head, weights[:, 0].to(torch.float64)
