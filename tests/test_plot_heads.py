"""One head from close by, and the pages that show all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from rankscope import plots
from rankscope.exceptions import UsageError


def test_head_figure_shows_matrix_spectrum_and_both_ratios() -> None:
    figure = plots.head_figure(np.full((4, 4), 0.25), np.array([4.0, 3.0, 2.0, 1.0]), title="h")
    picture, spectrum, ratios = figure.axes[:3]
    assert picture.images[0].get_clim() == (1e-5, 1)
    assert spectrum.get_yscale() == "log"
    np.testing.assert_array_equal(spectrum.lines[0].get_ydata(), [4, 3, 2, 1])
    assert ratios.get_ylim() == (0, 1)
    np.testing.assert_allclose(ratios.lines[0].get_ydata(), [0, 0.4, 0.7, 0.9, 1])
    energies = [0, 0.533333, 0.833333, 0.966667, 1]
    np.testing.assert_allclose(ratios.lines[1].get_ydata(), energies, atol=1e-6)
    assert [text.get_text() for text in ratios.get_legend().get_texts()] == [
        "σ: 0.400",
        "σ²: 0.533",
    ]
    assert "10^{-5}" in figure.axes[3].get_ylabel()
    assert "10^{-8}" in spectrum.get_ylabel()


def test_f30_zeros_are_drawn_at_the_floor(tmp_path: Path) -> None:
    figure = plots.head_figure(np.zeros((4, 4)), np.zeros(4))
    picture, spectrum, ratios = figure.axes[:3]
    np.testing.assert_array_equal(picture.images[0].get_array(), np.full((4, 4), 1e-5))
    np.testing.assert_array_equal(spectrum.lines[0].get_ydata(), np.full(4, 1e-8))
    assert "undefined" in [text.get_text() for text in ratios.texts]
    assert ratios.get_legend() is None
    plots.save(figure, tmp_path / "zeros.png")
    (page,) = plots.head_grid(np.zeros((1, 2, 4)))
    plots.save(page, tmp_path / "spectra.png")
    (page,) = plots.head_grid(np.zeros((1, 2, 4, 4)))
    plots.save(page, tmp_path / "matrices.png")


def test_f30_nan_is_drawn_as_missing(tmp_path: Path) -> None:
    matrix = np.full((4, 4), 0.25)
    matrix[1] = np.nan
    figure = plots.head_figure(matrix, np.full(4, np.nan))
    picture, spectrum, _ = figure.axes[:3]
    mask = np.ma.getmaskarray(picture.images[0].get_array())
    assert mask.sum(axis=1).tolist() == [0, 4, 0, 0]
    assert "missing" in picture.get_xlabel()
    assert [text.get_text() for text in spectrum.texts] == ["no spectrum"]
    plots.save(figure, tmp_path / "nan.png")


def test_the_spectrum_of_a_short_window_ends_at_its_own_n() -> None:
    figure = plots.head_figure(np.eye(2), np.array([3.0, 1.0, np.nan, np.nan]))
    ratios = figure.axes[2]
    np.testing.assert_allclose(ratios.lines[0].get_data(), [[0, 1, 2], [0, 0.75, 1]])


@pytest.mark.parametrize(
    ("matrix", "sigma", "floors"),
    [
        (np.ones(4), np.ones(4), {}),
        (np.ones((2, 2)), np.ones((2, 2)), {}),
        (np.ones((0, 0)), np.ones(0), {}),
        (np.ones((2, 2)), np.ones(2), {"weight_floor": 0.0}),
        (np.ones((2, 2)), np.ones(2), {"sigma_floor": 1.0}),
    ],
)
def test_head_figure_refuses_what_it_cannot_draw(
    matrix: np.ndarray, sigma: np.ndarray, floors: dict[str, float]
) -> None:
    with pytest.raises(UsageError):
        plots.head_figure(matrix, sigma, **floors)


def panels(page: Any) -> list[Any]:
    return [ax for ax in page.axes if ax.get_label() != "<colorbar>"]


def test_f30_a_large_grid_is_split_into_pages_on_one_scale() -> None:
    rng = np.random.default_rng(0)
    spectra = np.sort(rng.random((24, 16, 8)) * np.geomspace(1e-3, 9, 24)[:, None, None])[..., ::-1]
    pages = plots.head_grid(spectra)
    seen, scales, largest = 0, set(), 0.0
    for page in pages:
        there = panels(page)
        seen += len(there)
        assert len(there) <= plots.MAX_PANELS
        scales |= {(ax.get_yscale(), ax.get_ylim()) for ax in there}
        width, height = page.get_size_inches()
        largest = max(largest, width * height * 200**2)
        assert width == pytest.approx(plots.FULL_WIDTH)
        assert height <= 10
    assert seen == 24 * 16
    assert len(scales) == 1
    name, (bottom, top) = scales.pop()
    assert name == "log"
    assert bottom < 1e-8
    assert top > spectra.max()
    assert largest <= 50e6


def test_f30_a_page_has_a_bounded_number_of_panels() -> None:
    # twenty rows of sixteen would fit by height
    counts = [len(panels(page)) for page in plots.head_grid(np.ones((20, 16, 4)))]
    assert counts == [160, 160]


def test_f30_large_panels_stay_below_the_pixel_cap() -> None:
    shapes = [page.get_size_inches() for page in plots.head_grid(np.ones((24, 16, 4)), panel=3.0)]
    assert len(shapes) > 2
    assert max(width * height * 200**2 for width, height in shapes) <= 50e6
    with pytest.raises(UsageError, match="pixels"):
        plots.head_grid(np.ones((1, 100, 4)), panel=8.0)
    with pytest.raises(UsageError, match="cannot be read"):
        plots.head_grid(np.ones((1, 64, 4)))


def test_grid_of_matrices_has_one_colour_range() -> None:
    matrices = np.stack([np.full((1, 4, 4), 0.25), np.eye(4)[None]])
    matrices[1, 0, 0, 0] = np.nan
    (page,) = plots.head_grid(matrices)
    images = [ax.images[0] for ax in panels(page) if ax.images]
    assert [image.get_clim() for image in images] == [(1e-5, 1)] * 2
    assert "grey: missing" in " ".join(text.get_text() for text in page.texts)


def test_grid_of_a_run_names_window_layers_and_heads() -> None:
    values = np.ones((1, 1, 2, 2, 2, 4))
    values[..., 1, 1, :] = np.nan
    run = xr.Dataset(
        {"singular_value": (("model", "corpus", "sample", "layer", "head", "index"), values)},
        {"model": ["m"], "corpus": ["c"], "sample": [3, 8], "layer": [5, 6], "head": [0, 1]},
    )
    (page,) = plots.head_grid(run, sample=8)
    written = [text.get_text() for text in page.texts]
    assert "m, c, window 8" in written
    assert any("hatched" in text for text in written)
    assert [len(ax.patches) for ax in panels(page)] == [0, 0, 0, 1]
    assert [ax.texts[0].get_text() for ax in panels(page) if ax.texts] == ["5", "6"]
    with pytest.raises(UsageError, match="no window 4"):
        plots.head_grid(run, sample=4)


@pytest.mark.parametrize(
    ("shape", "options"),
    [((4,), {}), ((0, 2, 4), {}), ((2, 2, 4), {"layers": [1]}), ((2, 2, 4), {"floor": 2.0})],
)
def test_grid_refuses_what_it_cannot_draw(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    # before the first page is asked for
    with pytest.raises(UsageError):
        plots.head_grid(np.ones(shape), **options)
