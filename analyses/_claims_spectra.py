"""C1 to C5: what the spectra and the place of the attention mass say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats
import xarray as xr

from analyses._claims_kept import size_of
from analyses._claims_measure import near_width
from analyses._claims_rules import (
    Cells,
    Estimate,
    Finding,
    Rule,
    estimate,
    halves,
    head_means,
    paired,
    percent,
    slopes,
)
from rankscope.exceptions import StoreError
from rankscope.summary.units import mean_of_present

Floats = npt.NDArray[np.float64]
INFINITY = float("inf")

RULES: Mapping[str, Rule] = {
    "C1": Rule((0.88, 0.92)),
    "C2": Rule((0.88, INFINITY)),
    "C3": Rule((0.5, INFINITY), (0.0, INFINITY), digits=1),
    "C4": Rule((-INFINITY, -0.005), digits=3),
    "C5": Rule((0.5, INFINITY), (0.125, INFINITY), digits=3),
}
"""Limits for each number. C4: a fall of half a percent of n; C5: the lower one is about twice what
uniform attention has within ±n/32."""

CONTROLS = {"rows": "rows shuffled", "random": "random weights"}
"""Controls of spectra, and their names."""


def first_quarter(kept: xr.Dataset) -> Finding:
    """C1: mean over heads of the ratio at n/4."""
    texts = kept["spectra_text"].to_numpy()
    own = _ordered(kept, "spectra_ratio")
    number = estimate(own, texts)
    cells: Cells = {"σ² in the first quarter": estimate(_ordered(kept, "spectra_energy"), texts)}
    for name, words in CONTROLS.items():
        cells |= _beside(own, kept, f"spectra_ratio_{name}", words, texts)
    where = "on the limit"
    return Finding(number, *RULES["C1"].judge(number, where), cells)


def least_head(kept: xr.Dataset) -> Finding:
    """C2: the ratio at n/4 of the head that has least, chosen and judged by different windows."""
    texts = kept["spectra_text"].to_numpy()
    ratio = _ordered(kept, "spectra_ratio")
    means = head_means(ratio, texts)
    number, which = _chosen_head(ratio, texts, kept)
    least = _least(ratio)
    cells: Cells = {
        "chosen": which,
        "least of the means over all windows": f"{np.nanmin(means):.3f}",
        "heads with .88 or more": percent(float(np.mean(means[np.isfinite(means)] >= 0.88))),
        "least of a window": estimate(least, texts),
    }
    for name, words in CONTROLS.items():
        if f"spectra_ratio_{name}" in kept:
            other = _least(_ordered(kept, f"spectra_ratio_{name}"))
            cells[f"the same, {words}"] = estimate(other, texts)
            cells[f"less {words}"] = paired(least, other, texts)
    return Finding(number, *RULES["C2"].judge(number, "on the head"), cells)


def _chosen_head(ratio: Floats, texts: Floats, kept: xr.Dataset) -> tuple[Estimate, str]:
    """The head with the least mean over the first half, and its ratio in the second half."""
    choose, judge = halves(texts)
    if not choose.any():
        return estimate(np.full(len(texts), np.nan), texts), "–"
    means = head_means(ratio[choose], texts[choose])
    row, column = np.unravel_index(np.nanargmin(means), means.shape)
    layer, head = int(kept["layer"][row]), int(kept["head"][column])
    return estimate(ratio[judge, row, column], texts[judge]), f"layer {layer}, head {head}"


def _least(ratio: Floats) -> Floats:
    """Of every window the head that has least; NaN where none has a number."""
    found = np.where(np.isnan(ratio), np.inf, ratio).min(axis=(1, 2))
    return np.where(np.isinf(found), np.nan, found)


def over_layers(kept: xr.Dataset) -> Finding:
    """C3: Kendall's τ of layer and ratio in every window."""
    texts = kept["spectra_text"].to_numpy()
    ratio = _ordered(kept, "spectra_ratio")
    layers = mean_of_present(ratio, (2,))
    order = np.arange(layers.shape[1], dtype=np.float64)
    found = {
        "τ": [_correlation(scipy.stats.kendalltau, order, row) for row in layers],
        "ρ": [_correlation(scipy.stats.spearmanr, order, row) for row in layers],
    }
    number = estimate(found["τ"], texts)
    means = mean_of_present(head_means(ratio, texts), (1,))
    rising = float(np.mean((np.diff(layers, axis=1) > 0).all(axis=1)))
    cells: Cells = {
        "Spearman's ρ": estimate(found["ρ"], texts),
        "windows that rise in every layer": percent(rising),
        "first layer → last (highest)": f"{means[0]:.3f} → {means[-1]:.3f} "
        f"({np.nanmax(means):.3f} in layer {int(kept['layer'][int(np.nanargmax(means))])})",
    }
    return Finding(number, *RULES["C3"].judge(number, "on the layers: the trend is weak"), cells)


def _correlation(of: Callable[[Floats, Floats], Any], order: Floats, row: Floats) -> float:
    """A rank correlation; NaN where the layers do not differ, or there is one."""
    return float(of(order, row).statistic) if np.ptp(row) > 0 else float("nan")


def over_lengths(kept: xr.Dataset) -> Finding:
    """C4: slope of k90(n)/n for a doubling of n, window by window."""
    texts = kept["spectra_text"].to_numpy()
    n = kept["spectra_length"].to_numpy().astype(np.float64)
    dims = ("spectra_length", "spectra_window", "layer", "head")
    parts = {
        name: mean_of_present(kept[f"spectra_length_{name}"].transpose(*dims).to_numpy(), (2, 3))
        for name in ("ratio", "rank_90")
    }
    relative = parts["rank_90"] / n[:, None]
    number = estimate(slopes(np.log2(n), relative), texts)
    cells: Cells = {
        "ratio at n/4, a doubling": estimate(slopes(np.log2(n), parts["ratio"]), texts),
        "k90, a doubling": _times(parts["rank_90"], n, texts),
        "k90(n)/n": ", ".join(
            f"{estimate(row, texts).value:.3f} (n = {int(size)})"
            for size, row in zip(n, relative, strict=True)
        ),
    }
    return Finding(number, *RULES["C4"].judge(number, ""), cells)


def near_mass(kept: xr.Dataset) -> Finding:
    """C5: share of a row's weight on keys at most n/32 away."""
    texts = kept["near_text"].to_numpy()
    w = near_width(size_of(kept, "near"))
    if w not in kept["near_w"]:
        raise StoreError(f"no mass within ±{w} was measured", "measure near again, --overwrite")
    dims = ("near_order", "near_window", "layer", "head", "near_w")
    at = {name: kept[name].transpose(*dims).sel(near_w=w) for name in ("near_mass", "near_top")}
    mass, top = (
        {order: one.sel(near_order=order).to_numpy() for order in ("text", "shuffled")}
        for one in at.values()
    )
    uniform = float(kept["near_uniform"].sel(near_w=w))
    number = estimate(mass["text"], texts)
    heads = head_means(mass["text"], texts)
    share = float(np.mean(heads[np.isfinite(heads)] > 0.5))
    cells: Cells = {
        "w": str(w),
        "uniform": f"{uniform:.3f}",
        "heads with more than half": percent(share),
        "largest entry within ±w": estimate(top["text"], texts),
        "tokens shuffled": estimate(mass["shuffled"], texts),
        "less tokens shuffled": paired(mass["text"], mass["shuffled"], texts),
    }
    rule = RULES["C5"]
    return Finding(number, *rule.judge(number, f"on the head: {percent(share)} hold half"), cells)


def _ordered(kept: xr.Dataset, name: str) -> Floats:
    found = kept[name].transpose("spectra_window", "layer", "head")
    return np.asarray(found, dtype=np.float64)


def _beside(own: Floats, kept: xr.Dataset, name: str, words: str, texts: Floats) -> Cells:
    """A control and the paired difference, where it was measured."""
    if name not in kept:
        return {}
    other = _ordered(kept, name)
    return {words: estimate(other, texts), f"less {words}": paired(own, other, texts)}


def _times(ranks: Floats, n: Floats, texts: Floats) -> str:
    found = slopes(np.log2(n), np.log2(ranks))
    grows = estimate(found, texts)
    return f"× {_power(grows)}"


def _power(found: Estimate) -> str:
    value, low, high = (2.0**x for x in (found.value, found.low, found.high))
    return str(Estimate(value, low, high, found.units, found.unit))


FOUND: Mapping[str, Callable[[xr.Dataset], Finding]] = {
    "C1": first_quarter,
    "C2": least_head,
    "C3": over_layers,
    "C4": over_lengths,
    "C5": near_mass,
}
"""What decides each claim."""
