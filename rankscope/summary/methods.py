"""How far methods are from full attention, over windows and heads: numbers of figures and tables.

Three kinds of run are summarised. A run of `compare` has a value for every measure, window, layer,
head and method; one of `truncate` a curve over k; one of `intervene` the loss of every window under
every method. All intervals are those of :mod:`rankscope.summary`: 95 %, Student's t, over texts, or
over batches of windows where there is one text.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.summary.accumulate import ABSENT, GOOD, Cell
from rankscope.summary.averages import (
    Census,
    Measure,
    blocks,
    by_pair,
    check_run,
    whole_numbers,
)
from rankscope.summary.units import Array, mean_of_present

_BESIDE = ("status", "n_tokens")
_MATRIX = ("model", "corpus", "sample", "layer", "head")


def summarise_methods(dataset: xr.Dataset) -> xr.Dataset:
    """Errors of every method: means over windows of each head, and their spread over heads.

    A head's mean is taken over the windows of each text first, then over texts. The mean of a
    method is that of its heads, each with equal weight, and comes with its 95 % interval, mean ±
    t·s/√u over the u per-text means, or over batches of windows where there is one text. The spread
    over
    heads is another thing: quantiles of the heads' means.

    Parameters
    ----------
    dataset : Dataset, dims (model, corpus, sample, layer, head, method)
        A run of `compare`; read in blocks of samples, so it may be larger than the memory.

    Returns
    -------
    Dataset
        For every measure of the run, say `output`:

        - `output` (model, corpus, method, layer, head): mean over windows; NaN where it is
          undefined in all of them
        - `output_count` (model, corpus, method, layer, head), int64: windows in that mean
        - `output_mean`, and `output_low`, `output_high`, the ends of its interval; NaN below two
          units, whose number is `output_units` (model, corpus, method)
        - `output_median`, `output_q10`, `output_q90`, `output_min`, `output_max` (model, corpus,
          method): over the means of the heads
        - `output_undefined` (model, corpus, method), int64: usable matrices in which it is NaN

        An infinite value, as a divergence can be, makes the means infinite and leaves no interval.
        Beside them `n_matrices` (model, corpus, layer, head), `status_count` (model, corpus,
        status), `n_windows`, `n_texts`, `n_units`, `batch_windows`, `n_tokens_min`, `n_tokens_max`,
        `interval_unit` (model, corpus), as in :func:`rankscope.summary.summarise`. Matrices
        whose status is not good are counted and stand in no mean.

    Raises
    ------
    StoreError
        If it is no run of `compare`.
    """
    check_run(dataset, (*_MATRIX, "method"), (*_BESIDE, "text_id"), "compare")
    summary = _by_head(dataset, "compare")
    return summary.transpose("model", "corpus", "method", ..., missing_dims="ignore")


def summarise_truncation(dataset: xr.Dataset) -> xr.Dataset:
    """Errors of P_low over k: means of each head, and their spread over heads, for every rank.

    Parameters
    ----------
    dataset : Dataset, dims (model, corpus, sample, layer, head, index, rank)
        A run of `truncate`; read in blocks of samples. `index` is k = 1 … n, `rank` the chosen k.

    Returns
    -------
    Dataset
        The same variables for every measure as :func:`summarise_methods` gives, over `index` for
        the curves (`output_error` (model, corpus, layer, head, index), `output_error_mean` (model,
        corpus, index), …), over `rank` for what was measured at chosen ranks, and over neither for
        what has no rank, such as `mean_row_output_error`. For k above a window's own n the error is
        0 whatever is stored, since P_k = P.

    Raises
    ------
    StoreError
        If it is no run of `truncate`.
    """
    check_run(dataset, (*_MATRIX, "index"), (*_BESIDE, "text_id"), "truncate")
    return _by_head(dataset, "truncate")


def errors_by_layer(
    summaries: Mapping[str, xr.Dataset], measure: str = "output", *, names: Mapping[str, str]
) -> xr.DataArray:
    """Mean error of each layer over its heads, of runs on several texts, side by side.

    Parameters
    ----------
    summaries : mapping of str to Dataset
        Of :func:`summarise_methods`, each of one model and corpus, by what its text is, such as
        "training" and "held-out".
    measure : str, default "output"
    names : mapping of str to str
        Name of each label that is wanted, such as ``{"linformer": "mean pooling"}``, in the order
        wanted; labels with one name are one method, as projections that were fitted for each rank
        and have a file each. Methods with other labels are left out.

    Returns
    -------
    DataArray, dims (rank, method, split, layer)
        NaN where a method was not run at a rank, or on a split.

    Raises
    ------
    UsageError
        If a label is in no summary, a summary lacks the measure, the layers differ, or one method
        comes twice at one rank.
    """
    parts = {split: one_of(summary) for split, summary in summaries.items()}
    for split, part in parts.items():
        if measure not in part:
            raise UsageError(f"the {split} summary has no measure {measure!r}", "name one it has")
    labels = {str(label) for part in parts.values() for label in part["label"].to_numpy()}
    if lost := [label for label in names if label not in labels]:
        raise UsageError(
            f"no method has the label {lost[0]!r}", f"those that there are: {sorted(labels)}"
        )
    found = {}
    for split, part in parts.items():
        means = part[measure].transpose("method", "layer", "head").to_numpy()
        rows = mean_of_present(means, (-1,))
        for place, (label, k) in enumerate(
            zip(part["label"].to_numpy(), part["budget"].to_numpy(), strict=True)
        ):
            if str(label) in names and k > 0:
                key = (split, names[str(label)], int(k))
                if key in found:
                    raise UsageError(f"{key[1]} at rank {k} comes twice", "give each its own name")
                found[key] = rows[place]
    layers = next(iter(parts.values()))["layer"].to_numpy()
    if any(not np.array_equal(part["layer"], layers) for part in parts.values()):
        raise UsageError("the runs have different layers", "compare runs of the same layers")
    ranks = sorted({k for *_, k in found})
    methods = list(dict.fromkeys(names.values()))
    values = np.full((len(ranks), len(methods), len(parts), len(layers)), np.nan)
    for (split, method, k), row in found.items():
        values[ranks.index(k), methods.index(method), list(parts).index(split)] = row
    return xr.DataArray(
        values,
        {"rank": ranks, "method": methods, "split": list(parts), "layer": layers},
        ("rank", "method", "split", "layer"),
        name=measure,
    )


def one_of(summary: xr.Dataset) -> xr.Dataset:
    """A summary of one model on one corpus without those two dimensions.

    Raises
    ------
    UsageError
        If there are several.
    """
    for dim in ("model", "corpus"):
        if dim in summary.dims:
            if summary.sizes[dim] != 1:
                raise UsageError(
                    f"{summary.sizes[dim]} of the dimension {dim} where one is wanted",
                    f"select one with .sel({dim}=...)",
                )
            summary = summary.isel({dim: 0})
    return summary


def measures_of(dataset: xr.Dataset, *dims: str) -> list[str]:
    """Names of the measures of a run: what has at least the given dimensions."""
    return [
        str(name)
        for name, variable in dataset.data_vars.items()
        if name not in _BESIDE and {*dims} <= {*variable.dims}
    ]


def _by_head(dataset: xr.Dataset, what: str) -> xr.Dataset:
    names = measures_of(dataset, *_MATRIX)
    if not names:
        raise StoreError(f"a run of {what} without a measure", f"compute it with rankscope {what}")
    cells = [
        [
            _summarise_pair(dataset.isel(model=model, corpus=corpus), names)
            for corpus in range(dataset.sizes["corpus"])
        ]
        for model in range(dataset.sizes["model"])
    ]
    return by_pair(cells, dataset)


def _summarise_pair(pair: xr.Dataset, names: list[str]) -> Cell:
    axes = {name: [dim for dim in pair[name].dims if dim not in _MATRIX] for name in names}
    heads = (pair.sizes["layer"], pair.sizes["head"])
    measures = {name: Measure((*heads, *(pair.sizes[dim] for dim in axes[name]))) for name in names}
    census = Census()
    matrices = np.zeros(heads, dtype=np.int64)
    ks = pair["index"].to_numpy() if "index" in pair.dims else np.zeros(0)
    for block in blocks(pair, [*names, *_BESIDE]):
        status = whole_numbers(block["status"].to_numpy(), ABSENT)
        sizes = whole_numbers(block["n_tokens"].to_numpy(), 0)
        texts = block["text_id"].to_numpy()
        there = census.add_many(texts, sizes, status)
        matrices += (status != ABSENT).sum(axis=0)
        good = np.isin(status[there], GOOD)
        for name, measure in measures.items():
            values = block[name].transpose("sample", "layer", "head", *axes[name]).to_numpy()[there]
            if axes[name] == ["index"]:
                values = _exact_beyond(values, ks, sizes[there])
            own = good.reshape(*good.shape, *[1] * len(axes[name]))
            measure.add_many(values, own, texts[there])
    out: Cell = census.result() | {"n_matrices": (("layer", "head"), matrices)}
    for name, measure in measures.items():
        rest = tuple(str(dim) for dim in axes[name])
        for suffix, array in measure.result(census.unit).items():
            by_head = suffix in ("", "_count")
            out[name + suffix] = (("layer", "head", *rest) if by_head else rest, array)
    return out


def _exact_beyond(values: Array, ks: Array, sizes: Array) -> Array:
    """Curves of windows whose error is 0 from k = n on, unless they are undefined at every k."""
    inside = (ks <= sizes[:, None])[:, None, None]
    defined = (~np.isnan(values) & inside).any(axis=-1, keepdims=True)
    return np.where(~inside & defined, 0.0, values)
