"""Matrices whose singular values are known in closed form, and a maker of stochastic ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def closed_forms(n: int) -> dict[str, tuple[Array, Array]]:
    """Name → (matrix, singular values) for row-stochastic matrices of size n."""
    identity = np.eye(n)
    uniform = np.full((n, n), 1 / n)
    sink = np.zeros((n, n))
    sink[:, 0] = 1
    kernel = np.zeros(n)
    for place, weight in ((0, 0.5), (1, 0.25), (-1, 0.25)):
        kernel[place % n] += weight
    circulant = np.stack([np.roll(kernel, i) for i in range(n)])
    one = np.r_[1.0, np.zeros(n - 1)]
    return {
        "identity": (identity, np.ones(n)),
        "permutation": (np.roll(identity, 1, axis=1), np.ones(n)),
        "uniform": (uniform, one),
        "sink": (sink, np.sqrt(n) * one),
        "mixture": (0.75 * identity + 0.25 * uniform, np.r_[1.0, np.full(n - 1, 0.75)]),
        "circulant": (circulant, np.sort(np.abs(np.fft.fft(kernel)))[::-1]),
    }


def stochastic(n: int, seed: int, sharpness: float = 1.0, m: int | None = None) -> Array:
    """Softmax of Gaussian logits."""
    logits = sharpness * np.random.default_rng(seed).standard_normal((n, m or n))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def with_spectrum(values: Array, seed: int) -> Array:
    """A matrix with these singular values and random singular vectors."""
    rng = np.random.default_rng(seed)
    n = len(values)
    left, _ = np.linalg.qr(rng.standard_normal((n, n)))
    right, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return np.asarray(left @ np.diag(values) @ right.T)
