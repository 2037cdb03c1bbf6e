"""What methods cost as n grows: time and peak memory, both on log axes.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.series import Floats, error_axis, figure_with_legend, finite, rank_axis
from rankscope.plots.style import COLOURS, FULL_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_IN_GROUP = 8
"""Most methods of one group, which share a colour, that can be told apart."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_PANELS = (
    ("seconds", "repeat", 1e-3, "time of one head (ms)"),
    ("peak_bytes", "trial", 2.0**20, "peak memory beside the inputs (MiB)"),
)
# below all that can be measured: nothing is cut off
_FLOOR = 1e-9
_LABEL: dict[str, Any] = {"fontsize": 8, "color": "0.35", "ha": "center", "va": "center"}


def cost_over_length(
    measured: xr.Dataset, *, names: Mapping[str, str] | None = None, width: float = FULL_WIDTH
) -> Figure:
    """Time and peak memory of every method over the number of tokens.

    Methods of a group share a colour, the first group is black. The least of the repeats is drawn;
    the legend gives the fitted exponents. Grey lines have the slopes of n and n².

    Parameters
    ----------
    measured : Dataset
        ``seconds`` (method, n, repeat) and ``peak_bytes`` (method, n, trial), ``time_exponent`` and
        ``memory_exponent`` (method), and on method the coordinate ``group``; the attributes ``d``,
        ``budget``, ``device``, and ``fit_from``, the least n of the fit.
    names : mapping of str to str, optional
        Names for the legend in place of the methods' texts.
    width : float, default 7
        Inches.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For nothing to draw, fewer than two lengths, above 7 groups or 8 methods of one group.
    """
    lengths = measured["n"].to_numpy().astype(np.float64)
    if len(lengths) < 2:
        raise UsageError(f"no curve over {len(lengths)} length", "measure two lengths or more")
    texts = [str(text) for text in measured["method"].to_numpy()]
    styles = _looks([str(group) for group in measured["group"].to_numpy()])
    labels = [_label(measured, place, names or {}) for place in range(len(texts))]
    longest = int(lengths.max())
    attrs = measured.attrs
    where = "one thread of a CPU" if attrs["device"] == "cpu" else str(attrs["device"])
    span = f"n = {attrs['fit_from']:,} … {longest:,}"
    notes = [
        f"one head, d = {attrs['d']}, budget {attrs['budget']}, {where}",
        f"in brackets: exponents p of time and of memory, y ∝ nᵖ, fitted over {span}",
    ]
    with house_style():
        figure, legend = figure_with_legend(width, 3.0, labels, notes)
        handles: list[Any] = []
        axes = figure.subplots(1, 2)
        for ax, (variable, repeated, unit, name) in zip(axes, _PANELS, strict=True):
            curves = finite(measured[variable].min(repeated).to_numpy()) / unit
            # an allocator that had room left needs no more, and zero has no logarithm
            curves = np.where(curves > 0, curves, np.nan)
            handles = [
                ax.plot(lengths, curve, **style)[0]
                for curve, style in zip(curves, styles, strict=True)
            ]
            error_axis([ax], [curves], _FLOOR)
            rank_axis(ax, lengths)
            _slopes(ax, lengths, curves)
            ax.set_xlabel("tokens n")
            ax.set_ylabel(name)
        _name_groups(axes[1], [str(group) for group in measured["group"].to_numpy()], styles)
        figure.legend(handles=handles, **legend)
    return figure


def _name_groups(ax: Axes, groups: Sequence[str], styles: Sequence[dict[str, Any]]) -> None:
    """The groups in their colours, where memory leaves room: at the top left."""
    colours = {group: style["color"] for group, style in zip(groups, styles, strict=True)}
    for line, (group, colour) in enumerate(colours.items()):
        ax.annotate(
            *(group, (0, 1), (4, -2 - 10 * line)),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=8,
            color=colour,
        )


def _looks(groups: Sequence[str]) -> list[dict[str, Any]]:
    """A colour for each group, and a marker for each method of a group."""
    order = list(dict.fromkeys(groups))
    if len(order) > len(COLOURS) + 1:
        raise UsageError(f"{len(order)} groups have no colours of their own", "draw fewer")
    found = []
    for place, group in enumerate(groups):
        number = groups[:place].count(group)
        if number >= MAX_IN_GROUP:
            raise UsageError(
                f"above {MAX_IN_GROUP} methods of {group} cannot be told apart", "draw fewer"
            )
        first = group == order[0]
        found.append(
            {
                "color": "black" if first else COLOURS[order.index(group) - 1],
                "marker": _MARKERS[number],
                "linestyle": "--" if first and number else "-",
                "markersize": 4.0,
                "linewidth": 1.5 if first else 1.0,
                "zorder": 2.5 if first else 2.0,
            }
        )
    return found


def _label(measured: xr.Dataset, place: int, names: Mapping[str, str]) -> str:
    text = str(measured["method"].to_numpy()[place])
    slopes = [float(measured[f"{name}_exponent"][place]) for name in ("time", "memory")]
    shown = [f"{slope:.2f}" if math.isfinite(slope) else "–" for slope in slopes]
    return f"{names.get(text, text)} ({', '.join(shown)})"


def _slopes(ax: Axes, lengths: Floats, curves: Floats) -> None:
    """Lines ∝ n below all curves and ∝ n² above the first, as far as the axes reach."""
    low, high = ax.get_ylim()
    ends = np.array(ax.get_xlim())
    look: dict[str, Any] = {"color": "0.6", "linestyle": (0, (4, 2)), "linewidth": 0.8}
    linear = 0.6 * float(np.nanmin(np.nanmin(curves, axis=0) / lengths))
    square = 1.7 * float(np.nanmax(curves[0] / lengths**2)) if _any(curves[0]) else math.nan
    ax.plot(ends, linear * ends, zorder=1.2, **look)
    ax.plot(ends, square * ends**2, zorder=1.2, **look)
    # room for the lower line, and for the names beside both
    floor = min(low, 0.7 * linear * float(lengths[-1]))
    ax.set_ylim(floor, 1.6 * high)
    right = float(lengths[-1])
    ax.annotate(
        *("∝ n", (right / 1.6, linear * right / 1.6), (8, -6)), textcoords="offset points", **_LABEL
    )
    if math.isfinite(square):
        at = math.sqrt(high / square) if square * right**2 > high else right
        ax.annotate(*("∝ n²", (at, square * at**2), (-14, 0)), textcoords="offset points", **_LABEL)


def _any(values: Floats) -> bool:
    return bool(np.isfinite(values).any())
