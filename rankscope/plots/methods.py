"""Errors and losses of methods over the rank that they may spend.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.labels import short_labels
from rankscope.plots.parts import Summaries, listed
from rankscope.plots.series import (
    FULL,
    Floats,
    error_axis,
    figure_with_legend,
    finite,
    floored,
    level_looks,
    looks,
    rank_axis,
    with_floor,
)
from rankscope.plots.style import COLUMN_WIDTH, house_style
from rankscope.summary.methods import one_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERRORS: Mapping[str, str] = {
    "output": "relative output error",
    "frobenius": "relative error of P (Frobenius)",
    "spectral": "relative error of P (spectral)",
    "total_variation": "total variation of the rows",
    "kl": "KL divergence of the rows (nats)",
    "row_sum_drift": "largest drift of a row sum",
    "negative_mass": "negative mass of a row",
}
"""Measures that have a place on a log axis, and the name of that axis."""

# measure: curve of P_low, of the bound, and what the mean row leaves
_TRUNCATION = {
    "output": ("output_error", "output_bound", "mean_row_output_error"),
    "frobenius": ("frobenius_error", "", "mean_row_error"),
    "spectral": ("spectral_error", "", ""),
}
_BOUND = "best-output"
_MEAN_ROW = "mean-row"


@dataclass
class _Series:
    """A method: where it is drawn, its median or mean, and the ends of its band."""

    label: str
    ks: Floats
    middle: Floats
    low: Floats
    high: Floats
    options: dict[str, Any] = field(default_factory=dict)


def error_over_rank(
    summaries: Summaries = (),
    truncation: xr.Dataset | None = None,
    *,
    measure: str = "output",
    names: Mapping[str, str] | None = None,
    reference: bool | None = None,
    band: bool = True,
    floor: float = 1e-3,
    title: str = "",
    budget: str = "rank k",
    width: float = COLUMN_WIDTH,
) -> Figure:
    """Error of every method over the rank k, all in one panel at equal k.

    Each method is the median over its heads, with the band of 10 to 90 % of the heads: a spread,
    not an interval. Methods without a rank are level lines. Both axes are log; what lies below the
    floor, zero among it, is drawn at the floor, and what is undefined is left out.

    Parameters
    ----------
    summaries : Dataset or iterable of Dataset
        Of :func:`rankscope.summary.methods.summarise_methods`, for one model and corpus.
    truncation : Dataset, optional
        Of :func:`rankscope.summary.methods.summarise_truncation`: P_low at every k as a line, the
        bound of any rank-k output, dotted, and the mean row, level.
    measure : str, default "output"
        An error with a log axis: also "frobenius", "spectral", "total_variation", "kl",
        "row_sum_drift" and "negative_mass".
    names : mapping of str to str, optional
        Names for the legend in place of the methods' labels. Labels with one name are one method,
        as projections that were fitted for each rank and have a file each.
    reference : bool, optional
        Whether to draw √(n/k), what theorem 1's P·RᵀR is expected to leave. Default: if a method
        of the family "projected" is drawn.
    band : bool, default True
        Whether to draw the bands.
    floor : float, default 1e-3
        Lower end of the error axis, where something lies below it.
    title : str, optional
    budget : str, default "rank k"
        Name of the axis of budgets.
    width : float, default 3.4
        Inches.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For several models or corpora, a method and rank that come twice, above 12 methods, another
        measure, or nothing to draw.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, theorem 1 and equations 6 and 7.
    """
    if measure not in ERRORS:
        raise UsageError(f"no log axis for the measure {measure!r}", f"one of {', '.join(ERRORS)}")
    parts = [_renamed(one_of(part), names) for part in listed(summaries)]
    curve = None if truncation is None else one_of(truncation)
    _same_source([*parts, *([] if curve is None else [curve])])
    ranked, level = _of_methods(parts, measure)
    if curve is not None:
        _add_truncation(ranked, level, curve, measure)
    if not ranked and not level:
        raise UsageError(f"nothing to draw: no method with the measure {measure!r}", "name some")
    labels = short_labels([one.label for one in ranked] + [*level], names)
    styles = looks(list(dict.fromkeys(one.label for one in ranked if one.label != _BOUND)))
    styles[_BOUND] = {"color": "black", "linestyle": ":", "linewidth": 1.2, "marker": "x"}
    styles[_BOUND]["markersize"] = 4
    greys = level_looks([*level])
    if reference is None:
        reference = any("projected" in part["family"].to_numpy().tolist() for part in parts)
    n = _size_of([*parts, *([] if curve is None else [curve])]) if reference else 0
    ks = np.concatenate([one.ks for one in ranked] or [np.array([1.0, max(n, 2)])])
    theorem = [
        part["budget"].to_numpy()[part["family"].to_numpy() == "projected"] for part in parts
    ]
    beside = np.concatenate(theorem or [ks])
    beside = beside if beside.size else ks
    with house_style():
        drawn = list(dict.fromkeys(one.label for one in ranked))
        shown = [labels[label] for label in [*drawn, *level]] + ["√(n/k)"] * reference
        notes = ["median, band: 10–90 % of heads" if band else "median over heads"]
        figure, legend = figure_with_legend(width, 2.4, shown, notes)
        ax = figure.add_subplot()
        handles: dict[str, Any] = {}
        for one in ranked:
            style = styles[one.label] | one.options
            (line,) = ax.plot(one.ks, floored(one.middle, floor), **style)
            # the line of every k stands for the method, its points do not
            handles.setdefault(one.label, line)
            if band and "linestyle" not in one.options:
                ends = floored(one.low, floor), floored(one.high, floor)
                ax.fill_between(one.ks, *ends, color=style["color"], alpha=0.15, linewidth=0)
        for label, value in level.items():
            handles[label] = ax.axhline(floored(value, floor).item(), **greys[label], zorder=1.5)
        if reference:
            along = np.geomspace(beside.min(), beside.max(), 65)
            look: dict[str, Any] = {"color": "0.55", "linestyle": "--", "linewidth": 0.9}
            (handles["√(n/k)"],) = ax.plot(along, np.sqrt(n / along), zorder=1.4, **look)
        rank_axis(ax, ks)
        bands = [end for one in ranked for end in (one.low, one.high) if band]
        values = [*bands, *(one.middle for one in ranked), *level.values()]
        clipped = error_axis([ax], values, floor)
        ax.set_xlabel(budget)
        ax.set_ylabel(with_floor(ERRORS[measure], floor, clipped))
        ax.set_title(title)
        figure.legend(handles=list(handles.values()), **legend)
    return figure


def loss_over_rank(
    summary: xr.Dataset,
    *,
    names: Mapping[str, str] | None = None,
    unigram: float | None = None,
    interval: Literal["difference", "loss"] = "difference",
    title: str = "",
    budget: str = "rank k",
    width: float = COLUMN_WIDTH,
) -> Figure:
    """Masked-LM loss of the model under every method over the rank k.

    Parameters
    ----------
    summary : Dataset
        Of :func:`rankscope.summary.losses.summarise_losses`, for one model and corpus.
    names : mapping of str to str, optional
        Names for the legend in place of the methods' labels. Labels with one name are one method,
        as projections that were fitted for each rank and have a file each.
    unigram : float, optional
        Loss in nats of predicting by token frequency alone: a level line.
    interval : {"difference", "loss"}
        Whose 95 % interval the bars show: that of the paired difference to full attention, which
        says what the method costs, or of the loss, which says how much texts differ.
    title : str, optional
    budget : str, default "rank k"
        Name of the axis of budgets.
    width : float, default 3.4
        Inches.

    Returns
    -------
    Figure
        Full attention and methods without a rank are level lines.

    Raises
    ------
    UsageError
        For several models or corpora, above 12 methods, another interval, or nothing to draw.
    """
    if interval not in ("difference", "loss"):
        raise UsageError(f"unknown interval {interval!r}", "choose difference or loss")
    part = _renamed(one_of(summary), names)
    ranked, level = _losses(part, "loss_difference" if interval == "difference" else "loss")
    full = level.pop("full", np.nan)
    labels = short_labels([one.label for one in ranked] + [*level], names)
    if unigram is not None:
        labels["unigram"] = "unigram frequencies"
        level["unigram"] = unigram
    there = [one.middle for one in ranked] + [np.array([*level.values(), full])]
    if not np.isfinite(np.concatenate(there)).any():
        raise UsageError("nothing to draw: no loss", "run a model with a masked-LM head")
    styles, greys = looks([one.label for one in ranked]), level_looks([*level])
    of = "the difference to full attention" if interval == "difference" else "the loss"
    unit = str(part["interval_unit"].item())
    with house_style():
        shown = [*(labels[one.label] for one in ranked), FULL, *(labels[one] for one in level)]
        notes = [f"bars: 95 % interval of {of}, over {int(part['n_units'])} {unit}s"]
        figure, legend = figure_with_legend(width, 2.4, shown, notes)
        ax = figure.add_subplot()
        handles: list[Any] = []
        for one in ranked:
            bars = np.stack([one.middle - one.low, one.high - one.middle])
            style = styles[one.label] | {"elinewidth": 0.9, "capsize": 1.8, "capthick": 0.9}
            handles.append(ax.errorbar(one.ks, one.middle, bars, **style))
        handles.append(ax.axhline(full, color="black", linewidth=1.1, zorder=1.5))
        handles += [ax.axhline(level[one], **greys[one], zorder=1.5) for one in level]
        ks = np.concatenate([one.ks for one in ranked] or [np.array([1.0, 2.0])])
        rank_axis(ax, ks)
        ax.set_xlabel(budget)
        ax.set_ylabel("loss (nats a masked token)")
        ax.set_title(title)
        figure.legend(handles=handles, **legend)
    return figure


def _of_methods(parts: list[xr.Dataset], measure: str) -> tuple[list[_Series], dict[str, Floats]]:
    """Methods with a rank, and the medians of those without; full attention has no error."""
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for part in parts:
        if f"{measure}_median" not in part:
            raise UsageError(f"no measure {measure!r} in the summary", "summarise a compare run")
        columns = [part[f"{measure}_{end}"].to_numpy() for end in ("median", "q10", "q90")]
        keys = (part[name].to_numpy() for name in ("label", "budget"))
        for place, (label, k) in enumerate(zip(*keys, strict=True)):
            points = found.setdefault(str(label), {})
            if int(k) in points and label != "full":
                raise _twice(label, k)
            points[int(k)] = tuple(float(column[place]) for column in columns)
    found.pop("full", None)
    ranked, level = [], {}
    for label, points in found.items():
        if 0 in points:
            level[label] = finite(points.pop(0)[0])
        if points:
            ks = sorted(points)
            middle, low, high = (finite([points[k][end] for k in ks]) for end in range(3))
            ranked.append(_Series(label, np.array(ks, dtype=np.float64), middle, low, high))
    return ranked, level


def _add_truncation(
    ranked: list[_Series], level: dict[str, Floats], curve: xr.Dataset, measure: str
) -> None:
    """P_low at every k and what bounds it; points of the same methods stay, without a line."""
    if measure not in _TRUNCATION:
        raise UsageError(
            f"truncation has no curve of {measure!r}", f"one of {', '.join(_TRUNCATION)}"
        )
    names = dict(zip(("truncated", _BOUND, _MEAN_ROW), _TRUNCATION[measure], strict=True))
    ks = curve["index"].to_numpy().astype(np.float64)
    for one in ranked:
        if one.label in names:
            one.options = {"linestyle": "none"}
    lines = []
    for label in ("truncated", _BOUND):
        if names[label] and f"{names[label]}_median" in curve:
            ends = ("median", "q10", "q90")
            middle, low, high = (finite(curve[f"{names[label]}_{end}"]) for end in ends)
            lines.append(_Series(label, ks, middle, low, high, {"marker": ""}))
    ranked[:0] = lines
    mean_row = names[_MEAN_ROW]
    if mean_row and f"{mean_row}_median" in curve:
        level.setdefault(_MEAN_ROW, finite(curve[f"{mean_row}_median"]))


def _losses(part: xr.Dataset, of: str) -> tuple[list[_Series], dict[str, float]]:
    loss = finite(part["loss"])
    below = loss + finite(part[f"{of}_low"]) - finite(part[of])
    above = loss + finite(part[f"{of}_high"]) - finite(part[of])
    labels, budgets = part["label"].to_numpy(), part["budget"].to_numpy()
    keys = list(zip(labels, budgets, strict=True))
    if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:
        raise _twice(*twice[0])
    ranked = []
    for label in dict.fromkeys(map(str, labels[budgets > 0])):
        here = np.flatnonzero((labels == label) & (budgets > 0))
        here = here[np.argsort(budgets[here])]
        ks = budgets[here].astype(np.float64)
        ranked.append(_Series(label, ks, loss[here], below[here], above[here]))
    level = {str(labels[place]): float(loss[place]) for place in np.flatnonzero(budgets == 0)}
    return ranked, level


def _renamed(part: xr.Dataset, names: Mapping[str, str] | None) -> xr.Dataset:
    """Labels by their names, but for those that have a look of their own."""
    kept = ("full", "truncated", _BOUND, _MEAN_ROW)
    labels = [str(label) for label in part["label"].to_numpy()]
    named = [label if label in kept else (names or {}).get(label, label) for label in labels]
    return part.assign_coords(label=("method", named))


def _twice(label: str, k: int) -> UsageError:
    return UsageError(f"{label} at rank {k} comes twice", "give each method and rank once")


def _same_source(parts: list[xr.Dataset]) -> None:
    found = {(str(part["model"].item()), str(part["corpus"].item())) for part in parts}
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} pairs of model and corpus in one panel", "draw a figure for each"
        )


def _size_of(parts: list[xr.Dataset]) -> int:
    """n of all windows."""
    sizes = {int(part[f"n_tokens_{end}"]) for part in parts for end in ("min", "max")}
    if len(sizes) != 1:
        raise UsageError(
            f"windows of {min(sizes)} to {max(sizes)} tokens have no one line √(n/k)",
            "leave the reference out",
        )
    return sizes.pop()
