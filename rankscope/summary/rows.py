"""Rows of the terminal tables, out of the summaries of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.summary.accumulate import ABSENT, CODES, GOOD
from rankscope.summary.losses import BY_TOKEN, BY_WINDOW
from rankscope.summary.sizes import Sizes, batch_windows
from rankscope.summary.units import Array
from rankscope.summary.windows import place_named, quarter_of

Summaries = xr.Dataset | Iterable[xr.Dataset]


@dataclass(frozen=True)
class Estimate:
    """A mean over windows with its 95 % interval; NaN where there is none.

    `units` counts the texts or batches of windows of the interval, `undefined` the matrices
    (windows, for a loss) in which the measure is NaN.
    """

    mean: float
    low: float
    high: float
    units: int
    undefined: int


@dataclass(frozen=True)
class Spread(Estimate):
    """A mean with its interval, and the spread of the heads' means: not an interval."""

    median: float
    q10: float
    q90: float
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Source(Sizes):
    """What a row is about: a model on a corpus."""

    model: str
    corpus: str
    windows: int
    texts: int
    interval_unit: str
    batch_windows: int
    n_min: int
    n_max: int
    bad: dict[str, int]


@dataclass(frozen=True)
class TableRow(Source):
    """One line of the table of spectra: a model on a corpus.

    Ratios are cumulative ratios (σ) at `index`, in [0, 1]; where that is 0, because the windows
    have several lengths, each is read at a quarter of its own n. `minimum` and `maximum` are those
    of the heads' means. Ranks count singular values, over all usable matrices. `layer_intervals`
    are in the order of `layer_means`; NaN for a summary that was written without them.
    """

    index: int
    mean: float
    interval: tuple[float, float]
    minimum: float
    maximum: float
    energy_mean: float
    layer_means: tuple[tuple[int, float], ...]
    layer_intervals: tuple[tuple[float, float], ...]
    k90_median: float
    k90_min: float
    k90_max: float

    @property
    def place(self) -> str:
        """Where the ratios are read, "128" or "n/4 of each window"."""
        return place_named(self.index)


@dataclass(frozen=True)
class MethodRow:
    """One method of a `compare` run.

    `budget` is 0 for a method without; `measures` holds every measure of the run by its name.
    """

    source: Source
    method: str
    family: str
    label: str
    budget: int
    measures: dict[str, Spread]


@dataclass(frozen=True)
class LossRow:
    """One method of an `intervene` run: losses in nats a masked token.

    `difference` is the loss less that of full attention on the same windows and masks; `kl` the
    divergence of the predictions from full attention's.
    """

    source: Source
    method: str
    family: str
    label: str
    budget: int
    masked_tokens: int
    loss: Estimate
    difference: Estimate
    kl: Estimate
    top1_agreement: Estimate
    hidden_error: Estimate
    hidden_cosine: Estimate


@dataclass(frozen=True)
class TruncationRow:
    """P_low of one rank k.

    `errors` are the curves read at k, `chosen` what was measured at chosen ranks (empty unless k is
    one of them), `fixed` what has no rank, the same in every row.
    """

    source: Source
    k: int
    errors: dict[str, Spread]
    chosen: dict[str, Spread]
    fixed: dict[str, Spread]


def table(summaries: Summaries) -> list[TableRow]:
    """The numbers to print, one row for each model and corpus.

    Parameters
    ----------
    summaries : Dataset or iterable of Dataset
        As :func:`rankscope.summary.summarise` or :func:`rankscope.summary.combine` return them.

    Returns
    -------
    list of TableRow
        Read at the index that the summary was asked for; else at a quarter of each window's own n.
        NaN where there is nothing to average.
    """
    return [_table_row(part, source) for part, source in _pairs(summaries)]


def method_rows(summaries: Summaries) -> list[MethodRow]:
    """A row for every model, corpus and method of :func:`~.methods.summarise_methods`."""
    return [
        MethodRow(
            source,
            *_named(one),
            {name: _spread(one, name) for name in _spread_names(part, "method")},
        )
        for part, source in _pairs(summaries)
        for one in _methods(part)
    ]


def loss_rows(summaries: Summaries) -> list[LossRow]:
    """A row for every model, corpus and method of :func:`~.losses.summarise_losses`."""
    return [
        LossRow(
            source,
            *_named(one),
            int(part["n_masked_tokens"]),
            *(_estimate(one, name, name) for name in (*BY_TOKEN, *BY_WINDOW)),
        )
        for part, source in _pairs(summaries)
        for one in _methods(part)
    ]


def truncation_rows(summaries: Summaries, ks: Sequence[int] | None = None) -> list[TruncationRow]:
    """A row for every model, corpus and rank of :func:`~.methods.summarise_truncation`.

    Parameters
    ----------
    summaries : Dataset or iterable of Dataset
    ks : sequence of int, optional
        Default: the ranks chosen in the run, or the powers of two up to n if there are none.

    Raises
    ------
    UsageError
        For a k that is not on the index axis.
    """
    rows = []
    for part, source in _pairs(summaries):
        known = part["index"].to_numpy()
        chosen = part["rank"].to_numpy().tolist() if "rank" in part.dims else []
        wanted = ks if ks is not None else chosen or [k for k in known if k & (k - 1) == 0]
        if lost := [int(k) for k in wanted if k not in known]:
            raise UsageError(
                f"no errors at k = {lost[0]}", f"choose from {known.min()} to {known.max()}"
            )
        fixed = {name: _spread(part, name) for name in _spread_names(part)}
        for k in map(int, wanted):
            at = part.sel(index=k)
            here = at.sel(rank=k) if k in chosen else None
            rows.append(
                TruncationRow(
                    source,
                    k,
                    {name: _spread(at, name) for name in _spread_names(part, "index")},
                    {}
                    if here is None
                    else {name: _spread(here, name) for name in _spread_names(part, "rank")},
                    fixed,
                )
            )
    return rows


def _pairs(summaries: Summaries) -> Iterator[tuple[xr.Dataset, Source]]:
    for summary in [summaries] if isinstance(summaries, xr.Dataset) else summaries:
        for model in range(summary.sizes["model"]):
            for corpus in range(summary.sizes["corpus"]):
                part = summary.isel(model=model, corpus=corpus)
                yield part, _source(part)


def _source(part: xr.Dataset) -> Source:
    counts = dict(zip(part["status"].to_numpy(), part["status_count"].to_numpy(), strict=True))
    return Source(
        model=str(part["model"].item()),
        corpus=str(part["corpus"].item()),
        windows=int(part["n_windows"]),
        texts=int(part["n_texts"]),
        interval_unit=str(part["interval_unit"].item()),
        batch_windows=batch_windows(part),
        n_min=int(part["n_tokens_min"]),
        n_max=int(part["n_tokens_max"]),
        bad={
            name: int(counts[name])
            for name, code in CODES.items()
            if code not in (*GOOD, ABSENT) and counts[name]
        },
    )


_AT_INDEX = ("ratio_at", "mean_ratio_curve", "interval", "mean_energy_ratio_curve", "layer_mean")
_AT_QUARTER = (
    *("quarter_ratio", "quarter_mean", "quarter_mean"),
    *("energy_quarter_mean", "quarter_layer_mean"),
)


def _table_row(part: xr.Dataset, source: Source) -> TableRow:
    # summaries from before there was a choice are read where they say
    if part.attrs.get("ratio_index_chosen", 1):
        index, names = int(part.attrs["ratio_index"]), _AT_INDEX
    else:
        least, most = quarter_of(np.array([source.n_min, source.n_max])).tolist()
        index, names = most if least == most else 0, _AT_QUARTER
    by_head, mean, interval, energy, layer = names
    at = part.sel(index=index) if names is _AT_INDEX else part
    heads = at[by_head].to_numpy()
    heads = heads[~np.isnan(heads)]
    means = at[layer].to_numpy().tolist()
    ends = (f"{layer}_low", f"{layer}_high")
    lost = np.full(len(means), np.nan)
    low, high = (at[name].to_numpy() if name in at else lost for name in ends)
    k90 = _least_median_most(part["index"].to_numpy(), part["rank_90_count"].to_numpy())
    return TableRow(
        **vars(source),
        index=index,
        mean=float(at[mean]),
        interval=(float(at[f"{interval}_low"]), float(at[f"{interval}_high"])),
        minimum=float(heads.min()) if heads.size else np.nan,
        maximum=float(heads.max()) if heads.size else np.nan,
        energy_mean=float(at[energy]),
        layer_means=tuple(zip(part["layer"].to_numpy().tolist(), means, strict=True)),
        layer_intervals=tuple(zip(low.tolist(), high.tolist(), strict=True)),
        k90_min=k90[0],
        k90_median=k90[1],
        k90_max=k90[2],
    )


def _least_median_most(values: Array, counts: Array) -> tuple[float, float, float]:
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


def _methods(part: xr.Dataset) -> Iterator[xr.Dataset]:
    return (part.isel(method=place) for place in range(part.sizes["method"]))


def _named(one: xr.Dataset) -> tuple[str, str, str, int]:
    return (
        str(one["method"].item()),
        str(one["family"].item()),
        str(one["label"].item()),
        int(one["budget"]),
    )


def _spread_names(part: xr.Dataset, *dims: str) -> list[str]:
    """Measures whose spread over heads is over exactly these dimensions."""
    return [
        str(name).removesuffix("_median")
        for name, variable in part.data_vars.items()
        if str(name).endswith("_median") and variable.dims == dims
    ]


def _estimate(one: xr.Dataset, name: str, mean: str) -> Estimate:
    return Estimate(
        mean=float(one[mean]),
        low=float(one[f"{name}_low"]),
        high=float(one[f"{name}_high"]),
        units=int(one[f"{name}_units"]),
        undefined=int(one[f"{name}_undefined"]),
    )


def _spread(one: xr.Dataset, name: str) -> Spread:
    over_heads = (float(one[f"{name}_{part}"]) for part in ("median", "q10", "q90", "min", "max"))
    return Spread(*vars(_estimate(one, name, f"{name}_mean")).values(), *over_heads)


__all__ = [
    "Estimate",
    "LossRow",
    "MethodRow",
    "Source",
    "Spread",
    "TableRow",
    "TruncationRow",
    "loss_rows",
    "method_rows",
    "table",
    "truncation_rows",
]
