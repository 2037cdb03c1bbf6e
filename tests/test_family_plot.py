"""The table of methods at equal budget: every cell where it belongs, one colour range."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from rankscope.exceptions import UsageError
from rankscope.plots.families import method_table

GROUPS = {"sparse": ["band", "top"], "yardstick": ["uniform"]}


def panel(*rows: tuple[str, int, float]) -> xr.DataArray:
    labels, budgets, values = zip(*rows, strict=True)
    coords = {"label": ("method", list(labels)), "budget": ("method", list(budgets))}
    return xr.DataArray(np.array(values), coords, ("method",))


def test_cells_hold_the_numbers_and_share_one_range() -> None:
    first = panel(("band", 8, 0.25), ("band", 16, 0.125), ("top", 8, 1.5), ("uniform", 0, 0.5))
    second = panel(("band", 8, 0.75), ("top", 16, 12.0))
    figure = method_table({"a": first, "b": second}, GROUPS, names={"band": "a band"})
    left, right, bar = figure.axes
    texts = {
        (round(t.get_position()[0], 2), round(t.get_position()[1], 2)): t.get_text()
        for t in left.texts
    }
    assert texts[0.0, 0.0] == ".25"
    assert texts[1.0, 0.0] == ".12"
    assert texts[0.0, 1.0] == "1.50"
    # a method without a budget has one cell in the middle, after the gap between families
    assert texts[0.5, 2.35] == ".50"
    assert [label.get_text() for label in left.get_yticklabels()] == ["a band", "top", "uniform"]
    assert [label.get_text() for label in left.get_xticklabels()] == ["8", "16"]
    hatched = [patch for patch in right.patches if patch.get_hatch()]
    # band at 16, top at 8, and uniform at both budgets were not run there
    assert len(hatched) == 4
    assert bar.get_xlim() == (0.0, 1.0)
    shown = [t.get_text() for t in right.texts if t.get_text() not in GROUPS]
    assert sorted(shown) == [".75", "12"]


def test_differences_carry_their_sign() -> None:
    figure = method_table({"a": panel(("band", 8, -0.25))}, {"sparse": ["band"]}, signed=True)
    assert figure.axes[0].texts[0].get_text() == "-0.25"


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        method_table({"a": panel(("uniform", 0, 0.5))}, {"yardstick": ["uniform"]})
