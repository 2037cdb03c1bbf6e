"""Error curves over k, averaged over windows: what a choice of ranks is made from.

A curve is NaN where a matrix has no decomposition. Such a curve is left out of every mean, whole;
a head without a usable curve has no result (NaN), since a guess would look like a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankscope.exceptions import UsageError

FloatArray = NDArray[np.float64]

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "cumulative": "1 − σ-ratio: share of the sum of the singular values that is left out",
        "energy": "1 − energy ratio: share of the sum of their squares that is left out",
        "output": "relative Frobenius error of the output P·V",
    }
)
"""What a tolerance can be about. All are 0 for P itself; the first two are at most 1."""

CURVES: Mapping[str, str] = MappingProxyType(
    {"cumulative": "nuclear", "energy": "frobenius", "output": "output"}
)
"""Kind → which curve of :class:`rankscope.truncation.Curves` it is made from."""

OBJECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "relative": "‖(P − P_k)V‖ / ‖PV‖, every head alike",
        "relative-squared": "its square, the share of the head's output energy that is lost",
        "absolute": "‖(P − P_k)V‖², in squared units of the values",
        "layer": "‖(P − P_k)V‖² over Σ‖PV‖² of the layer's heads, every layer alike",
    }
)
"""What :func:`total_error` can sum, ‖·‖ the Frobenius norm."""

# the sums behind a ratio carry rounding of about n·ε, as in rankscope.rank
_SLACK = 1e-12


def lost(
    curves: ArrayLike,
    kind: str = "output",
    *,
    quantile: float | None = None,
    texts: ArrayLike | None = None,
) -> FloatArray:
    """What truncation to k loses, over all windows: their mean, or a quantile of them.

    Parameters
    ----------
    curves : (window, layer, head, k) array, or (layer, head, k) for one curve a head
        Relative errors at k = 1 … n: nuclear for `kind` "cumulative", Frobenius for "energy",
        of the output for "output". One curve a head is taken as it is; where it is an average
        over windows already, that of Frobenius errors must be their root mean square.
    kind : {"cumulative", "energy", "output"}
        See :data:`KINDS`. The energy that is lost is the square of the Frobenius error.
    quantile : float, optional
        In (0, 1]. Instead of the mean, the smallest value that this share of the windows does not
        exceed: 1 for the worst window.
    texts : (window,) int array, optional
        Text of each window. Windows of one text are averaged first, then texts, so that a long
        text counts as much as a short one. A quantile counts windows.

    Returns
    -------
    (layer, head, k) float64
        NaN for a head without a usable window.

    Raises
    ------
    UsageError
        For an unknown kind, arrays of other shapes, negative errors, a quantile out of range or of
        a single curve.

    Examples
    --------
    >>> lost([[[[0.8, 0.0]]], [[[0.6, 0.0]]]], "energy")
    array([[[0.5, 0. ]]])
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}", f"one of {', '.join(KINDS)}")
    values = _windows(curves)
    if kind == "energy":
        values = values**2
    if quantile is None:
        return _mean(values, _texts(texts, len(values)))
    if np.ndim(curves) == 3:
        raise UsageError(
            "there is no quantile over the windows of curves that have no windows",
            "give curves of (window, layer, head, k), or leave the quantile out",
        )
    if not 0 < quantile <= 1:
        raise UsageError(f"a quantile must lie in (0, 1], not {quantile}", "1 is the worst window")
    return _quantile(values, quantile)


def smallest_rank(
    curves: ArrayLike,
    tolerance: float,
    kind: str = "output",
    *,
    quantile: float | None = None,
    texts: ArrayLike | None = None,
) -> FloatArray:
    """Smallest k of every head that loses no more than a tolerance.

    For "cumulative" the smallest k whose mean σ-ratio is at least 1 − tolerance, for "energy" the
    same of the energy ratio, for "output" the smallest k whose mean relative output error is at
    most the tolerance. All curves fall with k, so that every larger k keeps to it too.

    Parameters
    ----------
    curves : (window, layer, head, k) array, or (layer, head, k)
        As for :func:`lost`.
    tolerance : float
        In [0, 1].
    kind : {"cumulative", "energy", "output"}
    quantile : float, optional
        In (0, 1]: so many of the windows keep to the tolerance, each by itself.
    texts : (window,) int array, optional
        As for :func:`lost`.

    Returns
    -------
    (layer, head) float64 holding whole numbers in 1 … n
        n where no k of the curve keeps to the tolerance; NaN for a head without a usable window.

    Raises
    ------
    UsageError
        For a tolerance out of range, and as :func:`lost`.

    Examples
    --------
    >>> smallest_rank([[[0.6, 0.3, 0.1, 0.0]]], 0.1)
    array([[3.]])
    """
    return reached(lost(curves, kind, quantile=quantile, texts=texts), tolerance)


def reached(curve: FloatArray, tolerance: float) -> FloatArray:
    """First k at which a curve is at most the tolerance.

    Parameters
    ----------
    curve : (*batch, k) float64
    tolerance : float
        In [0, 1].

    Returns
    -------
    (*batch) float64 holding whole numbers in 1 … n; NaN for a curve of NaN

    Raises
    ------
    UsageError
        For a tolerance out of range.
    """
    if not 0 <= tolerance <= 1:
        raise UsageError(
            f"a tolerance must lie in [0, 1], not {tolerance}",
            "0 allows no error, and an error of 1 is as large as what is approximated",
        )
    enough = curve <= tolerance + _SLACK
    enough[..., -1] = True
    first = np.argmax(enough, axis=-1) + 1.0
    return np.where(np.isnan(curve[..., -1]), np.nan, first)


def total_error(
    curves: ArrayLike,
    norms: ArrayLike | None = None,
    objective: str = "relative",
    *,
    texts: ArrayLike | None = None,
) -> FloatArray:
    """The error of every head at every k that an allocation sums over heads.

    Squared errors add up: the sum of "absolute" over a layer's heads is the squared error of their
    joint output, before the output projection. Values of one layer may be many times those of
    another, which "layer" divides out, layer by layer, and "relative-squared" head by head. Those
    three are shares of an energy, and an error of .2 counts four times as much as one of .1. In
    "relative" it counts twice as much: it is the mean error that tables report, and its minimum
    spends more rank on heads that are nearly exact already.

    Parameters
    ----------
    curves : (window, layer, head, k) array, or (layer, head, k) of one window
        Relative output errors at k = 1 … n.
    norms : (window, layer, head) array, or (layer, head), optional
        ‖PV‖_F; needed for "absolute" and "layer".
    objective : {"relative", "relative-squared", "absolute", "layer"}
        See :data:`OBJECTIVES`.
    texts : (window,) int array, optional
        As for :func:`lost`.

    Returns
    -------
    (layer, head, k) float64
        Means over windows; NaN for a head without a usable window. With "layer", a window counts
        only where all heads of the layer are usable.

    Raises
    ------
    UsageError
        For an unknown objective, norms that are missing, or arrays of other shapes.

    Examples
    --------
    >>> total_error([[[0.5, 0.0]]], [[2.0]], "absolute")
    array([[[1., 0.]]])
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"unknown objective {objective!r}", f"one of {', '.join(OBJECTIVES)}")
    values = _windows(curves)
    if objective != "relative":
        values = values**2
    if objective in ("absolute", "layer"):
        values = values * _energy(values, norms, objective)[..., np.newaxis]
    return _mean(values, _texts(texts, len(values)))


def errors_at(errors: ArrayLike, ranks: ArrayLike) -> FloatArray:
    """Error of every head at its own rank: what a choice costs, on any windows.

    Parameters
    ----------
    errors : (layer, head, k) array
        As :func:`total_error` gives them.
    ranks : (layer, head) int array
        At least 1; beyond n the error is that of n.

    Returns
    -------
    (layer, head) float64

    Raises
    ------
    UsageError
        For a rank below 1 or another number of layers or heads.

    Examples
    --------
    >>> errors_at([[[0.5, 0.2], [0.4, 0.0]]], [[1, 2]])
    array([[0.5, 0. ]])
    """
    table, chosen = np.asarray(errors, dtype=np.float64), np.asarray(ranks, dtype=np.int64)
    if table.ndim != 3 or chosen.shape != table.shape[:2] or (chosen < 1).any():
        raise UsageError(
            f"errors of shape {table.shape} have no value at ranks of shape {chosen.shape}",
            "give (layer, head, k) and (layer, head), ranks of 1 or more",
        )
    place = np.minimum(chosen, table.shape[-1]) - 1
    return np.take_along_axis(table, place[..., np.newaxis], axis=-1)[..., 0]


def usable(curves: FloatArray) -> NDArray[np.bool_]:
    """Whether a curve has a value at every k: (*batch, k) → (*batch)."""
    return np.asarray(np.isfinite(curves).all(axis=-1))


def _windows(curves: ArrayLike) -> FloatArray:
    """Curves as (window, layer, head, k)."""
    values = np.asarray(curves, dtype=np.float64)
    if values.ndim == 3:
        values = values[np.newaxis]
    if values.ndim != 4 or 0 in values.shape:
        raise UsageError(
            f"error curves of shape {np.shape(curves)}",
            "give (window, layer, head, k) or (layer, head, k), none of them empty",
        )
    if (values < 0).any():
        raise UsageError("an error below 0 is none", "give errors, not ratios or logarithms")
    return values


def _texts(texts: ArrayLike | None, count: int) -> NDArray[np.int64]:
    found = np.zeros(count, np.int64) if texts is None else np.asarray(texts, dtype=np.int64)
    if found.shape != (count,):
        raise UsageError(f"{count} windows need one text each, not {found.shape}")
    return found


def _energy(values: FloatArray, norms: ArrayLike | None, objective: str) -> FloatArray:
    """What a squared relative error is multiplied with, (window, layer, head)."""
    if norms is None:
        raise UsageError(f"the objective {objective!r} needs the norms of the outputs")
    squares = np.asarray(norms, dtype=np.float64) ** 2
    if squares.ndim == 2:
        squares = squares[np.newaxis]
    if squares.shape != values.shape[:3]:
        raise UsageError(
            f"norms of shape {np.shape(norms)} do not belong to curves of shape {values.shape}",
            "give one norm for every curve",
        )
    if objective == "absolute":
        return squares
    # one head without a value leaves the layer's sum without one
    known = np.where(usable(values), squares, np.nan)
    whole = known.sum(axis=-1, keepdims=True)
    return squares / np.where(whole > 0, whole, np.nan)


def _mean(values: FloatArray, texts: NDArray[np.int64]) -> FloatArray:
    """Mean over the usable windows of each text, then over texts."""
    there = usable(values)
    total = np.zeros(values.shape[1:])
    count = np.zeros(values.shape[1:3])
    for text in np.unique(texts):
        rows = texts == text
        kept = there[rows][..., np.newaxis]
        windows = kept.sum(axis=0)
        total += np.where(kept, values[rows], 0.0).sum(axis=0) / np.maximum(windows, 1)
        count += windows[..., 0] > 0
    return np.asarray(total / np.where(count > 0, count, np.nan)[..., np.newaxis])


def _quantile(values: FloatArray, quantile: float) -> FloatArray:
    """Smallest value that a share of the usable windows does not exceed."""
    there = usable(values)
    # NaN is sorted to the end, behind the usable ones
    ordered = np.sort(np.where(there[..., np.newaxis], values, np.nan), axis=0)
    place = np.ceil(quantile * there.sum(axis=0) - 1e-9).astype(np.int64) - 1
    chosen = np.maximum(place, 0)[np.newaxis, ..., np.newaxis]
    return np.asarray(np.take_along_axis(ordered, chosen, axis=0)[0])
