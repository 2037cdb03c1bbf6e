"""Ranks from a run of ``rankscope truncate``: labels off, choice, and what it was made from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankscope.exceptions import StoreError, UsageError
from rankscope.selection.choice import Choice, allocate, refuse_unknown
from rankscope.selection.curves import (
    CURVES,
    KINDS,
    OBJECTIVES,
    FloatArray,
    errors_at,
    lost,
    reached,
    total_error,
    usable,
)
from rankscope.status import Status

if TYPE_CHECKING:
    import xarray as xr

_DIMS = ("model", "corpus", "sample", "layer", "head", "index")
_USABLE = (Status.ok, Status.fallback, Status.refined)


def from_dataset(
    dataset: xr.Dataset,
    *,
    tolerance: float | None = None,
    kind: str = "output",
    quantile: float | None = None,
    budget: int | None = None,
    objective: str = "relative",
    by: str = "head",
    minimum: int = 1,
    solver: str = "exact",
) -> Choice:
    """Choose ranks from the error curves of a truncation run.

    Matrices without a usable status or without an output (‖PV‖ = 0) are left out and counted;
    windows of one text are averaged first, then texts. A window of n tokens has no error at k ≥ n.

    Parameters
    ----------
    dataset : Dataset, dims (model, corpus, sample, layer, head, index)
        A run of ``rankscope truncate`` of one model on one corpus; read one layer at a time.
    tolerance : float, optional
        In [0, 1]: the smallest rank of every head that loses no more, see :func:`smallest_rank`.
    kind : {"cumulative", "energy", "output"}
        What the tolerance is about, see :data:`KINDS`.
    quantile : float, optional
        In (0, 1]: so many of the windows keep to the tolerance, instead of their mean.
    budget : int, optional
        Instead of a tolerance: Σk over all layers and heads, see :func:`allocate`.
    objective : {"relative", "relative-squared", "absolute", "layer"}
        Which output error is summed under a budget, see :data:`OBJECTIVES`.
    by, minimum, solver
        As for :func:`allocate`.

    Returns
    -------
    Choice
        `how` holds what was asked for and "corpus", "windows", "texts" and "left_out" (matrices
        that could not be used).

    Raises
    ------
    StoreError
        If the dataset is of another kind.
    UsageError
        Without a tolerance and without a budget, or with both; for several models or corpora; if a
        head has no usable matrix, with its layer; and as :func:`smallest_rank` and
        :func:`allocate`.
    """
    if (tolerance is None) == (budget is None):
        raise UsageError(
            "ranks are chosen for a tolerance or for a total rank, and not for both",
            "give one of tolerance and budget",
        )
    # before the long reading: a wrong word is known at once
    for given, known, what in ((kind, KINDS, "kind"), (objective, OBJECTIVES, "objective")):
        if given not in known:
            raise UsageError(f"unknown {what} {given!r}", f"one of {', '.join(known)}")
    needed = [f"{CURVES[kind if budget is None else 'output']}_error"]
    if budget is not None:
        needed.append("output_norm")
    pair = _one_pair(dataset, needed)
    texts = pair["text_id"].to_numpy()
    rows, left_out = [], 0
    for layer in range(pair.sizes["layer"]):
        curves, norms = _read(pair, needed, layer)
        left_out += int((~usable(curves)).sum())
        if budget is None:
            rows.append(lost(curves, kind, quantile=quantile, texts=texts))
        else:
            rows.append(total_error(curves, norms, objective, texts=texts))
    table = np.concatenate(rows)
    refuse_unknown(~usable(table), pair["layer"].to_numpy().tolist())
    origin = {
        "corpus": str(pair["corpus"].item()),
        "windows": int(pair.sizes["sample"]),
        "texts": len(np.unique(texts)),
        "left_out": left_out,
    }
    if budget is not None:
        choice = allocate(table, budget, by, minimum=minimum, solver=solver)
        return replace(choice, how={"objective": objective, **choice.how, **origin})
    assert tolerance is not None
    ranks = reached(table, tolerance).astype(np.int64)
    asked: dict[str, Any] = {"kind": kind, "tolerance": float(tolerance), "quantile": quantile}
    return Choice(ranks, errors_at(table, ranks), asked | origin)


def _one_pair(dataset: xr.Dataset, needed: list[str]) -> xr.Dataset:
    """The model and corpus of a truncation run; anything else is refused."""
    missing = [dim for dim in _DIMS if dim not in dataset.dims]
    missing += [
        name for name in (*needed, "status", "n_tokens", "text_id") if name not in dataset.variables
    ]
    if missing or "method" in dataset.dims:
        raise StoreError(
            f"ranks are chosen from a run of rankscope truncate, and this is {_kind(dataset)}"
            + (f", without {', '.join(missing)}" if missing else ""),
            "measure with rankscope truncate first",
        )
    for dim in ("model", "corpus"):
        if dataset.sizes[dim] != 1:
            raise UsageError(
                f"ranks are chosen for one model on one corpus, and this has "
                f"{dataset.sizes[dim]} of dimension {dim}",
                f"select one, as in dataset.isel({dim}=[0])",
            )
    index = dataset["index"].to_numpy()
    if min(dataset.sizes.values()) < 1 or not np.array_equal(index, np.arange(1, index.size + 1)):
        raise StoreError("the index axis is not 1 … n, or the run is empty", "use the whole run")
    return dataset.isel(model=0, corpus=0)


def _kind(dataset: xr.Dataset) -> str:
    """What a dataset looks like, in words."""
    if "method" in dataset.dims:
        found = "intervene" if "loss" in dataset.variables else "compare"
        return f"one of rankscope {found}"
    if "singular_value" in dataset.variables:
        return "one of rankscope spectra"
    if "mean_ratio" in dataset.variables:
        return "a summary"
    return "another dataset"


def _read(
    pair: xr.Dataset, needed: list[str], layer: int
) -> tuple[FloatArray, NDArray[np.float64] | None]:
    """Curves (sample, 1, head, index) and norms of one layer; NaN where there is no result."""
    part = pair[[*needed, "status", "n_tokens"]].isel(layer=[layer])
    part = part.transpose("sample", "layer", "head", "index").load()
    # joining runs of different shape fills whole numbers up with NaN, which is no usable status
    good = np.isin(part["status"].to_numpy(), [int(code) for code in _USABLE])
    tokens = part["n_tokens"].to_numpy()[:, np.newaxis, np.newaxis, np.newaxis]
    curves = part[needed[0]].to_numpy().astype(np.float64)
    # from n on P_k is P, whatever the file holds there; a missing matrix stays missing
    beyond = (part["index"].to_numpy() > tokens) & np.isfinite(curves[..., :1])
    curves = np.where(beyond, 0.0, curves)
    curves[~good] = np.nan
    norms = part[needed[1]].to_numpy().astype(np.float64) if len(needed) > 1 else None
    return curves, norms
