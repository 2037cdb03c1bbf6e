"""The explorer in a real browser: from the disk, without a network, by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xarray as xr

from explorers import N, Opened, chromium, placed, signed, spectra, worst_pictures
from made_up import run_of
from made_up_methods import compare_run, truncate_run
from rankscope.report import write_report
from rankscope.summary import summarise
from rankscope.summary.differences import difference
from rankscope.summary.methods import summarise_methods, summarise_truncation

LAYERS, HEADS = 12, 12
BAD, FEW = (2, 5), (4, 4)
BUDGETS = (64, 128)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@dataclass(frozen=True)
class Made:
    """A 12 × 12 run with everything beside it."""

    run: xr.Dataset
    errors: xr.Dataset
    methods: xr.Dataset
    control: xr.Dataset
    rows: xr.Dataset

    def mean(self, name: str) -> np.ndarray:
        return np.asarray(summarise(self.run)[name].isel(model=0, corpus=0))


@pytest.fixture(scope="module")
def made() -> Made:
    status = np.zeros((2, LAYERS, HEADS), np.int8)
    status[:, *BAD], status[1, *FEW] = 5, 6
    run = placed(run_of(spectra(0, LAYERS, HEADS), status=status))
    energy = np.nan_to_num(run["energy_ratio"].to_numpy()[0, 0])
    matrix = np.sqrt(np.maximum(1 - energy, 0))
    at_budgets = np.stack([matrix[..., k - 1] * 2 for k in (*BUDGETS, 1)], axis=-1)
    methods = [*(f"linformer:k={k}" for k in BUDGETS), "uniform"]
    return Made(
        run,
        truncate_run(
            {"frobenius_error": matrix, "output_error": matrix / 2, "output_bound": matrix / 4},
            status=status,
        ),
        compare_run({"output": at_budgets, "frobenius": at_budgets}, methods, status=status),
        placed(run_of(spectra(9, LAYERS, HEADS), model="random:m")),
        placed(run_of(spectra(10, LAYERS, HEADS), model="rows:m")),
    )


@pytest.fixture(scope="module")
def opened(browser: Any, made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = write_report(
        tmp_path_factory.mktemp("report") / "run.html",
        made.run,
        errors=[made.errors, made.methods],
        pictures=worst_pictures("m", LAYERS, HEADS),
        controls=[made.control, made.rows],
    )
    found = Opened.of(browser, path)
    yield found
    found.check_quiet()
    found.page.context.close()


def test_it_opens_from_the_disk_in_silence_and_is_small(opened: Opened, made: Made) -> None:
    opened.settle()
    opened.check_quiet()
    assert opened.path.stat().st_size < 10e6
    assert opened.text("title") == "m on c"
    assert "2 windows, n = 512" in opened.text("subtitle")
    assert opened.page.locator("#map svg").count() == 1
    # a chart with a broken size is taller than any screen
    for name in ("map", "spectrum", "ratios", "errors"):
        box = opened.page.locator(f"#{name} svg").bounding_box()
        assert 100 < box["height"] < 700, name
        assert 100 < box["width"] <= 1280, name


@pytest.mark.parametrize("k", [1, 77, N])
def test_the_slider_changes_map_and_count(opened: Opened, made: Made, k: int) -> None:
    opened.set(quantity="cumulative", k=k, tolerance=0.85)
    ratio = made.mean("mean_ratio")[..., k - 1]
    np.testing.assert_allclose(opened.cells(), ratio, atol=1e-6)
    assert np.isnan(opened.cells()[BAD])
    met = int((ratio >= 0.85 - 1e-6).sum())
    assert opened.text("count") == (
        f"{met} of 144 heads have cumulative ratio of σ at k = {k} ≥ 0.85 (1 without a value)"
    )
    assert sum(one["meets"] for one in opened.rows("map", "cells")) == met
    assert opened.page.locator("#k-number").input_value() == str(k)
    assert [one["k"] for one in opened.rows("ratios", "at")] == [k]
    shown = np.array([float(text) for text in opened.column(3) if text != "no value"])
    np.testing.assert_allclose(np.sort(shown), np.sort(ratio[np.isfinite(ratio)]), atol=6e-5)


def test_the_slider_takes_the_keyboard(opened: Opened, made: Made) -> None:
    opened.set(quantity="energy", k=40)
    opened.page.locator("#k").focus()
    opened.page.keyboard.press("ArrowRight")
    opened.settle()
    assert opened.page.locator("#k-number").input_value() == "41"
    np.testing.assert_allclose(opened.cells(), made.mean("mean_energy_ratio")[..., 40], atol=1e-6)


def test_every_quantity_has_its_own_tolerance_and_direction(opened: Opened, made: Made) -> None:
    opened.set(quantity="k90")
    k90 = made.mean("k90")
    np.testing.assert_allclose(opened.cells(), k90, rtol=1e-6)
    assert opened.text("tolerance-label") == "at most"
    assert opened.page.locator("#tolerance").input_value() == "128"
    assert opened.text("count").startswith(f"{int((k90 <= 128).sum())} of 144 heads have k for 90")
    opened.set(tolerance=200, quantity="cumulative")
    opened.set(quantity="k90")
    assert opened.text("count").startswith(f"{int((k90 <= 200).sum())} of 144 heads")


def test_errors_of_p_low_on_the_map_are_exact_at_every_k(opened: Opened, made: Made) -> None:
    means = summarise_truncation(made.errors)["output_error"].isel(model=0, corpus=0)
    for k in (3, 200):
        opened.set(quantity="error:output:P_low", k=k, tolerance=0.1)
        np.testing.assert_allclose(opened.cells(), means.sel(index=k), atol=1e-6)
        met = int((means.sel(index=k) <= 0.1 + 1e-6).sum())
        assert opened.text("count").startswith(f"{met} of 144 heads have output error of P_low")


def test_methods_are_shown_at_their_own_budgets(opened: Opened, made: Made) -> None:
    means = summarise_methods(made.methods)["output"].isel(model=0, corpus=0)
    for k, place in ((127, 0), (128, 1)):
        opened.set(quantity="error:output:linformer", k=k)
        np.testing.assert_allclose(opened.cells(), means.isel(method=place), rtol=1e-6)
        assert f"At budget {BUDGETS[place]}" in opened.text("map-note")
    opened.set(k=63)
    assert np.isnan(opened.cells()).all()
    assert "No budget up to k = 63" in opened.text("map-note")
    assert opened.text("count").startswith("0 of 144 heads")
    assert "(144 without a value)" in opened.text("count")
    opened.set(quantity="error:output:uniform")
    np.testing.assert_allclose(opened.cells(), means.isel(method=2), rtol=1e-6)


def test_a_click_on_a_head_changes_the_charts(opened: Opened, made: Made) -> None:
    opened.set(quantity="cumulative", k=128)
    sigma = made.run["singular_value"].isel(model=0, corpus=0).mean("sample")
    pictures = []
    for layer, head in ((11, 0), (3, 7)):
        opened.click(layer, head)
        assert opened.text("head-title") == f"Layer {layer}, head {head}"
        for chart, series, wanted in (
            ("spectrum", "measured", np.maximum(sigma[layer, head], 1e-8)),
            ("ratios", "σ", made.mean("mean_ratio")[layer, head]),
            ("ratios", "σ²", made.mean("mean_energy_ratio")[layer, head]),
        ):
            source = "measured" if chart == "ratios" else None
            curve = opened.curve(chart, series, source)
            assert set(range(1, 65)) < set(curve)
            assert max(curve) == N
            ks = np.array([*curve])
            np.testing.assert_allclose([*curve.values()], wanted[ks - 1], rtol=1e-5)
        random = opened.curve("ratios", "σ", "random:m")
        wanted = made.control["cumulative_ratio"].isel(model=0, corpus=0).mean("sample")
        np.testing.assert_allclose(random[128], wanted[layer, head, 127], rtol=1e-5)
        methods = opened.curve("errors", "linformer")
        assert [*methods] == list(BUDGETS)
        assert [*opened.curve("errors", "uniform")] == [1, N]
        readings = opened.text("readings")
        assert f"{made.mean('mean_ratio')[layer, head, 127]:.4f}" in readings
        pictures.append(opened.page.locator("#picture").get_attribute("src"))
        assert opened.page.locator("#picture").evaluate("(one) => one.naturalWidth") == 128
    assert pictures[0] != pictures[1]
    assert "a pixel is the largest of 4 × 4 weights" in opened.text("picture-note")


def test_a_control_is_subtracted_with_an_interval(opened: Opened, made: Made) -> None:
    rows = opened.page.locator("#gaps-rows tr")
    assert rows.count() == 2
    assert "at k = 128, whatever the slider says" in opened.text("gaps-note")
    for place, control in enumerate((made.control, made.rows)):
        found = difference(made.run, control)
        cells = rows.nth(place).locator("td").all_inner_texts()
        assert cells[0] == str(control["model"].item())
        numbers = [found.measured, found.control_mean]
        assert cells[1:3] == [f"{number:.4f}" for number in numbers]
        assert cells[3] == signed(found.mean)
        low, high = map(signed, found.interval)
        assert cells[4] == f"{low} to {high}, 2 texts"
        assert found.interval[0] < found.mean < found.interval[1]


def test_heads_of_other_weights_are_not_subtracted(opened: Opened, made: Made) -> None:
    opened.set(quantity="cumulative", k=77)
    opened.click(3, 7)
    readings = dict(
        zip(
            opened.page.locator("#readings dt").all_inner_texts(),
            opened.page.locator("#readings dd").all_inner_texts(),
            strict=True,
        )
    )
    own, random, rows = (
        float(summarise(run)["mean_ratio"][0, 0, 3, 7, 76])
        for run in (made.run, made.control, made.rows)
    )
    assert readings["ratio σ of random:m, its own head"] == f"{random:.4f}"
    text = readings["ratio σ of rows:m (difference)"]
    assert text == f"{rows:.4f} ({signed(np.float32(own) - np.float32(rows))})"
    assert "The heads of random:m are not those of the model" in opened.text("meanings")


def test_the_error_chart_takes_either_measure(opened: Opened, made: Made) -> None:
    opened.click(3, 7)
    means = summarise_truncation(made.errors).isel(model=0, corpus=0, layer=3, head=7)
    for measure, name in (("frobenius", "frobenius_error"), ("output", "output_error")):
        opened.set(measure=measure)
        curve = opened.curve("errors", "P_low")
        np.testing.assert_allclose(curve[60], means[name].sel(index=60), rtol=1e-5)


def test_a_head_without_a_matrix_is_blank_with_its_reason(opened: Opened) -> None:
    opened.set(quantity="cumulative", k=128)
    opened.click(*BAD)
    for chart in ("spectrum", "ratios", "errors"):
        measured = [
            one["value"]
            for one in opened.rows(chart)
            if not {"random:m", "rows:m"} & {one["series"], one.get("source")}
        ]
        assert measured in ([], [None]), chart
    note = "0 of 2 usable: 2 non_finite"
    assert note in opened.text("head-note")
    cells = {(one["layer"], one["head"]): one for one in opened.rows("map", "cells")}
    assert cells[BAD]["note"] == note
    assert (cells[BAD]["value"], cells[BAD]["shown"]) == (None, "no value")
    assert cells[FEW]["note"] == "1 of 2 usable: 1 failed"
    assert opened.page.locator("#map svg").get_by_text("×").count() == 1


def test_arrow_keys_move_over_the_map(opened: Opened) -> None:
    opened.click(3, 7)
    opened.page.locator("#map-box").focus()
    for key, wanted in (
        ("ArrowUp", (4, 7)),
        ("ArrowRight", (4, 8)),
        ("ArrowDown", (3, 8)),
        ("ArrowLeft", (3, 7)),
        ("Home", (3, 0)),
        ("ArrowLeft", (3, 0)),
        ("End", (3, 11)),
    ):
        opened.page.keyboard.press(key)
        opened.settle()
        assert opened.text("head-title") == "Layer {}, head {}".format(*wanted)
    chosen = opened.page.evaluate(
        "['chosenLayer', 'chosenHead'].map((one) => rankscope.state.views.map.signal(one))"
    )
    assert chosen == [3, 11]
    outline = opened.page.locator("#map-box").evaluate(
        "(one) => getComputedStyle(one).outlineStyle"
    )
    assert outline == "solid"
    assert opened.page.locator("#head-title").get_attribute("aria-live") == "polite"


def test_the_table_sorts_chooses_and_copies(opened: Opened, made: Made) -> None:
    opened.set(quantity="cumulative", k=128)
    ratio = made.mean("mean_ratio")[..., 127]
    heading = opened.page.locator("#heads thead th").nth(2)
    for wanted in ("ascending", "descending"):
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == wanted
        shown = opened.column(3)
        # what is missing comes last, whichever way
        assert shown[-1] == "no value"
        expected = np.sort(ratio[np.isfinite(ratio)])[:: 1 if wanted == "ascending" else -1]
        np.testing.assert_allclose([float(one) for one in shown[:-1]], expected, atol=6e-5)
    best = np.unravel_index(np.nanargmax(ratio), ratio.shape)
    opened.page.locator("#heads tbody tr").first.get_by_role("button").press("Enter")
    opened.settle()
    assert opened.text("head-title") == "Layer {}, head {}".format(*best)
    assert opened.page.locator("#heads tr[aria-current=true]").count() == 1
    opened.page.locator("#copy").click()
    opened.page.wait_for_function("document.getElementById('copied').textContent !== ''")
    assert opened.text("copied") == "Copied 144 heads."
    lines = opened.page.evaluate("navigator.clipboard.readText()").rstrip("\n").split("\n")
    rows = [line.split("\t") for line in lines]
    assert len(rows) == 145
    assert rows[0][:4] == [
        *("layer", "head", "cumulative ratio of σ at k = 128", "energy ratio of σ² at k = 128"),
    ]
    assert {len(row) for row in rows} == {len(rows[0])}
    for row in rows[1:]:
        np.testing.assert_allclose(float(row[2]), ratio[int(row[0]), int(row[1])], rtol=1e-6)
    assert rows[1][:2] == [str(part) for part in best]
    assert rows[-1][2] == "NaN"
    opened.page.locator("#heads thead th").first.get_by_role("button").click()


def test_colours_stretch_to_the_heads_only_when_asked(opened: Opened, made: Made) -> None:
    opened.set(quantity="cumulative", k=128)
    script = "['low', 'high'].map((one) => rankscope.state.views.map.signal(one))"
    assert opened.page.evaluate(script) == [0, 1]
    opened.page.locator("#stretch").check()
    opened.settle()
    ratio = made.mean("mean_ratio")[..., 127]
    ends = [np.nanmin(ratio), np.nanmax(ratio)]
    np.testing.assert_allclose(opened.page.evaluate(script), ends, atol=1e-6)
    opened.page.locator("#stretch").uncheck()
    opened.settle()


COLOURS = """() => [
  getComputedStyle(document.body).backgroundColor,
  document.querySelector("#map .mark-text.role-axis-label text").getAttribute("fill"),
  rankscope.state.views.map.signal("ink"),
]"""


def test_light_and_dark(opened: Opened) -> None:
    light = opened.page.evaluate(COLOURS)
    before = opened.text("head-title")
    opened.page.locator("#theme").click()
    opened.page.wait_for_function("rankscope.state.views.map.signal('ink') !== '#1b1f24'")
    dark = opened.page.evaluate(COLOURS)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert opened.text("head-title") == before
    opened.page.locator("#theme").click()
    opened.page.wait_for_function("rankscope.state.views.map.signal('ink') === '#1b1f24'")
    assert opened.page.evaluate(COLOURS) == light
    # the system's own wish is followed too
    opened.page.emulate_media(color_scheme="dark")
    opened.page.wait_for_function("rankscope.state.views.map.signal('ink') !== '#1b1f24'")
    assert opened.page.evaluate(COLOURS) == dark
    opened.page.emulate_media(color_scheme="light")
    opened.page.wait_for_function("rankscope.state.views.map.signal('ink') === '#1b1f24'")
