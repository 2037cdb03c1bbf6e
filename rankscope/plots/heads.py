"""Heads from close by: one with its matrix, spectrum and ratios, or all of them on pages.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankscope.exceptions import UsageError
from rankscope.plots.style import (
    COLOUR_MAP,
    COLOURS,
    FULL_WIDTH,
    MISSING,
    house_style,
    new_figure,
)
from rankscope.rank import cumulative_ratio, energy_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WEIGHT_FLOOR = 1e-5
"""Attention weights below are drawn as this."""

SIGMA_FLOOR = 1e-8
"""Singular values below are drawn as this; about what the Gram matrix resolves at σ₁ = 1."""

Floats = npt.NDArray[np.float64]


def head_figure(
    matrix: npt.ArrayLike,
    singular_values: npt.ArrayLike,
    *,
    title: str = "",
    weight_floor: float = WEIGHT_FLOOR,
    sigma_floor: float = SIGMA_FLOOR,
) -> Figure:
    """One head: its attention matrix, its spectrum and both ratios.

    Weights and singular values are on log scales that end at a floor; what is smaller, zeros
    among them, is drawn at the floor, and NaN is drawn as missing.

    Parameters
    ----------
    matrix : array (n, n)
        P, a row for each query and a column for each key.
    singular_values : array (n,)
        Descending; all NaN where there are none. NaN at the end, as of a short window in a longer
        run, is left out.
    title : str, optional
        As "minilm, layer 3, head 7".
    weight_floor : float, default 1e-5
        Lower end of the colour scale, whose upper end is 1.
    sigma_floor : float, default 1e-8
        Lower end of the spectrum's axis.

    Returns
    -------
    Figure
        7 inches wide.

    Raises
    ------
    UsageError
        If the shapes do not fit, or a floor is not in (0, 1).
    """
    weights = np.asarray(matrix, dtype=np.float64)
    sigma = np.asarray(singular_values, dtype=np.float64)
    if weights.ndim != 2 or sigma.ndim != 1 or 0 in (*weights.shape, sigma.size):
        raise UsageError(
            f"a matrix of shape {weights.shape} and singular values of shape {sigma.shape}",
            "give one head's (n, n) and (n,)",
        )
    check_floor(weight_floor)
    check_floor(sigma_floor)
    if np.isfinite(sigma).any():
        sigma = sigma[: int(np.flatnonzero(np.isfinite(sigma))[-1]) + 1]
    with house_style():
        figure = new_figure(FULL_WIDTH, 2.5)
        grid = figure.add_gridspec(1, 3, width_ratios=[1.25, 1, 1])
        picture, spectrum, ratios = (figure.add_subplot(grid[0, place]) for place in range(3))
        image = draw_weights(picture, weights, weight_floor)
        picture.set_xlabel("key (grey: missing)" if np.isnan(weights).any() else "key")
        picture.set_ylabel("query")
        bar = figure.colorbar(image, ax=picture, fraction=0.05, pad=0.03)
        bar.set_label(f"weight (floor {power_of_ten(weight_floor)})")
        bar.outline.set_linewidth(0.7)

        n = sigma.size
        shown = np.maximum(sigma, sigma_floor)
        spectrum.semilogy(np.arange(1, n + 1), shown, color="black", linewidth=1.2)
        spectrum.set_xlim(1, max(n, 2))
        # a little below, so that a line at the floor is seen
        spectrum.set_ylim(sigma_floor * 0.5, sigma_top(sigma, sigma_floor))
        spectrum.set_xticks([1, *_quarters(n)[1:]])
        spectrum.set_xlabel("index k")
        spectrum.set_ylabel(rf"$\sigma_k$ (floor {power_of_ten(sigma_floor)})")
        if np.isnan(sigma).all():
            _say(spectrum, "no spectrum")

        _draw_ratios(ratios, sigma)
        if title:
            figure.suptitle(title, fontsize=9)
    return figure


def draw_weights(ax: Axes, weights: Floats, floor: float, aspect: Any = "equal") -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    shown = np.ma.masked_invalid(np.maximum(weights, floor))
    colours = colormaps[COLOUR_MAP].with_extremes(bad=MISSING)
    image = ax.imshow(shown, norm=LogNorm(floor, 1.0), cmap=colours, aspect=aspect)
    ax.spines[:].set_visible(False)
    return image


def _draw_ratios(ax: Axes, sigma: Floats) -> None:
    n = sigma.size
    k, mark = np.arange(n + 1), max(n // 4, 1)
    ratios = cumulative_ratio(sigma), energy_ratio(sigma)
    dashes: tuple[Any, ...] = ("-", (0, (4, 1.5)))
    for name, curve, colour, dash in zip(("σ", "σ²"), ratios, COLOURS, dashes, strict=False):
        label = f"{name}: {curve[mark - 1]:.3f}"
        (line,) = ax.plot(k, [0, *curve], color=colour, linestyle=dash, lw=1.4, label=label)
        line.set_clip_on(False)
    ax.axvline(mark, color="black", linewidth=0.7, zorder=0.5)
    ax.set_xlim(0, n)
    ax.set_ylim(0, 1)
    ax.set_xticks(_quarters(n))
    ax.set_xlabel("index k")
    ax.set_ylabel("cumulative (σ), energy (σ²) ratio")
    ax.set_title(f"k = {mark}", fontsize=8, loc="center", x=mark / n, pad=3)
    if np.isnan(ratios[0]).any():
        _say(ax, "undefined")
    else:
        ax.legend(loc="lower right", frameon=False, borderpad=0.1, borderaxespad=0.3)


def _quarters(n: int) -> list[int]:
    return sorted({0, *(max(n * part // 4, 1) for part in (1, 2, 3, 4))})


def _say(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color="0.4")


def check_floor(floor: float) -> None:
    if not 0 < floor < 1:
        raise UsageError(f"floor {floor} of a log scale", "choose one between 0 and 1")


def sigma_top(sigma: Floats, floor: float) -> float:
    """Upper end of a spectrum's log axis; 1 where nothing lies above the floor."""
    there = sigma[np.isfinite(sigma)]
    largest = float(there.max()) if there.size else 0.0
    return largest * 1.3 if largest > floor else 1.0


def power_of_ten(value: float) -> str:
    """1e-05 as a power of ten where it is one."""
    exponent = round(math.log10(value))
    if math.isclose(value, 10.0**exponent, rel_tol=1e-9):
        return f"$10^{{{exponent}}}$"
    return f"{value:g}"
