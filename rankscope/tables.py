"""Tables that end a command about approximations, for people; the numbers are in the files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from rankscope import terminal
from rankscope.labels import short_labels

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.approximations import Approximation
    from rankscope.approximations.fitted import Projections
    from rankscope.selection import RankRow
    from rankscope.summary.rows import Estimate, LossRow, MethodRow, Source, Spread, TruncationRow


def truncation_table(rows: Sequence[TruncationRow]) -> None:
    """Errors of P_low at some ranks: mean over heads with interval, and the spread over heads."""
    table = _table(
        "relative error of P_low: mean of the heads, ±95 %; output: also least and most of a head",
        ("matrix", "output", "±95 %", "heads", "bound", "< 0", "row sums"),
        "rank",
    )
    for row in rows:
        output = row.errors["output_error"]
        table.add_row(
            str(row.k),
            _number(row.errors["frobenius_error"].mean),
            _number(output.mean),
            _half(output),
            _range(output),
            _number(row.errors["output_bound"].mean),
            _number(row.chosen["negative_mass"].mean) if row.chosen else "",
            _number(row.chosen["row_sum_drift"].mean) if row.chosen else "",
        )
    terminal.out.print(table)
    first = rows[0]
    terminal.out.print(_said(first.source), markup=False)
    alone = first.fixed["mean_row_output_error"]
    terminal.out.print(
        f"  the mean row alone (rank one): output error {_number(alone.mean)}; bound: the best "
        "output of rank k; < 0: mass of negative entries of a row; row sums: largest drift",
        markup=False,
    )
    _bad(first.source)


def method_table(rows: Sequence[MethodRow]) -> None:
    """Errors of methods: matrix, output, cosine, and what the implied rows are."""
    table = _table(
        "relative errors: mean of the heads; output: ±95 %, and least and most of a head",
        ("matrix", "output", "±95 %", "heads", "cosine", "row sum", "< 0"),
        "method",
    )
    names = short_labels(row.method for row in rows)
    for row in rows:
        one = row.measures
        table.add_row(
            names[row.method],
            _number(one["frobenius"].mean),
            _number(one["output"].mean),
            _half(one["output"]),
            _range(one["output"]),
            _number(one["cosine"].mean),
            _number(one["row_sum"].mean),
            _number(one["negative_mass"].mean),
        )
    terminal.out.print(table)
    terminal.out.print(_said(rows[0].source), markup=False)
    _bad(rows[0].source)


def loss_table(rows: Sequence[LossRow]) -> None:
    """Losses of a model under methods, and how far its predictions are from full attention's."""
    names = short_labels(row.method for row in rows)
    headless = all(math.isnan(row.loss.mean) for row in rows)
    if headless:
        table = _table(
            "final hidden states against full attention",
            ("error", "±95 %", "cosine"),
            "method",
        )
        for row in rows:
            table.add_row(
                names[row.method],
                _number(row.hidden_error.mean),
                _half(row.hidden_error),
                _number(row.hidden_cosine.mean),
            )
    else:
        table = _table(
            "loss in nats a predicted token; Δ against full attention on the same tokens",
            ("loss", "Δ", "±95 %", "KL", "top-1"),
            "method",
        )
        for row in rows:
            table.add_row(
                names[row.method],
                _number(row.loss.mean),
                f"{row.difference.mean:+.3f}",
                _half(row.difference),
                _number(row.kl.mean),
                _number(row.top1_agreement.mean),
            )
    terminal.out.print(table)
    terminal.out.print(
        f"{_said(rows[0].source)}, {rows[0].masked_tokens} predicted tokens", markup=False
    )
    _bad(rows[0].source)


def rank_table(rows: Sequence[RankRow]) -> None:
    """Chosen ranks by layer."""
    table = _table(
        "chosen ranks", ("mean k", "least", "most", "Σk", "expected error"), "choice, layer"
    )
    for row in rows:
        table.add_row(
            f"{row.choice}, {'all' if row.layer is None else row.layer}",
            f"{row.mean:.1f}",
            str(row.minimum),
            str(row.maximum),
            str(row.total),
            _number(row.error),
        )
    terminal.out.print(table)


def projection_table(found: Projections) -> None:
    """Errors of fitted projections by layer: on the windows of the fit, and on those held out."""
    table = _table(
        f"relative output error of {found.kind} projections, sharing {found.sharing}",
        ("k", "training", "held out"),
        "layer",
    )
    for layer in found.layers:
        table.add_row(
            str(layer),
            str(found.k(layer)),
            _number(found.training_error.get(layer, math.nan)),
            _number(found.validation_error.get(layer, math.nan)),
        )
    terminal.out.print(table)
    terminal.out.print(f"fitted to {found.windows} windows of {found.text}", markup=False)


def layer_table(summary: xr.Dataset, found: Projections, names: Sequence[str]) -> None:
    """Output errors by layer on windows of a test, beside those of the fit; a name a method."""
    part = summary.isel(model=0, corpus=0)
    means = part["output"].mean("head")
    table = _table(
        "relative output error, mean of the heads, by layer",
        ("training", "held out", *names),
        "layer",
    )
    for place, layer in enumerate(part["layer"].to_numpy().tolist()):
        table.add_row(
            str(layer),
            _number(found.training_error.get(layer, math.nan)),
            _number(found.validation_error.get(layer, math.nan)),
            *(_number(float(value)) for value in means.isel(layer=place)),
        )
    terminal.out.print(table)


def methods_table(methods: Mapping[str, type[Approximation]]) -> None:
    """What ``--method`` takes: names, parameters with defaults, and one line about each."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("parameters", overflow="fold", min_width=20)
    table.add_column("what it is", min_width=28)
    for name, kind in methods.items():
        parameters = []
        for field in fields(kind):
            default = "" if field.default in (MISSING, None) else f"={field.default}"
            parameters.append(f"{field.name}{default}")
        about = (kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        table.add_row(name, ", ".join(parameters), " ".join(about.split()))
    terminal.out.print(table, markup=False)


def _table(title: str, columns: Sequence[str], first: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=26 if first == "method" else 6)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _said(source: Source) -> str:
    unit = "" if source.interval_unit == "text" else " (intervals over windows)"
    return f"{source.model} on {source.corpus}, {source.windows} windows of {source.n}{unit}"


def _bad(source: Source) -> None:
    if source.n_bad:
        bad = ", ".join(f"{count} {name}" for name, count in source.bad.items())
        terminal.out.print(f"  left out: {bad}", markup=False)


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def _half(estimate: Estimate) -> str:
    half = (estimate.high - estimate.low) / 2
    return "" if math.isnan(half) else _number(half)


def _range(spread: Spread) -> str:
    return f"{_number(spread.minimum)}–{_number(spread.maximum)}"
