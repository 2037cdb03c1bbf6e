"""Means with intervals over windows: the numbers of the figures and of the terminal table.

A run holds a spectrum per window, layer and head; a summary holds what is left after averaging
over windows, small enough to commit beside a figure. Windows of one text are averaged first, then
texts. Only matrices with a usable status enter a mean; the others are counted by status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.summary.accumulate import (
    ABSENT,
    CODES,
    FRACTIONS,
    GOOD,
    SCALARS,
    Accumulator,
    Cell,
)
from rankscope.summary.sizes import Sizes, batch_windows
from rankscope.summary.units import LEVEL, mean_of_present

BLOCK_BYTES = 64 * 2**20
"""How much of a dataset is read at a time."""

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
        Where to read `ratio_at`, a value of the index coordinate. Default: a quarter of the
        largest n, rounded down.

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
        - `k90` (model, corpus, layer, head): mean number of values that hold 90 %, and
          `mean_effective_rank` … likewise
        - `rank_90_count` (model, corpus, index), int64: matrices whose 90 % need that many values
        - `n_matrices` (model, corpus, layer, head), int64: matrices of any status but absent;
          `status_count` (model, corpus, status), int64
        - `n_windows`, `n_texts`, `n_tokens_min`, `n_tokens_max` (model, corpus), int64; `n_units`,
          the texts or full batches of the intervals, and `batch_windows`, the windows in a batch,
          1 for texts; `interval_unit` (model, corpus), "text" or "window"

        The attributes of the run are kept; `ratio_index`, `interval_level` and `interval_unit`
        are added.

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
    variables = {
        name: (
            ("model", "corpus", *dims),
            np.stack([np.stack([np.asarray(cell[name][1]) for cell in row]) for row in cells]),
        )
        for name, (dims, _) in cells[0][0].items()
    }
    summary = xr.Dataset(
        variables, {"fraction": FRACTIONS, **coords, "status": _STATUS_NAMES}, attrs
    )
    ks = np.asarray(summary["index"])
    if index is None:
        index = max(int(summary["n_tokens_max"].max()) // 4, 1)
    if index not in ks:
        raise UsageError(
            f"index {index} is not on the index axis",
            f"choose one from {ks.min()} to {ks.max()}" if ks.size else "the run is empty",
        )
    units = sorted({str(unit) for unit in summary["interval_unit"].to_numpy().ravel()})
    summary.attrs |= {
        "ratio_index": int(index),
        "interval_level": LEVEL,
        "interval_unit": ",".join(units),
    }
    for prefix in ("", "energy_"):
        at = summary[f"mean_{prefix}ratio"].sel(index=index, drop=True)
        summary[f"{prefix}ratio_at"] = at
        mean = mean_of_present(at.transpose(..., "layer", "head").to_numpy(), (-1,))
        half = summary[f"{prefix}layer_half_width"].sel(index=index).to_numpy()
        for end, values in {"": mean, "_low": mean - half, "_high": mean + half}.items():
            summary[f"{prefix}layer_mean{end}"] = (("model", "corpus", "layer"), values)
    return summary.drop_vars(["layer_half_width", "energy_layer_half_width"])


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


@dataclass(frozen=True)
class TableRow(Sizes):
    """One line of the terminal table: a model on a corpus.

    Ratios are cumulative ratios (σ) at `index`, in [0, 1]; `minimum` and `maximum` are those of
    the heads' means. Ranks count singular values, over all usable matrices. `layer_intervals` are
    in the order of `layer_means`; NaN for a summary that was written without them.
    """

    model: str
    corpus: str
    windows: int
    texts: int
    n_min: int
    n_max: int
    index: int
    mean: float
    interval: tuple[float, float]
    interval_unit: str
    batch_windows: int
    minimum: float
    maximum: float
    energy_mean: float
    layer_means: tuple[tuple[int, float], ...]
    layer_intervals: tuple[tuple[float, float], ...]
    k90_median: float
    k90_min: float
    k90_max: float
    bad: dict[str, int]


def table(summaries: xr.Dataset | Iterable[xr.Dataset]) -> list[TableRow]:
    """The numbers to print, one row for each model and corpus.

    Parameters
    ----------
    summaries : Dataset or iterable of Dataset
        As :func:`summarise` or :func:`combine` return them.

    Returns
    -------
    list of TableRow
        NaN where there is nothing to average.
    """
    if isinstance(summaries, xr.Dataset):
        summaries = [summaries]
    return [_row(part.isel(model=0, corpus=0)) for summary in summaries for part in _pairs(summary)]


def _row(part: xr.Dataset) -> TableRow:
    index = int(part.attrs["ratio_index"])
    at = part["ratio_at"].to_numpy()
    at = at[np.isfinite(at)]
    curve = part.sel(index=index)
    low, median, high = _spread(part["index"].to_numpy(), part["rank_90_count"].to_numpy())
    counts = dict(zip(part["status"].to_numpy(), part["status_count"].to_numpy(), strict=True))
    return TableRow(
        model=str(part["model"].item()),
        corpus=str(part["corpus"].item()),
        windows=int(part["n_windows"]),
        texts=int(part["n_texts"]),
        n_min=int(part["n_tokens_min"]),
        n_max=int(part["n_tokens_max"]),
        index=index,
        mean=float(curve["mean_ratio_curve"]),
        interval=(float(curve["interval_low"]), float(curve["interval_high"])),
        interval_unit=str(part["interval_unit"].item()),
        batch_windows=batch_windows(part),
        minimum=float(at.min()) if at.size else np.nan,
        maximum=float(at.max()) if at.size else np.nan,
        energy_mean=float(curve["mean_energy_ratio_curve"]),
        layer_means=tuple(
            (int(layer), float(mean))
            for layer, mean in zip(
                part["layer"].to_numpy(), part["layer_mean"].to_numpy(), strict=True
            )
        ),
        layer_intervals=_layer_intervals(part),
        k90_median=median,
        k90_min=low,
        k90_max=high,
        bad={
            name: int(counts[name])
            for name, code in CODES.items()
            if code not in (*GOOD, ABSENT) and counts[name]
        },
    )


def _layer_intervals(part: xr.Dataset) -> tuple[tuple[float, float], ...]:
    ends = ("layer_mean_low", "layer_mean_high")
    if ends[0] not in part:
        return ((np.nan, np.nan),) * part.sizes["layer"]
    low, high = (part[end].to_numpy().tolist() for end in ends)
    return tuple(zip(low, high, strict=True))


def _spread(values: npt.NDArray[Any], counts: npt.NDArray[Any]) -> tuple[float, float, float]:
    """Least, median and largest of `values` taken `counts` times each."""
    total = int(counts.sum())
    if total == 0:
        return np.nan, np.nan, np.nan
    below = np.cumsum(counts)
    # the two middle ones of an even number, the same one twice of an odd
    halves = ((total - 1) // 2, total // 2)
    middle = [values[np.searchsorted(below, half, side="right")] for half in halves]
    there = values[counts > 0]
    return float(there[0]), float(np.mean(middle)), float(there[-1])


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
    names = [name for name in (*_NEEDED, *SCALARS) if name in pair.variables]
    text_ids = pair["text_id"].to_numpy()
    order = np.argsort(text_ids, kind="stable")
    width = max(1, sizes["layer"] * sizes["head"] * sizes["index"]) * 2 * 8
    step = max(1, BLOCK_BYTES // width)
    for start in range(0, sizes["sample"], step):
        chosen = order[start : start + step]
        # a slice reads a stored run in one go, where a list of numbers would go window by window
        straight = bool((np.diff(chosen) == 1).all())
        take = slice(int(chosen[0]), int(chosen[-1]) + 1) if straight else chosen
        block = pair[names].isel(sample=take).transpose("sample", "layer", "head", "index").load()
        arrays = {name: block[name].to_numpy() for name in names}
        # joining runs of different shape fills whole numbers up with NaN
        status = np.nan_to_num(arrays["status"].astype(np.float64), nan=ABSENT)
        tokens = np.nan_to_num(arrays["n_tokens"].astype(np.float64)).astype(np.int64)
        accumulator.add_many(
            text_id=arrays["text_id"],
            n_tokens=tokens,
            status=status,
            cumulative_ratio=arrays["cumulative_ratio"],
            energy_ratio=arrays["energy_ratio"],
            scalars={name: arrays[name] for name in SCALARS if name in arrays},
        )
    return accumulator
