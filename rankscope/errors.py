"""How far an approximation is from full attention: one vocabulary for every family.

Two views of one method: its implied n × n matrix against P, and its output against P·V. Every
measure is per matrix, relative where a norm is meant, and NaN where it is not defined.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from rankscope import linalg

MATRIX_MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "frobenius": "relative Frobenius error of the matrix",
        "spectral": "relative spectral error of the matrix",
        "total_variation": "mean total variation distance of the rows",
        "kl": "mean KL divergence of the rows of P from the approximation's, in nats",
        "row_sum": "mean row sum of the approximation",
        "row_sum_drift": "largest distance of a row sum from that of P",
        "negative_mass": "mean sum of the negative entries of a row, as a positive number",
    }
)
"""What :func:`matrix_errors` measures."""

OUTPUT_MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "output": "relative Frobenius error of the output",
        "cosine": "mean cosine of the output rows with those of full attention",
    }
)
"""What :func:`output_errors` measures."""

ROW_SUM_TOLERANCE = 1e-4
"""Largest distance of a row sum from 1 that rounding explains in a distribution."""


def matrix_errors(
    exact: torch.Tensor, approximate: torch.Tensor, *, spectral: bool = True
) -> dict[str, torch.Tensor]:
    """Distance of an implied attention matrix from P.

    Parameters
    ----------
    exact : (*batch, n, m) tensor
        P; its rows are distributions.
    approximate : (*batch, n, m) tensor
        The implied matrix P̃.
    spectral : bool
        Whether to compute the spectral error, by far the dearest of them; NaN without.

    Returns
    -------
    dict of str to (*batch) float64
        The names of :data:`MATRIX_MEASURES`. ``frobenius`` and ``spectral`` are ‖P − P̃‖ / ‖P‖.
        ``total_variation``, ½Σ_j|p_ij − p̃_ij| in [0, 1], and ``kl``, Σ_j p_ij ln(p_ij/p̃_ij), are
        means over the rows and NaN unless all rows of P̃ are distributions; ``kl`` is infinite
        where P̃ gives no weight to what P does.

    Examples
    --------
    >>> one = matrix_errors(torch.eye(2), torch.full((2, 2), 0.5))
    >>> [round(float(one[name]), 3) for name in ("frobenius", "total_variation", "kl")]
    [0.707, 0.5, 0.693]
    """
    exact, approximate = exact.to(torch.float64), approximate.to(torch.float64)
    difference = exact - approximate
    sums = approximate.sum(dim=-1)
    lowest = approximate.flatten(-2).amin(dim=-1)
    drift = (sums - 1.0).abs().amax(dim=-1)
    proper = (lowest >= 0) & (drift <= ROW_SUM_TOLERANCE)
    nothing = torch.full_like(lowest, torch.nan)
    # a row of P̃ that lacks what P has costs infinitely many nats; what P lacks costs none
    there = exact > 0
    logs = torch.log(exact.clamp_min(torch.finfo(torch.float64).tiny)) - torch.log(
        approximate.clamp_min(0.0)
    )
    divergence = torch.where(there, exact * logs, 0.0).sum(dim=-1).mean(dim=-1)
    return {
        "frobenius": _ratio(_norm(difference), _norm(exact)),
        "spectral": _ratio(_spectral(difference), _spectral(exact)) if spectral else nothing,
        "total_variation": torch.where(
            proper, 0.5 * difference.abs().sum(dim=-1).mean(dim=-1), torch.nan
        ),
        "kl": torch.where(proper, divergence, torch.nan),
        "row_sum": sums.mean(dim=-1),
        "row_sum_drift": difference.sum(dim=-1).abs().amax(dim=-1),
        "negative_mass": -approximate.clamp_max(0.0).sum(dim=-1).mean(dim=-1),
    }


def output_errors(exact: torch.Tensor, approximate: torch.Tensor) -> dict[str, torch.Tensor]:
    """Distance of an approximate output from P·V.

    Parameters
    ----------
    exact, approximate : (*batch, n, d) tensor

    Returns
    -------
    dict of str to (*batch) float64
        The names of :data:`OUTPUT_MEASURES`: ‖Y − Ỹ‖_F / ‖Y‖_F, and the mean over the rows of
        their cosine. A row of Ỹ that is zero counts 0; one of Y that is zero is left out.

    Examples
    --------
    >>> y = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> {name: float(error) for name, error in output_errors(y, y / 2).items()}
    {'output': 0.5, 'cosine': 1.0}
    """
    exact, approximate = exact.to(torch.float64), approximate.to(torch.float64)
    ours, theirs = exact.norm(dim=-1), approximate.norm(dim=-1)
    product = (exact * approximate).sum(dim=-1)
    cosine = torch.where(theirs == 0, 0.0 * product, product / (ours * theirs))
    return {
        "output": _ratio(_norm(exact - approximate), _norm(exact)),
        "cosine": torch.where(ours > 0, cosine, torch.nan).nanmean(dim=-1),
    }


def _norm(matrices: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.matrix_norm(matrices)
    return norm


def _spectral(matrices: torch.Tensor) -> torch.Tensor:
    found = linalg.singular_values(matrices).singular_values[..., 0]
    return torch.as_tensor(np.array(found), device=matrices.device)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole; NaN where the whole is zero."""
    return part / torch.where(whole > 0, whole, torch.nan)
