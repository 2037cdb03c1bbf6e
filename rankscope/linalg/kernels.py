"""Compiled kernels: eigenvalues of many small symmetric matrices, without vectors.

LAPACK solves one matrix at a time. At n = 512 its tridiagonal reduction waits for memory and its QL
iteration for divisions, one after the other. Here the reduction reads and writes the matrix once a
step (update and product in one pass), and the QL iteration runs in ``LANES`` matrices side by side,
so that the divisions of one fill the waiting time of the others. Both release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

LANES = 8
"""Matrices that one call of :func:`ql_eigenvalues` solves side by side."""

MAX_SWEEPS = 60
"""QL sweeps allowed for one eigenvalue; two or three are usual, LAPACK allows 30 on average."""

NEGLIGIBLE = float(np.finfo(np.float64).eps) ** 2
"""A squared off-diagonal at or below this times its two diagonal entries counts as zero."""

# and one below this whatever its neighbours: 1e-20 of the norm, far under the rounding of λ₁
_FLOOR = 1e-40

_TINY = 1e-300

F = TypeVar("F", bound=Callable[..., object])


def stride_for(n: int) -> int:
    """Distance of the rows of an n × n matrix that keeps them out of each other's cache lines."""
    return n + 8 if n % 64 == 0 else n


def _compiled(*, fastmath: bool) -> Callable[[F], F]:
    jit = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=fastmath)
    return cast("Callable[[F], F]", jit)


@_compiled(fastmath=True)
def _update_and_multiply(
    a: NDArray[np.float64],
    stride: int,
    m: int,
    v: NDArray[np.float64],
    w: NDArray[np.float64],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
) -> None:
    """Lower triangle of ``A[:m, :m] -= v wᵀ + w vᵀ`` and ``y[:m] = A[:m, :m] x`` in one pass."""
    for j in range(m):
        y[j] = 0.0
    i = 0
    if m & 1:
        a[0] -= 2 * v[0] * w[0]
        y[0] = a[0] * x[0]
        i = 1
    # two rows at a time: the vectors v, w, x, y are then read half as often
    while i < m:
        upper = a[i * stride : i * stride + i + 1]
        lower = a[(i + 1) * stride : (i + 1) * stride + i + 2]
        v0, w0, x0 = v[i], w[i], x[i]
        v1, w1, x1 = v[i + 1], w[i + 1], x[i + 1]
        sum0 = 0.0
        sum1 = 0.0
        for j in range(i):
            a0 = upper[j] - v0 * w[j] - w0 * v[j]
            a1 = lower[j] - v1 * w[j] - w1 * v[j]
            upper[j] = a0
            lower[j] = a1
            sum0 += a0 * x[j]
            sum1 += a1 * x[j]
            y[j] += a0 * x0 + a1 * x1
        a00 = upper[i] - 2 * v0 * w0
        a10 = lower[i] - v1 * w0 - w1 * v0
        a11 = lower[i + 1] - 2 * v1 * w1
        upper[i] = a00
        lower[i] = a10
        lower[i + 1] = a11
        y[i] += sum0 + a00 * x0 + a10 * x1
        y[i + 1] += sum1 + a10 * x0 + a11 * x1
        i += 2


@_compiled(fastmath=True)
def tridiagonalise(
    a: NDArray[np.float64],
    stride: int,
    diagonal: NDArray[np.float64],
    squared: NDArray[np.float64],
    work: NDArray[np.float64],
) -> None:
    """Householder reduction of a symmetric matrix to tridiagonal form, eigenvalues kept.

    Parameters
    ----------
    a : (n · stride) float64
        The matrix, row by row, `stride` apart; its lower triangle is read and overwritten. Rows a
        power of two apart compete for the same cache lines: see :func:`stride_for`.
    stride : int
        At least n.
    diagonal : (n,) float64
        Receives the diagonal of the tridiagonal matrix.
    squared : (n,) float64
        Receives the squares of the off-diagonal in its first n − 1 places, 0 in the last.
    work : (4, n) float64
        Scratch.

    References
    ----------
    Golub & Van Loan, Matrix Computations, section 8.3.1 (here from the last row upwards, so that
    the rows that are read shrink and stay contiguous).
    """
    n = diagonal.shape[0]
    v = work[0]
    w = work[1]
    x = work[2]
    y = work[3]
    for j in range(n):
        v[j] = 0.0
        w[j] = 0.0
    squared[n - 1] = 0.0
    for k in range(n - 1, 0, -1):
        row = a[k * stride : k * stride + k + 1]
        vk, wk = v[k], w[k]
        for j in range(k + 1):
            row[j] -= vk * w[j] + wk * v[j]
        diagonal[k] = row[k]
        # reflector that turns row[:k] into (0, …, 0, beta)
        alpha = row[k - 1]
        tail = 0.0
        for j in range(k - 1):
            tail += row[j] * row[j]
        squared[k - 1] = alpha * alpha + tail
        tau = 0.0
        if tail > 0.0:
            beta = np.sqrt(squared[k - 1])
            if alpha > 0.0:
                beta = -beta
            tau = (beta - alpha) / beta
            for j in range(k - 1):
                x[j] = row[j] / (alpha - beta)
            x[k - 1] = 1.0
        else:
            for j in range(k):
                x[j] = 0.0
        _update_and_multiply(a, stride, k, v, w, x, y)
        dot = 0.0
        for j in range(k):
            dot += y[j] * x[j]
        half = -0.5 * tau * tau * dot
        for j in range(k):
            v[j] = x[j]
            w[j] = tau * y[j] + half * x[j]
    diagonal[0] = a[0]
    if n > 1:
        diagonal[0] -= 2 * v[0] * w[0]


@_compiled(fastmath=False)
def ql_eigenvalues(
    diagonal: NDArray[np.float64],
    squared: NDArray[np.float64],
    converged: NDArray[np.bool_],
) -> None:
    """Eigenvalues of ``LANES`` tridiagonal matrices by the square-root-free QL iteration.

    All lanes look for their ``l``-th eigenvalue together; a lane that has it waits unchanged for
    the others, so its values do not depend on its neighbours.

    Parameters
    ----------
    diagonal : (n, LANES) float64
        The diagonals, scaled to a largest entry of about 1; receives the eigenvalues, unordered.
    squared : (n, LANES) float64
        Squared off-diagonals, last row 0; overwritten.
    converged : (LANES,) bool
        Receives False for a lane that did not converge within ``MAX_SWEEPS``.

    References
    ----------
    Parlett, The Symmetric Eigenvalue Problem, section 8.15 (Pal–Walker–Kahan variant).
    """
    n = diagonal.shape[0]
    state = np.zeros((6, LANES))
    shift = state[0]
    cosine = state[1]
    sine = state[2]
    gamma = state[3]
    pivot = state[4]
    active = state[5]
    for q in range(LANES):
        converged[q] = True
    for low in range(n - 1):
        for sweep in range(MAX_SWEEPS + 1):
            waiting = 0
            for q in range(LANES):
                active[q] = 0.0
                neighbours = abs(diagonal[low, q] * diagonal[low + 1, q])
                if squared[low, q] > NEGLIGIBLE * neighbours + _FLOOR:
                    active[q] = 1.0
                    waiting += 1
            if waiting == 0:
                break
            if sweep == MAX_SWEEPS:
                for q in range(LANES):
                    if active[q] != 0.0:
                        converged[q] = False
                break
            for q in range(LANES):
                # Wilkinson's shift from the leading 2×2 block
                root = np.sqrt(squared[low, q] + _TINY)
                theta = (diagonal[low + 1, q] - diagonal[low, q]) / (2 * root)
                radius = np.sqrt(1 + theta * theta)
                shift[q] = diagonal[low, q] - root / (theta + (radius if theta >= 0 else -radius))
                cosine[q] = 1.0
                sine[q] = 0.0
                gamma[q] = diagonal[n - 1, q] - shift[q]
                pivot[q] = gamma[q] * gamma[q]
            for i in range(n - 2, low - 1, -1):
                for q in range(LANES):
                    off = squared[i, q]
                    radius = pivot[q] + off + _TINY
                    rotated = sine[q] * radius
                    previous_cosine = cosine[q]
                    c = pivot[q] / radius
                    s = off / radius
                    previous_gamma = gamma[q]
                    entry = diagonal[i, q]
                    g = c * (entry - shift[q]) - s * previous_gamma
                    if active[q] != 0.0:
                        if i < n - 2:
                            squared[i + 1, q] = rotated
                        diagonal[i + 1, q] = previous_gamma + (entry - g)
                    pivot[q] = g * g / c if c != 0.0 else previous_cosine * off
                    cosine[q] = c
                    sine[q] = s
                    gamma[q] = g
            for q in range(LANES):
                if active[q] != 0.0:
                    squared[low, q] = sine[q] * pivot[q]
                    diagonal[low, q] = shift[q] + gamma[q]
