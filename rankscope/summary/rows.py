"""Rows of the terminal tables of `compare`, `intervene` and `truncate`, out of their summaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.summary.accumulate import ABSENT, CODES, GOOD
from rankscope.summary.losses import BY_TOKEN, BY_WINDOW
from rankscope.summary.sizes import Sizes, batch_windows

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
    "TruncationRow",
    "loss_rows",
    "method_rows",
    "truncation_rows",
]
