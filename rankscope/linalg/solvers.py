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

# |λ computed − λ| is assumed below the first times ε·λ₁ for every λ of a Gram matrix (23 was the
# largest seen over the heads of a pretrained encoder at n = 512). The smallest λ of attention
# matrices are far better, because the large column of a sink grades the matrix: the second is the
# error assumed there when no negative eigenvalue tells it. tests/test_linalg.py holds the outcome,
# values and ratios, against LAPACK.
GRAM_ERROR = 32.0
QUIET = 2.0**-12

# Σ|entry| from which on, and below whose inverse, squares are safe
_SMALLEST = 2.0**-100

# entries of a line that tell its norm well enough to sort by
_SAMPLED = 64

# lines of one block of the Gram product: small enough to skip most of the upper triangle and for a
# strip to stay in the cache, large enough for a fast matrix product
_BLOCK = 128
_STRIP = 128


@dataclass(frozen=True)
class Buffers:
    """Scratch of one worker: fresh memory would cost more page faults than the product itself."""

    strip: torch.Tensor
    gram: torch.Tensor
    work: NDArray[np.float64]

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Buffers:
        """Scratch for matrices of `shape`."""
        rank = min(shape)
        stride = kernels.stride_for(rank)
        return cls(
            torch.empty((_STRIP, rank), dtype=torch.float64),
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
            input_eps[lane] = resolution_of(given.dtype)
            total = self._gram(given, buffers) if self.driver == "gram" else _total(given)
            if not self._has_values(member, total):
                continue
            if self.driver == "gram" and _SMALLEST < total < 1 / _SMALLEST:
                del given
                norms[lane] = _reduce(buffers, diagonal[:, lane], squared[:, lane])
                lanes.append((lane, member))
            else:
                # squares would leave the range of float64
                redo = Status.ok if self.driver == "svd" else Status.refined
                self._finish_by_lapack(member, given, redo)
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
            self._finish_by_lapack(member, load(member), redo)

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

    def _finish_by_lapack(self, member: int, given: torch.Tensor, success: Status) -> None:
        matrix = given.to(device="cpu", dtype=torch.float64)
        if self.centred:
            matrix = matrix - matrix.mean(dim=0)
        self.values[member], self.status[member] = lapack(matrix, success)

    def _gram(self, given: torch.Tensor, buffers: Buffers) -> float:
        """Lower triangle of the Gram matrix on the smaller side, a strip of rows at a time.

        Its lines are in roughly ascending norm. Singular values do not mind, rounding does: with
        the large column of an attention sink reduced first, the small eigenvalues keep far more
        correct digits. A sample of each line is enough to find the large ones.

        Returns
        -------
        float
            Σ|entry| of the matrix; not finite if and only if an entry is not.
        """
        source = given.cpu()
        if source.dtype not in (torch.float32, torch.float64):
            source = source.to(torch.float64)
        tall = source.shape[0] >= source.shape[1]
        rows = (source if tall else source.mT).contiguous().numpy()
        long, rank = rows.shape
        weights = np.empty(rank)
        kernels.line_weights(rows, max(1, long // _SAMPLED), weights)
        order = weights.argsort()
        mean = source.to(torch.float64).mean(dim=0) if self.centred else None
        gram = buffers.gram[:, :rank]
        total = 0.0
        for start in range(0, long, _STRIP):
            stop = min(start + _STRIP, long)
            strip = buffers.strip[: stop - start]
            total += kernels.gather_columns(rows[start:stop], order, strip.numpy())
            if mean is not None:
                strip -= mean[torch.from_numpy(order)] if tall else mean[start:stop, None]
            _add_product(strip, gram, first=start == 0)
        return total if np.isfinite(total) else _total(given)


def _add_product(strip: torch.Tensor, gram: torch.Tensor, *, first: bool) -> None:
    """Lower triangle of ``gram += stripᵀ strip`` (``=`` at first), block row by block row."""
    for start in range(0, gram.shape[0], _BLOCK):
        stop = min(start + _BLOCK, gram.shape[0])
        block = gram[start:stop, :stop]
        if first:
            torch.matmul(strip[:, start:stop].T, strip[:, :stop], out=block)
        else:
            block.addmm_(strip[:, start:stop].T, strip[:, :stop])


def _total(matrix: torch.Tensor) -> float:
    """Σ|entry| within the range of float64; not finite if and only if an entry is not."""
    total = float(matrix.abs().sum(dtype=torch.float64))
    if not np.isfinite(total) and bool(torch.isfinite(matrix).all()):
        return float(torch.finfo(torch.float64).max)
    return total


def _reduce(buffers: Buffers, diagonal: NDArray[np.float64], squared: NDArray[np.float64]) -> float:
    """Tridiagonal form of the Gram matrix, scaled to unit norm; returns the scale of σ."""
    rank = diagonal.shape[0]
    d = np.empty(rank)
    e = np.empty(rank)
    flat = buffers.gram.numpy().reshape(-1)
    kernels.tridiagonalise(flat, buffers.gram.stride(0), d, e, buffers.work)
    norm = float(np.abs(d).max()) or 1.0
    diagonal[:] = d / norm
    squared[:] = e / (norm * norm)
    return float(np.sqrt(norm))


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
    noise = max(-4 * eigenvalues[-1], QUIET * _EPS * largest)
    if (noise / (values + np.sqrt(noise))).sum() > RATIO_TOLERANCE * values.sum():
        return False
    worst = GRAM_ERROR * _EPS * largest
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
    """Machine epsilon of a type; that of float64 for whole numbers."""
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else _EPS
