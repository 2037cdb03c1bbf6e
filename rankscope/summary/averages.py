"""Means of any measure over windows, entry by entry: what the summaries of methods share.

As for spectra, windows of one text are averaged first and the texts after that. A measure may be
missing where the matrix is not, since not every measure is defined for every method: such entries
are counted, and stand in no mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.summary.accumulate import ABSENT, CODES, GOOD, Cell
from rankscope.summary.units import (
    LEVEL,
    Array,
    Batches,
    Floats,
    Moments,
    batch_length,
    half_width,
    mean_of_present,
)

BLOCK_BYTES = 64 * 2**20
"""How much of a dataset is read at a time."""

BAND = (0.1, 0.9)
"""Quantiles over heads that a band shows."""


def quantiles(values: Floats, at: Sequence[float]) -> Floats:
    """Quantiles along the first axis of the entries that are not NaN, interpolated linearly.

    Parameters
    ----------
    values : ndarray (count, ...)
        NaN is left out; infinity is larger than anything.
    at : sequence of float
        Probabilities in [0, 1].

    Returns
    -------
    ndarray (len(at), ...)
        NaN where all entries are.

    References
    ----------
    Hyndman & Fan 1996, The American Statistician 50:361-365, definition 7.

    Examples
    --------
    >>> quantiles(np.array([4.0, np.nan, 1.0, 2.0]), [0.0, 0.25, 0.5, 1.0]).tolist()
    [1.0, 1.5, 2.0, 4.0]
    """
    ordered = np.sort(values, axis=0)
    last = np.maximum((~np.isnan(ordered)).sum(axis=0) - 1, 0)
    found = []
    for probability in at:
        place = probability * last
        below = np.floor(place).astype(np.int64)
        low, high = (
            np.take_along_axis(ordered, where[None], axis=0)[0]
            for where in (below, np.minimum(below + 1, last))
        )
        weight = place - below
        # no share of the upper one where the place is a whole number: 0 times infinity is NaN
        with np.errstate(invalid="ignore"):
            between = (1 - weight) * low + weight * high
        found.append(np.where(weight > 0, between, low))
    return np.array(found)


class Measure:
    """Running means of one measure of one model on one corpus.

    Parameters
    ----------
    shape : tuple of int
        Layers, heads, and the sizes of whatever else the measure depends on.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._inside, self._outside = Moments(shape, shape), Moments(shape, shape)
        self._texts, self._windows = Moments(shape[2:], shape[2:]), Batches(shape[2:], shape[2:])
        self._count: Array = np.zeros(shape, dtype=np.int64)
        self._undefined: Array = np.zeros(shape, dtype=np.int64)
        self._infinite: Array = np.zeros(shape, dtype=bool)
        self._text: int | None = None
        # whether the open text has a usable matrix, and how many texts before it have
        self._usable, self._usable_texts = False, 0

    def add(self, values: Array, good: Array) -> None:
        """Take in a window of the text that is open.

        Parameters
        ----------
        values : ndarray (layer, head, ...)
            Infinity makes a mean infinite; NaN is counted as undefined.
        good : ndarray (layer, head, ...) of bool
            Whether there is a usable matrix; whatever `values` holds elsewhere is left out.
        """
        self._take(np.asarray(values)[None], np.asarray(good)[None], np.zeros(1, dtype=np.int64))

    def add_many(self, values: Array, good: Array, text_id: Array) -> None:
        """Take in some windows; a text ends where another one begins.

        The result is that of :meth:`add` and :meth:`close_text` window by window, but for rounding
        (a relative 1e-12).

        Parameters
        ----------
        values : ndarray (window, layer, head, ...)
        good : ndarray (window, layer, head, ...) of bool
        text_id : ndarray (window,) of int
            The windows of a text are together; the first may go on with the last text.
        """
        if not len(text_id):
            return
        if self._text is not None and text_id[0] != self._text:
            self.close_text()
        self._text = int(text_id[-1])
        self._take(values, good, np.flatnonzero(np.diff(text_id, prepend=text_id[:1] - 1)))

    def _take(self, values: Array, good: Array, starts: Array) -> None:
        """Windows of texts that begin at `starts`; the first goes on, the last stays open."""
        good = np.broadcast_to(good, values.shape)
        finite = good & np.isfinite(values)
        infinite = good & (values == np.inf)
        self._infinite |= infinite.any(axis=0)
        self._count += (finite | infinite).sum(axis=0)
        self._undefined += (good & ~(finite | infinite)).sum(axis=0)
        # a window without a usable matrix is in no batch, as the census counts them
        usable = np.asarray(good.any(axis=tuple(range(1, good.ndim))))
        if self._usable_texts < 2:
            units = mean_of_present(np.where(finite, values, np.nan)[usable], (1, 2))
            self._windows.add_many(units, ~np.isnan(units))
        end = starts[1] if len(starts) > 1 else len(values)
        self._go_on(values[:end], finite[:end], usable[:end])
        if len(starts) > 1:
            self.close_text()
            whole = slice(end, starts[-1])
            self._take_texts(values[whole], finite[whole], usable[whole], starts[1:-1] - end)
            self._go_on(values[starts[-1] :], finite[starts[-1] :], usable[starts[-1] :])

    def _go_on(self, values: Array, finite: Array, usable: Array) -> None:
        """Windows of the text that is open."""
        self._inside.add_many(values, finite)
        self._usable = self._usable or bool(usable.any())

    def _take_texts(self, values: Array, finite: Array, usable: Array, starts: Array) -> None:
        """Windows of texts that are here as a whole."""
        if not len(starts):
            return
        count, total = finite.astype(np.int64), np.where(finite, values, 0.0)
        # not worth its time where every window is a text
        if len(starts) < len(values):
            count, total = (np.add.reduceat(one, starts, axis=0) for one in (count, total))
        self._outside.add_many(means := total / np.maximum(count, 1), count > 0)
        units = mean_of_present(np.where(count > 0, means, np.nan), (1, 2))
        self._texts.add_many(units, ~np.isnan(units))
        self._usable_texts += int(np.logical_or.reduceat(usable, starts).sum())

    def close_text(self) -> None:
        """The windows of a text are through."""
        inside = self._inside
        self._outside.add(inside.mean, inside.count > 0)
        unit = mean_of_present(inside.mean, (0, 1))
        self._texts.add(unit, ~np.isnan(unit))
        self._usable_texts += self._usable
        self._inside, self._usable = Moments(self.shape, self.shape), False

    @property
    def unit(self) -> str:
        """What its interval is taken over: texts, or windows where only one text is usable."""
        return "text" if self._usable_texts + self._usable > 1 else "window"

    def result(self, unit: str) -> dict[str, Array]:
        """What has been taken in, by suffix: "" for each head, the others over heads.

        The text that is open is closed.

        Parameters
        ----------
        unit : {"text", "window"}
            What the intervals are taken over, as :attr:`unit` or :attr:`Census.unit` says.
        """
        self.close_text()
        per_head = np.where(self._infinite, np.inf, self._outside.mean)
        flat = per_head.reshape(-1, *self.shape[2:])
        infinite = self._infinite.any(axis=(0, 1))
        centre = np.where(infinite, np.inf, mean_of_present(self._outside.mean, (0, 1)))
        units = self._texts if unit == "text" else self._windows
        half = np.where(infinite, np.nan, half_width(units))
        least, low, median, high, most = quantiles(flat, (0.0, BAND[0], 0.5, BAND[1], 1.0))
        return {
            "": per_head,
            "_count": self._count,
            "_mean": centre,
            "_low": np.where(infinite, np.nan, centre - half),
            "_high": np.where(infinite, np.nan, centre + half),
            "_units": units.count,
            "_median": median,
            "_q10": low,
            "_q90": high,
            "_min": least,
            "_max": most,
            "_undefined": self._undefined.sum(axis=(0, 1)),
        }


class Census:
    """Counts of the windows, texts, sizes and status codes of one model on one corpus."""

    def __init__(self) -> None:
        self.windows = 0
        self._texts: set[int] = set()
        self._usable: set[int] = set()
        self._usable_windows = 0
        self._sizes: list[int] = []
        self._codes = np.zeros(len(CODES), dtype=np.int64)

    def add(self, text_id: int, n_tokens: int, status: Array) -> bool:
        """Count a window; False for one that was never computed, which is not counted."""
        found = self.add_many(np.array([text_id]), np.array([n_tokens]), np.asarray(status)[None])
        return bool(found[0])

    def add_many(self, text_id: Array, n_tokens: Array, status: Array) -> Array:
        """Count some windows.

        Parameters
        ----------
        text_id, n_tokens : ndarray (window,) of int
        status : ndarray (window, ...) of int

        Returns
        -------
        ndarray (window,) of bool
            False for those that were never computed, which are not counted.
        """
        status = status.reshape(len(status), -1)
        there = np.asarray((status != ABSENT).any(axis=1))
        usable = np.isin(status, GOOD).any(axis=1)
        self.windows += int(there.sum())
        self._texts.update(np.unique(text_id[there]).tolist())
        self._usable.update(np.unique(text_id[usable]).tolist())
        self._usable_windows += int(usable.sum())
        if (real := n_tokens[there & (n_tokens > 0)]).size:
            ends = [*self._sizes, int(real.min()), int(real.max())]
            self._sizes = [min(ends), max(ends)]
        # the codes start below zero, a histogram at zero
        codes = status[there].ravel() - min(CODES.values())
        self._codes += np.bincount(codes, minlength=len(CODES))
        return there

    @property
    def unit(self) -> str:
        """What an interval is taken over: texts, or windows where only one text is usable.

        Windows are in batches of `batch_windows`, as :class:`rankscope.summary.units.Batches`
        makes them.
        """
        return "text" if len(self._usable) > 1 else "window"

    def result(self) -> Cell:
        """Counts, sizes and units, by the names that they have in a summary."""
        length = 1 if self.unit == "text" else batch_length(self._usable_windows)
        units = len(self._usable) if self.unit == "text" else self._usable_windows // length
        low, high = self._sizes or (0, 0)
        return {
            "n_windows": ((), np.int64(self.windows)),
            "n_texts": ((), np.int64(len(self._texts))),
            "n_units": ((), np.int64(units)),
            "batch_windows": ((), np.int64(length)),
            "n_tokens_min": ((), np.int64(low)),
            "n_tokens_max": ((), np.int64(high)),
            "interval_unit": ((), self.unit),
            "status_count": (("status",), self._codes.copy()),
        }


def cuts(text_id: Array, width: int) -> Iterator[slice | Array]:
    """Positions of windows, in pieces that fit in memory, the windows of a text together.

    Parameters
    ----------
    text_id : ndarray (window,) of int
    width : int
        Bytes of a window.

    Yields
    ------
    slice or ndarray of int
        A slice wherever it can be: that reads a stored run in one go, where a list of numbers would
        go window by window.

    Examples
    --------
    >>> list(cuts(np.array([0, 0, 1]), BLOCK_BYTES // 2))
    [slice(0, 2, None), slice(2, 3, None)]
    >>> [cut.tolist() for cut in cuts(np.array([0, 1, 0]), 1)]
    [[0, 2, 1]]
    """
    order = np.argsort(text_id, kind="stable")
    step = max(1, BLOCK_BYTES // max(1, width))
    for start in range(0, len(order), step):
        chosen = order[start : start + step]
        straight = bool((np.diff(chosen) == 1).all())
        yield slice(int(chosen[0]), int(chosen[-1]) + 1) if straight else chosen


def blocks(pair: xr.Dataset, names: Sequence[str]) -> Iterator[xr.Dataset]:
    """A model and corpus in blocks of windows that fit in memory, the windows of a text together.

    Parameters
    ----------
    pair : Dataset
        Without the dimensions model and corpus.
    names : sequence of str
        The variables that are wanted.

    Yields
    ------
    Dataset
        Loaded, with dims (sample, layer, head, ...).
    """
    for cut in cuts(pair["text_id"].to_numpy(), window_bytes(pair, names)):
        block = pair[[*names, "text_id"]].isel(sample=cut)
        yield block.transpose("sample", "layer", "head", ..., missing_dims="ignore").load()


def window_bytes(pair: xr.Dataset, names: Sequence[str]) -> int:
    """Bytes that some variables take for each window."""
    return sum(pair[name].nbytes for name in names) // max(1, pair.sizes["sample"])


def whole_numbers(values: Array, missing: int) -> Array:
    """Integers again, where joining runs of different shape has filled up with NaN."""
    return np.nan_to_num(values.astype(np.float64), nan=missing).astype(np.int64)


def check_run(dataset: xr.Dataset, dims: Sequence[str], names: Sequence[str], what: str) -> None:
    """Refuse a dataset that is no such run.

    Raises
    ------
    StoreError
    """
    missing = [name for name in names if name not in dataset.variables]
    missing += [name for name in dims if name not in dataset.dims]
    if missing:
        raise StoreError(
            f"not a run of {what}: without {', '.join(missing)}",
            f"give a dataset as rankscope {what} stores it",
        )


def stacked(cells: Sequence[Sequence[Cell]]) -> dict[str, tuple[tuple[str, ...], Array]]:
    """What was found for each model and corpus, as variables with those two dimensions."""
    return {
        name: (
            ("model", "corpus", *dims),
            np.stack([np.stack([np.asarray(cell[name][1]) for cell in row]) for row in cells]),
        )
        for name, (dims, _) in cells[0][0].items()
    }


def units_of(summary: xr.Dataset) -> dict[str, Any]:
    """What the intervals of a summary are, for its attributes."""
    units = sorted({str(unit) for unit in summary["interval_unit"].to_numpy().ravel()})
    return {"interval_level": LEVEL, "interval_unit": ",".join(units)}


def by_pair(cells: Sequence[Sequence[Cell]], dataset: xr.Dataset) -> xr.Dataset:
    """A summary from what was found for each model and corpus, with the coordinates of the run."""
    variables = stacked(cells)
    used = {dim for dims, _ in variables.values() for dim in dims}
    # loaded, since the file behind a lazily opened run may be closed before the summary is used
    coords = {
        str(name): coord.compute()
        for name, coord in dataset.coords.items()
        if coord.dims and {*coord.dims} <= used
    }
    summary = xr.Dataset(variables, {**coords, "status": list(CODES)}, dict(dataset.attrs))
    return summary.assign_attrs(units_of(summary))
