"""The explorer's page taken apart, and opened in a browser without a window."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from rankscope.report import Pictures
from rankscope.report.images import picture_of

N = 512
"""Size of P in the runs of these tests."""

OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]


class _Scripts(HTMLParser):
    """Text of every script by its id, as a browser would cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.linked: list[str] = []
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.linked += [str(given[name]) for name in ("src", "href") if name in given]
        if tag == "script":
            self._open = given.get("id") or f"script {len(self.found)}"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[self._open] = self.found.get(self._open, "") + data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = None


def parsed(text: str) -> _Scripts:
    scripts = _Scripts()
    scripts.feed(text)
    return scripts


def data_of(text: str) -> list[dict[str, Any]]:
    return list(json.loads(parsed(text).found["data"]))


def spectra(seed: int, layers: int, heads: int, n: int = N) -> np.ndarray:
    decay = np.random.default_rng(seed).uniform(0.3, 8, (2, layers, heads, 1))
    return np.exp(-decay * np.arange(n) / n * 8)


def worst_pictures(model: str, layers: int, heads: int) -> Pictures:
    """Pictures that do not pack: their size is the largest that any have."""
    rng = np.random.default_rng(1)
    drawn = [picture_of(rng.uniform(size=(128, 128)) ** 4) for _ in range(4)]
    heads_of = {(i, j): drawn[(i + j) % 4] for i in range(layers) for j in range(heads)}
    return Pictures(model, "window 0 of text 0", 512, 4, heads_of)


def placed(run: xr.Dataset) -> xr.Dataset:
    """With the places of its windows in the text, by which a control is paired."""
    return run.assign_coords(
        {name: ("sample", np.arange(run.sizes["sample"])) for name in ("window", "token_start")}
    )


def signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium without a window; its absence is a failure in CI, where nothing may go unseen."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: the explorer cannot be tested")
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=OPTIONS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, what it said and what it asked for."""

    page: Any
    path: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, browser: Any, path: Path) -> Opened:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        opened = cls(context.new_page(), path)
        opened.page.set_default_timeout(15_000)
        opened.page.on("console", lambda one: opened.said.append(f"{one.type}: {one.text}"))
        opened.page.on("pageerror", lambda one: opened.said.append(f"error: {one}"))
        opened.page.on("request", lambda one: opened.asked.append(one.url))
        opened.page.goto(path.as_uri())
        opened.page.evaluate("window.rankscope.ready")
        return opened

    def settle(self) -> None:
        """Wait until what was changed is drawn: the next frame's update, and all charts."""
        self.page.evaluate(
            """async () => {
                 const frame = () => new Promise((done) => requestAnimationFrame(done));
                 await frame(); await frame();
                 for (const view of Object.values(rankscope.state.views)) await view.runAsync();
               }"""
        )

    def rows(self, chart: str, data: str = "rows") -> list[dict[str, Any]]:
        script = "([chart, data]) => rankscope.state.views[chart].data(data)"
        return list(self.page.evaluate(script, [chart, data]))

    def cells(self) -> np.ndarray:
        """Values of the map, (layer, head)."""
        found = self.rows("map", "cells")
        shape = (max(one["layer"] for one in found) + 1, max(one["head"] for one in found) + 1)
        values = np.full(shape, np.inf)
        for one in found:
            values[one["layer"], one["head"]] = np.nan if one["value"] is None else one["value"]
        return values

    def curve(self, chart: str, series: str, source: str | None = None) -> dict[int, float]:
        return {
            one["k"]: one["value"]
            for one in self.rows(chart)
            if one["series"] == series and (source is None or one["source"] == source)
        }

    def set(self, **values: Any) -> None:
        """Fill in settings by the ids of their fields."""
        for name, value in values.items():
            place = self.page.locator(f"#{name}")
            if place.evaluate("(one) => one.tagName") == "SELECT":
                place.select_option(value)
            else:
                place.fill(str(value))
            self.settle()

    def choose_run(self, number: int) -> None:
        """Choose one of the page's runs, and wait until its map is drawn."""
        before = self.page.evaluate("rankscope.state.views.map.container().id && performance.now()")
        self.page.locator("#pair").select_option(str(number))
        self.page.wait_for_function(
            """([number, before]) => {
                 const { run, views } = rankscope.state;
                 return document.getElementById("pair").value === String(number) &&
                   views.map.data("cells").length === run.places && performance.now() > before;
               }""",
            arg=[number, before],
        )
        self.settle()

    def hover_curve(self, chart: str) -> None:
        """Put the mouse over the last point of a chart's curves, so that it tells its values."""
        point = self.page.locator(f"#{chart} .mark-symbol.role-mark path").last
        point.scroll_into_view_if_needed()
        point.hover(force=True)
        self.page.wait_for_selector("#vg-tooltip-element.visible")

    def click(self, layer: int, head: int) -> None:
        """Click on the middle of a cell of the map."""
        at = self.page.evaluate(
            """([layer, head]) => {
                 const view = rankscope.state.views.map, [left, top] = view.origin();
                 document.getElementById("map-box").scrollIntoView({ block: "center" });
                 const box = document.querySelector("#map svg").getBoundingClientRect();
                 const middle = (name, value) =>
                   view.scale(name)(value) + view.scale(name).bandwidth() / 2;
                 return [box.left + left + middle("x", head), box.top + top + middle("y", layer)];
               }""",
            [layer, head],
        )
        self.page.mouse.click(*at)
        self.settle()

    def text(self, name: str) -> str:
        return str(self.page.locator(f"#{name}").inner_text())

    def column(self, number: int) -> list[str]:
        cells = self.page.locator(f"#heads tbody td:nth-child({number})")
        return [str(one) for one in cells.all_inner_texts()]

    def check_quiet(self) -> None:
        assert self.said == []
        assert [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert self.asked[0] == self.path.as_uri()
