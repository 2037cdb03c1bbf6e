"""The layer × head map that every heat map of heads is drawn as.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankscope.plots.style import COLOUR_MAP, MISSING, inches_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize


def draw_map(
    ax: Axes,
    values: npt.NDArray[Any],
    layers: npt.NDArray[Any],
    heads: npt.NDArray[Any],
    norm: Normalize,
) -> tuple[Any, int]:
    """Draw values (layer, head), layer 0 at the bottom; what is not finite is hatched.

    Returns
    -------
    mesh
        For a colour bar.
    step : int
        Every how many layers one is named, as far as the height goes.
    """
    from matplotlib.patches import Rectangle

    shown = np.ma.masked_invalid(values)
    rows, columns = shown.shape
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        shown,
        norm=norm,
        cmap=COLOUR_MAP,
        edgecolors="white",
        linewidth=0.3,
    )
    missing = np.argwhere(np.ma.getmaskarray(shown))
    for layer, head in missing:
        corner = (head - 0.5, layer - 0.5)
        cell = Rectangle(corner, 1, 1, facecolor=MISSING, edgecolor="0.5", hatch="/////", lw=0)
        ax.add_patch(cell)
    width, height = inches_of(ax)
    step = label_step(rows, height, 0.17)
    name_cells(ax.xaxis, heads, label_step(columns, width, 0.3))
    name_cells(ax.yaxis, layers, step)
    ax.set_xlabel("head (hatched: no data)" if missing.size else "head")
    ax.set_ylabel("layer")
    ax.spines[:].set_visible(False)
    return mesh, step


def label_step(cells: int, inches: float, need: float) -> int:
    """1, or 2, 3, … where only every second, third … label has `need` inches."""
    return next(
        (step for step in (1, 2, 3, 4, 6, 8, 12) if inches * step >= need * cells),
        math.ceil(need * cells / inches),
    )


def name_cells(axis: Axis, names: npt.NDArray[Any], step: int) -> None:
    axis.set_ticks(list(range(0, len(names), step)), [str(name) for name in names[::step]])
