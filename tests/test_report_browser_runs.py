"""The explorer in a real browser: many heads, several runs on one page, and names of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorers import N, Opened, chromium, placed, spectra, worst_pictures
from made_up import run_of
from rankscope.report import write_report
from rankscope.summary import summarise


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def test_a_run_of_24_by_16_heads_and_another_beside_it(browser: Any, tmp_path: Path) -> None:
    large = run_of(spectra(2, 24, 16), model="large")
    small = summarise(run_of(spectra(3, 2, 3, 20), model="small"))
    pictures = worst_pictures("large", 24, 16)
    path = write_report(tmp_path / "large.html", [large, small], pictures=pictures)
    opened = Opened.of(browser, path)
    try:
        opened.set(k=200)
        ratio = summarise(large)["mean_ratio"].isel(model=0, corpus=0)
        np.testing.assert_allclose(opened.cells(), ratio.sel(index=200), atol=1e-6)
        opened.click(23, 15)
        assert opened.text("head-title") == "Layer 23, head 15"
        np.testing.assert_allclose(
            opened.curve("ratios", "σ", "measured")[N], ratio[23, 15, N - 1], atol=1e-6
        )
        assert opened.page.locator("#heads tbody tr").count() == 384
        assert "No errors were given" in opened.text("errors-note")
        assert opened.page.locator("#gaps").is_hidden()
        opened.choose_run(1)
        assert opened.text("title") == "small on c"
        assert opened.text("spectrum-title").startswith("Shares σ_k / Σσ")
        assert opened.page.locator("#k").get_attribute("max") == "20"
        assert "No pictures" in opened.text("picture-note")
        wanted = small["mean_ratio"].isel(model=0, corpus=0).sel(index=5)
        np.testing.assert_allclose(opened.cells(), wanted, atol=1e-6)
        opened.page.set_viewport_size({"width": 800, "height": 900})
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert opened.page.evaluate(wide) <= 0
        opened.check_quiet()
    finally:
        opened.page.context.close()


def test_a_tolerance_is_of_the_run_that_it_was_asked_of(browser: Any, tmp_path: Path) -> None:
    large = run_of(spectra(2, 2, 2), model="large")
    # slow decays, so that some heads need more than a quarter of 20 and some do not
    small = run_of(spectra(3, 2, 3, 20) ** 0.3, model="small")
    opened = Opened.of(browser, write_report(tmp_path / "two.html", [large, small]))
    try:
        opened.set(quantity="k90")
        assert opened.page.locator("#tolerance").input_value() == "128"
        opened.choose_run(1)
        assert opened.page.locator("#tolerance").input_value() == "5"
        met = int((summarise(small)["k90"] <= 5).sum())
        assert 0 < met < 6
        assert opened.text("count") == f"{met} of 6 heads have k for 90 % ≤ 5"
        opened.set(tolerance=7)
        opened.choose_run(0)
        assert opened.page.locator("#tolerance").input_value() == "128"
        opened.choose_run(1)
        assert opened.page.locator("#tolerance").input_value() == "7"
        opened.check_quiet()
    finally:
        opened.page.context.close()


ODD = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "\"quotes\" 'single' `back` ${window.broken = 1} {{DATA}} \\u003c \\",
    "a&amp;b\u2028<!-- ]]> \t 注意 😀 \u202egnp",
]


@pytest.mark.parametrize("name", ODD)
def test_names_of_all_kinds_are_shown_as_they_are(browser: Any, tmp_path: Path, name: str) -> None:
    run = placed(run_of(spectra(0, 2, 2, 16), model=name, corpus=name))
    control = placed(run_of(spectra(1, 2, 2, 16), model=f"rows:{name}", corpus=name))
    path = write_report(tmp_path / "odd.html", [run], controls=control)
    opened = Opened.of(browser, path)
    try:
        title = opened.page.locator("#title")
        assert title.evaluate("(one) => one.textContent") == f"{name} on {name}"
        cell = opened.page.locator("#gaps-rows td").first
        assert cell.evaluate("(one) => one.textContent") == f"rows:{name}"
        assert opened.rows("spectrum")[-1]["series"] == f"rows:{name}"
        # a tooltip is HTML that a library makes of the label
        opened.hover_curve("spectrum")
        assert opened.page.locator("#vg-tooltip-element").count() == 1
        assert opened.page.evaluate("window.broken") is None
        assert opened.page.locator("img").count() == 1
        assert opened.page.locator("script").count() == 4
        opened.check_quiet()
    finally:
        opened.page.context.close()
