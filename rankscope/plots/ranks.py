"""Pictures of a choice of ranks: the map of the heads, the budget's loss, and learned projections.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.maps import draw_map, label_step
from rankscope.plots.series import (
    FULL,
    error_axis,
    figure_with_legend,
    finite,
    floored,
    looks,
    rank_axis,
    with_floor,
)
from rankscope.plots.style import COLUMN_WIDTH, FULL_WIDTH, house_style, inches_of, new_figure

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

HOW: Mapping[str, str] = {
    "uniform": "one k for all heads",
    "layer": "one k a layer",
    "head": "one k a head",
}
"""Ways to spend a budget of ranks, and their names in a legend."""

_DIMS = ("rank", "method", "split", "layer")


class BudgetRow(NamedTuple):
    """The loss that a budget of ranks buys, spent in one way.

    `budget` is Σk over all heads, `how` as "uniform", "layer" or "head"; `low` and `high` are the
    ends of the interval, NaN where there is none.
    """

    budget: float
    how: str
    loss: float
    low: float = math.nan
    high: float = math.nan


def rank_map(
    ranks: xr.DataArray | npt.ArrayLike,
    *,
    title: str = "",
    layers: Sequence[Any] | None = None,
    heads: Sequence[Any] | None = None,
    norm: Normalize | None = None,
    width: float = COLUMN_WIDTH,
) -> Figure:
    """Map of the rank of every head, layer 0 at the bottom, on a log colour scale.

    Parameters
    ----------
    ranks : DataArray or array (layer, head)
        At least 1; NaN is hatched.
    title : str, optional
    layers, heads : sequence, optional
        Names of rows and columns. Default: the coordinates of `ranks`, or 0, 1, ….
    norm : Normalize, optional
        Colour range; give the same to maps that are compared. Default: log, from the least to the
        largest rank.
    width : float, default 3.4
        Inches.

    Returns
    -------
    Figure
        With the ranks in the cells if the widest of them fits.

    Raises
    ------
    UsageError
        For another shape, a rank below 1, or no rank at all.
    """
    if isinstance(ranks, xr.DataArray):
        ranks = ranks.transpose("layer", "head")
        layers = list(ranks["layer"].to_numpy()) if layers is None else layers
        heads = list(ranks["head"].to_numpy()) if heads is None else heads
    values = np.asarray(ranks, dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).any():
        raise UsageError(
            f"no map from ranks of shape {values.shape}", "give (layer, head), not all missing"
        )
    if np.nanmin(values) < 1:
        raise UsageError(f"rank {np.nanmin(values):g} holds nothing", "use ranks of 1 or more")
    rows, columns = values.shape
    layers = range(rows) if layers is None else layers
    heads = range(columns) if heads is None else heads
    if (len(layers), len(heads)) != (rows, columns):
        raise UsageError(
            f"{len(layers)} × {len(heads)} names for {rows} × {columns} cells",
            "name every layer and head once",
        )
    with house_style():
        from matplotlib.colors import LogNorm

        if norm is None:
            least, most = float(np.nanmin(values)), float(np.nanmax(values))
            norm = LogNorm(least, most if most > least else 2 * least)
        tall = min(0.8 + 0.21 * rows + 0.15 * bool(title), 10.0)
        figure = new_figure(width, tall)
        ax = figure.add_subplot()
        mesh, _ = draw_map(ax, values, np.asarray(layers), np.asarray(heads), norm)
        ax.set_title(title)
        bar = figure.colorbar(mesh, ax=ax, fraction=0.06, pad=0.02, aspect=max(20, 10 * tall))
        bar.set_label("rank k")
        bar.outline.set_linewidth(0.7)
        low, high = norm.vmin or 1.0, norm.vmax or 1.0
        ticks = _bar_ticks(low, high, tall - 0.75)
        bar.set_ticks(ticks, labels=[str(tick) for tick in ticks])
        bar.ax.minorticks_off()
        # the room of a cell is known only when the layout is
        figure.draw_without_rendering()
        wide, tall = (
            size / cells for size, cells in zip(inches_of(ax), (columns, rows), strict=True)
        )
        digits = len(f"{np.nanmax(values):.0f}")
        size = next((pt for pt in (8.0, 7.0) if digits * pt / 112 < wide * 0.95), None)
        if size is not None and tall > 0.125:
            for layer, head in np.argwhere(np.isfinite(values)):
                rank = values[layer, head]
                # white on the dark half of the colour map, black on the light one
                colour = "white" if norm(rank) < 0.5 else "black"
                ax.text(
                    *(head, layer, f"{rank:.0f}"),
                    ha="center",
                    va="center_baseline",
                    fontsize=size,
                    color=colour,
                ).set_in_layout(False)
    return figure


def budget_curves(
    rows: Iterable[BudgetRow | tuple[Any, ...]],
    *,
    full: float | None = None,
    heads: int | None = None,
    names: Mapping[str, str] | None = None,
    quantity: str = "loss (nats a masked token)",
    note: str = "bars: 95 % interval",
    title: str = "",
    width: float = COLUMN_WIDTH,
) -> Figure:
    """Loss over the budget Σk of ranks, spent alike on all heads or allocated.

    Parameters
    ----------
    rows : iterable of BudgetRow
        Or of tuples in the same order.
    full : float, optional
        The loss with full attention: a level line.
    heads : int, optional
        Number of heads in all layers; the budget is then drawn as the mean k of a head.
    names : mapping of str to str, optional
        Names for the legend, by `how`.
    quantity : str
        Name and unit of the loss.
    note : str
        What the bars are; stands over the legend where there is an interval.
    title : str, optional
    width : float, default 3.4
        Inches.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For a budget that comes twice, a budget below 1, or nothing to draw.
    """
    found = [BudgetRow(*row) for row in rows]
    if not any(math.isfinite(row.loss) for row in found):
        raise UsageError("nothing to draw: no budget has a loss", "run more windows")
    if len({(row.how, row.budget) for row in found}) < len(found):
        raise UsageError("a budget comes twice for one way to spend it", "give each once")
    if min(row.budget for row in found) < 1:
        raise UsageError("a budget below 1 holds nothing", "use ranks of 1 or more")
    ways = list(dict.fromkeys(row.how for row in found))
    styles = looks(ways, first=ways[0])
    labels = [(names or {}).get(way, HOW.get(way, way)) for way in ways]
    budgets = sorted({row.budget for row in found})
    bars = any(math.isfinite(row.high - row.low) for row in found)
    with house_style():
        shown = labels + [FULL] * (full is not None)
        figure, legend = figure_with_legend(width, 2.3, shown, [note] if bars else [])
        ax = figure.add_subplot()
        handles: list[Any] = []
        for place, way in enumerate(ways):
            here = sorted(row for row in found if row.how == way)
            budget, loss, low, high = (
                finite([row[column] for row in here]) for column in (0, 2, 3, 4)
            )
            # side by side, so that the bars of one budget can be told apart
            shift = 2.0 ** (0.07 * (place - (len(ways) - 1) / 2))
            style = styles[way] | {"elinewidth": 0.9, "capsize": 1.8, "capthick": 0.9}
            x = budget * shift / (heads or 1)
            handles.append(ax.errorbar(x, loss, np.stack([loss - low, high - loss]), **style))
        if full is not None:
            handles.append(ax.axhline(full, color="black", linewidth=1.1, zorder=1.5))
        ticks = [budget / (heads or 1) for budget in budgets]
        rank_axis(ax, ticks)
        if heads is None:
            every = label_step(len(ticks), inches_of(ax)[0], 0.4)
            ax.set_xticks(ticks[::every], [f"{tick:.0f}" for tick in ticks[::every]])
            ax.minorticks_off()
        ax.set_xlabel("total budget Σk" if heads is None else "mean rank k of a head")
        ax.set_ylabel(quantity)
        ax.set_title(title)
        figure.legend(handles=handles, **legend)
    return figure


def learned_over_layers(
    errors: xr.DataArray,
    *,
    ranks: Sequence[int] | None = None,
    names: Mapping[str, str] | None = None,
    quantity: str = "relative output error",
    floor: float = 1e-3,
    title: str = "",
    width: float = FULL_WIDTH,
) -> Figure:
    """Error of each layer on texts that a projection was fitted to and on others, for several k.

    Parameters
    ----------
    errors : DataArray, dims (rank, method, split, layer)
        Mean error of each layer, as :func:`rankscope.summary.methods.errors_by_layer` gives it.
        The first of at most two splits is drawn open and dashed, the second filled and solid.
    ranks : sequence of int, optional
        The panels. Default: every rank.
    names : mapping of str to str, optional
        Names for the legend, by method.
    quantity : str, default "relative output error"
    floor : float, default 1e-3
        Lower end of the error axis, where something lies below it.
    title : str, optional
    width : float, default 7.0
        Inches; below 5 the panels stand one above the other.

    Returns
    -------
    Figure
        All panels share one log scale; what is missing is left out.

    Raises
    ------
    UsageError
        For other dimensions, more than two splits, a rank that is not there, or nothing to draw.
    """
    if {*errors.dims} != {*_DIMS}:
        raise UsageError(f"errors with dims {errors.dims}", f"give {', '.join(_DIMS)}")
    splits = [str(split) for split in errors["split"].to_numpy()]
    if len(splits) > 2:
        raise UsageError(f"{len(splits)} splits in one figure", "draw at most two")
    chosen = errors["rank"].to_numpy().tolist() if ranks is None else list(ranks)
    if lost := [k for k in chosen if k not in errors["rank"].to_numpy()]:
        raise UsageError(f"no errors at k = {lost[0]}", "choose ranks that were run")
    values = errors.sel(rank=chosen).transpose(*_DIMS)
    methods = [str(method) for method in values["method"].to_numpy()]
    layers = values["layer"].to_numpy()
    styles = looks(methods)
    labels = [(names or {}).get(method, method) for method in methods]
    places = np.arange(len(layers))
    if len(layers) > 12:
        styles = {method: style | {"markersize": 2.8} for method, style in styles.items()}
    with house_style():
        from matplotlib.lines import Line2D

        stacked = width < 5
        high = 1.45 * len(chosen) + 0.4 if stacked else 2.3
        figure, legend = figure_with_legend(width, high, [*labels, *splits])
        shape = (len(chosen), 1) if stacked else (1, len(chosen))
        axes = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel()
        clipped = error_axis(list(axes), [values], floor)
        for ax, k in zip(axes, chosen, strict=True):
            for method in methods:
                for split in splits:
                    drawn = values.sel({"rank": k, "method": method, "split": split})
                    ax.plot(
                        places,
                        floored(drawn, floor),
                        **(styles[method] | _split_look(splits, split)),
                    )
            ax.set_title(f"k = {k}")
            step = label_step(len(layers), inches_of(ax)[0], 0.22)
            ax.set_xticks(places[::step], [str(layer) for layer in layers[::step]])
            room = max(0.4, 0.03 * len(layers))
            ax.set_xlim(-room, len(layers) - 1 + room)
        for ax in axes if not stacked else axes[-1:]:
            ax.set_xlabel("layer")
        name = with_floor(quantity, floor, clipped)
        axes[len(axes) // 2 if stacked else 0].set_ylabel(name)
        if title:
            figure.suptitle(title, fontsize=9)
        handles = [Line2D([], [], **(styles[method] | {"linestyle": "-"})) for method in methods]
        grey: dict[str, Any] = {"color": "0.35", "marker": "o", "markersize": 4.0, "linewidth": 1.3}
        handles += [Line2D([], [], **(grey | _split_look(splits, split))) for split in splits]
        figure.legend(handles=handles, **legend)
    return figure


def _split_look(splits: list[str], split: str) -> dict[str, Any]:
    """Open and dashed for what was fitted to, filled and solid for the rest."""
    if len(splits) > 1 and split == splits[0]:
        return {"linestyle": (0, (2.5, 1.5)), "markerfacecolor": "white", "linewidth": 1.0}
    return {"linestyle": "-"}


def _bar_ticks(low: float, high: float, inches: float) -> list[int]:
    """Powers of two inside the range as far as they have room, and its ends where there is none."""
    powers = [2**power for power in range(64) if low <= 2**power <= high]
    every = label_step(len(powers), inches, 0.17)
    ticks = powers[::every]
    octaves = math.log2(high / low)
    for end in (round(low), round(high)):
        if all(abs(math.log2(end / tick)) * inches > 0.15 * octaves for tick in ticks):
            ticks.append(end)
    return sorted(ticks)
