"""Errors and losses over the rank: what the pictures show, on which scale, what is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from made_up_methods import (
    METHODS,
    compare_run,
    drawn_losses,
    drawn_methods,
    drawn_truncation,
    intervene_run,
    labels_of,
)
from rankscope import plots
from rankscope.exceptions import UsageError
from rankscope.labels import short_labels
from rankscope.summary.losses import summarise_losses
from rankscope.summary.methods import summarise_methods


def curves_of(ax: Any) -> list[Any]:
    """Lines of methods: neither level nor empty."""
    return [line for line in ax.lines if line.get_marker() not in ("None", "_", None)]


# ---- errors


def test_error_has_a_line_and_a_band_for_every_method_at_equal_k() -> None:
    summary = drawn_methods()
    figure = plots.error_over_rank(summary)
    (ax,) = figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["32", "64", "128", "256"]
    assert ax.get_xlabel() == "rank k"
    assert ax.get_ylabel() == "relative output error"
    assert labels_of(figure) == [
        "truncated",
        "best-output",
        "projected",
        "linformer:projection=gaussian",
        "linformer:projection=mean",
        "linformer:projection=learned",
        "uniform",
        "mean-row",
        "√(n/k)",
    ]
    lines = curves_of(ax)
    assert len(lines) == 6
    assert len(ax.collections) == 6
    part = summary.isel(model=0, corpus=0)
    family = part["family"] == "projected"
    x, y = lines[2].get_data()
    assert x.tolist() == [32, 64, 128, 256]
    np.testing.assert_array_equal(y, part["output_median"].to_numpy()[family])
    corners = ax.collections[2].get_paths()[0].vertices
    at = np.sort(corners[corners[:, 0] == 64][:, 1])
    ends = [part[f"output_{end}"].to_numpy()[family][1] for end in ("q10", "q90")]
    np.testing.assert_allclose([at[0], at[-1]], ends)
    assert "10–90 % of heads" in figure.legends[0].get_title().get_text()


def test_every_method_has_its_own_colour_and_marker() -> None:
    ax = plots.error_over_rank(drawn_methods()).axes[0]
    lines = curves_of(ax)
    assert len({line.get_color() for line in lines}) == len(lines)
    assert len({line.get_marker() for line in lines}) == len(lines)


def test_full_attention_is_not_drawn_and_methods_without_a_rank_are_level() -> None:
    figure = plots.error_over_rank(drawn_methods())
    level = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 1]]
    values = drawn_methods().isel(model=0, corpus=0)["output_median"].to_numpy()
    assert [line.get_ydata()[0] for line in level] == values[1:3].tolist()
    assert "full" not in labels_of(figure)


def test_theorem_one_is_compared_with_the_root_of_n_over_k() -> None:
    def references(**options: Any) -> list[Any]:
        ax = plots.error_over_rank(drawn_methods(n=256), **options).axes[0]
        return [line for line in ax.lines if len(line.get_xdata()) == 65]

    (line,) = references()
    x, y = line.get_data()
    np.testing.assert_allclose(y, np.sqrt(256 / x))
    assert line.get_linestyle() == "--"
    assert (x[0], x[-1]) == (pytest.approx(32), pytest.approx(256))
    assert references(reference=False) == []
    alone = compare_run({"output": np.ones((1, 1, 1, 2))}, METHODS[3:5])
    figure = plots.error_over_rank(summarise_methods(alone))
    assert labels_of(figure) == ["truncated"]


def test_truncation_is_a_curve_over_every_k_with_its_bounds() -> None:
    curve = drawn_truncation()
    figure = plots.error_over_rank((), curve)
    (ax,) = figure.axes
    assert labels_of(figure) == ["truncated", "best-output", "mean-row"]
    ticks = [tick.get_text() for tick in ax.get_xticklabels()]
    assert ticks == [str(2**power) for power in range(10)]
    truncated, bound = (line for line in ax.lines if len(line.get_xdata()) == 512)
    drawn = curve["output_error_median"].to_numpy().ravel()
    np.testing.assert_array_equal(truncated.get_ydata()[:400], drawn[:400])
    assert bound.get_linestyle() == ":"
    assert [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]] == [
        pytest.approx(0.7)
    ]


def test_f30_zero_on_the_log_axis_is_at_the_stated_floor() -> None:
    ax = plots.error_over_rank((), drawn_truncation(), floor=1e-2).axes[0]
    truncated, _ = (line for line in ax.lines if len(line.get_xdata()) == 512)
    assert truncated.get_ydata()[-1] == 1e-2
    assert np.isfinite(truncated.get_ydata()).all()
    assert "floor $10^{-2}$" in ax.get_ylabel()
    low, _ = ax.get_ylim()
    assert 0 < low < 1e-2


def test_points_of_a_run_stand_beside_the_curve_of_every_k() -> None:
    figure = plots.error_over_rank(drawn_methods(), drawn_truncation())
    ax = figure.axes[0]
    curve = next(line for line in ax.lines if len(line.get_xdata()) == 512)
    points = [
        line
        for line in ax.lines
        if line.get_color() == curve.get_color() and line.get_linestyle() == "None"
    ]
    assert [line.get_xdata().tolist() for line in points] == [[32, 64, 128, 256]]
    assert labels_of(figure).count("truncated") == 1


def test_f30_an_undefined_error_is_missing_and_not_zero() -> None:
    values = np.full((2, 1, 1, 4), 0.5)
    values[..., 1] = np.nan
    methods = [f"truncated:k={k}" for k in (1, 2, 4)] + ["mean-row"]
    (line,) = curves_of(
        plots.error_over_rank(summarise_methods(compare_run({"output": values}, methods))).axes[0]
    )
    np.testing.assert_array_equal(line.get_ydata(), [0.5, np.nan, 0.5])
    with pytest.raises(UsageError, match="every value is missing"):
        plots.error_over_rank(summarise_methods(compare_run({"output": values * np.nan}, methods)))


def test_an_infinite_divergence_is_missing_on_its_axis() -> None:
    values = np.array([0.5, np.inf, 0.25]).reshape(1, 1, 1, 3)
    run = compare_run({"kl": values}, [f"truncated:k={k}" for k in (1, 2, 4)])
    ax = plots.error_over_rank(summarise_methods(run), measure="kl").axes[0]
    np.testing.assert_array_equal(curves_of(ax)[0].get_ydata(), [0.5, np.nan, 0.25])
    assert np.isfinite(ax.get_ylim()).all()
    assert "nats" in ax.get_ylabel()


def test_error_over_rank_says_what_is_wrong() -> None:
    summary = drawn_methods()
    with pytest.raises(UsageError, match="'cosine'"):
        plots.error_over_rank(summary, measure="cosine")
    with pytest.raises(UsageError, match="'kl'"):
        plots.error_over_rank(summary, measure="kl")
    with pytest.raises(UsageError, match="comes twice"):
        plots.error_over_rank([summary, summary])
    with pytest.raises(UsageError, match="nothing to draw"):
        plots.error_over_rank(())
    with pytest.raises(UsageError, match="floor"):
        plots.error_over_rank(summary, floor=0)
    with pytest.raises(UsageError, match="2 pairs of model"):
        plots.error_over_rank([summary, summary.assign_coords(model=["other"])])
    many = [f"linformer:k=4,seed={seed}" for seed in range(13)]
    run = compare_run({"output": np.ones((1, 1, 1, 13))}, many)
    with pytest.raises(UsageError, match="13 methods"):
        plots.error_over_rank(summarise_methods(run))


def test_labels_lose_their_files_only_while_they_stay_different() -> None:
    two = ["a:file=x/one.safetensors", "a:file=y/two.safetensors"]
    assert [*short_labels(two).values()] == ["a:file=one.safetensors", "a:file=two.safetensors"]
    assert short_labels(two[:1]) == {two[0]: "a"}
    same = ["a:file=x/e.safetensors", "a:file=y/e.safetensors"]
    assert [*short_labels(same).values()] == same
    assert short_labels(two[:1], {two[0]: "learned"}) == {two[0]: "learned"}


def test_projections_with_a_file_for_each_rank_are_one_method_by_their_name() -> None:
    methods = [f"linformer:k={k},projection=learned,file=out/{k}.safetensors" for k in (8, 16)]
    run = compare_run({"output": np.array([[[[0.5, 0.25, 0.1]]]])}, [*methods, "truncated:k=8"])
    names = {
        f"linformer:projection=learned,file=out/{k}.safetensors": "E/F: learned" for k in (8, 16)
    }
    figure = plots.error_over_rank(summarise_methods(run), names=names | {"truncated": "P_low"})
    assert labels_of(figure) == ["E/F: learned", "P_low"]
    (learned, _) = curves_of(figure.axes[0])
    assert learned.get_xdata().tolist() == [8, 16]
    assert learned.get_ydata().tolist() == [0.5, 0.25]
    losses = summarise_losses(
        intervene_run({"loss": np.array([[3.0, 5.0, 4.0]])}, ["full", *methods])
    )
    figure = plots.loss_over_rank(losses, names=names, budget="rank k after projection")
    assert labels_of(figure) == ["E/F: learned", "full attention"]
    assert figure.axes[0].containers[0].lines[0].get_ydata().tolist() == [5, 4]
    assert figure.axes[0].get_xlabel() == "rank k after projection"
    same = [text.replace("k=16", "k=8") for text in methods]
    twice = intervene_run({"loss": np.array([[3.0, 5.0, 4.0]])}, ["full", *same])
    with pytest.raises(UsageError, match="E/F: learned at rank 8 comes twice"):
        plots.loss_over_rank(summarise_losses(twice), names=names)


# ---- losses


def test_loss_has_bars_of_the_paired_difference_and_level_lines() -> None:
    summary = drawn_losses()
    part = summary.isel(model=0, corpus=0)
    figure = plots.loss_over_rank(summary, unigram=6.95)
    (ax,) = figure.axes
    assert labels_of(figure) == [
        "truncated",
        "linformer:projection=mean",
        "linformer:projection=learned",
        "full attention",
        "uniform",
        "unigram frequencies",
    ]
    level = [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]]
    assert level == [*part["loss"].to_numpy()[:2], 6.95]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert ax.get_ylabel() == "loss (nats a masked token)"
    bars = [np.array(bar) for bar in ax.containers[0].lines[2][0].get_segments()]
    widths = np.array([bar[1, 1] - bar[0, 1] for bar in bars])
    at = np.flatnonzero(part["label"] == "truncated")
    paired = (part["loss_difference_high"] - part["loss_difference_low"]).to_numpy()[at]
    np.testing.assert_allclose(widths, paired, rtol=1e-7, atol=1e-12)
    np.testing.assert_array_equal(
        ax.containers[0].lines[0].get_ydata(), part["loss"].to_numpy()[at]
    )
    title = figure.legends[0].get_title().get_text().replace("\n", " ")
    assert title == "bars: 95 % interval of the difference to full attention, over 12 texts"

    wide = plots.loss_over_rank(summary, interval="loss").axes[0]
    bars = [np.array(bar) for bar in wide.containers[0].lines[2][0].get_segments()]
    assert all(bar[1, 1] - bar[0, 1] > width for bar, width in zip(bars, widths, strict=True))


def test_loss_over_rank_needs_a_loss() -> None:
    run = intervene_run({"loss": np.full((2, 2), np.nan)}, ("full", "truncated:k=2"))
    with pytest.raises(UsageError, match="no loss"):
        plots.loss_over_rank(summarise_losses(run))
    with pytest.raises(UsageError, match="'window'"):
        plots.loss_over_rank(drawn_losses(), interval="window")  # type: ignore[arg-type]


def test_a_loss_that_is_missing_leaves_a_gap() -> None:
    loss = np.full((3, 4), 3.0)
    loss[:, 2] = np.nan
    methods = ("full", *(f"truncated:k={k}" for k in (1, 2, 4)))
    ax = plots.loss_over_rank(summarise_losses(intervene_run({"loss": loss}, methods))).axes[0]
    np.testing.assert_array_equal(ax.containers[0].lines[0].get_ydata(), [3, np.nan, 3])
