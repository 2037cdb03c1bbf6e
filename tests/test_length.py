"""Rank over the length of the text: the pieces, what is measured of them, and the picture."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import rankscope as rs
from analyses import length as analysis
from rankscope import plots
from rankscope.capture import capture
from rankscope.exceptions import UsageError
from rankscope.plots.lengths import rank_over_length
from rankscope.store.files import load

LENGTHS = [8, 16, 32]


@pytest.fixture(scope="module")
def model() -> rs.LoadedModel:
    return rs.load_model("builtin")


@pytest.fixture(scope="module")
def measured(model: rs.LoadedModel) -> xr.Dataset:
    return analysis.over_lengths(model, rs.load_corpus("builtin"), [*LENGTHS, 100_000], 3)


def whole_windows(model: rs.LoadedModel) -> list[rs.Window]:
    return rs.windows(rs.load_corpus("builtin"), model.tokenizer, length=32, count=3)


def test_pieces_have_the_same_text_at_every_length(model: rs.LoadedModel) -> None:
    window = whole_windows(model)[1]
    text = window.ids[~window.special]
    for n, count in ((32, 1), (16, 2), (8, 5), (7, 6)):
        found = analysis.pieces(window, n)
        assert len(found) == count
        joined = np.concatenate([one.ids[~one.special] for one in found])
        assert joined.tolist() == text[: count * (n - 2)].tolist()
        for number, one in enumerate(found):
            assert (one.number, one.text_id, one.n_tokens) == (number, window.number, n)
            assert one.start == window.start + number * (n - 2)
            assert one.end - one.start == n - 2
            # begin and end of a text, as the window itself has them
            assert one.ids[[0, -1]].tolist() == window.ids[[0, -1]].tolist()


def test_packed_is_the_mean_of_what_numpy_finds(
    model: rs.LoadedModel, measured: xr.Dataset
) -> None:
    n = 16
    ranks, ratios = [], []
    for window in whole_windows(model):
        of_window = []
        for piece in analysis.pieces(window, n):
            for attention in capture(model, [piece]):
                matrices = attention.weights[0].numpy().astype(np.float64)
                sigma = np.linalg.svd(matrices, compute_uv=False)
                share = np.cumsum(sigma, axis=-1) / sigma.sum(axis=-1, keepdims=True)
                of_window.append(((share < 0.9 - 1e-9).sum(axis=-1) + 1.0, share[:, n // 4 - 1]))
        ranks.append(np.mean([rank for rank, _ in of_window]))
        ratios.append(np.mean([ratio for _, ratio in of_window]))
    cell = measured.isel(model=0).sel(layout="packed", length=n)
    assert float(cell["rank_90_mean"]) == pytest.approx(np.mean(ranks), abs=1e-9)
    assert float(cell["relative_rank_90_mean"]) == pytest.approx(np.mean(ranks) / n, abs=1e-9)
    assert float(cell["quarter_ratio_mean"]) == pytest.approx(np.mean(ratios), abs=1e-6)
    # Student's t with two degrees of freedom over the three windows
    half = 4.302653 * np.std(ranks, ddof=1) / np.sqrt(3)
    assert float(cell["rank_90_high"] - cell["rank_90_mean"]) == pytest.approx(half, rel=1e-5)


def test_padding_makes_everything_look_low_rank(measured: xr.Dataset) -> None:
    one = measured.isel(model=0)
    packed, padded = (one.sel(layout=layout) for layout in analysis.LAYOUTS)
    # a text of the largest size has none
    for quantity in analysis.QUANTITIES:
        last = f"{quantity}_mean"
        assert float(packed[last][-1]) == float(padded[last][-1])
    assert measured.attrs["padded_to"] == 32
    assert bool((padded["relative_rank_90_mean"][:-1] < packed["relative_rank_90_mean"][:-1]).all())
    # the rank is at most the number of tokens: a quarter of the matrix holds all of 8 tokens
    assert float(padded["quarter_ratio_mean"][0]) == pytest.approx(1.0, abs=1e-12)
    assert float(padded["rank_90"].sel(length=8).max()) <= 8
    np.testing.assert_allclose(padded["relative_rank_90"], padded["rank_90"] / 32)
    lengths = packed["length"]
    np.testing.assert_allclose(packed["relative_rank_90"], packed["rank_90"] / lengths)


def test_columns_of_padding_change_no_singular_value(model: rs.LoadedModel) -> None:
    from rankscope.controls import padded_attention

    (window, *_) = whole_windows(model)
    (attention, *_) = padded_attention(model, analysis.pieces(window, 8)[0], 32)
    short, usable = analysis._of_layer(attention, 8)
    whole, _ = analysis._of_layer(attention, 32)
    assert usable.all()
    np.testing.assert_allclose(short, whole, atol=1e-9)


def test_lengths_without_positions_are_left_out(
    model: rs.LoadedModel, measured: xr.Dataset
) -> None:
    assert measured["length"].to_numpy().tolist() == LENGTHS
    with pytest.raises(UsageError, match="no positions for"):
        analysis.fitting(model, [513, 1024])


def test_growth_is_the_exponent_of_the_rank() -> None:
    lengths = np.array([32, 64, 128, 256])
    ranks = np.outer(lengths**0.5, [1.0, 2.0, 3.0])
    mean, low, high = analysis._slope(lengths, ranks)
    assert mean == pytest.approx(0.5, abs=1e-12)
    assert low <= mean <= high
    assert high - low < 1e-9
    assert np.isnan(analysis._slope(lengths[:1], ranks[:1])).all()


def test_analysis_from_end_to_end(tmp_path: Path, capsys: Any) -> None:
    analysis.main(["--lengths", "8", "16", "--windows", "2", "--out", str(tmp_path)])
    found = load(tmp_path / "length--builtin--builtin.nc")
    assert found["model"].to_numpy().tolist() == ["builtin", "random:builtin"]
    assert found["rank_90"].sizes == {"model": 2, "layout": 2, "length": 2, "layer": 4, "head": 4}
    assert np.isfinite(found["quarter_energy_ratio_mean"]).all()
    assert "k90 grows as n^" in capsys.readouterr().out


# ---- the picture


def test_picture_has_the_values_and_the_control() -> None:
    figure_module = importlib.import_module("figures.length")
    found = {
        label: load(figure_module.DATA / f"length--{name}--wikitext103-test.nc")
        for name, label in figure_module.NAMES.items()
    }
    figure = rank_over_length(found)
    whole, relative, _ = figure.axes
    assert (whole.get_xscale(), whole.get_yscale(), relative.get_yscale()) == (
        *("log", "log"),
        "linear",
    )
    drawn = [np.asarray(line.get_ydata()) for line in relative.get_lines()]
    for one in found.values():
        for model, layout in ((0, "packed"), (0, "padded"), (1, "packed")):
            expected = one["relative_rank_90_mean"].isel(model=model).sel(layout=layout)
            assert any(np.array_equal(expected, line) for line in drawn)
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [*found, *(f"{label}, random weights" for label in found)]
    # a line of the legend looks as the line that it names
    for text, handle in zip(texts, legend.legend_handles, strict=True):
        assert (handle.get_linestyle() == "-") == (text in found)
    # what the README says of these data
    growth = {label: one["growth"].to_numpy() for label, one in found.items()}
    assert all(trained > 0.9 and trained > random for trained, random in growth.values())


def test_panels_stand_one_above_the_other_in_a_column(measured: xr.Dataset) -> None:
    figure = rank_over_length({"one": measured}, width=plots.COLUMN_WIDTH)
    figure.draw_without_rendering()
    tops = [ax.get_position().y0 for ax in figure.axes]
    assert tops == sorted(tops, reverse=True)
    # without a control there is no grey line, and no name for one
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one"]


def test_what_cannot_be_drawn_is_refused(measured: xr.Dataset) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        rank_over_length({})
    with pytest.raises(UsageError, match="in one"):
        rank_over_length({"one": measured.isel(layout=0)})


def test_committed_figure_is_that_of_its_data(tmp_path: Path, monkeypatch: Any) -> None:
    figure = importlib.import_module("figures.length")
    monkeypatch.setattr(
        figure, "pictures", lambda name: [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"]
    )
    assert all(path.stat().st_size > 0 for path in figure.draw())
