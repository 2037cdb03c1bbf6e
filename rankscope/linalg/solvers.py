"""Singular values of one group of matrices on the CPU: Gram and QL, with LAPACK behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.linalg import kernels
from rankscope.status import Status

Driver = Literal["gram", "svd"]

RATIO_TOLERANCE = 1e-8
"""Largest estimated error of ``gram`` in a cumulative ratio; above it LAPACK redoes the matrix."""

_EPS = float(np.finfo(np.float64).eps)

# |λ computed − λ| stays below the first times ε·λ₁ for every λ of a Gram matrix; the smallest λ of
# attention matrices are far better, because the large column of a sink grades the matrix: the
# second is the error assumed there when no negative eigenvalue tells it. tests/test_linalg.py
# holds both against LAPACK.
_GRAM_ERROR = 32.0
_QUIET = 2.0**-12

# entries of a line that tell its norm well enough to sort by
_SAMPLED = 64

# columns of one block of the Gram product: small enough to skip most of the upper triangle,
# large enough for a fast matrix product
_BLOCK = 128


@dataclass(frozen=True)
class Buffers:
    """Scratch of one worker: fresh memory would cost more page faults than the product itself."""

    matrix: torch.Tensor
    gram: torch.Tensor
    work: NDArray[np.float64]

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Buffers:
        """Scratch for matrices of `shape`."""
        rank = min(shape)
        stride = kernels.stride_for(rank)
        return cls(
            torch.empty(shape, dtype=torch.float64),
            torch.empty((rank, stride), dtype=torch.float64),
            np.empty((6, stride)),
        )


class Group:
    """Up to ``LANES`` matrices that one worker decomposes together."""

    def __init__(
        self,
        values: NDArray[np.float64],
        status: NDArray[np.int8],
        members: Sequence[int],
        *,
        driver: Driver,
        centred: bool,
    ) -> None:
        self.values = values
        self.status = status
        self.members = members
        self.driver = driver
        self.centred = centred

    def run(self, load: Callable[[int], torch.Tensor], buffers: Buffers) -> None:
        """Decompose all members, writing values and status in their places."""
        rank = self.values.shape[1]
        # unused lanes hold zero matrices, which are converged from the start
        diagonal = np.zeros((rank, kernels.LANES))
        squared = np.zeros((rank, kernels.LANES))
        norms = np.zeros(kernels.LANES)
        input_eps = np.zeros(kernels.LANES)
        lanes: list[tuple[int, int]] = []
        for lane, member in enumerate(self.members):
            given = load(member)
            total = _graded(given, buffers.matrix)
            if not self._has_values(member, total):
                continue
            if self.driver == "svd":
                self._finish_by_lapack(member, given, buffers.matrix, Status.ok)
                continue
            input_eps[lane] = resolution_of(given.dtype)
            norms[lane] = self._reduce(total, buffers, diagonal[:, lane], squared[:, lane])
            lanes.append((lane, member))
        if not lanes:
            return
        converged = np.empty(kernels.LANES, dtype=np.bool_)
        kernels.ql_eigenvalues(diagonal, squared, converged)
        for lane, member in lanes:
            eigenvalues = np.sort(diagonal[:, lane])[::-1]
            if not converged[lane] or not np.isfinite(eigenvalues).all():
                redo = Status.fallback
            elif not is_resolved(eigenvalues, input_eps[lane]):
                redo = Status.refined
            else:
                self.values[member] = np.sqrt(np.clip(eigenvalues, 0.0, None)) * norms[lane]
                self.status[member] = Status.ok
                continue
            self._finish_by_lapack(member, load(member), buffers.matrix, redo)

    def _has_values(self, member: int, total: float) -> bool:
        """False, with the status set, for a matrix that no solver should see."""
        if not np.isfinite(total):
            self.status[member] = Status.non_finite
            return False
        if total == 0.0:
            self.values[member] = 0.0
            self.status[member] = Status.zero
            return False
        return True

    def _finish_by_lapack(
        self, member: int, given: torch.Tensor, matrix: torch.Tensor, success: Status
    ) -> None:
        matrix.copy_(given)
        if self.centred:
            matrix -= matrix.mean(dim=0)
        self.values[member], self.status[member] = lapack(matrix, success)

    def _reduce(
        self,
        total: float,
        buffers: Buffers,
        diagonal: NDArray[np.float64],
        squared: NDArray[np.float64],
    ) -> float:
        """Tridiagonal form of the Gram matrix, scaled to unit norm; returns the scale of σ."""
        matrix = buffers.matrix
        if self.centred:
            matrix -= matrix.mean(dim=0)
        # a power of two keeps squares in range and rounds nothing
        exponent = int(np.frexp(total)[1])
        if abs(exponent) > 100:
            matrix *= float(np.ldexp(1.0, -exponent))
        else:
            exponent = 0
        rank = diagonal.shape[0]
        _lower_gram(matrix, buffers.gram[:, :rank])
        d = np.empty(rank)
        e = np.empty(rank)
        flat = buffers.gram.numpy().reshape(-1)
        kernels.tridiagonalise(flat, buffers.gram.stride(0), d, e, buffers.work)
        norm = float(np.abs(d).max()) or 1.0
        diagonal[:] = d / norm
        squared[:] = e / (norm * norm)
        return float(np.ldexp(np.sqrt(norm), exponent))


def _graded(given: torch.Tensor, matrix: torch.Tensor) -> float:
    """Copy to float64 with the lines of the smaller side in roughly ascending norm.

    Singular values do not mind, rounding does: with the large column of an attention sink reduced
    first, the small eigenvalues keep far more correct digits. A sample of each line is enough to
    find the large ones.

    Parameters
    ----------
    given : (n, m) tensor
        As it came, of any real type and on any device.
    matrix : (n, m) float64
        Receives the copy.

    Returns
    -------
    float
        Σ|entry|; not finite if and only if an entry is not.
    """
    if given.dtype not in (torch.float32, torch.float64):
        given = given.to(torch.float64)
    n, m = given.shape
    source, target = given.detach().cpu(), matrix
    if n < m:
        source, target = source.mT, target.mT
    rows = source.contiguous().numpy()
    weights = np.empty(rows.shape[1])
    kernels.line_weights(rows, max(1, rows.shape[0] // _SAMPLED), weights)
    total = float(kernels.gather_columns(rows, weights.argsort(), target.numpy()))
    if not np.isfinite(total) and bool(torch.isfinite(matrix).all()):
        return float(torch.finfo(torch.float64).max)  # the sum of large entries overflowed
    return total


def _lower_gram(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """Lower triangle of the Gram matrix on the smaller side, block row by block row."""
    n, m = matrix.shape
    rows = matrix.T if n >= m else matrix
    for start in range(0, rows.shape[0], _BLOCK):
        stop = min(start + _BLOCK, rows.shape[0])
        torch.matmul(rows[start:stop], rows[:stop].T, out=out[start:stop, :stop])


def is_resolved(eigenvalues: NDArray[np.float64], input_eps: float) -> bool:
    """Whether the eigenvalues of a Gram matrix give its singular values closely enough.

    With λ known to ±δ, σ = √λ is known to about δ/(σ + √δ). For the sum that ratios divide by,
    δ is read off the most negative eigenvalue, which is rounding and nothing else (a Gram matrix
    has none below zero), and off a floor for matrices that show none. For each σ of its own, δ is
    the worst case, c·ε·λ₁, and has to be small against σ or against the rounding of the matrix as
    it was given: float32 attention passes, a float64 matrix with a long tail does not.

    Parameters
    ----------
    eigenvalues : (r,) float64
        In descending order, as computed: small ones may be negative.
    input_eps : float
        Machine epsilon of the matrix as it was given.
    """
    largest = eigenvalues[0]
    if not largest > 0:
        return False
    values = np.sqrt(np.clip(eigenvalues, 0.0, None))
    noise = max(-4 * eigenvalues[-1], _QUIET * _EPS * largest)
    if (noise / (values + np.sqrt(noise))).sum() > RATIO_TOLERANCE * values.sum():
        return False
    worst = _GRAM_ERROR * _EPS * largest
    allowed = np.maximum(1e-6 * values, 4 * input_eps * values[0])
    return bool((worst / (values + np.sqrt(worst)) <= allowed).all())


def lapack(matrix: torch.Tensor, success: Status) -> tuple[NDArray[np.float64], Status]:
    """Values-only SVD: divide and conquer, then QR iteration, which converges where that fails."""
    for solver, status in ((_gesdd, success), (_gesvd, Status.fallback)):
        try:
            values = solver(matrix)
        except (torch.linalg.LinAlgError, np.linalg.LinAlgError):  # type: ignore[attr-defined]
            continue
        if np.isfinite(values).all():
            return values, status
    return np.full(min(matrix.shape), np.nan), Status.failed


def _gesdd(matrix: torch.Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = torch.linalg.svdvals(matrix).numpy()
    return values


def _gesvd(matrix: torch.Tensor) -> NDArray[np.float64]:
    import scipy.linalg

    values: NDArray[np.float64] = scipy.linalg.svd(
        matrix.numpy(), compute_uv=False, lapack_driver="gesvd", check_finite=False
    )
    return values


def resolution_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else _EPS
