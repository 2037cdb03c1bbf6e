"""The page: template, style, scripts, charts and data in one text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from rankscope import __version__
from rankscope.exceptions import UsageError
from rankscope.report.collect import Pair, as_json
from rankscope.report.images import LEVELS, palette

SCRIPTS = ("data.js", "charts.js", "table.js", "explorer.js")
"""In the order in which they need each other."""


def page(pairs: Sequence[Pair]) -> str:
    """The whole HTML.

    Raises
    ------
    UsageError
        If Altair or vl-convert is not installed, or something in the data cannot be encoded.
    """
    names = "; ".join(f"{model} on {corpus}" for model, corpus in (pair.key for pair in pairs))
    colours = palette()[1 :: (LEVELS - 1) // 9]
    parts = {
        "TITLE": html.escape(names),
        "STYLE": _asset("explorer.css"),
        "SCALE": ", ".join(f"rgb({r} {g} {b})" for r, g, b in colours.tolist()),
        "VERSION": html.escape(__version__),
        "LIBRARY": _library(),
        "CHARTS": _charts(),
        "DATA": as_json(pairs),
        "SCRIPT": "\n".join(_asset(name) for name in SCRIPTS),
    }
    # in one pass, so that nothing in the data is taken for a mark
    text = re.sub(r"\{\{([A-Z]+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.end + 20]
        raise UsageError(
            f"a name or attribute of the run holds what is not UTF-8: {around!a}",
            "rename what it names, and compute the run again",
        ) from error
    return text


def _asset(name: str) -> str:
    return (files("rankscope.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _charts() -> str:
    try:
        from rankscope.report.charts import charts
    except ImportError as error:
        raise _lacking(error) from error
    return json.dumps(charts())


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, in the version that Altair writes for."""
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise _lacking(error) from error
    major, minor, *_ = altair.SCHEMA_VERSION.removeprefix("v").split(".")
    wanted = "window.vegaEmbed = vegaEmbed;"
    bundle = vl_convert.javascript_bundle(wanted, vl_version=f"{major}.{minor}")
    # a text that ends a script element would cut it in two
    return re.sub(r"</(?=script)|<!--", lambda found: "<\\" + found[0][1:], bundle, flags=re.I)


def _lacking(error: ImportError) -> UsageError:
    return UsageError(
        f"a report needs {error.name or 'Altair'}, which is not installed",
        "pip install 'rankscope[report]'",
    )
