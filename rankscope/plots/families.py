"""Methods of all families at equal budget, as a table of coloured cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rankscope.exceptions import UsageError
from rankscope.plots.style import COLOUR_MAP, FULL_WIDTH, MISSING, house_style, new_figure

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def method_table(
    panels: Mapping[str, xr.DataArray],
    groups: Mapping[str, Sequence[str]],
    *,
    names: Mapping[str, str] | None = None,
    quantity: str = "relative output error",
    limit: float = 1.0,
    signed: bool = False,
    width: float = FULL_WIDTH,
) -> Figure:
    """A value for every method (row) and budget (column), one panel a model and text.

    All panels share one colour range, 0 … `limit`; what is above has the last colour and its
    number. A method without a budget has one wide cell; what a model refused is hatched.

    Parameters
    ----------
    panels : mapping of str to DataArray, dims (method,)
        Title to values, with the coordinates `label` and `budget` (0 for none) on `method`.
    groups : mapping of str to sequence of str
        Families, in the order of the rows, and the labels in each.
    names : mapping of str to str, optional
        Names of the rows, by label.
    quantity : str
        Name of the colour bar.
    limit : float
    signed : bool
        Whether numbers carry their sign, as differences do.
    width : float, default 7.0
        Inches.

    Returns
    -------
    Figure

    Raises
    ------
    UsageError
        For no panel, or no budget in any of them.
    """
    labels = [label for members in groups.values() for label in members]
    budgets = sorted(
        {int(b) for panel in panels.values() for b in panel["budget"].to_numpy() if b > 0}
    )
    if not labels or not budgets:
        raise UsageError("nothing to draw: no method with a budget", "compare some at a budget")
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    norm = Normalize(0.0, limit)
    with house_style():
        figure = new_figure(width, 0.9 + 0.155 * (len(labels) + 0.35 * len(groups)))
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        places, ticks, at = [], {}, 0.0
        for family, members in groups.items():
            ticks[family] = at + (len(members) - 1) / 2
            for _ in members:
                places.append(at)
                at += 1.0
            at += 0.35
        for ax, (title, panel) in zip(grid, panels.items(), strict=True):
            known = {
                (str(label), int(budget)): float(value)
                for label, budget, value in zip(
                    panel["label"].to_numpy(),
                    panel["budget"].to_numpy(),
                    panel.to_numpy(),
                    strict=True,
                )
            }
            for label, y in zip(labels, places, strict=True):
                alone = (label, 0) in known
                cells = (
                    [(0, 0, len(budgets))] if alone else [(b, i, 1) for i, b in enumerate(budgets)]
                )
                for budget, x, span in cells:
                    value = known.get((label, budget), np.nan)
                    colour = _colour(value, norm)
                    hatch = "/////" if colour is None else None
                    ax.add_patch(
                        Rectangle(
                            (x - 0.5, y - 0.5),
                            span,
                            1,
                            facecolor=colour or MISSING,
                            edgecolor="0.5" if hatch else "white",
                            hatch=hatch,
                            linewidth=0 if hatch else 0.4,
                        )
                    )
                    if colour is not None:
                        ax.text(
                            x + (span - 1) / 2,
                            y,
                            _number(value, signed),
                            ha="center",
                            va="center",
                            fontsize=6,
                            color="black" if norm(min(value, limit)) > 0.6 else "white",
                        )
            ax.set_xlim(-0.5, len(budgets) - 0.5)
            ax.set_ylim(at - 0.85, -0.5)
            ax.set_xticks(range(len(budgets)), [str(b) for b in budgets], fontsize=6.5)
            ax.set_title(title, fontsize=7.5)
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
        shown = [(names or {}).get(label, label) for label in labels]
        grid[0].set_yticks(places, shown, fontsize=7)
        for family, y in ticks.items():
            grid[-1].text(
                len(budgets) - 0.35, y, family, rotation=0, va="center", fontsize=7, color="0.25"
            )
        from matplotlib.cm import ScalarMappable

        mesh = ScalarMappable(norm, COLOUR_MAP)
        bar = figure.colorbar(
            mesh, ax=list(grid), location="bottom", shrink=0.5, aspect=40, pad=0.02, extend="max"
        )
        bar.set_label(f"{quantity}\ncolumns: budget a query (hatched: refused)")
    return figure


def _colour(value: float, norm: object) -> tuple[float, ...] | None:
    """Colour of a cell; None for what is not there."""
    import matplotlib

    if not np.isfinite(value):
        return None
    rgba = matplotlib.colormaps[COLOUR_MAP](norm(value))  # type: ignore[operator]
    return tuple(float(one) for one in rgba)


def _number(value: float, signed: bool) -> str:
    # no minus before a zero
    value = 0.0 if abs(value) < 0.005 else value
    if signed:
        return f"{value:+.2f}" if abs(value) < 10 else f"{value:+.0f}"
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return text.removeprefix("0") if value < 1 else text
