"""Small panels of every head, on pages of a bounded size.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.heads import (
    SIGMA_FLOOR,
    WEIGHT_FLOOR,
    check_floor,
    draw_weights,
    power_of_ten,
    sigma_top,
)
from rankscope.plots.style import (
    COLOURS,
    DPI,
    FULL_WIDTH,
    MAX_PIXELS,
    MISSING,
    house_style,
    new_figure,
)
from rankscope.summary.averages import check_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 192
"""Most panels on one page of a grid."""

MAX_HEIGHT = 10.0
"""Inches: height of a page of a grid whose panels are fitted to the page."""

Floats = npt.NDArray[np.float64]


def head_grid(
    data: xr.Dataset | npt.ArrayLike,
    *,
    sample: int = 0,
    layers: Sequence[Any] | None = None,
    heads: Sequence[Any] | None = None,
    title: str = "",
    floor: float | None = None,
    panel: float | None = None,
) -> Iterator[Figure]:
    """Small panels of all heads, a row for each layer, one scale for all, split into pages.

    Parameters
    ----------
    data : Dataset or array
        A run, of which one window's spectra are drawn; or spectra (layer, head, n), NaN beyond a
        matrix' own size; or attention matrices (layer, head, n, n).
    sample : int, default 0
        The window, as in the sample coordinate of the run.
    layers, heads : sequence, optional
        Names of rows and columns. Default: those of the run, or 0, 1, ….
    title : str, optional
        Default: model, corpus and window of a run.
    floor : float, optional
        Lower end of the log scale. Default: 1e-8 for spectra, 1e-5 for matrices.
    panel : float, optional
        Edge of a panel in inches. Default: such that all heads fit in 7 inches.

    Yields
    ------
    Figure
        One at a time, with at most 192 panels and 50 million pixels at 200 dots an inch, and
        at most 10 inches high unless `panel` asks for more.

    Raises
    ------
    UsageError
        If the shape does not fit, or one row of panels exceeds the limits.
    """
    if isinstance(data, xr.Dataset):
        values, layers, heads, title = _window_of(data, sample, layers, heads, title)
    else:
        values = np.asarray(data, dtype=np.float64)
    if values.ndim not in (3, 4) or 0 in values.shape:
        raise UsageError(
            f"cannot draw a grid of heads from shape {values.shape}",
            "give (layer, head, n) spectra or (layer, head, n, n) matrices",
        )
    rows, columns = values.shape[:2]
    layers = range(rows) if layers is None else layers
    heads = range(columns) if heads is None else heads
    if (len(layers), len(heads)) != (rows, columns):
        raise UsageError(
            f"{len(layers)} × {len(heads)} names for {rows} × {columns} panels",
            "name every layer and head once",
        )
    if floor is None:
        floor = SIGMA_FLOOR if values.ndim == 3 else WEIGHT_FLOOR
    check_floor(floor)
    page = _Page(columns, panel, bar=values.ndim == 4)
    most = page.rows()
    pages = math.ceil(rows / most)
    step = math.ceil(rows / pages)
    top = sigma_top(values, floor) if values.ndim == 3 else 1.0
    parts = [
        (values[start : start + step], layers[start : start + step])
        for start in range(0, rows, step)
    ]
    # checks above are made at once, figures only when they are asked for
    return (
        _draw_page(page, part, names, heads, _numbered(title, place, pages), (floor, top))
        for place, (part, names) in enumerate(parts)
    )


class _Page:
    """Where the panels of a page lie, in inches."""

    top, bottom, gap = 0.52, 0.55, 0.05

    def __init__(self, columns: int, panel: float | None, *, bar: bool) -> None:
        self.left, self.right = (0.5, 0.85) if bar else (0.8, 0.15)
        self.columns = columns
        self.fitted = panel is None
        room = FULL_WIDTH - self.left - self.right
        edge = panel if panel is not None else min(room / columns - self.gap, 2.0)
        if edge < 0.15:
            raise UsageError(
                f"panels of {edge:.2f} inches for {columns} heads cannot be read",
                "give a larger panel, or fewer heads",
            )
        self.edge = edge
        self.width = self.left + self.right + columns * (edge + self.gap)

    def height(self, rows: int) -> float:
        return self.top + self.bottom + rows * (self.edge + self.gap)

    def rows(self) -> int:
        """Most rows that keep within the limits of panels, pixels and height."""
        high = MAX_PIXELS / DPI**2 / self.width
        if self.fitted:
            high = min(high, MAX_HEIGHT)
        fit = int((high - self.top - self.bottom) / (self.edge + self.gap))
        rows = min(fit, MAX_PANELS // self.columns)
        if rows < 1:
            raise UsageError(
                f"a row of {self.columns} panels of {self.edge:g} inches exceeds "
                f"{MAX_PANELS} panels or {MAX_PIXELS} pixels a page",
                "give a smaller panel, or fewer heads",
            )
        return rows

    def box(self, row: int, column: int, rows: int) -> tuple[float, float, float, float]:
        """Place of a panel as fractions of the page: left, bottom, width, height."""
        height = self.height(rows)
        x = self.left + column * (self.edge + self.gap)
        y = height - self.top - (row + 1) * (self.edge + self.gap)
        return x / self.width, y / height, self.edge / self.width, self.edge / height


def _draw_page(
    page: _Page,
    values: Floats,
    layers: Sequence[Any],
    heads: Sequence[Any],
    title: str,
    scale: tuple[float, float],
) -> Figure:
    floor, top = scale
    rows, columns = values.shape[:2]
    spectra = values.ndim == 3
    with house_style():
        figure = new_figure(page.width, page.height(rows), layout=None)
        image: Any = None
        for row, column in np.ndindex(rows, columns):
            ax = figure.add_axes(page.box(row, column, rows))
            if spectra:
                _draw_small_spectrum(ax, values[row, column], scale)
            else:
                image = draw_weights(ax, values[row, column], floor, aspect="auto")
            if np.isnan(values[row, column]).all():
                _hatch(ax)
            ax.set_xticks([])
            ax.set_yticks([])
            if spectra and (row, column) == (rows - 1, 0):
                # the scale of all panels is written once
                ax.set_xticks([1, values.shape[-1]])
                ax.set_yticks([floor, top], [power_of_ten(floor), f"{top:.2g}"])
            if row == 0:
                ax.set_title(str(heads[column]), fontsize=8, pad=2)
            if column == 0:
                offset = -0.45 if spectra else -0.15
                ax.annotate(
                    *(str(layers[row]), (0, 0.5), (72 * offset, 0)),
                    xycoords="axes fraction",
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    fontsize=8,
                )
        middle = (page.left + columns * (page.edge + page.gap) / 2) / page.width
        high = page.height(rows)
        texts: dict[str, Any] = {"ha": "center", "fontsize": 8.5}
        figure.text(middle, 1 - 0.33 / high, "head", va="bottom", **texts)
        side = (page.bottom + rows * (page.edge + page.gap) / 2) / high
        figure.text(0.08 / page.width, side, "layer", va="center", rotation=90, **texts)
        n = values.shape[-1]
        if spectra:
            note = rf"each panel: $\sigma_k$ over k, log scale, floor {power_of_ten(floor)}"
            note += "; hatched: no spectrum" * bool(np.isnan(values).all(axis=-1).any())
        else:
            note = f"each panel: {n} × {n}, query down, key to the right"
            note += "; grey: missing" * bool(np.isnan(values).any())
        figure.text(middle, 0.1 / high, note, va="bottom", **texts)
        if title:
            figure.text(middle, 1 - 0.17 / high, title, va="bottom", ha="center", fontsize=9)
        if not spectra:
            x = (page.width - page.right + 0.1) / page.width
            tall = min(3.0, high - page.top - page.bottom - page.gap)
            box = (x, (page.bottom + page.gap) / high, 0.12 / page.width, tall / high)
            bar = figure.colorbar(image, cax=figure.add_axes(box))
            bar.set_label(f"weight (floor {power_of_ten(floor)})")
            bar.outline.set_linewidth(0.7)
    return figure


def _draw_small_spectrum(ax: Axes, sigma: Floats, scale: tuple[float, float]) -> None:
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.plot(np.arange(1, sigma.size + 1), np.maximum(sigma, scale[0]), COLOURS[0], linewidth=1)
    ax.set_xlim(1, max(sigma.size, 2))
    ax.set_ylim(scale[0] * 0.5, scale[1])
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color("0.6")


def _hatch(ax: Axes) -> None:
    from matplotlib.patches import Rectangle

    style: dict[str, Any] = {
        "facecolor": MISSING,
        "edgecolor": "0.5",
        "hatch": "/////",
        "linewidth": 0,
    }
    ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, zorder=0.5, **style))


def _numbered(title: str, place: int, pages: int) -> str:
    if pages == 1:
        return title
    return f"{title}, page {place + 1} of {pages}".removeprefix(", ")


def _window_of(
    run: xr.Dataset,
    sample: int,
    layers: Sequence[Any] | None,
    heads: Sequence[Any] | None,
    title: str,
) -> tuple[Floats, Sequence[Any], Sequence[Any], str]:
    check_run(run, ("sample", "layer", "head", "index"), ("singular_value",), "spectra")
    if run.sizes["model"] != 1 or run.sizes["corpus"] != 1:
        raise UsageError("several models or corpora in one grid", "select one of each")
    if sample not in run["sample"]:
        raise UsageError(f"no window {sample} in the run", f"it has {run.sizes['sample']}")
    window = run["singular_value"].isel(model=0, corpus=0).sel(sample=sample)
    if not title:
        title = f"{window['model'].item()}, {window['corpus'].item()}, window {sample}"
    return (
        window.transpose("layer", "head", "index").to_numpy().astype(np.float64),
        list(run["layer"].to_numpy()) if layers is None else layers,
        list(run["head"].to_numpy()) if heads is None else heads,
        title,
    )
