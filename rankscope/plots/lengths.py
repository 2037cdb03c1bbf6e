"""Pictures of rank over the length of the text.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.series import figure_with_legend, looks, rank_axis
from rankscope.plots.style import CONTROL_GREYS, DASHES, FULL_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = (
    ("rank_90", "k for 90 % of Σσ"),
    ("relative_rank_90", "k for 90 % of Σσ / size of P"),
    ("quarter_ratio", "Σσ held by the first quarter"),
)
_DIMS = ("model", "layout", "length")


def rank_over_length(
    found: Mapping[str, xr.Dataset],
    *,
    title: str = "",
    width: float = FULL_WIDTH,
) -> Figure:
    """k for 90 % of Σσ over n, absolute and relative, and the ratio at n/4.

    The first panel, with both axes logarithmic, has the line k = n: rank that grows with the text
    runs along it. In the other two hollow marks and dotted lines are the same texts padded to the
    largest n; grey is the same architecture with random weights, without padding. Bars are 95 %
    intervals.

    Parameters
    ----------
    found : mapping of str to Dataset
        For each label of the legend `rank_90`, `relative_rank_90` and `quarter_ratio`, each with
        `_mean`, `_low` and `_high` (model, layout, length): the first model is the one of the
        label, the second, if any, its control; layouts are packed and padded.
    title : str, optional
        Of the legend.
    width : float, default 7.0
        Inches; below 5 the panels stand one above the other.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For nothing to draw, or what was measured of something else.
    """
    for label, one in found.items():
        if "rank_90_mean" not in one or {*one["rank_90_mean"].dims} != {*_DIMS}:
            raise UsageError(
                f"no rank over model, layout and length in {label}",
                "give the datasets of analyses/length.py",
            )
    if not found:
        raise UsageError("nothing to draw", "measure a model over several lengths")
    # lines tell the kinds apart, so that colour and mark are left for the models
    styles = {
        label: {**look, "linestyle": "-"}
        for label, look in looks(list(found), first=next(iter(found))).items()
    }
    greys = {
        label: {
            **styles[label],
            "color": CONTROL_GREYS[place % len(CONTROL_GREYS)],
            "linestyle": DASHES[0],
            "linewidth": 1.0,
            "markersize": 3.4,
        }
        for place, label in enumerate(found)
    }
    lengths = np.unique(np.concatenate([one["length"].to_numpy() for one in found.values()]))
    notes = [title, "filled: packed windows of n tokens; hollow: texts of n tokens, padded"]
    entries = [*found, *(f"{label}, random weights" for label in found)]
    with house_style():
        stacked = width < 5
        figure, legend = figure_with_legend(
            width, 2.1 * (3 if stacked else 1) + 0.25, entries, notes
        )
        panels = figure.subplots(*((3, 1) if stacked else (1, 3)))
        handles: list[Any] = []
        for ax, (quantity, name) in zip(panels, _PANELS, strict=True):
            rank_axis(ax, lengths)
            ax.set_xlabel("tokens n")
            ax.set_ylabel(name)
            drawn = {
                label: _series(ax, one, quantity, styles[label], greys[label])
                for label, one in found.items()
            }
            handles = [line for pair in zip(*drawn.values(), strict=True) for line in pair]
        _whole(panels[0], found, lengths)
        for ax in panels[1:]:
            ax.set_ylim(0, 1)
            ax.set_yticks(np.linspace(0, 1, 6))
        legend["labels"] = [
            text for text, line in zip(legend["labels"], handles, strict=True) if line is not None
        ]
        figure.legend(handles=[line for line in handles if line is not None], **legend)
    return figure


def _series(
    ax: Axes, one: xr.Dataset, quantity: str, look: dict[str, Any], grey: dict[str, Any]
) -> tuple[Any, Any]:
    """Lines of a model and of its control; padded ones where they say something else."""
    packed = _line(ax, one, quantity, 0, "packed", look)
    if quantity != "rank_90":
        hollow = {
            **look,
            "linestyle": DASHES[1],
            "linewidth": 1.0,
            "markerfacecolor": "white",
            "zorder": 1.5,
        }
        _line(ax, one, quantity, 0, "padded", hollow)
    control = None
    if one.sizes["model"] > 1:
        control = _line(ax, one, quantity, 1, "packed", grey)
    return packed, control


def _line(
    ax: Axes, one: xr.Dataset, quantity: str, model: int, layout: str, look: dict[str, Any]
) -> Any:
    cell = one.isel(model=model).sel(layout=layout)
    mean, low, high = (cell[f"{quantity}_{end}"].to_numpy() for end in ("mean", "low", "high"))
    n = cell["length"].to_numpy()
    (line,) = ax.plot(n, mean, clip_on=False, **look)
    ax.vlines(n, low, high, color=look["color"], linewidth=1.0, zorder=line.get_zorder())
    return line


def _whole(ax: Axes, found: Mapping[str, xr.Dataset], lengths: Any) -> None:
    """The first panel: both axes logarithmic, and the line of full rank."""
    drawn = np.concatenate(
        [one["rank_90_mean"].sel(layout="packed").to_numpy().ravel() for one in found.values()]
    )
    low, high = float(np.nanmin(drawn)) / 1.2, float(lengths.max()) * 1.2
    ax.set_yscale("log", base=2)
    ax.set_ylim(low, high)
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ax.set_yticks([2.0**power for power in powers], [f"{2.0**power:g}" for power in powers])
    ax.minorticks_off()
    ax.plot(lengths, lengths, color="black", linewidth=0.7, zorder=0.5)
    middle = float(lengths[len(lengths) // 2])
    ax.annotate(
        "k = n",
        (middle, middle),
        (-3, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
    )
