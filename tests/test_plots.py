"""Curves, maps and Figure 1: what they show and on which scale."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from made_up import axes, meshes, summary_of, texts_of
from rankscope import plots
from rankscope.exceptions import UsageError

# ---- curves


def test_curves_run_from_zero_to_one_on_a_scale_of_zero_to_one() -> None:
    summary = summary_of()
    ax = plots.ratio_curves(summary, axes())
    (line,) = [line for line in ax.lines if len(line.get_xdata()) > 2]
    x, y = line.get_data()
    assert (x[0], y[0], x[-1]) == (0, 0, 16)
    np.testing.assert_array_equal(y[1:], summary["mean_ratio_curve"].to_numpy().ravel())
    assert ax.get_ylim() == (0, 1)
    assert ax.get_xlim() == (0, 16)
    assert "index k" in ax.get_xlabel()
    assert "cumulative ratio" in ax.get_ylabel()


def test_energy_curves_are_named_and_are_the_energy() -> None:
    summary = summary_of()
    ax = plots.ratio_curves(summary, axes(), quantity="energy")
    np.testing.assert_array_equal(
        ax.lines[0].get_ydata()[1:], summary["mean_energy_ratio_curve"].to_numpy().ravel()
    )
    assert "energy ratio" in ax.get_ylabel()
    assert not np.allclose(ax.lines[0].get_ydata()[1:], summary["mean_ratio_curve"])


def test_the_band_is_the_interval_of_the_summary() -> None:
    summary = summary_of()
    ax = plots.ratio_curves(summary, axes())
    vertices = ax.collections[0].get_paths()[0].vertices
    for k in (1, 4, 9):
        at = np.sort(vertices[vertices[:, 0] == k][:, 1])
        low, high = (summary[f"interval_{end}"].sel(index=k).item() for end in ("low", "high"))
        assert at[0] == pytest.approx(max(low, 0))
        assert at[-1] == pytest.approx(min(high, 1))
    assert "95 % band over texts" in ax.get_legend().get_title().get_text().replace("\n", " ")


def test_controls_are_grey_and_dashed_models_coloured_and_solid() -> None:
    from matplotlib.colors import to_rgb

    ax = plots.ratio_curves([summary_of("m"), summary_of("random:m")], axes())
    model, control = (line for line in ax.lines if len(line.get_xdata()) > 2)
    assert model.get_linestyle() == "-"
    assert control.get_linestyle() == "--"
    assert len(set(to_rgb(control.get_color()))) == 1
    assert len(set(to_rgb(model.get_color()))) > 1


def test_every_curve_looks_different() -> None:
    names = [*"abcdefgh", "random:a", "random:b", "random:c"]
    ax = plots.ratio_curves([summary_of(name) for name in names], axes())
    looks = {
        (line.get_color(), str(line._unscaled_dash_pattern))
        for line in ax.lines
        if len(line.get_xdata()) > 2
    }
    assert len(looks) == len(names)


@pytest.mark.parametrize(
    ("pairs", "labels", "shared"),
    [
        ([("a", "t"), ("random:a", "t")], ["a", "random:a"], "t"),
        ([("a", "t"), ("a", "u")], ["t", "u"], "a"),
        ([("x/a", "t"), ("y/a", "u")], ["x/a, t", "y/a, u"], ""),
    ],
)
def test_the_legend_says_what_differs(
    pairs: list[tuple[str, str]], labels: list[str], shared: str
) -> None:
    ax = plots.ratio_curves([summary_of(*pair) for pair in pairs], axes())
    legend = ax.get_legend()
    got = sorted(text.get_text().rsplit(":", 1)[0] for text in legend.get_texts())
    assert got == sorted(labels)
    assert legend.get_title().get_text().startswith(shared)


def test_the_legend_gives_the_values_at_the_mark_in_their_order() -> None:
    low, high = summary_of("low", flat=True), summary_of("high")
    ax = plots.ratio_curves([low, high], axes())
    at = high["mean_ratio_curve"].sel(index=4).item()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        f"high: {at:.3f}",
        "low: 0.250",
    ]


def test_a_quarter_of_n_is_marked_unless_asked_otherwise() -> None:
    def marked(**options: Any) -> tuple[list[float], list[str]]:
        ax = plots.ratio_curves(summary_of(), axes(), **options)
        lines = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 2]
        return lines, [text.get_text() for text in ax.texts]

    assert marked() == ([4], ["n/4 = 4"])
    assert marked(mark=5) == ([5], ["k = 5"])
    assert marked(mark=0) == ([], [])
    assert marked(x="relative") == ([0.25], ["n/4"])
    assert marked(x="relative", mark=0.5) == ([0.5], ["k/n = 0.5"])


def test_a_quarter_that_is_rounded_is_not_called_exact() -> None:
    ax = plots.ratio_curves(summary_of(n=18), axes())
    assert [text.get_text() for text in ax.texts] == ["k = 4 ≈ n/4"]


def test_f14_mixed_lengths_share_the_relative_axis() -> None:
    summary = summary_of(n=4, windows=2, sizes=[2, 4], flat=True)
    ax = plots.ratio_curves(summary, axes(), x="relative")
    np.testing.assert_allclose(np.interp(0.5, *ax.lines[0].get_data()), 0.5)
    assert ax.get_xlim() == (0, 1)
    assert ax.get_xlabel() == "k / n"


def test_wrong_names_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="eigenvalue"):
        plots.ratio_curves(summary_of(), axes(), quantity="eigenvalue")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="eigenvalue"):
        plots.check_quantity("eigenvalue")
    plots.check_quantity("energy")
    with pytest.raises(UsageError, match="log"):
        plots.ratio_curves(summary_of(), axes(), x="log")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing to draw"):
        plots.ratio_curves([], axes())


# ---- maps


def test_f30_maps_share_the_range_of_zero_to_one() -> None:
    narrow, wide = summary_of("narrow", flat=True), summary_of("wide")
    ranges = [
        plots.layer_head_map(part, axes()).collections[0].get_clim() for part in (narrow, wide)
    ]
    assert ranges == [(0, 1), (0, 1)]


def test_layer_zero_is_at_the_bottom() -> None:
    summary = summary_of()
    ax = plots.layer_head_map(summary, axes())
    np.testing.assert_array_equal(
        np.asarray(ax.collections[0].get_array()), summary["ratio_at"].to_numpy()[0, 0]
    )
    low, high = ax.get_ylim()
    assert low < 0 < 2 < high
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0", "1", "2"]


def test_map_names_the_layers_that_were_run() -> None:
    summary = summary_of().assign_coords(layer=[5, 7, 11])
    ax = plots.layer_head_map(summary, axes())
    assert [text.get_text() for text in ax.get_yticklabels()] == ["5", "7", "11"]


def test_missing_heads_are_hatched_not_coloured() -> None:
    ax = plots.layer_head_map(summary_of(bad=((1, 2),)), axes())
    values = ax.collections[0].get_array()
    assert np.argwhere(np.ma.getmaskarray(values)).tolist() == [[1, 2]]
    (patch,) = ax.patches
    assert patch.get_hatch()
    assert patch.get_xy() == (1.5, 0.5)
    assert "no data" in ax.get_xlabel()
    figure = ax.get_figure()
    figure.canvas.draw()
    # the middle of the cell is grey or hatch, the one beside it is neither
    picture = np.asarray(figure.canvas.buffer_rgba())

    def spread(layer: float, head: float) -> int:
        x, y = ax.transData.transform((head, layer))
        r, g, b, _ = picture[round(picture.shape[0] - y), round(x)].astype(int)
        return int(max(r, g, b) - min(r, g, b))

    assert spread(1, 2) == 0
    assert spread(1, 1) > 30


def test_layer_means_stand_beside_the_rows() -> None:
    summary = summary_of(bad=((0, 0), (0, 1), (0, 2), (0, 3)))
    ax = plots.layer_head_map(summary, axes())
    means = summary["layer_mean"].to_numpy().ravel()
    assert np.isnan(means[0])
    assert [text.get_text() for text in ax.texts] == [
        "–",
        *(f"{mean:.3f}".removeprefix("0") for mean in means[1:]),
        "mean",
    ]


def test_one_map_takes_one_model_and_corpus() -> None:
    both = xr.concat(
        [summary_of("a"), summary_of("b")],
        "model",
        data_vars="all",
        coords="minimal",
        compat="override",
        join="exact",
    )
    with pytest.raises(UsageError, match="2 models"):
        plots.layer_head_map(both, axes())


# ---- figure 1


def test_figure1_compares_model_and_control_on_one_scale() -> None:
    figure = plots.figure1(summary_of("m"), summary_of("random:m", flat=True))
    first, second = meshes(figure)
    assert first.norm is second.norm
    assert first.get_clim() == (0, 1)
    bars = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert len(bars) == 1
    assert bars[0].get_ylabel() == "cumulative ratio\nat k = 4"
    titles = [ax.get_title() for ax in figure.axes if ax.get_ylabel() == "layer"]
    assert titles == [
        "m\ncorpus\nn = 16, 3 windows",
        "random:m\ncorpus\nn = 16, 3 windows",
    ]
    assert figure.get_size_inches()[0] == plots.FULL_WIDTH


def test_figure1_takes_another_colour_range() -> None:
    from matplotlib.colors import Normalize

    norm = Normalize(0.5, 0.9)
    figure = plots.figure1([summary_of("a"), summary_of("b")], norm=norm)
    assert [mesh.norm for mesh in meshes(figure)] == [norm, norm]


def test_figure1_works_without_control_and_with_controls_alone() -> None:
    assert len(meshes(plots.figure1(summary_of("m")))) == 1
    assert len(meshes(plots.figure1(summary_of("random:m")))) == 1


def test_figure1_gives_every_model_its_own_row_with_its_control() -> None:
    small, large = summary_of("org/small"), summary_of("org/large", layers=5, heads=2)
    controls = [
        summary_of("random:org/large", layers=5, heads=2),
        summary_of("random:org/small"),
    ]
    figure = plots.figure1([small, large], controls)
    maps = [ax for ax in figure.axes if ax.get_ylabel() == "layer"]
    names = [ax.get_title().split("\n")[0] for ax in maps]
    assert names == ["small", "random:small", "large", "random:large"]
    figure.canvas.draw()
    heights = [round(ax.get_position().y0, 2) for ax in maps]
    assert heights[0] == heights[1] > heights[2] == heights[3]


def test_figure1_refuses_more_than_fits_on_a_page() -> None:
    many = [summary_of(f"m{i}") for i in range(plots.MAX_MODELS + 1)]
    with pytest.raises(UsageError, match="5 models"):
        plots.figure1(many)
    corpora = [summary_of("m", f"c{i}") for i in range(plots.MAX_MAPS_IN_A_ROW + 1)]
    with pytest.raises(UsageError, match="5 maps"):
        plots.figure1(corpora)
    plots.check_panels(plots.MAX_MODELS, plots.MAX_MAPS_IN_A_ROW)
    with pytest.raises(UsageError, match="5 models"):
        plots.check_panels(5, 1)
    with pytest.raises(UsageError, match="5 maps"):
        plots.check_panels(1, 5)


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (12, 12), (24, 16)])
def test_labels_are_large_enough_and_do_not_collide(layers: int, heads: int) -> None:
    name = "FacebookAI/roberta-large-with-a-long-name"
    parts = [
        summary_of(name, "wikitext103-test.txt", layers=layers, heads=heads, n=64),
        summary_of(f"random:{name}", "wikitext103-test.txt", layers=layers, heads=heads, n=64),
    ]
    figure = plots.figure1(*parts)
    figure.canvas.draw()
    assert min(text.get_fontsize() for text in texts_of(figure)) >= 8
    page = figure.bbox
    for ax in figure.axes:
        groups = [
            ax.get_xticklabels(),
            ax.get_yticklabels(),
            [text for text in ax.texts if text.get_text().startswith(".")],
        ]
        for group in groups:
            boxes = [text.get_window_extent() for text in group if text.get_text()]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
        for text in texts_of(ax):
            box = text.get_window_extent()
            assert page.x0 <= box.x0
            assert box.x1 <= page.x1
    left, right = (ax.title.get_window_extent() for ax in figure.axes if ax.get_ylabel() == "layer")
    assert not left.overlaps(right)


def test_figures_do_not_depend_on_the_settings_around_them(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plain, changed = tmp_path / "plain.svg", tmp_path / "changed.svg"
    plots.save(plots.figure1(summary_of()), plain)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "pink", "lines.linewidth": 9}):
        plots.save(plots.figure1(summary_of()), changed)
    assert plain.read_bytes() == changed.read_bytes()
    assert dict(matplotlib.rcParams) == before
