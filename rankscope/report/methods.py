"""Errors over k of every head: of P_low at every rank, of other methods at their budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import short_labels
from rankscope.report.provenance import Origin
from rankscope.summary.methods import summarise_methods, summarise_truncation

Key = tuple[str, str]

MEASURES = {"output": "output", "frobenius": "matrix"}
"""Errors that are shown: relative Frobenius errors of the output and of the matrix."""

P_LOW = "P_low"
BOUND = "best output of rank k"

_CURVES = {("output", P_LOW): "output_error", ("frobenius", P_LOW): "frobenius_error"}
_CURVES |= {("output", BOUND): "output_bound"}


@dataclass(frozen=True)
class Series:
    """Errors of one method by one measure.

    Attributes
    ----------
    name : str
        P_low, or the method's text without its budget.
    measure : {"output", "frobenius"}
    ks : list of int or None
        Budgets, ascending; None for every k = 1 … n, empty for a method without a budget.
    values : DataArray, dims (layer, head, k)
    source : str
        How many windows, and of what size.
    """

    name: str
    measure: str
    ks: list[int] | None
    values: xr.DataArray
    source: str

    def record(
        self, layers: list[int], heads: list[int], pack: Callable[[npt.ArrayLike], str]
    ) -> dict[str, Any]:
        """The series on the layers and heads of the page; NaN where it lacks one."""
        values = self.values.reindex(layer=layers, head=heads).transpose("layer", "head", "k")
        return {
            "name": self.name,
            "measure": self.measure,
            "isBound": self.name == BOUND,
            "ks": self.ks,
            "length": values.sizes["k"],
            "values": pack(values.to_numpy()),
            "source": self.source,
        }


def series_of(
    datasets: Sequence[xr.Dataset], origins: Mapping[Key, Origin]
) -> dict[Key, list[Series]]:
    """Errors by model and corpus, P_low first.

    Parameters
    ----------
    datasets : sequence of Dataset
        Runs of ``truncate`` and ``compare``, or their summaries.
    origins : mapping of (model, corpus) to Origin
        What is shown.

    Raises
    ------
    StoreError
        If a dataset is neither.
    UsageError
        If one is of a model and corpus that are not shown, or were other ones, or a method comes
        twice.
    """
    found: dict[Key, list[Series]] = {key: [] for key in origins}
    labels: dict[str, None] = {}
    for dataset in datasets:
        summary, read = _summary(dataset)
        for model in range(summary.sizes["model"]):
            for corpus in range(summary.sizes["corpus"]):
                part = summary.isel(model=model, corpus=corpus)
                if int(part["n_windows"].item()):
                    found[_key(part, origins)] += read(part)
    for series in found.values():
        seen = set()
        for one in series:
            labels[one.name] = None
            if (one.name, one.measure) in seen:
                raise UsageError(f"errors of {one.name!r} come twice", "give each run once")
            seen.add((one.name, one.measure))
        series.sort(key=lambda one: one.name not in (P_LOW, BOUND))
    names = short_labels(labels)
    return {
        key: [Series(names[one.name], *list(vars(one).values())[1:]) for one in series]
        for key, series in found.items()
    }


def _summary(
    dataset: xr.Dataset,
) -> tuple[xr.Dataset, Callable[[xr.Dataset], list[Series]]]:
    is_run = "sample" in dataset.dims
    if {"output_error", "frobenius_error"} & {*dataset.data_vars} and "index" in dataset.dims:
        return (summarise_truncation(dataset) if is_run else dataset), _truncation
    if {*MEASURES} & {*dataset.data_vars} and "method" in dataset.dims and "layer" in dataset.dims:
        return (summarise_methods(dataset) if is_run else dataset), _methods
    raise StoreError(
        "neither a run of truncations nor a comparison of methods",
        "give results of `rankscope truncate` and `rankscope compare`",
    )


def _key(part: xr.Dataset, origins: Mapping[Key, Origin]) -> Key:
    there = Origin.of(part)
    key = (there.model, there.corpus)
    if key not in origins:
        shown = "; ".join(f"{model} on {corpus}" for model, corpus in origins)
        raise UsageError(
            f"errors of model {key[0]!r} on corpus {key[1]!r}, whose spectra are not shown",
            f"what is shown: {shown}",
        )
    if changed := origins[key].differs(there):
        raise UsageError(
            f"spectra and errors of {key[0]!r} on {key[1]!r} differ in their {changed}",
            "compute both from the same model and text",
        )
    return key


def _truncation(part: xr.Dataset) -> list[Series]:
    return [
        Series(name, measure, None, part[variable].rename(index="k"), _source(part))
        for (measure, name), variable in _CURVES.items()
        if variable in part
    ]


def _methods(part: xr.Dataset) -> list[Series]:
    labels = part["label"].to_numpy().astype(str)
    budgets = part["budget"].to_numpy()
    found = []
    for label in dict.fromkeys(labels.tolist()):
        places = np.flatnonzero(labels == label)
        places = places[np.argsort(budgets[places], kind="stable")]
        ks = budgets[places].tolist()
        if len(set(ks)) < len(ks):
            raise UsageError(f"{label!r} comes twice at one budget", "give each method once")
        for measure in MEASURES:
            if measure in part:
                values = part[measure].isel(method=places).drop_vars("method").rename(method="k")
                own = [] if ks == [0] else ks
                found.append(Series(label, measure, own, values, _source(part)))
    return found


def _source(part: xr.Dataset) -> str:
    count, low, high = (
        int(part[name].item()) for name in ("n_windows", "n_tokens_min", "n_tokens_max")
    )
    size = f"{high}" if low == high else f"{low}–{high}"
    return f"{count} window{'s' if count != 1 else ''} of n = {size}"
