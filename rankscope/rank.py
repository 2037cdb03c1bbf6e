"""Pure functions of singular values: ratios, ranks, and what summarises a spectrum.

All take an array of shape (*batch, n), descending along the last axis, and measure against the
full spectrum. A matrix whose values are all zero, or not known (NaN), has no ratio: NaN. Spectra
of matrices of different sizes share one array when `size` tells how many values are real; places
beyond are ignored, whatever they hold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

# a cumulative sum of n terms carries rounding of about n·ε; without this allowance an identity
# matrix of n = 10 would need 10 values to hold 90 %
_SLACK = 1e-12


def cumulative_ratio(singular_values: ArrayLike, size: ArrayLike | None = None) -> FloatArray:
    """Normalised cumulative singular value, Σ_{i≤k} σ_i / Σ_i σ_i, for k = 1 … n.

    This is the quantity of Linformer's Figure 1, whose axis says "eigenvalue". It is made of σ;
    :func:`energy_ratio` is made of σ².

    Parameters
    ----------
    singular_values : (*batch, n) array
    size : (*batch) int array, optional
        Number of real values of each spectrum; n where not given. The ratio is 1 from there on.

    Returns
    -------
    (*batch, n) float64, in [0, 1], non-decreasing; NaN for a spectrum without a positive sum.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, Figure 1.

    Examples
    --------
    >>> cumulative_ratio([4, 3, 2, 1])
    array([0.4, 0.7, 0.9, 1. ])
    """
    return _cumulative(_masked(singular_values, size))


def energy_ratio(singular_values: ArrayLike, size: ArrayLike | None = None) -> FloatArray:
    """Cumulative share of the squared singular values, Σ_{i≤k} σ_i² / Σ_i σ_i², for k = 1 … n.

    One minus it is the squared relative Frobenius error of the best rank-k approximation.

    Parameters
    ----------
    singular_values : (*batch, n) array
    size : (*batch) int array, optional
        As for :func:`cumulative_ratio`.

    Returns
    -------
    (*batch, n) float64, in [0, 1], non-decreasing; NaN for a spectrum without a positive sum.

    References
    ----------
    Eckart & Young 1936.

    Examples
    --------
    >>> energy_ratio([4, 3])
    array([0.64, 1.  ])
    """
    return _cumulative(_normalised(_masked(singular_values, size)) ** 2)


def rank_at(
    singular_values: ArrayLike, fraction: float, size: ArrayLike | None = None
) -> FloatArray:
    """Smallest k whose cumulative ratio reaches `fraction`.

    Parameters
    ----------
    singular_values : (*batch, n) array
    fraction : float
        In (0, 1].
    size : (*batch) int array, optional

    Returns
    -------
    (*batch) float64 holding whole numbers in 1 … n; NaN where the ratio is undefined.

    Raises
    ------
    ValueError
        If `fraction` is not in (0, 1].

    Examples
    --------
    >>> rank_at([4, 3, 2, 1], 0.9)
    array(3.)
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], not {fraction}")
    ratio = cumulative_ratio(singular_values, size)
    below = np.sum(ratio < fraction - _SLACK, axis=-1) + 1.0
    return np.asarray(np.where(np.isnan(ratio[..., -1]), np.nan, below))


def effective_rank(singular_values: ArrayLike, size: ArrayLike | None = None) -> FloatArray:
    """exp of the entropy of σ/Σσ: n for equal values, 1 for a single one.

    Parameters
    ----------
    singular_values : (*batch, n) array
    size : (*batch) int array, optional
        Number of real values of each spectrum; n where not given.

    Returns
    -------
    (*batch) float64 in [1, n]; NaN where undefined.

    References
    ----------
    Roy & Vetterli 2007, The effective rank: a measure of effective dimensionality.

    Examples
    --------
    >>> round(float(effective_rank([1, 1, 1, 1])), 12)
    4.0
    """
    values = _masked(singular_values, size)
    total = _positive(values.sum(axis=-1, keepdims=True))
    share = values / total
    logs = np.log(np.where(share > 0, share, 1.0))
    return np.asarray(np.exp(-(share * logs).sum(axis=-1)))


def stable_rank(singular_values: ArrayLike, size: ArrayLike | None = None) -> FloatArray:
    """‖P‖_F² / σ₁² = Σσ²/σ₁², at most the rank.

    Parameters
    ----------
    singular_values : (*batch, n) array
    size : (*batch) int array, optional
        Number of real values of each spectrum; n where not given.

    Returns
    -------
    (*batch) float64 in [1, n]; NaN where undefined.

    References
    ----------
    Rudelson & Vershynin 2007, section 1.

    Examples
    --------
    >>> stable_rank([2, 1])
    array(1.25)
    """
    return np.asarray((_normalised(_masked(singular_values, size)) ** 2).sum(axis=-1))


def numerical_rank(
    singular_values: ArrayLike, rtol: float | None = None, size: ArrayLike | None = None
) -> FloatArray:
    """Number of singular values above rtol·σ₁.

    Parameters
    ----------
    singular_values : (*batch, n) array
    rtol : float, optional
        Relative tolerance. Default: n·ε of float64. For matrices that were computed in float32 give
        n·ε of float32 (6e-5 at n = 512): values below are rounding.
    size : (*batch) int array, optional

    Returns
    -------
    (*batch) float64 holding whole numbers in 1 … n; NaN where undefined.

    Raises
    ------
    ValueError
        If `rtol` is negative or not below 1.

    References
    ----------
    Golub & Van Loan, Matrix Computations, section 5.4.1.

    Examples
    --------
    >>> numerical_rank([1.0, 1e-3, 1e-20])
    array(2.)
    """
    if rtol is not None and not 0 <= rtol < 1:
        raise ValueError(f"rtol must lie in [0, 1), not {rtol}")
    values = _normalised(_masked(singular_values, size))
    if rtol is None:
        count = values.shape[-1] if size is None else np.asarray(size)[..., np.newaxis]
        limit = np.asarray(count * np.finfo(np.float64).eps)
    else:
        limit = np.asarray(rtol)
    above = np.sum(values > limit, axis=-1).astype(np.float64)
    return np.asarray(np.where(np.isnan(values[..., 0]), np.nan, above))


def spectral_gap(singular_values: ArrayLike, size: ArrayLike | None = None) -> FloatArray:
    """(σ₁ − σ₂)/σ₁: 1 for a matrix of rank one, 0 where the two largest are equal.

    Parameters
    ----------
    singular_values : (*batch, n) array
    size : (*batch) int array, optional
        Number of real values of each spectrum; n where not given.

    Returns
    -------
    (*batch) float64 in [0, 1]; NaN where undefined.

    Examples
    --------
    >>> spectral_gap([4, 3])
    array(0.25)
    """
    values = _normalised(_masked(singular_values, size))
    second = (
        values[..., 1] if values.shape[-1] > 1 else np.where(np.isnan(values[..., 0]), np.nan, 0.0)
    )
    return np.asarray(1.0 - second)


def _masked(singular_values: ArrayLike, size: ArrayLike | None) -> FloatArray:
    """Values as float64, places beyond `size` as 0 (they belong to no matrix)."""
    values = np.asarray(singular_values, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(
            f"singular values need a last axis with at least one place: {values.shape}"
        )
    if size is None:
        return values
    places = np.arange(values.shape[-1])
    return np.where(places < np.asarray(size)[..., np.newaxis], values, 0.0)


def _positive(total: FloatArray) -> FloatArray:
    return np.where(total > 0, total, np.nan)


def _normalised(values: FloatArray) -> FloatArray:
    """σ/σ₁, so that squares neither overflow nor vanish."""
    return values / _positive(values[..., :1])


def _cumulative(values: FloatArray) -> FloatArray:
    running = np.cumsum(values, axis=-1)
    ratio = running / _positive(running[..., -1:])
    return np.minimum(ratio, 1.0)
