"""Pictures of attention patterns as graphs.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.series import (
    MAX_SERIES,
    Floats,
    error_axis,
    figure_with_legend,
    level_looks,
    looks,
    rank_axis,
)
from rankscope.plots.style import FULL_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCES = ("ring lattice", "Erdős–Rényi", "Watts–Strogatz", "complete")
"""Graphs that patterns are compared with; they are grey."""

_DIMS = ("graph", "n")

_FLOOR = 0.9
"""Below every path length."""


def path_lengths(
    found: xr.Dataset,
    *,
    at: int | None = None,
    names: Mapping[str, str] | None = None,
    references: Collection[str] = REFERENCES,
    title: str = "",
    width: float = FULL_WIDTH,
) -> Figure:
    """Mean path length over n, and clustering beside path length: where small worlds lie.

    On the left both axes are logarithmic: paths that grow like n are a line of slope 1, those that
    grow like ln n are nearly level. On the right, small worlds lie at the top left.

    Parameters
    ----------
    found : Dataset
        ``path_length`` and ``clustering`` with the dimensions graph and n, and draw where graphs
        were drawn at random, over which the mean is taken.
    at : int, optional
        n of the right panel. Default: the largest of which a drawn graph's clustering is known.
    names : mapping of str to str, optional
        Names for the legend, by graph.
    references : collection of str
        Graphs that are grey.
    title : str, optional
        Of the legend.
    width : float, default 7.0
        Inches; below 5 the panels stand one above the other.

    Returns
    -------
    Figure
        What is missing is left out.

    Raises
    ------
    UsageError
        For other dimensions, an n that is not there, more than 12 graphs, or nothing to draw.
    """
    lengths, clusterings = _mean(found, "path_length"), _mean(found, "clustering")
    graphs = [str(graph) for graph in found["graph"].to_numpy()]
    n = found["n"].to_numpy()
    patterns = [graph for graph in graphs if graph not in references]
    grey = [graph for graph in graphs if graph in references]
    if len(grey) > MAX_SERIES:
        raise UsageError(f"{len(grey)} grey graphs", f"draw at most {MAX_SERIES}")
    styles: dict[str, dict[str, Any]] = looks(patterns) | {
        graph: look | {"marker": mark, "markersize": 3.6, "markerfacecolor": "white"}
        for (graph, look), mark in zip(
            level_looks(grey).items(), "os^Dv<>phdP*"[: len(grey)], strict=True
        )
    }
    place = _place(n, clusterings[[graphs.index(one) for one in patterns or graphs]], at)
    labels = [(names or {}).get(graph, graph) for graph in graphs]
    with house_style():
        stacked = width < 5
        figure, legend = figure_with_legend(width, 4.6 if stacked else 2.5, labels, [title])
        left, right = figure.subplots(*((2, 1) if stacked else (1, 2)))
        error_axis([left], [lengths], _FLOOR)
        rank_axis(left, n)
        drawn = [
            left.plot(n, row, **styles[graph])[0]
            for graph, row in zip(graphs, lengths, strict=True)
        ]
        left.set_xlabel("tokens n")
        left.set_ylabel("mean path length (layers)")
        _plane(right, graphs, lengths[:, place], clusterings[:, place], styles)
        right.set_title(f"n = {n[place]}", loc="right")
        figure.legend(handles=drawn, **legend)
    return figure


def _mean(found: xr.Dataset, name: str) -> Floats:
    if name not in found or {*found[name].dims} - {"draw"} != {*_DIMS}:
        raise UsageError(
            f"no {name} over graph and n", "give the dataset of analyses/graphs.py at one degree"
        )
    values = found[name]
    mean = values.mean("draw") if "draw" in values.dims else values
    return np.asarray(mean.transpose(*_DIMS), dtype=np.float64)


def _place(n: Floats, clusterings: Floats, at: int | None) -> int:
    """Which n the right panel shows."""
    if at is not None:
        if at not in n:
            raise UsageError(f"nothing was measured at n = {at}", "choose an n that was")
        return int(np.flatnonzero(n == at)[0])
    there = np.flatnonzero(np.isfinite(clusterings).any(axis=0))
    if not there.size:
        raise UsageError("no clustering to draw", "measure it at one n at least")
    return int(there[n[there].argmax()])


def _plane(
    ax: Axes,
    graphs: list[str],
    lengths: Floats,
    clusterings: Floats,
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    error_axis([ax], [lengths], _FLOOR)
    low, high = ax.get_ylim()
    ticks, texts = ax.get_yticks(), [label.get_text() for label in ax.get_yticklabels()]
    ax.set_yscale("linear")
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.set_xticks(ticks, texts)
    ax.minorticks_off()
    for graph, length, clustering in zip(graphs, lengths, clusterings, strict=True):
        look = {**styles[graph], "linestyle": "none", "markersize": 5.5, "clip_on": False}
        ax.plot([length], [clustering], **look)
    ax.set_ylim(0, 1)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.set_xlabel("mean path length (layers)")
    ax.set_ylabel("clustering coefficient")
