"""Compiled kernels: eigenvalues of many small symmetric matrices, without vectors.

LAPACK solves one matrix at a time. At n = 512 its tridiagonal reduction waits for memory and its QL
iteration for divisions, one after the other. Here the reduction writes the matrix once in two steps
(updates and product in one pass), and the QL iteration runs in ``LANES`` matrices side by side, so
that the divisions of one fill the waiting time of the others. All release the interpreter lock.
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

Array = NDArray[np.float64]

F = TypeVar("F", bound=Callable[..., object])


def stride_for(n: int) -> int:
    """Distance of the rows of an n × n matrix that keeps them out of each other's cache lines."""
    return n + 8 if n % 64 == 0 else n


def _compiled(*, fastmath: bool | set[str], part: bool = False) -> Callable[[F], F]:
    """Compile a kernel, or a part of one.

    Parts are put into their callers before anything is optimised. Linked instead, a part from the
    cache and one compiled just now are optimised differently, and sums come out in another order:
    results would depend on whether the cache was warm.
    """
    inline = "always" if part else "never"
    jit = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=fastmath, inline=inline)
    return cast("Callable[[F], F]", jit)


@_compiled(fastmath=True)
def line_weights(matrix: Array, step: int, weights: Array) -> None:
    """Σ|entry| of every column over each `step`-th row, into `weights`."""
    for j in range(matrix.shape[1]):
        weights[j] = 0.0
    for i in range(0, matrix.shape[0], step):
        for j in range(matrix.shape[1]):
            weights[j] += abs(matrix[i, j])


# sums may be reordered, but NaN and ∞ must survive
@_compiled(fastmath={"reassoc", "contract", "nsz"})
def gather_columns(matrix: Array, order: NDArray[np.int64], out: Array) -> float:
    """``out = matrix[:, order]`` in float64; returns Σ|entry|, not finite if any entry is not.

    One pass: everything that is read or written once more has to come from beyond the cache.
    """
    total = 0.0
    for i in range(matrix.shape[0]):
        source = matrix[i]
        target = out[i]
        for j in range(matrix.shape[1]):
            value = np.float64(source[order[j]])
            target[j] = value
            total += abs(value)
    return float(total)


@_compiled(fastmath=True, part=True)
def _reflector(row: Array, k: int, x: Array, squared: Array) -> float:
    """Householder vector x and factor τ that turn ``row[:k]`` into (0, …, 0, β); keeps β²."""
    alpha = row[k - 1]
    tail = 0.0
    for j in range(k - 1):
        tail += row[j] * row[j]
    squared[k - 1] = alpha * alpha + tail
    if tail == 0.0:
        for j in range(k):
            x[j] = 0.0
        return 0.0
    beta = np.sqrt(squared[k - 1])
    if alpha > 0.0:
        beta = -beta
    for j in range(k - 1):
        x[j] = row[j] / (alpha - beta)
    x[k - 1] = 1.0
    return float((beta - alpha) / beta)


@_compiled(fastmath=True, part=True)
def _second_vector(y: Array, x: Array, w: Array, k: int, tau: float) -> None:
    """w of the rank-two update A − x wᵀ − w xᵀ, from y = A x."""
    dot = 0.0
    for j in range(k):
        dot += y[j] * x[j]
    half = -0.5 * tau * tau * dot
    for j in range(k):
        w[j] = tau * y[j] + half * x[j]


@_compiled(fastmath=True, part=True)
def _update_and_multiply(
    a: Array, stride: int, m: int, v: Array, w: Array, u: Array, z: Array, x: Array, y: Array
) -> None:
    """Lower triangle of ``A −= v wᵀ + w vᵀ + u zᵀ + z uᵀ`` and ``y = A x`` in one pass."""
    for j in range(m):
        y[j] = 0.0
    i = 0
    if m & 1:
        a[0] -= 2 * v[0] * w[0] + 2 * u[0] * z[0]
        y[0] = a[0] * x[0]
        i = 1
    # two rows at a time: the vectors are then read half as often
    while i < m:
        upper = a[i * stride : i * stride + i + 1]
        lower = a[(i + 1) * stride : (i + 1) * stride + i + 2]
        v0, w0, u0, z0, x0 = v[i], w[i], u[i], z[i], x[i]
        v1, w1, u1, z1, x1 = v[i + 1], w[i + 1], u[i + 1], z[i + 1], x[i + 1]
        sum0 = 0.0
        sum1 = 0.0
        for j in range(i):
            a0 = upper[j] - v0 * w[j] - w0 * v[j] - u0 * z[j] - z0 * u[j]
            a1 = lower[j] - v1 * w[j] - w1 * v[j] - u1 * z[j] - z1 * u[j]
            upper[j] = a0
            lower[j] = a1
            sum0 += a0 * x[j]
            sum1 += a1 * x[j]
            y[j] += a0 * x0 + a1 * x1
        a00 = upper[i] - 2 * v0 * w0 - 2 * u0 * z0
        a10 = lower[i] - v1 * w0 - w1 * v0 - u1 * z0 - z1 * u0
        a11 = lower[i + 1] - 2 * v1 * w1 - 2 * u1 * z1
        upper[i] = a00
        lower[i] = a10
        lower[i + 1] = a11
        y[i] += sum0 + a00 * x0 + a10 * x1
        y[i + 1] += sum1 + a10 * x0 + a11 * x1
        i += 2


@_compiled(fastmath=True, part=True)
def _multiply(a: Array, stride: int, m: int, x: Array, y: Array) -> None:
    """``y = A x`` from the lower triangle."""
    for j in range(m):
        y[j] = 0.0
    i = 0
    if m & 1:
        y[0] = a[0] * x[0]
        i = 1
    while i < m:
        upper = a[i * stride : i * stride + i + 1]
        lower = a[(i + 1) * stride : (i + 1) * stride + i + 2]
        x0, x1 = x[i], x[i + 1]
        sum0 = 0.0
        sum1 = 0.0
        for j in range(i):
            sum0 += upper[j] * x[j]
            sum1 += lower[j] * x[j]
            y[j] += upper[j] * x0 + lower[j] * x1
        y[i] += sum0 + upper[i] * x0 + lower[i] * x1
        y[i + 1] += sum1 + lower[i] * x0 + lower[i + 1] * x1
        i += 2


@_compiled(fastmath=True)
def tridiagonalise(a: Array, stride: int, diagonal: Array, squared: Array, work: Array) -> None:
    """Householder reduction of a symmetric matrix to tridiagonal form, eigenvalues kept.

    Two reflections are applied in one pass over the matrix: the second is formed from a row and a
    product that are corrected for the first, which is still pending.

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
    work : (6, n) float64
        Scratch.

    References
    ----------
    Golub & Van Loan, Matrix Computations, section 8.3.1 (here from the last row upwards, so that
    the rows that are read shrink and stay contiguous).
    """
    n = diagonal.shape[0]
    v, w, u, z, x, y = work[0], work[1], work[2], work[3], work[4], work[5]
    for j in range(n):
        v[j] = w[j] = u[j] = z[j] = 0.0
    squared[n - 1] = 0.0
    k = n - 1
    while k > 0:
        row = a[k * stride : k * stride + k + 1]
        vk, wk, uk, zk = v[k], w[k], u[k], z[k]
        for j in range(k + 1):
            row[j] -= vk * w[j] + wk * v[j] + uk * z[j] + zk * u[j]
        diagonal[k] = row[k]
        tau = _reflector(row, k, x, squared)
        _update_and_multiply(a, stride, k, v, w, u, z, x, y)
        _second_vector(y, x, w, k, tau)
        for j in range(k):
            v[j] = x[j]
            u[j] = z[j] = 0.0
        k -= 1
        if k == 0:
            break
        # the matrix itself still lacks the update by v and w
        row = a[k * stride : k * stride + k + 1]
        vk, wk = v[k], w[k]
        for j in range(k + 1):
            row[j] -= vk * w[j] + wk * v[j]
        diagonal[k] = row[k]
        tau = _reflector(row, k, u, squared)
        _multiply(a, stride, k, u, y)
        along_v = 0.0
        along_w = 0.0
        for j in range(k):
            along_v += v[j] * u[j]
            along_w += w[j] * u[j]
        for j in range(k):
            y[j] -= along_v * w[j] + along_w * v[j]
        _second_vector(y, u, z, k, tau)
        k -= 1
    diagonal[0] = a[0] - 2 * v[0] * w[0] - 2 * u[0] * z[0]


@_compiled(fastmath=False)
def ql_eigenvalues(
    diagonal: Array,
    squared: Array,
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
