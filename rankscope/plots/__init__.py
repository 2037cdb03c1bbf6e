"""Pictures of spectra: Linformer's Figure 1 for any model, and one head from close by.

A summary and an axes go in, the axes comes out; :func:`figure1`, :func:`head_figure` and
:func:`head_grid` arrange whole figures and :func:`save` writes them. This is the only part that
uses matplotlib, and it uses none of its global state: no pyplot, no display, no window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.grid import MAX_PANELS, head_grid
from rankscope.plots.heads import head_figure
from rankscope.plots.maps import draw_map
from rankscope.plots.methods import error_over_rank, loss_over_rank
from rankscope.plots.parts import (
    MAX_MAPS_IN_A_ROW,
    MAX_MODELS,
    Quantity,
    Summaries,
    check_panels,
    check_quantity,
    corpus_of,
    curve_labels,
    curve_of,
    difference_of,
    line_styles,
    listed,
    mark_label,
    model_of,
    parts_of,
    quantity_of,
    rows_of,
    short_names,
    size_of,
    wrapped,
)
from rankscope.plots.ranks import (
    BudgetRow,
    budget_curves,
    learned_over_layers,
    rank_map,
)
from rankscope.plots.style import (
    COLUMN_WIDTH,
    FULL_WIDTH,
    check_picture,
    figure_of,
    house_style,
    inches_of,
    new_figure,
    save,
    save_pages,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

__all__ = [
    "COLUMN_WIDTH",
    "FULL_WIDTH",
    "MAX_MAPS_IN_A_ROW",
    "MAX_MODELS",
    "MAX_PANELS",
    "BudgetRow",
    "budget_curves",
    "check_panels",
    "check_picture",
    "check_quantity",
    "error_over_rank",
    "figure1",
    "head_figure",
    "head_grid",
    "house_style",
    "layer_head_map",
    "learned_over_layers",
    "loss_over_rank",
    "new_figure",
    "rank_map",
    "ratio_curves",
    "save",
    "save_pages",
]


def ratio_curves(
    summaries: Summaries,
    ax: Axes,
    *,
    quantity: Literal["cumulative", "energy"] = "cumulative",
    x: Literal["index", "relative"] = "index",
    mark: float | None = None,
) -> Axes:
    """Mean ratio over the number of singular values kept, one curve a model and corpus.

    Each curve starts at 0 for k = 0 and comes with the 95 % interval of the summary as a band.
    Controls (:func:`rankscope.labels.control_of`) are grey and dashed. The legend gives the
    value of each curve at the marked place, in the order of the curves there; of a control whose
    summary carries it (:meth:`rankscope.summary.differences.Difference.attrs`) also what was
    measured less the control, with its interval.

    Parameters
    ----------
    summaries : Dataset or iterable of Dataset
        From :func:`rankscope.summary.summarise`; may hold several models and corpora.
    ax : Axes
    quantity : {"cumulative", "energy"}
        σ or σ².
    x : {"index", "relative"}
        k, or k/n, on which texts of different length can be compared.
    mark : float, optional
        Place of the thin vertical line, as k or as k/n; 0 for none. Default: the index at which
        the summaries were read (n/4 unless asked otherwise), or 1/4.

    Returns
    -------
    Axes
        The same.

    Raises
    ------
    UsageError
        For an unknown `quantity` or `x`, or nothing to draw.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, figure 1 left.
    """
    kind = quantity_of(quantity)
    if x not in ("index", "relative"):
        raise UsageError(f"unknown axis {x!r}", "choose index or relative")
    parts = parts_of(summaries)
    labels, shared = curve_labels(parts)
    relative = x == "relative"
    width = int(inches_of(ax)[0] / 0.085)
    marks: set[float] = set()
    drawn: list[tuple[float, Any]] = []
    for part, label, style in zip(parts, labels, line_styles(parts), strict=True):
        ks, mean, low, high = curve_of(part, kind.prefix, relative)
        place = mark
        if place is None:
            place = 0.25 if relative else float(part.attrs["ratio_index"])
        at = float(np.interp(place, ks, mean))
        if place:
            marks.add(place)
            label += f": {at:.3f}{difference_of(part, kind.prefix, place)}"
        (line,) = ax.plot(ks, mean, label=wrapped(label, width - 6), linewidth=1.4, **style)
        # not cut at the top, where every curve ends
        line.set_clip_on(False)
        ax.fill_between(ks, low, high, color=line.get_color(), alpha=0.25, linewidth=0)
        drawn.append((at, line))
    n = 1.0 if relative else float(max(int(part["index"].max()) for part in parts))
    ax.set_xlim(0, n)
    ax.set_ylim(0, 1)
    if relative or n % 4 == 0:
        ax.set_xticks([0, n / 4, n / 2, 3 * n / 4, n])
    ax.set_xlabel("k / n" if relative else "index k (singular values kept)")
    ax.set_ylabel(f"mean {kind.name}  {kind.formula}")
    for place in sorted(marks):
        ax.axvline(place, color="black", linewidth=0.7, zorder=0.5)
        ax.annotate(
            mark_label(place, parts, relative),
            (place, 1),
            (0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    drawn.sort(key=lambda pair: -pair[0] if np.isfinite(pair[0]) else 0.0)
    units = sorted({str(part["interval_unit"].item()) for part in parts})
    over = " or ".join(f"{unit}s" for unit in units)
    notes = [shared, "value at the line;" * bool(marks) + f" 95 % band over {over}"]
    legend = ax.legend(
        handles=[line for _, line in drawn],
        loc="lower right",
        title="\n".join(wrapped(note, width) for note in notes if note),
        alignment="left",
        frameon=True,
        framealpha=1,
        edgecolor="none",
        facecolor="white",
        fancybox=False,
        handlelength=2.2,
        borderaxespad=0.4,
        borderpad=0.1,
    )
    legend.set_zorder(1)
    return ax


def layer_head_map(
    summary: xr.Dataset,
    ax: Axes,
    *,
    quantity: Literal["cumulative", "energy"] = "cumulative",
    norm: Normalize | None = None,
    colour_bar: bool = True,
    layer_means: bool = True,
) -> Axes:
    """Heat map of the ratio of every head at the index of the summary; layer 0 at the bottom.

    The input enters at the bottom and the depth grows upwards. Beside each row stands the mean of
    the layer. A head without a usable matrix is hatched, never coloured.

    Parameters
    ----------
    summary : Dataset
        Of one model on one corpus.
    ax : Axes
    quantity : {"cumulative", "energy"}
        σ or σ².
    norm : Normalize, optional
        Colour range; give the same to maps that are compared. Default: 0 to 1.
    colour_bar : bool, default True
        Whether to add one; not for maps that share one.
    layer_means : bool, default True
        Whether to write the layer means at the right.

    Returns
    -------
    Axes
        The same.

    Raises
    ------
    UsageError
        For an unknown `quantity`, or a summary of several models or corpora.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, figure 1 right.
    """
    kind = quantity_of(quantity)
    parts = parts_of(summary)
    if len(parts) != 1:
        raise UsageError(f"{len(parts)} models and corpora for one map", "draw a map for each")
    part = parts[0]
    from matplotlib.colors import Normalize

    at = part[f"{kind.prefix}ratio_at"].isel(model=0, corpus=0).transpose("layer", "head")
    mesh, step = draw_map(
        ax,
        at.to_numpy(),
        at["layer"].to_numpy(),
        at["head"].to_numpy(),
        norm if norm is not None else Normalize(0, 1),
    )
    if layer_means:
        _write_layer_means(
            ax, part[f"{kind.prefix}layer_mean"].to_numpy().ravel(), at.sizes["head"], step
        )
    if colour_bar:
        _colour_bar(mesh, [ax], kind, [part])
    return ax


def figure1(
    summaries: Summaries,
    controls: Summaries | None = None,
    *,
    quantity: Literal["cumulative", "energy"] = "cumulative",
    norm: Normalize | None = None,
) -> Figure:
    """Linformer's Figure 1: mean curves, and the layer × head map beside that of the control.

    All maps share one colour range and one colour bar. A single model with at most two maps is
    drawn in one row, curves left; otherwise the curves are on top and every model has a row of
    maps: its corpora, then their controls.

    Parameters
    ----------
    summaries : Dataset or iterable of Dataset
        The models; those whose name begins with a control, as ``random:`` or ``rows:``, count as
        controls.
    controls : Dataset or iterable of Dataset, optional
        Null models, as the same architecture with random weights. A control belongs to the model
        whose name it carries behind the colon, or else to the one at its place in the list.
    quantity : {"cumulative", "energy"}
        σ or σ².
    norm : Normalize, optional
        Colour range of all maps. Default: 0 to 1.

    Returns
    -------
    Figure
        7 inches wide. Where there is no model, controls have the rows of models.

    Raises
    ------
    UsageError
        Above 4 models, or 4 maps of one model.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, figure 1.
    """
    kind = quantity_of(quantity)
    named = [control.assign_attrs(control=1) for control in listed(controls)]
    parts = parts_of([*listed(summaries), *named])
    rows = rows_of(parts)
    columns = max(len(row) for row in rows)
    check_panels(len(rows), columns)
    with house_style():
        from matplotlib.colors import Normalize

        norm = norm if norm is not None else Normalize(0, 1)
        one_row = len(rows) == 1 and columns <= 2
        figure = new_figure(FULL_WIDTH, 2.9 if one_row else 2.9 + 2.3 * len(rows))
        if one_row:
            ratios = [1.8 if columns == 2 else 1.3] + [1.0] * columns
            grid = figure.add_gridspec(1, columns + 1, width_ratios=ratios)
            curves, places = grid[0, 0], [[grid[0, 1 + column] for column in range(columns)]]
            pitch = FULL_WIDTH * 0.9 / sum(ratios)
        else:
            outer = figure.add_gridspec(2, 1, height_ratios=[2.6, 2.3 * len(rows)])
            inner = outer[1].subgridspec(len(rows), columns)
            curves = outer[0]
            places = [[inner[row, column] for column in range(columns)] for row in range(len(rows))]
            pitch = FULL_WIDTH * 0.9 / columns
        ratio_curves(parts, figure.add_subplot(curves), quantity=quantity)
        maps: list[Axes] = []
        models = short_names([model_of(part) for part in parts])
        corpora = short_names([corpus_of(part) for part in parts])
        for row, spots in zip(rows, places, strict=True):
            for part, spot in zip(row, spots, strict=False):
                ax = figure.add_subplot(spot)
                layer_head_map(part, ax, quantity=quantity, norm=norm, colour_bar=False)
                lines = (models[model_of(part)], corpora[corpus_of(part)], size_of(part))
                ax.set_title("\n".join(wrapped(line, int(pitch / 0.08)) for line in lines))
                maps.append(ax)
        _colour_bar(maps[0].collections[0], maps, kind, parts)
    return figure


def _write_layer_means(ax: Axes, means: npt.NDArray[np.float64], heads: int, step: int) -> None:
    for layer in range(0, len(means), step):
        text = f"{means[layer]:.3f}".removeprefix("0") if np.isfinite(means[layer]) else "–"
        ax.text(heads - 0.3, layer, text, va="center", ha="left", fontsize=8)
    ax.annotate(
        *("mean", (1, 0), (2, -3)),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        fontsize=8,
    )


def _colour_bar(mesh: Any, axes: list[Axes], kind: Quantity, parts: Sequence[xr.Dataset]) -> None:
    at = ", ".join(str(k) for k in sorted({int(part.attrs["ratio_index"]) for part in parts}))
    bar = figure_of(axes[0]).colorbar(mesh, ax=axes, fraction=0.06, pad=0.02, aspect=25)
    bar.set_label(f"{kind.name}\nat k = {at}")
    bar.outline.set_linewidth(0.7)
