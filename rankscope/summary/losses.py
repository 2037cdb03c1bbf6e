"""What replacing its attention costs a model: losses of an `intervene` run, paired with full's.

The loss of a window varies far more from text to text than from method to method. The same windows
and masks are therefore used for every method, and the difference to full attention on each of them
is what is averaged: its interval is that of the cost, where the loss's own is that of the texts.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.special import stdtrit

from rankscope.exceptions import StoreError
from rankscope.summary.accumulate import ABSENT, GOOD, Cell
from rankscope.summary.averages import Census, by_pair, check_run, whole_numbers
from rankscope.summary.units import LEVEL, Array, Floats, batch_length

BY_TOKEN = ("loss", "loss_difference", "kl", "top1_agreement")
"""Measures in which every masked token has equal weight."""

BY_WINDOW = ("hidden_error", "hidden_cosine")
"""Measures in which every window has equal weight."""

_NEEDED = ("loss", "status", "n_tokens", "masked_tokens", "text_id", "family")


def summarise_losses(dataset: xr.Dataset) -> xr.Dataset:
    r"""Mean loss of every method and of its difference to full attention, with intervals.

    Every masked token has equal weight: with w_i masked tokens in window i, the mean is R = Σ w_i
    y_i / Σ w_i. Its interval over u texts, or over batches of windows where there is one text,
    is that of a ratio of sums:

    .. math:: R \pm t_{u-1} \sqrt{\frac{\sum_j (S_j - R W_j)^2}{u (u-1)}} \Big/ \bar W, \quad
              W_j = \sum_{i \in j} w_i, \quad S_j = \sum_{i \in j} w_i y_i

    which is mean ± t·s/√u where all weights are equal; a last batch that is not full counts in the
    mean alone. Hidden states have no masked token of their own: there every window has the
    weight 1.

    Parameters
    ----------
    dataset : Dataset, dims (model, corpus, sample, method)
        A run of `intervene`; the method of the family "full" is what the others are paired with.

    Returns
    -------
    Dataset
        For each of `loss` (nats a masked token), `loss_difference` (to full attention on the same
        windows, nats), `kl`, `top1_agreement`, `hidden_error` and `hidden_cosine`:

        - `loss` (model, corpus, method): the mean, and `loss_low`, `loss_high` its 95 % interval;
          NaN with fewer than two units, whose number is `loss_units`
        - `loss_count`, `loss_undefined` (model, corpus, method), int64: usable windows in that
          mean, and those in which the measure is not finite; for measures by token, windows
          without a masked token are in neither

        Beside them `n_masked_tokens` (model, corpus), of usable windows, and the counts of
        :func:`rankscope.summary.methods.summarise_methods` but for those of matrices.

    Raises
    ------
    StoreError
        If it is no run of `intervene`, or has no method of the family "full".

    References
    ----------
    Cochran 1977, Sampling Techniques, chapter 6 (ratio estimators).
    """
    check_run(dataset, ("model", "corpus", "sample", "method"), _NEEDED, "intervene")
    full = np.flatnonzero(dataset["family"].to_numpy() == "full")
    if full.size == 0:
        raise StoreError(
            "a run of intervene without full attention to compare with", "compute it again with it"
        )
    cells = [
        [
            _summarise_pair(dataset.isel(model=model, corpus=corpus), int(full[0]))
            for corpus in range(dataset.sizes["corpus"])
        ]
        for model in range(dataset.sizes["model"])
    ]
    return by_pair(cells, dataset)


def _summarise_pair(pair: xr.Dataset, reference: int) -> Cell:
    status = whole_numbers(pair["status"].to_numpy(), ABSENT)
    sizes = whole_numbers(pair["n_tokens"].to_numpy(), 0)
    texts = pair["text_id"].to_numpy()
    census = Census()
    for place, text_id in enumerate(texts.tolist()):
        census.add(text_id, int(sizes[place]), status[place : place + 1])
    good = np.isin(status, GOOD)
    masked = np.where(good, whole_numbers(pair["masked_tokens"].to_numpy(), 0), 0)
    units: Array = texts
    last: int | None = None
    if census.unit == "window":
        length = batch_length(int(good.sum()))
        units = np.floor_divide(np.cumsum(good) - good, length)
        filled, rest = divmod(int(good.sum()), length)
        last = filled if rest else None
    out: Cell = census.result()
    out["n_masked_tokens"] = ((), np.int64(masked.sum()))
    shape = (pair.sizes["sample"], pair.sizes["method"])
    for name in (*BY_TOKEN, *BY_WINDOW):
        source = "loss" if name == "loss_difference" else name
        values = np.full(shape, np.nan)
        if source in pair:
            values = pair[source].transpose("sample", "method").to_numpy().astype(np.float64)
        if name == "loss_difference":
            values = values - values[:, reference : reference + 1]
        weights = masked if name in BY_TOKEN else good.astype(np.int64)
        for suffix, array in _weighted(values, weights, units, last).items():
            out[name + suffix] = (("method",), array)
    return out


def _weighted(
    values: Floats, weights: Array, units: Array, open_unit: int | None
) -> dict[str, Array]:
    """Weighted mean of each column, by suffix, with the interval of a ratio of sums over units.

    Parameters
    ----------
    values : ndarray (sample, method)
        What is not finite is left out and counted.
    weights : ndarray (sample,)
        0 for a window that takes no part.
    units : ndarray (sample,)
        The unit that each window belongs to.
    open_unit : int or None
        The unit that is not full and says nothing about the spread, if there is one.
    """
    taken = (weights > 0)[:, None]
    there = taken & np.isfinite(values)
    share = np.where(there, weights[:, None], 0).astype(np.float64)
    names, place = np.unique(units, return_inverse=True)
    weight = np.zeros((int(place.max(initial=-1)) + 1, values.shape[1]))
    total = np.zeros_like(weight)
    np.add.at(weight, place, share)
    np.add.at(total, place, share * np.where(there, values, 0.0))
    whole = weight.sum(axis=0)
    some = np.where(whole > 0, whole, np.nan)
    mean = total.sum(axis=0) / some
    if open_unit is not None:
        weight = weight[names != open_unit]
        total = total[names != open_unit]
    u = (weight > 0).sum(axis=0)
    full = np.where(u > 0, weight.sum(axis=0), np.nan)
    left = np.where(weight > 0, total - total.sum(axis=0) / full * weight, 0.0)
    several = np.where(u > 1, u, 2)
    spread = np.sqrt(np.square(left).sum(axis=0) / (several * (several - 1)))
    half = stdtrit(several - 1, 0.5 + LEVEL / 2) * spread / (full / several)
    half = np.where(u > 1, half, np.nan)
    return {
        "": mean,
        "_low": mean - half,
        "_high": mean + half,
        "_units": u,
        "_count": there.sum(axis=0),
        "_undefined": (taken & ~there).sum(axis=0),
    }
