"""Means of any measure over windows, entry by entry: what the summaries of methods share.

As for spectra, windows of one text are averaged first and the texts after that. A measure may be
missing where the matrix is not, since not every measure is defined for every method: such entries
are counted, and stand in no mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

    def add(self, values: Array, good: Array) -> None:
        """Take in a window.

        Parameters
        ----------
        values : ndarray (layer, head, ...)
            Infinity makes a mean infinite; NaN is counted as undefined.
        good : ndarray (layer, head, ...) of bool
            Whether there is a usable matrix; whatever `values` holds elsewhere is left out.
        """
        good = np.broadcast_to(good, self.shape)
        finite = good & np.isfinite(values)
        infinite = good & (values == np.inf)
        self._infinite |= infinite
        self._count += finite | infinite
        self._undefined += good & ~(finite | infinite)
        self._inside.add(values, finite)
        # a window without a usable matrix is in no batch, as the census counts them
        if good.any():
            unit = mean_of_present(np.where(finite, values, np.nan), (0, 1))
            self._windows.add(unit, np.isfinite(unit))

    def close_text(self) -> None:
        """The windows of a text are through."""
        inside = self._inside
        self._outside.add(inside.mean, inside.count > 0)
        unit = mean_of_present(inside.mean, (0, 1))
        self._texts.add(unit, np.isfinite(unit))
        self._inside = Moments(self.shape, self.shape)

    def result(self, unit: str) -> dict[str, Array]:
        """What has been taken in, by suffix: "" for each head, the others over heads."""
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
        if (status == ABSENT).all():
            return False
        self.windows += 1
        self._texts.add(text_id)
        if np.isin(status, GOOD).any():
            self._usable.add(text_id)
            self._usable_windows += 1
        if n_tokens > 0:
            self._sizes = [min([n_tokens, *self._sizes]), max([n_tokens, *self._sizes])]
        # the codes start below zero, a histogram at zero
        self._codes += np.bincount(status.ravel() - min(CODES.values()), minlength=len(CODES))
        return True

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
    order = np.argsort(pair["text_id"].to_numpy(), kind="stable")
    width = sum(pair[name].nbytes for name in names) // max(1, pair.sizes["sample"])
    step = max(1, BLOCK_BYTES // max(1, width))
    for start in range(0, len(order), step):
        chosen = order[start : start + step]
        # a slice reads a stored run in one go, where a list of numbers would go window by window
        straight = bool((np.diff(chosen) == 1).all())
        take = slice(int(chosen[0]), int(chosen[-1]) + 1) if straight else chosen
        block = pair[[*names, "text_id"]].isel(sample=take)
        yield block.transpose("sample", "layer", "head", ..., missing_dims="ignore").load()


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


def by_pair(
    cells: Sequence[Sequence[Cell]],
    dataset: xr.Dataset,
) -> xr.Dataset:
    """A summary from what was found for each model and corpus, with the coordinates of the run."""
    variables = {
        name: (
            ("model", "corpus", *dims),
            np.stack([np.stack([np.asarray(cell[name][1]) for cell in row]) for row in cells]),
        )
        for name, (dims, _) in cells[0][0].items()
    }
    used = {dim for dims, _ in variables.values() for dim in dims}
    # loaded, since the file behind a lazily opened run may be closed before the summary is used
    coords = {
        str(name): coord.compute()
        for name, coord in dataset.coords.items()
        if coord.dims and {*coord.dims} <= used
    }
    summary = xr.Dataset(variables, {**coords, "status": list(CODES)}, dict(dataset.attrs))
    units = sorted({str(unit) for unit in summary["interval_unit"].to_numpy().ravel()})
    summary.attrs |= {"interval_level": LEVEL, "interval_unit": ",".join(units)}
    return summary
