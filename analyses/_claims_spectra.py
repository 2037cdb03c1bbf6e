"""C1 to C5: what the spectra and the place of the attention mass say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats
import xarray as xr

from analyses._claims_rules import Cells, Estimate, Finding, Rule, estimate, paired, percent, slopes

Floats = npt.NDArray[np.float64]
INFINITY = float("inf")

RULES: Mapping[str, Rule] = {
    "C1": Rule((0.88, 0.92)),
    "C2": Rule((0.88, INFINITY)),
    "C3": Rule((0.5, INFINITY), (0.0, INFINITY), digits=1),
    "C4": Rule((-INFINITY, -0.005), digits=3),
    "C5": Rule((0.5, INFINITY), (0.125, INFINITY), digits=3),
}
"""Limits for each number. C4: a fall of half a percent of n; C5: the lower one is twice what
uniform attention has within ±n/32."""

CONTROLS = {"rows": "rows shuffled", "random": "random weights"}
"""Controls of spectra, and their names."""


def first_quarter(kept: xr.Dataset) -> Finding:
    """C1: mean over heads of the ratio at n/4."""
    texts = kept["spectra_text"].to_numpy()
    own = _by_window(kept, "spectra_ratio")
    number = estimate(own, texts)
    cells: Cells = {"σ² in the first quarter": estimate(_by_window(kept, "spectra_energy"), texts)}
    for name, words in CONTROLS.items():
        cells |= _beside(own, kept, f"spectra_ratio_{name}", words, texts)
    where = "on the limit"
    return Finding(number, *RULES["C1"].judge(number, where), cells)


def least_head(kept: xr.Dataset) -> Finding:
    """C2: the ratio at n/4 of the head that has least."""
    texts = kept["spectra_text"].to_numpy()
    ratio = kept["spectra_ratio"].transpose("spectra_window", "layer", "head").to_numpy()
    heads = ratio.reshape(len(ratio), -1).T
    means = np.array([estimate(one, texts).value for one in heads]).reshape(ratio.shape[1:])
    row, column = np.unravel_index(np.nanargmin(means), means.shape)
    number = estimate(ratio[:, row, column], texts)
    layer, head = int(kept["layer"][row]), int(kept["head"][column])
    least = np.nanmin(ratio, axis=(1, 2))
    cells: Cells = {
        "which": f"layer {layer}, head {head}",
        "heads with .88 or more": percent(float(np.mean(means >= 0.88))),
        "least of a window": estimate(least, texts),
    }
    for name, words in CONTROLS.items():
        if f"spectra_ratio_{name}" in kept:
            other = np.nanmin(_ordered(kept, f"spectra_ratio_{name}"), axis=(1, 2))
            cells[f"the same, {words}"] = estimate(other, texts)
            cells[f"less {words}"] = paired(least, other, texts)
    return Finding(number, *RULES["C2"].judge(number, "on the head"), cells)


def over_layers(kept: xr.Dataset) -> Finding:
    """C3: Kendall's τ of layer and ratio in every window."""
    texts = kept["spectra_text"].to_numpy()
    layers = np.nanmean(_ordered(kept, "spectra_ratio"), axis=2)
    order = np.arange(layers.shape[1], dtype=np.float64)
    found = {
        "τ": [_correlation(scipy.stats.kendalltau, order, row) for row in layers],
        "ρ": [_correlation(scipy.stats.spearmanr, order, row) for row in layers],
    }
    number = estimate(found["τ"], texts)
    means = layers.mean(axis=0)
    rising = float(np.mean((np.diff(layers, axis=1) > 0).all(axis=1)))
    cells: Cells = {
        "Spearman's ρ": estimate(found["ρ"], texts),
        "windows that rise in every layer": percent(rising),
        "first layer → last (highest)": f"{means[0]:.3f} → {means[-1]:.3f} "
        f"({means.max():.3f} in layer {int(kept['layer'][int(means.argmax())])})",
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
        name: np.nanmean(kept[f"spectra_length_{name}"].transpose(*dims).to_numpy(), axis=(2, 3))
        for name in ("ratio", "rank_90")
    }
    relative = parts["rank_90"] / n[:, None]
    number = estimate(slopes(np.log2(n), relative), texts)
    cells: Cells = {
        "ratio at n/4, a doubling": estimate(slopes(np.log2(n), parts["ratio"]), texts),
        "k90, a doubling": _times(parts["rank_90"], n, texts),
        "k90(n)/n": ", ".join(
            f"{row.mean():.3f} (n = {int(size)})" for size, row in zip(n, relative, strict=True)
        ),
    }
    return Finding(number, *RULES["C4"].judge(number, ""), cells)


def near_mass(kept: xr.Dataset) -> Finding:
    """C5: share of a row's weight on keys at most n/32 away."""
    texts = kept["near_text"].to_numpy()
    w = near_width(kept)
    dims = ("near_order", "near_window", "layer", "head", "near_w")
    at = {name: kept[name].transpose(*dims).sel(near_w=w) for name in ("near_mass", "near_top")}
    mass, top = (
        {order: one.sel(near_order=order).to_numpy() for order in ("text", "shuffled")}
        for one in at.values()
    )
    uniform = float(kept["near_uniform"].sel(near_w=w))
    own, other = (mass[order].mean(axis=(1, 2)) for order in ("text", "shuffled"))
    number = estimate(own, texts)
    heads = mass["text"].mean(axis=0)
    share = float(np.mean(heads > 0.5))
    cells: Cells = {
        "w": str(w),
        "uniform": f"{uniform:.3f}",
        "heads with more than half": percent(share),
        "largest entry within ±w": estimate(top["text"].mean(axis=(1, 2)), texts),
        "tokens shuffled": estimate(other, texts),
        "less tokens shuffled": paired(own, other, texts),
    }
    rule = RULES["C5"]
    return Finding(number, *rule.judge(number, f"on the head: {percent(share)} hold half"), cells)


def near_width(kept: xr.Dataset) -> int:
    """The measured w that is next to n/32."""
    widths = kept["near_w"].to_numpy()
    n = int(kept["spectra_length"].max()) if "spectra_length" in kept else 4 * int(widths.max())
    return int(widths[np.abs(widths - n / 32).argmin()])


def _ordered(kept: xr.Dataset, name: str) -> Floats:
    found = kept[name].transpose("spectra_window", "layer", "head")
    return np.asarray(found, dtype=np.float64)


def _by_window(kept: xr.Dataset, name: str) -> Floats:
    return np.asarray(np.nanmean(_ordered(kept, name), axis=(1, 2)))


def _beside(own: Floats, kept: xr.Dataset, name: str, words: str, texts: Floats) -> Cells:
    """A control and the paired difference, where it was measured."""
    if name not in kept:
        return {}
    other = _by_window(kept, name)
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
