"""Moments of a stream, and the units whose spread gives an interval: texts, or batches of windows.

An interval of a mean takes its units as independent. Texts are; neighbouring windows of one text
are not, and there batches of windows are: the longer a batch, the less its mean has to do with
that of the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

LEVEL = 0.95
"""Coverage of the intervals."""

MOST_BATCHES = 63
"""The largest number of batches that the windows of a single text are put in."""


class Moments:
    r"""Mean and variance of a stream of arrays, entry by entry.

    .. math:: m_c = m_{c-1} + (x - m_{c-1}) / c, \quad
              M_c = M_{c-1} + (x - m_{c-1})(x - m_c)

    and for many arrays at once, of mean m_b and sum of squares M_b, with δ = m_b − m_a,

    .. math:: m = m_a + \delta b / (a + b), \quad M = M_a + M_b + \delta^2 a b / (a + b)

    Parameters
    ----------
    shape : tuple of int
        Shape of the arrays.
    keep_shape : tuple of int
        Shape of the masks that say which entries are there; broadcasts to `shape`.

    References
    ----------
    B. P. Welford, Technometrics 4 (1962) 419-420; T. F. Chan, G. H. Golub and R. J. LeVeque, The
    American Statistician 37 (1983) 242-247, equation 2.1.

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
        self.add_many(np.asarray(values, dtype=np.float64)[None], keep[None])

    def add_many(self, values: Floats, keep: Array) -> None:
        """Take in a stack of arrays.

        The result is that of adding one after another, but for rounding.

        Parameters
        ----------
        values : ndarray (count, *shape)
        keep : ndarray (count, *keep_shape) of bool
        """
        new = keep.sum(axis=0)
        together = self.count + new
        whole = bool(keep.all())
        values = values if whole else np.where(keep, values, 0.0)
        mean = values.sum(axis=0) / np.maximum(new, 1)
        if len(values) > 1:
            left = values - mean
            left *= left
            if not whole:
                left *= keep
            self._squares += left.sum(axis=0)
        step = mean - self._mean
        self._squares += np.square(step) * (self.count * new / np.maximum(together, 1))
        self._mean += step * (new / np.maximum(together, 1))
        self.count = together

    @property
    def mean(self) -> Floats:
        """Mean of what was kept; NaN where nothing was."""
        return np.where(self.count > 0, self._mean, np.nan)

    @property
    def variance(self) -> Floats:
        """Unbiased variance (divisor count − 1); NaN below two."""
        return np.where(self.count > 1, self._squares / np.maximum(self.count - 1, 1), np.nan)


class Batches:
    r"""Variance of the means of batches of windows, for windows of one text.

    Windows of one text are not independent. Every window is a batch until there are 64. Then
    neighbours are merged in pairs and a batch holds two windows, later four, and so on: there are
    always 32 to 63 full batches, and the windows of a batch are together as they are in the text. A
    last batch that is not full is left out. With u batches of means y_j, the standard error of the
    mean is √(s²/u), s² the variance of the y_j with divisor u − 1; it holds where a batch is much
    longer than the windows remember.

    Parameters
    ----------
    shape, keep_shape : tuple of int
        As for :class:`Moments`. The mean of a batch is that of the windows where the entry is
        there; an entry that is nowhere in a batch is not there in it.

    References
    ----------
    B. Schmeiser, Operations Research 30 (1982) 556-568 (batch means; more than 30 batches gain
    little).

    Examples
    --------
    >>> batches = Batches((), ())
    >>> for window in range(100):
    ...     batches.add(float(window % 2))
    >>> batches.length, int(batches.count), float(batches.variance)
    (2, 50, 0.0)
    """

    def __init__(self, shape: tuple[int, ...], keep_shape: tuple[int, ...]) -> None:
        self.length = 1
        self._shape, self._keep_shape = shape, keep_shape
        self._sums: list[Floats] = []
        self._counts: list[Array] = []
        self._in_last = 0

    def add(self, values: Any, keep: Any = True) -> None:
        """Take in the next window; entries whose `keep` is False are left out."""
        keep = np.broadcast_to(np.asarray(keep, dtype=bool), self._keep_shape)
        if self._in_last == 0:
            self._sums.append(np.zeros(self._shape))
            self._counts.append(np.zeros(self._keep_shape, dtype=np.int64))
        self._sums[-1] += np.where(keep, values, 0.0)
        self._counts[-1] += keep
        self._in_last = (self._in_last + 1) % self.length
        if self._in_last == 0 and len(self._sums) > MOST_BATCHES:
            self._sums = _in_pairs(self._sums)
            self._counts = _in_pairs(self._counts)
            self.length *= 2

    def add_many(self, values: Floats, keep: Array) -> None:
        """Take in windows one after another.

        Parameters
        ----------
        values : ndarray (count, *shape)
        keep : ndarray (count, *keep_shape) of bool
        """
        for one, there in zip(values, keep, strict=True):
            self.add(one, there)

    @property
    def count(self) -> Array:
        """Full batches in which an entry is there, int64."""
        return np.asarray((self._full()[1] > 0).sum(axis=0))

    @property
    def variance(self) -> Floats:
        """Unbiased variance of the means of full batches; NaN below two of them."""
        sums, counts = self._full()
        moments = Moments(self._shape, self._keep_shape)
        moments.add_many(sums / np.maximum(counts, 1), counts > 0)
        return moments.variance

    def _full(self) -> tuple[Floats, Array]:
        full = len(self._sums) - (self._in_last > 0)
        return (
            np.array(self._sums[:full]).reshape(full, *self._shape),
            np.array(self._counts[:full]).reshape(full, *self._keep_shape),
        )


def _in_pairs(arrays: list[Array]) -> list[Array]:
    return [one + two for one, two in zip(arrays[::2], arrays[1::2], strict=True)]


def batch_length(windows: int) -> int:
    """Windows in a batch of :class:`Batches` after that many windows: a power of two.

    Examples
    --------
    >>> [batch_length(windows) for windows in (0, 63, 64, 127, 128, 1000)]
    [1, 1, 2, 2, 4, 16]
    """
    length = 1
    while windows // length > MOST_BATCHES:
        length *= 2
    return length


def half_width(units: Moments | Batches) -> Floats:
    """Half the 95 % interval of the mean of the units, t·s/√u; NaN below two.

    Examples
    --------
    >>> moments = Moments((), ())
    >>> for value in (0.0, 1.0):
    ...     moments.add(value)
    >>> round(float(half_width(moments)), 4)
    6.3531
    """
    u = units.count
    quantile = stdtrit(np.maximum(u - 1, 1), 0.5 + LEVEL / 2)
    return np.asarray(quantile * np.sqrt(units.variance / np.maximum(u, 1)))


def mean_of_present(values: Floats, axis: tuple[int, ...]) -> Floats:
    """Mean over `axis` of the entries that are not NaN; NaN where all are.

    An infinite entry makes the mean infinite, and two of opposite sign make it NaN.

    Examples
    --------
    >>> mean_of_present(np.array([[1.0, np.nan], [np.nan, np.nan]]), (1,)).tolist()
    [1.0, nan]
    >>> mean_of_present(np.array([[1.0, np.inf, np.nan]]), (1,)).tolist()
    [inf]
    """
    there = ~np.isnan(values)
    count = there.sum(axis=axis)
    # ∞ − ∞ is NaN, as it should be
    with np.errstate(invalid="ignore"):
        total = np.where(there, values, 0.0).sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))
