"""The page's four charts, as Vega-Lite that waits for data: Altair's only user.

Rows and settings come from the page's JavaScript through named data (``cells``, ``rows``, ``at``)
and named parameters; colours of text and axes come from its style sheet.
"""

from __future__ import annotations

from typing import Any

import altair as alt

_VALID = "isValid(datum.value) && isFinite(datum.value)"
_CHOSEN = "datum.layer == chosenLayer && datum.head == chosenHead"
# given, since data that has no value yet, or none at all, has no extent
_LOW_HIGH = [alt.ExprRef("low"), alt.ExprRef("high")]
_FIT = alt.AutoSizeParams(type="fit-x", contains="padding")
# powers of ten alone: a log axis that chooses by itself labels whatever has room
_POWERS = alt.Axis(
    values=[10.0**power for power in range(-8, 7)],
    labelExpr="format(datum.value, datum.value < 0.01 ? '.0e' : '~g')",
)
_HERE = [
    alt.Tooltip("label:N", title="curve"),
    alt.Tooltip("k:Q", title="k"),
    alt.Tooltip("shown:N", title="value"),
]


def charts() -> dict[str, dict[str, Any]]:
    """Specifications by name: map, spectrum, ratios, errors."""
    return {
        "map": _map(),
        "spectrum": _spectrum(),
        "ratios": _ratios(),
        "errors": _errors(),
    }


def _map() -> dict[str, Any]:
    ink, missing = alt.ExprRef("ink"), alt.ExprRef("missing")
    heads = alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    layers = alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(labelOverlap=True))
    base = alt.Chart(alt.NamedData("cells")).encode(x=heads, y=layers)
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(scheme="viridis", domain=_LOW_HIGH, clamp=True),
        legend=alt.Legend(title=None, orient="bottom", gradientLength=220, tickCount=5),
    )
    tooltip = [
        alt.Tooltip("layer:O"),
        alt.Tooltip("head:O"),
        alt.Tooltip("shown:N", title="value"),
        alt.Tooltip("note:N", title="matrices"),
    ]
    known = base.transform_filter(_VALID).mark_rect(cursor="pointer")
    unknown = base.transform_filter(f"!({_VALID})")
    # a dark rim keeps the dot visible on the light end of the scale
    dots = base.transform_filter("datum.meets").mark_circle(
        size=26, color="white", stroke="black", strokeWidth=0.8, opacity=1
    )
    chart = (
        alt.layer(
            known.encode(color=colour, tooltip=tooltip),
            unknown.mark_rect(color=missing, cursor="pointer").encode(tooltip=tooltip),
            unknown.mark_text(text="×", fontSize=13, color=ink).encode(tooltip=tooltip),
            dots.encode(tooltip=tooltip),
            base.transform_filter(_CHOSEN).mark_rect(filled=False, stroke=ink, strokeWidth=3),
        )
        .add_params(
            *_params(low=0, high=1, chosenLayer=0, chosenHead=0, ink="black", missing="#ccc")
        )
        .properties(width="container", height=300, autosize=_FIT)
    )
    return dict(chart.to_dict())


def _spectrum() -> dict[str, Any]:
    scale = alt.Scale(type="log", domain=_LOW_HIGH, nice=False)
    value = alt.Y("value:Q", scale=scale, title=None, axis=_POWERS)
    return _over_k(
        value, alt.Color("series:N", sort=None, legend=_legend()), height=150, low=1e-3, high=1
    )


def _ratios() -> dict[str, Any]:
    value = alt.Y("value:Q", scale=alt.Scale(domain=[0, 1]), title=None)
    colour = alt.Color("series:N", sort=None, legend=_legend())
    dash = alt.StrokeDash("source:N", sort=None, legend=_legend(), scale=alt.Scale(range=_DASHES))
    return _over_k(value, colour, dash, height=150)


def _errors() -> dict[str, Any]:
    scale = alt.Scale(type="log", domain=_LOW_HIGH, nice=False)
    value = alt.Y("value:Q", scale=scale, title=None, axis=_POWERS)
    colour = alt.Color("series:N", sort=None, legend=_legend())
    return _over_k(
        value, colour, height=190, log_k=True, points=True, title=_BUDGET, low=1e-3, high=1
    )


def _over_k(
    value: alt.Y,
    colour: alt.Color,
    dash: alt.StrokeDash | None = None,
    *,
    height: int,
    log_k: bool = False,
    points: bool = False,
    title: str = "rank k",
    **params: Any,
) -> dict[str, Any]:
    """Curves over k with a line at the chosen one."""
    ends: dict[str, Any] = {"domain": [1, alt.ExprRef("n")], "nice": False}
    if log_k:
        ends |= {"type": "log", "base": 2}
    k = alt.X(
        "k:Q",
        title=title,
        scale=alt.Scale(**ends),
        axis=alt.Axis(format="d", labelFlush=True, tickCount=6, grid=False, labelOverlap=True),
    )
    curves = alt.Chart(alt.NamedData("rows")).encode(x=k, y=value, color=colour)
    if dash is None:
        dash = alt.StrokeDash("series:N", sort=None, legend=None, scale=alt.Scale(range=_DASHES))
    layers = [
        curves.mark_line(clip=True, strokeWidth=1.8).encode(strokeDash=dash),
        # wide and unseen, so that a curve need not be hit exactly
        curves.mark_circle(clip=True, size=70, opacity=0).encode(tooltip=_HERE),
    ]
    if points:
        budgets = curves.transform_filter("datum.point")
        layers.append(budgets.mark_circle(size=36, opacity=1).encode(tooltip=_HERE))
    at = alt.Chart(alt.NamedData("at"))
    layers.append(at.mark_rule(color=alt.ExprRef("ink"), strokeWidth=1).encode(x=k))
    chart = (
        alt.layer(*layers)
        .add_params(*_params(n=512, ink="black", **params))
        .properties(width="container", height=height, autosize=_FIT)
    )
    return dict(chart.to_dict())


_BUDGET = "rank k, or the budget of a method"

# one less than there are colours, so that the two together repeat late
_DASHES = [[1, 0], [5, 2], [2, 2], [7, 2, 2, 2], [10, 3]]


def _legend() -> alt.Legend:
    return alt.Legend(
        title=None,
        orient="bottom",
        # names of controls are long: two do not fit beside each other in a narrow chart
        columns=alt.ExprRef("width < 480 ? 1 : 2"),
        labelLimit=230,
        symbolType="stroke",
        symbolSize=160,
    )


def _params(**values: Any) -> list[alt.Parameter]:
    return [alt.param(name=name, value=value) for name, value in values.items()]
