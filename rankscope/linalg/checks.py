"""What a batched solver has to stand up to: sums, resolution, and a second solver now and then.

All on the device and without waiting for it, but for :meth:`SpotChecks.judge`, which reads what has
come back to the host.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.exceptions import SolverFault
from rankscope.linalg.solvers import GRAM_ERROR, QUIET, RATIO_TOLERANCE

SPOT_SHARE = 1 / 256
"""Share of the matrices that are also solved by a values-only SVD, at least one a run."""

SPOT_BOUND = 10 * RATIO_TOLERANCE
"""Largest difference of a cumulative ratio in a spot check that rounding explains."""

_EPS = float(np.finfo(np.float64).eps)


class SpotChecks:
    """Which matrices of a run are solved twice, and what came of it.

    Parameters
    ----------
    seed : int
        Of the draws.
    share : float
        Of all matrices, in [0, 1].
    bound : float
        Largest difference of a cumulative ratio that passes.

    Attributes
    ----------
    made : int
        Checks so far that compared two spectra.
    largest : float
        Largest difference seen.
    """

    def __init__(self, seed: int = 0, share: float = SPOT_SHARE, bound: float = SPOT_BOUND) -> None:
        self._rng = np.random.default_rng(seed)
        self._share = share
        self._bound = bound
        self.made = 0
        self.largest = 0.0

    def choose(self, count: int) -> frozenset[int]:
        """Members of a layer of `count` matrices to check; one at least until one was checked.

        Parameters
        ----------
        count : int

        Returns
        -------
        frozenset of int
        """
        chosen = np.flatnonzero(self._rng.random(count) < self._share).tolist()
        if not chosen and self.made == 0:
            chosen = [int(self._rng.integers(count))]
        return frozenset(chosen)

    def judge(self, differences: NDArray[np.float64]) -> None:
        """Take note of the differences of a layer; NaN stands for no check.

        Parameters
        ----------
        differences : (count) float64

        Raises
        ------
        SolverFault
            If one is beyond the bound.
        """
        found = differences[~np.isnan(differences)]
        if found.size == 0:
            return
        self.made += int(found.size)
        self.largest = max(self.largest, float(found.max()))
        if self.largest > self._bound:
            raise SolverFault(
                f"the device's eigenvalues and its singular values differ by {self.largest:.1e} in "
                f"a cumulative ratio, {self._bound:.0e} are allowed",
                "use --driver svd, or --device cpu, and update the CUDA libraries",
            )


def keeps_sums(eigenvalues: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """Whether eigenvalues can be those of their matrix: Σλ = tr G and Σλ² = ‖G‖_F².

    Both hold to rounding for any backward stable solver. A matrix that was left unfinished, or the
    values of another one, break them.

    Parameters
    ----------
    eigenvalues : (batch, r) float64 tensor
    gram : (batch, r, r) float64 tensor

    Returns
    -------
    (batch) bool tensor
        False for values that are not finite, too.
    """
    norm = torch.linalg.vector_norm(gram, dim=(1, 2))
    allowed = GRAM_ERROR * _EPS * eigenvalues.shape[-1] * norm
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=-1)
    by_trace = (eigenvalues.sum(dim=-1) - trace).abs() <= allowed
    by_norm = (torch.linalg.vector_norm(eigenvalues, dim=-1) - norm).abs() <= allowed
    return torch.logical_and(by_trace, by_norm)


def resolved_by(eigenvalues: torch.Tensor, input_eps: float) -> torch.Tensor:
    """:func:`rankscope.linalg.solvers.is_resolved` for a batch, without leaving the device.

    Parameters
    ----------
    eigenvalues : (batch, r) float64 tensor
        In descending order, as computed.
    input_eps : float
        Machine epsilon of the matrices as they were given.

    Returns
    -------
    (batch) bool tensor
    """
    largest = eigenvalues[:, :1]
    values = eigenvalues.clamp_min(0.0).sqrt()
    noise = torch.maximum(-4 * eigenvalues[:, -1:], QUIET * _EPS * largest)
    error = (noise / (values + noise.sqrt())).sum(dim=-1)
    summed = error <= RATIO_TOLERANCE * values.sum(dim=-1)
    worst = GRAM_ERROR * _EPS * largest
    allowed = torch.maximum(1e-6 * values, 4 * input_eps * values[:, :1])
    single = (worst / (values + worst.sqrt()) <= allowed).all(dim=-1)
    return (largest[:, 0] > 0) & summed & single


def spot_difference(matrix: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Largest difference of the cumulative ratio against a values-only SVD.

    Parameters
    ----------
    matrix : (batch, n, m) float64 tensor
    sigma : (batch, min(n, m)) float64 tensor
        Its singular values, to any scale, as the Gram matrix gave them.

    Returns
    -------
    (batch) float64 tensor
        ∞ where the SVD fails.
    """
    try:
        direct = torch.linalg.svdvals(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return torch.full_like(sigma[:, 0], torch.inf)
    ratios = [one.cumsum(dim=-1) / one.sum(dim=-1, keepdim=True) for one in (direct, sigma)]
    found = (ratios[0] - ratios[1]).abs().amax(dim=-1)
    return found.masked_fill(~torch.isfinite(found), torch.inf)
