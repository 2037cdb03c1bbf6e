"""Running means over windows: what a summary needs, without keeping a window.

A run may hold ten thousand windows, so means and variances are updated window by window (Welford)
and the memory does not grow with their number. Windows of one text are averaged first and the
texts after that, so that a long text counts as much as a short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from rankscope.exceptions import StoreError
from rankscope.status import Status

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

CODES = {code.name.lower(): int(code) for code in sorted(Status)}
"""Status codes by name, ascending."""

GOOD = tuple(CODES[name] for name in ("ok", "fallback", "refined"))
"""The status codes whose matrices enter a mean."""

FAILED = ("non_finite", "failed")
"""The names of the status codes that say that something went wrong."""

ABSENT = CODES["absent"]
"""The status code of a matrix that was never there."""

SCALARS = (
    "rank_90",
    "numerical_rank",
    "effective_rank",
    "stable_rank",
    "row_entropy",
    "spectral_gap",
)
"""Per-matrix quantities that are averaged when they are given."""

LEVEL = 0.95
"""Coverage of the intervals."""

FRACTIONS: Floats = np.linspace(0.0, 1.0, 129)
"""Default k/n grid of the relative curves; holds 1/4, 1/2 and 3/4 exactly."""


class Moments:
    r"""Mean and variance of a stream of arrays, entry by entry, by Welford's update.

    .. math:: m_c = m_{c-1} + (x - m_{c-1}) / c, \quad
              M_c = M_{c-1} + (x - m_{c-1})(x - m_c)

    Parameters
    ----------
    shape : tuple of int
        Shape of the arrays.
    keep_shape : tuple of int
        Shape of the masks that say which entries are there; broadcasts to `shape`.

    References
    ----------
    B. P. Welford, Technometrics 4 (1962) 419-420.

    Examples
    --------
    >>> moments = Moments((), ())
    >>> for value in (1.0, 2.0, 6.0):
    ...     moments.add(value)
    >>> float(moments.mean), float(moments.variance)
    (3.0, 7.0)
    """

    def __init__(self, shape: tuple[int, ...], keep_shape: tuple[int, ...]) -> None:
        self.count: Array = np.zeros(keep_shape, dtype=np.int64)
        self._mean: Floats = np.zeros(shape)
        self._squares: Floats = np.zeros(shape)

    def add(self, values: Any, keep: Any = True) -> None:
        """Take in one array; entries whose `keep` is False are left out, whatever they hold."""
        keep = np.broadcast_to(np.asarray(keep, dtype=bool), self.count.shape)
        values = np.where(keep, np.asarray(values, dtype=np.float64), self._mean)
        self.count = self.count + keep
        step = values - self._mean
        self._mean += step / np.maximum(self.count, 1)
        # an entry left out has step 0 and adds nothing
        self._squares += step * (values - self._mean)

    @property
    def mean(self) -> Floats:
        """Mean of what was kept; NaN where nothing was."""
        return np.where(self.count > 0, self._mean, np.nan)

    @property
    def variance(self) -> Floats:
        """Unbiased variance (divisor count − 1); NaN below two."""
        return np.where(self.count > 1, self._squares / np.maximum(self.count - 1, 1), np.nan)


def mean_of_present(values: Floats, axis: tuple[int, ...]) -> Floats:
    """Mean over `axis` of the entries that are not NaN; NaN where all are.

    Examples
    --------
    >>> mean_of_present(np.array([[1.0, np.nan], [np.nan, np.nan]]), (1,)).tolist()
    [1.0, nan]
    """
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def at_fractions(ratio: Floats, n: int, fractions: Floats) -> Floats:
    """A ratio over k/n instead of over k, by linear interpolation; 0 at k = 0.

    Parameters
    ----------
    ratio : ndarray (..., m)
        Ratio at k = 1 … m, m ≥ n.
    n : int
        Size of the matrix, at least 1.
    fractions : ndarray (f,)
        Where to read, in [0, 1].

    Returns
    -------
    ndarray (..., f)

    Examples
    --------
    >>> at_fractions(np.array([0.5, 1.0]), 2, np.array([0.0, 0.25, 0.5, 1.0])).tolist()
    [0.0, 0.25, 0.5, 1.0]
    """
    position = fractions * n
    below = np.minimum(position.astype(np.int64), n - 1)
    weight = position - below
    padded = np.concatenate([np.zeros((*ratio.shape[:-1], 1)), ratio], axis=-1)
    return np.asarray((1.0 - weight) * padded[..., below] + weight * padded[..., below + 1])


class Accumulator:
    """Means over the windows of one model on one corpus, fed window by window.

    Parameters
    ----------
    layers, heads : int
        Size of the layer and head axes.
    length : int
        Largest n: the index axis is 1 … length.
    fractions : ndarray (f,), optional
        k/n grid of the relative curves, in [0, 1].

    Notes
    -----
    Windows of one text must come one after another, as every window mode yields them; a text
    that comes back after another one raises, since its mean is closed by then.
    """

    def __init__(
        self, layers: int, heads: int, length: int, *, fractions: Floats = FRACTIONS
    ) -> None:
        self.length = length
        self.fractions = np.asarray(fractions, dtype=np.float64)
        self._shape = (layers, heads)
        self._width = 2 * (length + self.fractions.size)
        self._text_id: int | None = None
        self._closed: set[int] = set()
        self._in_text = self._moments()
        self._over_texts = self._moments()
        self._text_units = Moments((self._width,), (1,))
        self._window_units = Moments((self._width,), (1,))
        self._index = np.arange(1, length + 1)
        self._having = np.zeros((layers, heads, length), dtype=np.int64)
        self._matrices = np.zeros((layers, heads), dtype=np.int64)
        self._rank_90 = np.zeros(length + 1, dtype=np.int64)
        self._codes = np.zeros(len(CODES), dtype=np.int64)
        self._shortest, self._longest = length, 0
        self.windows = 0

    def _moments(self) -> tuple[Moments, Moments]:
        width, scalars = (*self._shape, self._width), (*self._shape, len(SCALARS))
        return Moments(width, (*self._shape, 1)), Moments(scalars, scalars)

    def add(
        self,
        *,
        text_id: int,
        n_tokens: int,
        status: Array,
        cumulative_ratio: Array,
        energy_ratio: Array,
        scalars: Mapping[str, Array] | None = None,
    ) -> None:
        """Take in one window.

        Parameters
        ----------
        text_id : int
            The text that the window comes from.
        n_tokens : int
            Size n of its matrices.
        status : ndarray (layer, head) of int
            Codes of :class:`rankscope.status.Status`. Matrices that are not good are counted
            by code and enter no mean; a window without any matrix (all absent) is not counted.
        cumulative_ratio, energy_ratio : ndarray (layer, head, index)
            1 for index ≥ n.
        scalars : mapping of str to ndarray (layer, head), optional
            Any of `SCALARS`; NaN is left out.

        Raises
        ------
        StoreError
            A good matrix without a finite ratio, or a text that comes back.
        """
        status = np.asarray(status, dtype=np.int64)
        if (status == ABSENT).all():
            return
        good = np.isin(status, GOOD)
        ratios = np.stack([cumulative_ratio, energy_ratio]).astype(np.float64)
        ratios[:, ~good] = np.nan
        broken = good & ~np.isfinite(ratios).all(axis=(0, -1))
        if broken.any():
            layer, head = np.argwhere(broken)[0]
            raise StoreError(
                f"window {self.windows} of text {text_id}: the matrix at layer position {layer}, "
                f"head position {head} is marked good but its ratios are not finite",
                "the data are damaged: compute the run again",
            )
        self._open(text_id)
        self.windows += 1
        self._matrices += status != ABSENT
        # the codes start below zero, a histogram at zero
        self._codes += np.bincount(status.ravel() - min(CODES.values()), minlength=len(CODES))
        if n_tokens > 0:
            self._shortest = min(self._shortest, n_tokens)
            self._longest = max(self._longest, n_tokens)
        if not good.any():
            return
        relative = at_fractions(ratios, n_tokens, self.fractions)
        values = np.concatenate([*ratios, *relative], axis=-1)
        extra = np.full((*self._shape, len(SCALARS)), np.nan)
        for column, name in enumerate(SCALARS):
            if scalars is not None and name in scalars:
                extra[..., column] = scalars[name]
        curves, numbers = self._in_text
        curves.add(values, good[..., None])
        numbers.add(extra, good[..., None] & np.isfinite(extra))
        self._window_units.add(mean_of_present(np.where(good[..., None], values, np.nan), (0, 1)))
        self._having += good[..., None] & (self._index <= n_tokens)
        ranks = extra[..., SCALARS.index("rank_90")][good]
        ranks = ranks[np.isfinite(ranks)].astype(np.int64)
        self._rank_90 += np.bincount(ranks, minlength=self.length + 1)

    def _open(self, text_id: int) -> None:
        if text_id == self._text_id:
            return
        if text_id in self._closed:
            raise StoreError(
                f"the windows of text {text_id} are not together: another text came in between",
                "order the windows by text",
            )
        if self._text_id is not None:
            self._close_text()
            self._closed.add(self._text_id)
        self._text_id = text_id

    def _close_text(self) -> None:
        for inner, outer in zip(self._in_text, self._over_texts, strict=True):
            outer.add(inner.mean, inner.count > 0)
        means = self._in_text[0].mean
        if np.isfinite(means).any():
            self._text_units.add(mean_of_present(means, (0, 1)))
        self._in_text = self._moments()

    def result(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """What has been taken in so far, as name → (dims, array); more windows may follow.

        The interval around a curve is mean ± t · s / √u over u units, where a unit is a text, or
        a window if there is a single text; with one unit it is NaN.
        """
        done = deepcopy(self)
        done._close_text()
        curves, numbers = done._over_texts
        units, unit = done._text_units, "text"
        if int(units.count[0]) < 2:
            units, unit = done._window_units, "window"
        u = int(units.count[0])
        half = np.full(self._width, np.nan)
        if u > 1:
            half = stdtrit(u - 1, 0.5 + LEVEL / 2) * np.sqrt(units.variance / u)
        per_head = curves.mean
        centre = mean_of_present(per_head, (0, 1))
        f, n = self.fractions.size, self.length
        parts = {
            "": (slice(0, n), "index"),
            "energy_": (slice(n, 2 * n), "index"),
            "relative_": (slice(2 * n, 2 * n + f), "fraction"),
            "relative_energy_": (slice(2 * n + f, None), "fraction"),
        }
        out: dict[str, tuple[tuple[str, ...], Any]] = {}
        for prefix, (part, dim) in parts.items():
            if dim == "index":
                out[f"mean_{prefix}ratio"] = (("layer", "head", dim), per_head[..., part])
                out[f"mean_{prefix}ratio_curve"] = ((dim,), centre[part])
            else:
                out[f"{prefix}ratio_curve"] = ((dim,), centre[part])
            out[f"{prefix}interval_low"] = ((dim,), (centre - half)[part])
            out[f"{prefix}interval_high"] = ((dim,), (centre + half)[part])
        for column, name in enumerate(SCALARS):
            label = "k90" if name == "rank_90" else f"mean_{name}"
            out[label] = (("layer", "head"), numbers.mean[..., column])
        out["count"] = (("layer", "head", "index"), done._having)
        out["n_matrices"] = (("layer", "head"), done._matrices)
        out["rank_90_count"] = (("index",), done._rank_90[1:])
        out["status_count"] = (("status",), done._codes)
        texts = len(done._closed) + (done._text_id is not None)
        for label, number in {
            "n_windows": self.windows,
            "n_texts": texts,
            "n_units": u,
            "n_tokens_min": min(self._shortest, self._longest),
            "n_tokens_max": self._longest,
        }.items():
            out[label] = ((), np.int64(number))
        out["interval_unit"] = ((), unit)
        return out
