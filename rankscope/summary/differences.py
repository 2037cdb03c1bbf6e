"""What was measured less what a control gives, window by window, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import control_of
from rankscope.summary.accumulate import GOOD
from rankscope.summary.averages import Measure, check_run, cuts, whole_numbers, window_bytes
from rankscope.summary.groups import beside_groups
from rankscope.summary.units import Array, Floats
from rankscope.summary.windows import place_named, quarter_of

PAIRING = ("text_id", "window", "token_start")
"""What two windows have in common that may be compared; a padded one ends sooner."""

_NAMES = ("cumulative_ratio", "energy_ratio", "status", "n_tokens")


@dataclass(frozen=True, eq=False)
class Difference:
    """A ratio at one index: measured, of the control, and the paired difference of the two.

    Attributes
    ----------
    model, corpus, control : str
    name : str
        The model of the control's run, such as ``rows:minilm``.
    index : int
        k; 0 where each window is read at a quarter of its own size.
    measured, control_mean : float
        Means over the heads; of each head over the windows of a text, then over texts.
    mean : float
        Measured less control.
    interval : (float, float)
        95 % interval of `mean`, mean ± t·s/√u over the u units' own differences; NaN with one.
    units : int
        Texts, or windows (batches of them, from 64 on) where both have matrices of a single text
        only; groups of windows beside a control ``mean-M``.
    unit : str
        "text" or "window".
    by_head : (layer, head) float64
        The difference of every head. Of random weights only means over heads have a meaning: their
        head number h has nothing to do with that of the model.
    """

    model: str
    corpus: str
    control: str
    name: str
    index: int
    measured: float
    control_mean: float
    mean: float
    interval: tuple[float, float]
    units: int
    unit: str
    by_head: Floats

    @property
    def place(self) -> str:
        """Where the ratio is read, "128" or "n/4 of each window"."""
        return place_named(self.index)

    def attrs(self) -> dict[str, float]:
        """The difference as attributes of the control's summary; figures show them."""
        low, high = self.interval
        return {
            "difference": self.mean,
            "difference_low": low,
            "difference_high": high,
            "difference_index": self.index,
        }


def difference(
    measured: xr.Dataset,
    control: xr.Dataset,
    *,
    index: int | None = None,
    ratio: Literal["cumulative_ratio", "energy_ratio"] = "cumulative_ratio",
) -> Difference:
    """A run less its control, paired by window.

    A control ``mean-M`` is paired by group: measured is the mean of the ratios of its M windows.

    Parameters
    ----------
    measured, control : Dataset, dims (model, corpus, sample, layer, head, index)
        Runs of one model and corpus each, of the same windows; read in blocks.
    index : int, optional
        k; by default a quarter of each measured window's own size, max(1, ⌊n/4⌋), so that a short
        window is not read where its ratio is 1 by definition.
    ratio : {"cumulative_ratio", "energy_ratio"}
        σ or σ².

    Returns
    -------
    Difference

    Raises
    ------
    StoreError
        If one of them is no run of spectra.
    UsageError
        If the two have other windows, layers or heads, or no such index.
    """
    one, other = _pair(measured), _pair(control)
    one = beside_groups(one, other, index)
    sizes = whole_numbers(one["n_tokens"].to_numpy(), 0)
    quarters = np.unique(quarter_of(sizes[sizes > 0]))
    k = index if index is not None else int(quarters[0]) if quarters.size == 1 else 0
    for name in (*PAIRING, "layer", "head"):
        if not np.array_equal(one[name], other[name]):
            raise UsageError(
                f"the control was measured on another {name} than the run",
                "give both the same windows and layers",
            )
    wanted = quarters if index is None else np.array([index])
    known = np.intersect1d(one["index"], other["index"])
    if (lost := np.setdiff1d(wanted, known)).size:
        raise UsageError(f"index {lost[0]} is not in both runs", "choose a smaller one")
    means = [Measure((one.sizes["layer"], one.sizes["head"])) for _ in range(3)]
    texts, sizes = one["text_id"].to_numpy(), whole_numbers(one["n_tokens"].to_numpy(), 0)
    # both by the same windows, however long their curves are
    width = sum(window_bytes(run, (ratio, "status")) for run in (one, other))
    for cut in cuts(texts, width):
        parts = [run[[ratio, "status"]].isel(sample=cut) for run in (one, other)]
        ks = quarter_of(sizes[cut]) if k == 0 else np.full(len(texts[cut]), k)
        # a head counts where both have a matrix
        good = _usable(parts[0]) & _usable(parts[1])
        here, there = (_read(part[ratio], ks) for part in parts)
        for measure, found in zip(means, (here, there, here - there), strict=True):
            measure.add_many(found, good, texts[cut])
    unit = means[0].unit
    name = str(control["model"].item())
    first, second, gap = (measure.result(unit) for measure in means)
    return Difference(
        model=str(measured["model"].item()),
        corpus=str(measured["corpus"].item()),
        control=control_of(name)[0] or name,
        name=name,
        index=k,
        measured=float(first["_mean"]),
        control_mean=float(second["_mean"]),
        mean=float(gap["_mean"]),
        interval=(float(gap["_low"]), float(gap["_high"])),
        units=int(gap["_units"]),
        unit=unit,
        by_head=gap[""],
    )


def _pair(dataset: xr.Dataset) -> xr.Dataset:
    names = (*_NAMES, *PAIRING)
    check_run(dataset, ("sample", "layer", "head", "index"), names, "spectra")
    if dataset.sizes["model"] != 1 or dataset.sizes["corpus"] != 1:
        raise StoreError("a difference is of one model on one corpus", "select one of each")
    return dataset.isel(model=0, corpus=0)


def _usable(part: xr.Dataset) -> Array:
    status = part["status"].transpose("sample", "layer", "head").to_numpy()
    return np.asarray(np.isin(status, GOOD))


def _read(ratio: xr.DataArray, ks: Array) -> Floats:
    """A ratio of each window at its own k, (sample, layer, head)."""
    some, place = np.unique(ks, return_inverse=True)
    ordered = ratio.transpose("sample", "layer", "head", "index")
    values = ordered.sel(index=some).to_numpy()
    return np.asarray(np.take_along_axis(values, place.reshape(-1, 1, 1, 1), axis=-1)[..., 0])
