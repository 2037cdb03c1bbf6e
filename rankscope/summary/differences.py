"""What was measured less what a control gives, window by window, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import control_of
from rankscope.summary.accumulate import GOOD
from rankscope.summary.averages import Census, Measure, blocks, check_run
from rankscope.summary.units import Floats

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
        k.
    measured, control_mean : float
        Means over the heads; of each head over the windows of a text, then over texts.
    mean : float
        Measured less control.
    interval : (float, float)
        95 % interval of `mean`, mean ± t·s/√u over the u units' own differences; NaN with one.
    units : int
        Texts, or windows (batches of them, from 64 on) where there is a single text.
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

    Parameters
    ----------
    measured, control : Dataset, dims (model, corpus, sample, layer, head, index)
        Runs of one model and corpus each, of the same windows; read in blocks.
    index : int, optional
        k; a quarter of the longest window by default.
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
    for name in (*PAIRING, "layer", "head"):
        if not np.array_equal(one[name], other[name]):
            raise UsageError(
                f"the control was measured on another {name} than the run",
                "give both the same windows and layers",
            )
    k = max(1, int(one["n_tokens"].max()) // 4) if index is None else index
    if k not in one["index"] or k not in other["index"]:
        raise UsageError(f"index {k} is not in both runs", "choose a smaller one")
    shape = (one.sizes["layer"], one.sizes["head"])
    census = Census()
    means = [Measure(shape) for _ in range(3)]
    text: int | None = None
    for here, there in zip(blocks(one, _NAMES), blocks(other, _NAMES), strict=True):
        good = np.isin(here["status"], GOOD) & np.isin(there["status"], GOOD)
        values = [part[ratio].sel(index=k).to_numpy() for part in (here, there)]
        values.append(values[0] - values[1])
        for place in range(here.sizes["sample"]):
            now = int(here["text_id"][place])
            if text not in (None, now):
                for measure in means:
                    measure.close_text()
            text = now
            # a head counts where both have a matrix
            for measure, found in zip(means, values, strict=True):
                measure.add(np.where(good[place], found[place], np.nan), good[place])
            census.add(now, int(here["n_tokens"][place]), here["status"].to_numpy()[place])
    for measure in means:
        measure.close_text()
    name = str(control["model"].item())
    first, second, gap = (measure.result(census.unit) for measure in means)
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
        unit=census.unit,
        by_head=gap[""],
    )


def _pair(dataset: xr.Dataset) -> xr.Dataset:
    check_run(dataset, ("sample", "layer", "head", "index"), _NAMES, "spectra")
    if dataset.sizes["model"] != 1 or dataset.sizes["corpus"] != 1:
        raise StoreError("a difference is of one model on one corpus", "select one of each")
    return dataset.isel(model=0, corpus=0)
