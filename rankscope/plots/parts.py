"""What is drawn of a summary: its names, curves, line styles and rows of maps.

Private to :mod:`rankscope.plots`; uses no matplotlib.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.labels import control_of
from rankscope.plots.style import COLOURS, CONTROL_GREYS, DASHES
from rankscope.summary import combine

MAX_MODELS = 4
"""Most rows of maps in one figure."""

MAX_MAPS_IN_A_ROW = 4
"""Most maps of one model: its corpora and their controls."""

Summaries = xr.Dataset | Iterable[xr.Dataset]


@dataclass(frozen=True)
class Quantity:
    """A ratio: its name in words, as a formula, and the prefix of its variables."""

    name: str
    formula: str
    prefix: str


QUANTITIES = {
    "cumulative": Quantity(
        "cumulative ratio", r"$\sum_{i\leq k}\sigma_i\,/\,\sum_i\sigma_i$", prefix=""
    ),
    "energy": Quantity(
        "energy ratio", r"$\sum_{i\leq k}\sigma_i^2\,/\,\sum_i\sigma_i^2$", prefix="energy_"
    ),
}


def listed(summaries: Summaries | None) -> list[xr.Dataset]:
    if summaries is None:
        return []
    return [summaries] if isinstance(summaries, xr.Dataset) else list(summaries)


def parts_of(summaries: Summaries) -> list[xr.Dataset]:
    parts = combine(listed(summaries))
    if not parts:
        raise UsageError("nothing to draw: no window in any summary", "run more windows")
    return parts


def check_quantity(name: str) -> None:
    """Refuse an unknown quantity, before anything is computed.

    Raises
    ------
    UsageError
        Unless it is "cumulative" or "energy".
    """
    quantity_of(name)


def check_panels(models: int, maps: int) -> None:
    """Refuse what does not fit in one :func:`rankscope.plots.figure1`, before anything is computed.

    Parameters
    ----------
    models : int
        Number of models, controls not counted.
    maps : int
        Largest number of maps of one model: its corpora and their controls.

    Raises
    ------
    UsageError
        Above 4 models, or 4 maps of one model.
    """
    if models > MAX_MODELS or maps > MAX_MAPS_IN_A_ROW:
        raise UsageError(
            f"{models} models with up to {maps} maps each are too much for one figure",
            f"draw at most {MAX_MODELS} models with {MAX_MAPS_IN_A_ROW} maps each, "
            "in several figures if need be",
        )


def quantity_of(name: str) -> Quantity:
    if name not in QUANTITIES:
        raise UsageError(f"unknown quantity {name!r}", f"choose {' or '.join(QUANTITIES)}")
    return QUANTITIES[name]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names for titles and legends: the last part of a path or hub id, if that stays unambiguous.

    Examples
    --------
    >>> short_names(["org/base", "random:org/base"])
    {'org/base': 'base', 'random:org/base': 'random:base'}
    >>> short_names(["a/base", "b/base"])
    {'a/base': 'a/base', 'b/base': 'b/base'}
    """
    short = {}
    for name in dict.fromkeys(names):
        control, model = control_of(name)
        tail = model.rstrip("/").rsplit("/", 1)[-1] or model
        short[name] = f"{control}:{tail}" if control else tail
    unique = len(set(short.values())) == len(short)
    return short if unique else {name: name for name in short}


def wrapped(text: str, width: int) -> str:
    """`text` on lines of at most `width` signs, for the title of a narrow panel."""
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=True)) or text


def model_of(part: xr.Dataset) -> str:
    return str(part["model"].item())


def corpus_of(part: xr.Dataset) -> str:
    return str(part["corpus"].item())


def size_of(part: xr.Dataset) -> str:
    low, high = int(part["n_tokens_min"].item()), int(part["n_tokens_max"].item())
    windows = int(part["n_windows"].item())
    size = f"n = {high}" if low == high else f"n = {low}–{high}"
    return f"{size}, {windows} window{'s' if windows != 1 else ''}"


def is_control(part: xr.Dataset) -> bool:
    return bool(control_of(model_of(part))[0] or part.attrs.get("control", 0))


def difference_of(part: xr.Dataset, prefix: str, place: float) -> str:
    """What was measured less this control there, for the legend; empty where it is not known."""
    attrs = part.attrs
    if prefix or attrs.get("difference_index") != place:
        return ""
    half = (attrs["difference_high"] - attrs["difference_low"]) / 2
    signed = f"{attrs['difference']:+.3f}".replace("-", "−")
    return f" (measured {signed} ± {half:.3f})"


def rows_of(parts: Sequence[xr.Dataset]) -> list[list[xr.Dataset]]:
    """Maps of each model: its corpora, then the controls that belong to it."""
    models = [part for part in parts if not is_control(part)]
    controls = [part for part in parts if is_control(part)] if models else []
    rows: dict[str, list[xr.Dataset]] = {}
    for part in models or parts:
        rows.setdefault(model_of(part), []).append(part)
    names = list(rows)
    by_tail = {name.rstrip("/").rsplit("/", 1)[-1]: name for name in names}
    for place, control in enumerate(dict.fromkeys(model_of(part) for part in controls)):
        bare = control_of(control)[1].rstrip("/").rsplit("/", 1)[-1]
        owner = by_tail.get(bare, names[min(place, len(names) - 1)])
        rows[owner] += [part for part in controls if model_of(part) == control]
    return list(rows.values())


def curve_labels(parts: Sequence[xr.Dataset]) -> tuple[list[str], str]:
    """A label for each curve, and what all of them share: the one model, or the one corpus."""
    models = short_names([model_of(part) for part in parts])
    corpora = short_names([corpus_of(part) for part in parts])
    if len(corpora) == 1:
        return [models[model_of(part)] for part in parts], next(iter(corpora.values()))
    if len(models) == 1:
        return [corpora[corpus_of(part)] for part in parts], next(iter(models.values()))
    return [f"{models[model_of(part)]}, {corpora[corpus_of(part)]}" for part in parts], ""


def line_styles(parts: Sequence[xr.Dataset]) -> list[dict[str, Any]]:
    styles: list[dict[str, Any]] = []
    plain = controls = 0
    for part in parts:
        if is_control(part):
            grey = CONTROL_GREYS[controls % len(CONTROL_GREYS)]
            dashes = DASHES[controls % len(DASHES)]
            styles.append({"color": grey, "linestyle": dashes, "zorder": 1.8})
            controls += 1
        else:
            # a seventh curve takes the first colour again, with dots between its dashes
            line = "-" if plain < len(COLOURS) else "-."
            styles.append({"color": COLOURS[plain % len(COLOURS)], "linestyle": line})
            plain += 1
    return styles


def curve_of(part: xr.Dataset, prefix: str, relative: bool) -> tuple[npt.NDArray[np.float64], ...]:
    """k or k/n, mean, and both ends of the interval, from k = 0 on."""
    names = [
        f"relative_{prefix}ratio_curve" if relative else f"mean_{prefix}ratio_curve",
        *(f"{'relative_' if relative else ''}{prefix}interval_{end}" for end in ("low", "high")),
    ]
    curves = [part[name].to_numpy().reshape(-1).astype(np.float64) for name in names]
    if relative:
        return (part["fraction"].to_numpy(), curves[0], *(np.clip(c, 0, 1) for c in curves[1:]))
    ks = np.concatenate([[0.0], part["index"].to_numpy()])
    curves = [np.concatenate([[0.0], curve]) for curve in curves]
    return (ks, curves[0], *(np.clip(c, 0, 1) for c in curves[1:]))


def mark_label(place: float, parts: Sequence[xr.Dataset], relative: bool) -> str:
    if relative:
        return "n/4" if place == 0.25 else f"k/n = {place:g}"
    sizes = {int(part["n_tokens_max"].item()) for part in parts}
    if any(place * 4 == n for n in sizes):
        return f"n/4 = {place:g}"
    return f"k = {place:g}" + (" ≈ n/4" if any(place == n // 4 for n in sizes) else "")
