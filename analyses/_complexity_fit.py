"""What the measurements say: exponents with intervals, targets, and ratios to full attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from analyses._complexity_sides import FULL, FUSED, LEARNED, PUBLISHED

CONFIDENCE = 0.95

AT_MOST: Mapping[str, float] = {
    "sparse": 1.2,
    "low rank": 1.2,
    "kernel": 1.2,
    "Nyström": 1.2,
    "hashing": 1.35,
    "sparse + low rank": 1.2,
}
"""Largest exponent of time and memory that a group may show."""

FULL_AT_LEAST = 1.8
"""Smallest exponent of full attention; its time only for the fused kernel, which keeps no P."""

QUANTITIES: Mapping[str, tuple[str, str]] = {
    "time": ("seconds", "repeat"),
    "memory": ("peak_bytes", "trial"),
}
"""Variable and repeated dimension of each quantity; the least of the repeats counts."""


class Exponent(NamedTuple):
    """The slope of log y over log n, and its interval of 95 %."""

    slope: float
    low: float
    high: float


def exponent(n: npt.ArrayLike, y: npt.ArrayLike) -> Exponent:
    """Exponent p of y ∝ n^p, by least squares on the logarithms.

    Parameters
    ----------
    n, y : (points,) array
        Points where y is missing, infinite or not above 0 are left out.

    Returns
    -------
    Exponent
        With an interval from Student's t with two degrees of freedom fewer than points. NaN below
        two points; the interval below three.

    Examples
    --------
    >>> exponent([1, 2, 4], [3.0, 12.0, 48.0]).slope
    2.0
    """
    lengths, values = np.asarray(n, dtype=np.float64), np.asarray(y, dtype=np.float64)
    good = np.isfinite(values) & (values > 0)
    count = int(good.sum())
    if count < 2:
        return Exponent(math.nan, math.nan, math.nan)
    from scipy import stats

    fit = stats.linregress(np.log(lengths[good]), np.log(values[good]))
    slope = float(fit.slope)
    if count < 3:
        return Exponent(slope, math.nan, math.nan)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 2) * fit.stderr)
    return Exponent(slope, slope - half, slope + half)


def with_exponents(measured: xr.Dataset, least: int) -> xr.Dataset:
    """The measurements with the exponents of time and memory for n from `least` on.

    Parameters
    ----------
    measured : Dataset
        ``seconds`` (method, n, repeat) and ``peak_bytes`` (method, n, trial).
    least : int

    Returns
    -------
    Dataset
        With ``time_exponent``, ``time_exponent_low``, ``time_exponent_high`` (method), and the
        same of memory.
    """
    found = measured.copy()
    lengths = measured["n"].to_numpy()
    for name in QUANTITIES:
        values = best(measured, name).to_numpy()[:, lengths >= least]
        fits = [exponent(lengths[lengths >= least], row) for row in values]
        for end, column in zip(("", "_low", "_high"), zip(*fits, strict=True), strict=True):
            found[f"{name}_exponent{end}"] = ("method", np.array(column))
    return found


def best(measured: xr.Dataset, name: str) -> xr.DataArray:
    """Least time or peak of the repeats, (method, n); NaN where nothing was measured."""
    variable, repeated = QUANTITIES[name]
    return measured[variable].min(repeated)


def target(text: str, group: str, name: str) -> tuple[float, float]:
    """Smallest and largest exponent that are wanted of a method's time or memory."""
    if text == FULL or (text == FUSED and name == "time"):
        return FULL_AT_LEAST, math.inf
    return -math.inf, AT_MOST.get(group, math.inf)


def missed(fitted: xr.Dataset) -> list[str]:
    """Every exponent that is not where it should be, as a sentence."""
    found = []
    for place, text in enumerate(fitted["method"].to_numpy()):
        for name in QUANTITIES:
            slope = float(fitted[f"{name}_exponent"][place])
            low, high = target(str(text), str(fitted["group"].to_numpy()[place]), name)
            if slope < low or slope > high:
                wanted = f"at least {low}" if slope < low else f"at most {high}"
                found.append(f"{name} of {text}: exponent {slope:.2f}, wanted {wanted}")
    return found


def saved(measured: xr.Dataset, text: str) -> dict[int, tuple[float, float]]:
    """How many times the time and memory of a method full attention takes, by n."""
    ratios = {}
    for n in measured["n"].to_numpy():
        pair = []
        for name in QUANTITIES:
            at = best(measured, name).sel({"n": n})
            pair.append(float(at.sel({"method": FULL}) / at.sel({"method": text})))
        if all(map(math.isfinite, pair)):
            ratios[int(n)] = (pair[0], pair[1])
    return ratios


def beside_published(measured: xr.Dataset) -> list[tuple[int, int, tuple[float, ...]]]:
    """Measured and published ratios of Linformer: (k, n, (time, memory, time, memory))."""
    rows: list[tuple[int, int, tuple[float, ...]]] = []
    for k, published in PUBLISHED.items():
        text = LEARNED.format(k=k)
        if text not in measured["method"].to_numpy():
            continue
        ours = saved(measured, text)
        rows += [(k, n, (*ours[n], *published[n])) for n in published if n in ours]
    return rows
