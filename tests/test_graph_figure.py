"""The analysis of patterns as graphs, small, and the picture that it is for."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from analyses import graphs as analysis
from rankscope import plots
from rankscope.exceptions import UsageError
from rankscope.plots.graphs import path_lengths
from rankscope.store.files import load


@pytest.fixture(scope="module")
def measured() -> xr.Dataset:
    found = analysis.over_lengths([64, 128, 256], [8], draws=2, sources=32)
    return analysis.with_fits(found, 64)


def test_lattices_grow_like_n_and_random_graphs_like_its_logarithm(measured: xr.Dataset) -> None:
    fits = measured.sel(degree=8)
    for name, slope in {"ring lattice": 1 / 16, "band": 1 / 12, "dilated": 1 / 24}.items():
        found = fits.sel(graph=name)
        assert float(found["slope_n"]) == pytest.approx(slope, rel=0.02)
        assert float(found["slope_n_low"]) < slope * 1.01
        assert float(found["exponent"]) > 0.8
    for name in ("random", "Erdős–Rényi", "random-band"):
        found = fits.sel(graph=name)
        assert float(found["slope_log"]) == pytest.approx(1 / math.log(8), rel=0.35)
        assert float(found["slope_log_r2"]) > 0.99
        assert float(found["exponent"]) < 0.3
    for name in ("longformer", "bigbird itc", "bigbird etc"):
        assert float(measured["path_length"].sel(graph=name).max()) < 2
        assert float(measured["diameter"].sel(graph=name).max()) == 2


def test_what_has_no_path_is_told(measured: xr.Dataset) -> None:
    dilated = measured.sel(degree=8, graph="dilated", draw=0)
    n = measured["n"]
    np.testing.assert_allclose(dilated["unreachable"], n / 2 / (n - 1))
    assert np.isinf(dilated["diameter"]).all()
    assert np.isnan(dilated["sigma"]).all()


def test_closed_forms_of_the_complete_graph_are_what_would_be_measured() -> None:
    from rankscope import graphs

    exact = analysis.measures(graphs.complete(24), None, 0)
    formulas = analysis.full_graph(24)
    assert exact.keys() == formulas.keys()
    for name, value in formulas.items():
        assert exact[name] == pytest.approx(value, abs=1e-12), name


def test_line_knows_a_straight_one() -> None:
    x = np.arange(6.0)
    slope, low, high, r2 = analysis.line(
        x, 2 * x + np.array([0, 0.1, -0.1, 0, 0.1, -0.1]), np.zeros(6)
    )
    assert low < 2 < high
    assert slope == pytest.approx(2, abs=0.05)
    assert r2 > 0.99
    assert math.isnan(analysis.line(x[:2], x[:2], np.zeros(2))[0])


def test_interval_of_a_line_holds_the_noise_of_its_points() -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    noise = 0.05 * x
    away = x - x.mean()
    _, low, high, _ = analysis.line(x, 3 * x, noise)
    spread = 1.96 * np.sqrt((away**2 * noise**2).sum()) / (away @ away)
    assert (high - low) / 2 == pytest.approx(spread, rel=1e-6)
    random = np.random.default_rng(0)
    slopes = [analysis.line(x, 3 * x + random.normal(0, noise), noise)[0] for _ in range(300)]
    assert np.mean([low <= slope <= high for slope in slopes]) == pytest.approx(0.95, abs=0.04)


def test_analysis_from_end_to_end(tmp_path: Path, capsys: Any) -> None:
    line = ["--lengths", "32", "64", "--degree", "4", "--draws", "1", "--model", "builtin"]
    analysis.main([*line, "--length", "32", "--windows", "1", "--out", str(tmp_path)])
    found = load(tmp_path / "graphs.nc")
    assert found["path_length"].sizes == {"degree": 1, "graph": 11, "n": 2, "draw": 1}
    (file,) = tmp_path.glob("graphs--builtin--*.nc")
    of_p = load(file)
    assert of_p["clustering"].sizes == {"sample": 1, "layer": 4, "head": 4}
    assert bool(((of_p["mean_degree"] > 0) & (of_p["mean_degree"] <= 31)).all())
    assert bool((of_p["reached"].diff("layer") >= 0).all())
    shown = capsys.readouterr().out
    assert "layers until every token reaches every other" in shown
    assert "P of builtin" in shown


# ---- the picture


def test_picture_shows_every_graph_in_both_panels(measured: xr.Dataset) -> None:
    one = measured.sel(degree=8)
    figure = path_lengths(one, names={"band": "a band"})
    left, right = figure.axes
    names = [str(name) for name in one["graph"].to_numpy()]
    means = one["path_length"].mean("draw")
    for name, line, point in zip(names, left.get_lines(), right.get_lines(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), means.sel(graph=name))
        assert line.get_xdata().tolist() == [64, 128, 256]
        assert point.get_xdata()[0] == pytest.approx(float(means.sel(graph=name, n=256)))
        value = one["clustering"].sel(graph=name, n=256).mean("draw")
        assert point.get_ydata()[0] == pytest.approx(float(value))
        assert line.get_color() == point.get_color()
        assert line.get_marker() == point.get_marker()
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in left.lines}
    assert len(looks) == len(names)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "a band" if name == "band" else name for name in names
    ]
    assert (left.get_xscale(), left.get_yscale(), right.get_xscale()) == ("log", "log", "log")
    assert right.get_title(loc="right") == "n = 256"


def test_panels_stand_one_above_the_other_in_a_column(measured: xr.Dataset) -> None:
    figure = path_lengths(measured.sel(degree=8), at=64, width=plots.COLUMN_WIDTH)
    upper, lower = figure.axes
    figure.draw_without_rendering()
    assert upper.get_position().y0 > lower.get_position().y1
    assert lower.get_title(loc="right") == "n = 64"


def test_right_panel_takes_the_largest_n_with_a_clustering(measured: xr.Dataset) -> None:
    one = measured.sel(degree=8).copy(deep=True)
    one["clustering"].loc[{"n": 256}] = np.nan
    assert path_lengths(one).axes[1].get_title(loc="right") == "n = 128"


def test_what_cannot_be_drawn_is_refused(measured: xr.Dataset) -> None:
    one = measured.sel(degree=8)
    with pytest.raises(UsageError, match="at one degree"):
        path_lengths(measured)
    with pytest.raises(UsageError, match="n = 100"):
        path_lengths(one, at=100)
    with pytest.raises(UsageError, match="no clustering"):
        path_lengths(one.assign(clustering=one["clustering"] * np.nan))


def test_committed_figure_is_that_of_its_data(tmp_path: Path, monkeypatch: Any) -> None:
    figure = importlib.import_module("figures.graphs")
    monkeypatch.setattr(
        figure, "pictures", lambda name: [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"]
    )
    assert all(path.stat().st_size > 0 for path in figure.draw())
