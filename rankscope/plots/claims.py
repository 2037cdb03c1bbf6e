"""Pictures of claims: numbers with intervals beside their limits, and curves of several models.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.exceptions import UsageError
from rankscope.plots.series import (
    MARKERS,
    Floats,
    figure_with_legend,
    finite,
    level_looks,
    looks,
    rank_axis,
)
from rankscope.plots.style import COLOURS, COLUMN_WIDTH, house_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float, float]
"""A number and the ends of its interval; NaN where there is none."""

MOST_ROWS = 24
_ROW = 0.2
_LABEL = 26


def interval_rows(
    rows: Sequence[str],
    series: Mapping[str, Sequence[Point]],
    *,
    label: str,
    limits: Sequence[float] = (),
    between: bool = False,
    log: bool = False,
    width: float = COLUMN_WIDTH,
) -> Figure:
    """Numbers with their intervals, a row each, and the limits that decide.

    Parameters
    ----------
    rows : sequence of str
        Names, from the top.
    series : mapping of str to sequence of (value, low, high)
        A number for every row; what is not finite is left out.
    label : str
        Of the axis, with the unit.
    limits : sequence of float
        Where lines are drawn.
    between : bool
        Whether what lies between two limits is shaded.
    log : bool
        Logarithmic axis.
    width : float, default 3.4
        Inches.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For more than 24 rows, 6 series, or nothing to draw.
    """
    if len(rows) > MOST_ROWS or len(series) > len(COLOURS):
        raise UsageError(
            f"{len(rows)} rows with {len(series)} numbers each are too many for one picture",
            f"draw at most {MOST_ROWS} rows and {len(COLOURS)} numbers",
        )
    values = {name: finite(points).reshape(-1, 3) for name, points in series.items()}
    if not rows or not any(np.isfinite(one[:, 0]).any() for one in values.values()):
        raise UsageError("nothing to draw: every number is missing", "measure something first")
    with house_style():
        names = ["\n".join(textwrap.wrap(row, _LABEL, break_on_hyphens=False)) for row in rows]
        lines = sum(name.count("\n") + 1 for name in names)
        room = max(1.0, 0.6 + 0.36 * len(values))
        height = 0.75 + _ROW * max(lines, len(rows) * room)
        figure, legend = _figure(width, height, list(values))
        ax = figure.subplots()
        if log:
            _log_axis(ax)
        drawn = [
            _series(ax, place, len(values), points) for place, points in enumerate(values.values())
        ]
        if between and len(limits) == 2:
            ax.axvspan(*limits, color="0.92", zorder=0.5)
        for limit in limits:
            ax.axvline(limit, color="0.6", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0.6)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_yticks(range(len(rows)), names)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(label)
        for row in range(1, len(rows)):
            ax.axhline(row - 0.5, color="0.93", linewidth=0.6, zorder=0.4)
        if len(values) > 1:
            figure.legend(handles=drawn, **(legend | {"handlelength": 1.2}))
    return figure


def _log_axis(ax: Axes) -> None:
    """Ticks at 1, 2 and 5 times the powers of ten, written out."""
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())


def _figure(width: float, height: float, labels: Sequence[str]) -> tuple[Figure, dict[str, Any]]:
    """A figure with a legend if there is more than one thing to tell apart."""
    if len(labels) > 1:
        return figure_with_legend(width, height, labels)
    return new_figure(width, height), {}


def _series(ax: Axes, place: int, count: int, points: Floats) -> Any:
    shift = (place - (count - 1) / 2) * min(0.24, 0.8 / count)
    rows = np.arange(len(points)) + shift
    colour = COLOURS[place]
    for row, (_, low, high) in zip(rows, points, strict=True):
        ax.plot([low, high], [row, row], color=colour, linewidth=1.6, solid_capstyle="butt")
    return ax.plot(
        points[:, 0],
        rows,
        color=colour,
        marker=MARKERS[place],
        markersize=4.2,
        linestyle="none",
        zorder=3,
    )[0]


def curves(
    lines: Mapping[str, tuple[Floats, Floats]],
    *,
    x: str,
    y: str,
    doublings: bool = False,
    grey: Collection[str] = (),
    limit: float | None = None,
    y_range: tuple[float, float] | None = None,
    width: float = COLUMN_WIDTH,
) -> Figure:
    """Curves of several models or matrices in one panel.

    Parameters
    ----------
    lines : mapping of str to (x, y)
    x, y : str
        Names of the axes, with units.
    doublings : bool
        Whether x is on a scale of doublings.
    grey : collection of str
        Curves that others are compared with.
    limit : float, optional
        Where a horizontal line is drawn.
    y_range : (float, float), optional
    width : float, default 3.4
        Inches.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For more than 12 curves, or nothing to draw.
    """
    if not lines:
        raise UsageError("nothing to draw: no curve", "measure something first")
    plain = [name for name in lines if name not in grey]
    styles = looks(plain, first="") | {
        name: look | {"marker": mark, "markersize": 3.6, "markerfacecolor": "white"}
        for (name, look), mark in zip(
            level_looks([name for name in lines if name in grey]).items(), "os^D", strict=False
        )
    }
    most = max(len(one) for one, _ in lines.values())
    with house_style():
        figure, legend = _figure(width, 2.3, list(lines))
        ax = figure.subplots()
        drawn = []
        for name, (places, values) in lines.items():
            style = styles[name] | ({"marker": ""} if most > 40 else {})
            drawn.append(ax.plot(places, finite(values), **style)[0])
        if doublings:
            rank_axis(ax, np.concatenate([places for places, _ in lines.values()]))
        if limit is not None:
            ax.axhline(limit, color="0.6", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0.6)
        if y_range is not None:
            ax.set_ylim(*y_range)
        ax.set_xlabel(x)
        ax.set_ylabel(y)
        if len(lines) > 1:
            figure.legend(handles=drawn, **legend)
    return figure
