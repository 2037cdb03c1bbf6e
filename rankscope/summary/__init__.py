"""Means with intervals over windows: the numbers of the figures and of the terminal table.

A run holds a spectrum per window, layer and head; a summary holds what is left after averaging
over windows, small enough to commit beside a figure. Windows of one text are averaged first, then
texts. Only matrices with a usable status enter a mean; the others are counted by status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.summary.accumulate import ABSENT, CODES, FRACTIONS, SCALARS, Accumulator, Cell
from rankscope.summary.averages import blocks, stacked, units_of, whole_numbers
from rankscope.summary.rows import TableRow, table
from rankscope.summary.units import mean_of_present

_NEEDED = ("cumulative_ratio", "energy_ratio", "status", "n_tokens", "text_id")
_DIMS = ("model", "corpus", "layer", "head", "index")
_STATUS_NAMES = np.array(list(CODES), dtype=np.str_)


def summarise(dataset: xr.Dataset, *, index: int | None = None) -> xr.Dataset:
    """Means over windows of every head, and the mean curves with their intervals.

    The mean of a head is taken over the windows of each text first, then over texts; the curve of
    a model is the mean of its heads, each with equal weight. Its 95 % interval is mean ± t·s/√u
    over the u per-text means (Student's t, u − 1 degrees of freedom). Where there is a single text,
    as for packed windows of one file, its windows are the units; from 64 windows on these are put
    in 32 to 63 batches of consecutive windows, whose means are the units, since neighbours in a
    text are not independent (:class:`rankscope.summary.units.Batches`). Below 64 windows nothing
    corrects for that. With one unit the interval is NaN.

    Parameters
    ----------
    dataset : Dataset, dims (model, corpus, sample, layer, head, index)
        A run; read in blocks of samples, so it may be larger than the memory.
    index : int, optional
        Where to read `ratio_at`, a value of the index coordinate, for windows of any length.
        Default: a quarter of the largest n, rounded down; :func:`table` then reads each window at
        a quarter of its own n.

    Returns
    -------
    Dataset
        All float64 unless said; ratios in [0, 1].

        - `mean_ratio`, `mean_energy_ratio` (model, corpus, layer, head, index); 1 for index ≥ n
          of each window; NaN for a head without a usable matrix
        - `count` (model, corpus, layer, head, index), int64: usable matrices with n ≥ index
        - `ratio_variance`, `energy_ratio_variance` (model, corpus, layer, head, index): sample
          variance (divisor u − 1) over the u texts in which the head is usable, of their means;
          over windows (not batches) where there is a single text; NaN with one
        - `mean_ratio_curve`, `interval_low`, `interval_high`, and `mean_energy_ratio_curve`,
          `energy_interval_low`, `energy_interval_high` (model, corpus, index)
        - the same over k/n: `relative_ratio_curve`, `relative_interval_low`, … and
          `relative_energy_ratio_curve`, `relative_energy_interval_low`, … (model, corpus, fraction)
        - `ratio_at`, `energy_ratio_at` (model, corpus, layer, head) at `attrs["ratio_index"]`;
          `layer_mean`, `energy_layer_mean` (model, corpus, layer) their means over heads, and
          `layer_mean_low`, `layer_mean_high`, `energy_layer_mean_low`, `energy_layer_mean_high`
          the ends of their intervals, each over the `layer_units` (model, corpus, layer), int64,
          in which the layer is usable
        - the same with each window read at a quarter of its own n, k = max(1, ⌊n/4⌋):
          `quarter_ratio` (model, corpus, layer, head), `quarter_mean` (model, corpus) and
          `quarter_layer_mean` (model, corpus, layer), the ends of their intervals `…_low` and
          `…_high`, and `energy_quarter_ratio` … of σ²
        - `k90` (model, corpus, layer, head): mean number of values that hold 90 %, and
          `mean_effective_rank` … likewise
        - `rank_90_count` (model, corpus, index), int64: matrices whose 90 % need that many values
        - `n_matrices` (model, corpus, layer, head), int64: matrices of any status but absent;
          `status_count` (model, corpus, status), int64
        - `n_windows`, `n_texts`, `n_tokens_min`, `n_tokens_max` (model, corpus), int64; `n_units`,
          the texts or full batches of the intervals, and `batch_windows`, the windows in a batch,
          1 for texts; `interval_unit` (model, corpus), "text" or "window"

        The attributes of the run are kept; `ratio_index`, `ratio_index_chosen` (1 if `index` was
        given, else 0), `interval_level` and `interval_unit` are added.

    Raises
    ------
    StoreError
        If a variable is missing or a usable matrix has no finite ratio.
    UsageError
        If `index` is not on the index axis.
    """
    return _summarise(dataset, FRACTIONS, index)


def relative_curve(dataset: xr.Dataset, fractions: npt.ArrayLike) -> xr.Dataset:
    """Mean ratios over k/n, for texts of different length on one axis.

    Between two k the ratio is interpolated linearly; at k = 0 it is 0.

    Parameters
    ----------
    dataset : Dataset, dims (model, corpus, sample, layer, head, index)
    fractions : array (f,)
        k/n, each in [0, 1].

    Returns
    -------
    Dataset
        `relative_ratio_curve`, `relative_energy_ratio_curve` and their intervals
        (model, corpus, fraction), averaged as in :func:`summarise`.

    Raises
    ------
    UsageError
        If a fraction lies outside [0, 1].
    """
    grid = np.atleast_1d(np.asarray(fractions, dtype=np.float64))
    if grid.ndim != 1 or not ((grid >= 0) & (grid <= 1)).all():
        raise UsageError(f"fractions must lie in [0, 1], not {grid}", "k/n is 1 at full rank")
    summary = _summarise(dataset, grid, None)
    return summary[[name for name in summary.data_vars if "fraction" in summary[name].dims]]


def assemble(
    cells: list[list[Cell]],
    coords: dict[Any, Any],
    attrs: dict[str, Any] | None = None,
    *,
    index: int | None = None,
) -> xr.Dataset:
    """A summary out of the results of accumulators, for a run that fed them itself.

    Parameters
    ----------
    cells : list (model) of list (corpus) of dict
        :meth:`rankscope.summary.accumulate.Accumulator.result` of each model and corpus.
    coords : dict
        Coordinates "model", "corpus", "layer", "head" and "index", and any along "layer";
        "fraction" where the accumulators were given their own.
    attrs : dict, optional
        Attributes of the run.
    index : int, optional
        As in :func:`summarise`.

    Returns
    -------
    Dataset
        As :func:`summarise` returns it.
    """
    summary = xr.Dataset(
        stacked(cells), {"fraction": FRACTIONS, **coords, "status": _STATUS_NAMES}, attrs
    )
    ks = np.asarray(summary["index"])
    chosen = int(index is not None)
    if index is None:
        index = max(int(summary["n_tokens_max"].max()) // 4, 1)
    if index not in ks:
        raise UsageError(
            f"index {index} is not on the index axis",
            f"choose one from {ks.min()} to {ks.max()}" if ks.size else "the run is empty",
        )
    read = {"ratio_index": int(index), "ratio_index_chosen": chosen}
    summary.attrs |= read | units_of(summary)
    for prefix in ("", "energy_"):
        at = summary[[f"mean_{prefix}ratio", f"{prefix}layer_half_width"]]
        ratio, half = at.sel(index=index, drop=True).values()
        summary[f"{prefix}ratio_at"] = ratio
        _add_layers(summary, f"{prefix}layer_mean", ratio, half)
        own = (f"{prefix}quarter_ratio", f"{prefix}quarter_layer_half_width")
        _add_layers(summary, f"{prefix}quarter_layer_mean", *(summary[name] for name in own))
    return summary.drop_vars([name for name in summary.data_vars if "half_width" in str(name)])


def _add_layers(
    summary: xr.Dataset, name: str, ratio: xr.DataArray, half_width: xr.DataArray
) -> None:
    """Add means of a ratio over the heads of each layer, and the ends of their intervals."""
    dims = ("model", "corpus", "layer")
    mean = mean_of_present(ratio.transpose(*dims, "head").to_numpy(), (-1,))
    half = half_width.transpose(*dims).to_numpy()
    for end, values in {"": mean, "_low": mean - half, "_high": mean + half}.items():
        summary[f"{name}{end}"] = (dims, values)


def combine(datasets: Iterable[xr.Dataset]) -> list[xr.Dataset]:
    """Runs and summaries as a list of summaries of one model on one corpus each.

    Models with different numbers of layers and heads stay apart: nothing is padded. Layers and
    heads that a model does not have (all absent), and pairs without a window, are left out.

    Parameters
    ----------
    datasets : iterable of Dataset
        Runs (they are summarised) or summaries, of any number of models and corpora.

    Returns
    -------
    list of Dataset
        In the order given, models before corpora.

    Raises
    ------
    UsageError
        If one model and corpus comes twice.
    """
    parts: dict[tuple[str, str], xr.Dataset] = {}
    for dataset in datasets:
        summary = summarise(dataset) if "sample" in dataset.dims else dataset
        for part in _pairs(summary):
            if int(part["n_windows"].item()) == 0:
                continue
            key = (str(part["model"].item()), str(part["corpus"].item()))
            if key in parts:
                raise UsageError(
                    f"two runs of model {key[0]!r} on corpus {key[1]!r}",
                    "name each model and corpus once",
                )
            there = part["n_matrices"].isel(model=0, corpus=0) > 0
            parts[key] = part.isel(
                layer=np.flatnonzero(there.any("head")), head=np.flatnonzero(there.any("layer"))
            )
    return list(parts.values())


def _pairs(summary: xr.Dataset) -> Iterator[xr.Dataset]:
    for model in range(summary.sizes["model"]):
        for corpus in range(summary.sizes["corpus"]):
            yield summary.isel(model=[model], corpus=[corpus])


def _summarise(
    dataset: xr.Dataset, fractions: npt.NDArray[np.float64], index: int | None
) -> xr.Dataset:
    missing = [name for name in _NEEDED if name not in dataset.variables]
    missing += [name for name in (*_DIMS, "sample") if name not in dataset.dims]
    if missing:
        raise StoreError(
            f"not a run of rankscope: without {', '.join(missing)}",
            "give a dataset as rankscope stores it",
        )
    ks = dataset["index"].to_numpy()
    if not np.array_equal(ks, np.arange(1, ks.size + 1)):
        raise StoreError(
            "the index axis is not 1 … n", "summarise the whole run, then select from the summary"
        )
    cells = [
        [
            _accumulate(dataset.isel(model=model, corpus=corpus), fractions).result()
            for corpus in range(dataset.sizes["corpus"])
        ]
        for model in range(dataset.sizes["model"])
    ]
    # loaded, since the file behind a lazily opened run may be closed before the summary is used
    coords = {name: dataset[name].compute() for name in _DIMS}
    coords |= {str(name): c.compute() for name, c in dataset.coords.items() if c.dims == ("layer",)}
    return assemble(cells, coords | {"fraction": fractions}, dict(dataset.attrs), index=index)


def _accumulate(pair: xr.Dataset, fractions: npt.NDArray[np.float64]) -> Accumulator:
    sizes = pair.sizes
    accumulator = Accumulator(sizes["layer"], sizes["head"], sizes["index"], fractions=fractions)
    names = [name for name in (*_NEEDED, *SCALARS) if name in pair.variables and name != "text_id"]
    for block in blocks(pair, names):
        arrays = {name: block[name].to_numpy() for name in names}
        accumulator.add_many(
            text_id=block["text_id"].to_numpy(),
            # joining runs of different shape fills whole numbers up with NaN
            n_tokens=whole_numbers(arrays["n_tokens"], 0),
            status=whole_numbers(arrays["status"], ABSENT),
            cumulative_ratio=arrays["cumulative_ratio"],
            energy_ratio=arrays["energy_ratio"],
            scalars={name: arrays[name] for name in SCALARS if name in arrays},
        )
    return accumulator


__all__ = [
    "TableRow",
    "assemble",
    "combine",
    "relative_curve",
    "summarise",
    "table",
]
