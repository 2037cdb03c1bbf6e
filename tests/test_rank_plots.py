"""Pictures of ranks and of learned projections, and what all pictures of methods have in common."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from made_up import texts_of
from made_up_methods import BUDGETS, FIGURES, RANKS, errors_of_layers, labels_of
from rankscope import plots
from rankscope.exceptions import UsageError


def ticks_of(axis: Any, *, drawn: bool = True) -> list[Any]:
    """Tick labels of an axis that lie within its limits, or those beyond, which are not drawn."""
    low, high = sorted(axis.get_view_interval())
    return [
        label
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if (low <= tick.get_loc() <= high) == drawn and label.get_visible() and label.get_text()
    ]


# ---- ranks


def test_rank_map_shows_every_rank_on_a_log_scale() -> None:
    from matplotlib.colors import LogNorm

    ranks = RANKS.copy()
    ranks[1, 2] = np.nan
    figure = plots.rank_map(ranks, title="minilm", width=plots.FULL_WIDTH)
    ax, bar = figure.axes
    mesh = ax.collections[0]
    assert isinstance(mesh.norm, LogNorm)
    assert mesh.get_clim() == (np.nanmin(ranks), np.nanmax(ranks))
    assert np.argwhere(np.ma.getmaskarray(mesh.get_array())).tolist() == [[1, 2]]
    (hatched,) = ax.patches
    assert hatched.get_xy() == (1.5, 0.5)
    assert "no data" in ax.get_xlabel()
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {
        (head, layer): f"{ranks[layer, head]:.0f}"
        for layer, head in np.argwhere(np.isfinite(ranks))
    }
    assert bar.get_ylabel() == "rank k"
    assert "64" in [tick.get_text() for tick in bar.get_yticklabels()]
    assert ax.get_title() == "minilm"


def test_rank_map_leaves_out_numbers_that_do_not_fit() -> None:
    assert len(plots.rank_map(np.full((24, 16), 128.0)).axes[0].texts) == 0
    assert len(plots.rank_map(np.full((24, 16), 8.0)).axes[0].texts) == 24 * 16


def test_f30_rank_maps_can_share_their_range() -> None:
    from matplotlib.colors import LogNorm

    norm = LogNorm(1, 512)
    maps = [plots.rank_map(np.full((2, 2), rank), norm=norm) for rank in (4, 400)]
    assert [figure.axes[0].collections[0].get_clim() for figure in maps] == [(1, 512)] * 2


def test_rank_map_takes_its_names_from_the_array() -> None:
    ranks = xr.DataArray(
        [[1, 2], [3, 4], [5, 6]], {"head": [7, 8, 9], "layer": [0, 5]}, ("head", "layer")
    )
    ax = plots.rank_map(ranks).axes[0]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0", "5"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["7", "8", "9"]
    assert np.asarray(ax.collections[0].get_array()).tolist() == [[1, 3, 5], [2, 4, 6]]
    for wrong in (np.ones(3), np.full((2, 2), np.nan), np.zeros((2, 2))):
        with pytest.raises(UsageError):
            plots.rank_map(wrong)
    with pytest.raises(UsageError, match="1 × 2 names"):
        plots.rank_map(np.ones((2, 2)), layers=[1])


def test_budget_curves_compare_ways_to_spend_it() -> None:
    figure = plots.budget_curves(BUDGETS[::-1], full=2.7)
    (ax,) = figure.axes
    ways = ["one k a head", "one k a layer", "one k for all heads", "full attention"]
    assert labels_of(figure) == ways
    assert ax.get_xlabel() == "total budget Σk"
    assert ax.get_xscale() == "log"
    uniform = ax.containers[2].lines[0]
    np.testing.assert_allclose(uniform.get_ydata(), [4.5, 4.0, 3.5, 3.3])
    # moved aside by less than a tenth of a doubling
    np.testing.assert_allclose(np.log2(uniform.get_xdata() / [1024, 2048, 4096, 8192]), 0.07)
    assert [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]] == [2.7]
    mean = plots.budget_curves(BUDGETS, heads=64).axes[0]
    assert [tick.get_text() for tick in mean.get_xticklabels()] == ["16", "32", "64", "128"]
    assert mean.get_xlabel() == "mean rank k of a head"


def test_budget_curves_say_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="twice"):
        plots.budget_curves([*BUDGETS, BUDGETS[0]])
    with pytest.raises(UsageError, match="nothing to draw"):
        plots.budget_curves([(64, "uniform", np.nan)])
    with pytest.raises(UsageError, match="below 1"):
        plots.budget_curves([(0, "uniform", 1.0)])
    plain = plots.budget_curves([(64, "uniform", 1.0), (128, "uniform", np.nan)])
    assert plain.legends[0].get_title().get_text() == ""
    drawn = plain.axes[0].containers[0].lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, [1.0, np.nan])


@pytest.mark.parametrize("width", [plots.COLUMN_WIDTH, plots.FULL_WIDTH])
def test_f30_learned_panels_share_one_log_range(width: float) -> None:
    errors = errors_of_layers()
    errors[0, 1, 1, 3] = np.nan
    figure = plots.learned_over_layers(errors, width=width)
    assert [ax.get_title() for ax in figure.axes] == ["k = 64", "k = 128", "k = 256"]
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert {ax.get_yscale() for ax in figure.axes} == {"log"}
    low, high = figure.axes[0].get_ylim()
    assert low <= float(errors.min())
    assert high >= float(errors.max())
    for panel, ax in enumerate(figure.axes):
        assert len(ax.lines) == 8
        for line, (method, split) in zip(
            ax.lines, itertools.product(range(4), range(2)), strict=True
        ):
            np.testing.assert_array_equal(line.get_ydata(), errors[panel, method, split])
            assert (line.get_markerfacecolor() == "white") == (split == 0)
    assert labels_of(figure) == [
        *("gaussian", "mean", "learned", "truncated"),
        *("training", "held-out"),
    ]


def test_learned_over_layers_takes_some_ranks_and_refuses_others() -> None:
    figure = plots.learned_over_layers(
        errors_of_layers(), ranks=[128], names={"mean": "mean pooling"}
    )
    assert [ax.get_title() for ax in figure.axes] == ["k = 128"]
    assert "mean pooling" in labels_of(figure)
    with pytest.raises(UsageError, match="k = 32"):
        plots.learned_over_layers(errors_of_layers(), ranks=[32])
    with pytest.raises(UsageError, match="dims"):
        plots.learned_over_layers(errors_of_layers().isel(split=0))


# ---- all of them


@pytest.mark.parametrize("width", [plots.COLUMN_WIDTH, plots.FULL_WIDTH])
@pytest.mark.parametrize("name", FIGURES)
def test_texts_are_on_the_page_and_do_not_collide(name: str, width: float) -> None:
    figure = FIGURES[name](width)
    figure.canvas.draw()
    assert figure.get_size_inches()[0] == width
    page = figure.bbox
    axes = [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    hidden = {id(text) for axis in axes for text in ticks_of(axis, drawn=False)}
    drawn = [text for text in texts_of(figure) if id(text) not in hidden]
    assert min(text.get_fontsize() for text in drawn) >= 7
    for text in drawn:
        box = text.get_window_extent()
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()
    for axis in axes:
        boxes = [text.get_window_extent() for text in ticks_of(axis)]
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
    for legend in figure.legends:
        boxes = [text.get_window_extent() for text in legend.get_texts()]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        frame = legend.get_window_extent()
        assert not any(frame.overlaps(ax.get_window_extent()) for ax in figure.axes)


@pytest.mark.parametrize("name", FIGURES)
def test_f30_every_figure_is_closed_and_the_same_each_time(name: str, tmp_path: Path) -> None:
    from matplotlib._pylab_helpers import Gcf

    figure = FIGURES[name](plots.COLUMN_WIDTH)
    plots.save(figure, [tmp_path / "one.png", tmp_path / "one.svg"])
    kept = weakref.ref(figure)
    del figure
    gc.collect()
    assert kept() is None
    assert Gcf.get_all_fig_managers() == []
    plots.save(FIGURES[name](plots.COLUMN_WIDTH), [tmp_path / "two.png", tmp_path / "two.svg"])
    for suffix in ("png", "svg"):
        one, two = (tmp_path / f"{which}.{suffix}" for which in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
