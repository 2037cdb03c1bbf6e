"""What the command prints: progress, tables, notes and errors."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rankscope.exceptions import RankscopeError
from rankscope.labels import group_size

if TYPE_CHECKING:
    from rankscope.models import KnownModel
    from rankscope.summary import TableRow
    from rankscope.summary.differences import Difference

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, soft_wrap=True)

_SECONDS_BETWEEN_LINES = 5.0


def note(text: str) -> None:
    """A remark on the error stream, so that tables can be piped."""
    err.print(text, markup=False)


def fail(error: RankscopeError) -> None:
    """Cause and remedy of an error."""
    err.print(f"error: {error.cause}", markup=False, style="red" if err.is_terminal else None)
    if error.remedy:
        err.print(f"remedy: {error.remedy}", markup=False)


@contextmanager
def progress(label: str, what: str = "windows") -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total): a bar on a terminal, a line now and then elsewhere."""
    if err.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        with Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
        ) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    began = time.monotonic()
    last = began - _SECONDS_BETWEEN_LINES
    first: int | None = None

    def line(done: int, total: int) -> None:
        nonlocal last, first
        now = time.monotonic()
        if first is None:
            first = done
            if done:
                note(f"{label}: {done} of {total} {what} were there already")
        if done < total and (now - last < _SECONDS_BETWEEN_LINES or done == first):
            return
        last = now
        rest = "" if done == first else f", {(now - began) / (done - first):.2f} s each"
        note(f"{label}: {done} of {total} {what}{rest}")

    yield line


@contextmanager
def working(label: str) -> Iterator[None]:
    """Say what is going on while the context is open: a spinner on a terminal, a line elsewhere."""
    if not err.is_terminal:
        note(label)
        yield
        return
    with err.status(label):
        yield


def summary_table(rows: Sequence[TableRow]) -> None:
    """The short table that ends a run: ratios at n/4, layer means, k for 90 %."""
    from rich.box import SIMPLE_HEAD

    place = ", ".join(dict.fromkeys(row.place for row in rows))
    table = Table(
        title=f"cumulative ratio of σ at k = {place}, mean of the heads",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("model, corpus", overflow="fold", min_width=15)
    for name in ("win", "n", "mean", "±95 %", "min", "max", "σ²", "k 90 %"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        half = (row.interval[1] - row.interval[0]) / 2
        table.add_row(
            f"{row.model}, {row.corpus}",
            str(row.windows),
            row.n,
            f"{row.mean:.3f}",
            "" if math.isnan(half) else f"{half:.3f}",
            f"{row.minimum:.3f}",
            f"{row.maximum:.3f}",
            f"{row.energy_mean:.3f}",
            f"{row.k90_median:.0f}",
        )
    out.print(table)
    for row in rows:
        means = " ".join(f"{mean:.3f}" for _, mean in row.layer_means)
        out.print(f"{row.model} on {row.corpus}", markup=False)
        out.print(f"  layer means: {means}", markup=False)
        out.print(f"  k for 90 % of a matrix: {row.k90_min:.0f} to {row.k90_max:.0f}", markup=False)
        if row.n_bad:
            bad = ", ".join(f"{count} {name}" for name, count in row.bad.items())
            out.print(f"  matrices left out: {bad}", markup=False)


def difference_table(rows: Sequence[Difference]) -> None:
    """What was measured beside what a control gives, and the difference with its interval."""
    from rich.box import SIMPLE_HEAD

    place = ", ".join(dict.fromkeys(row.place for row in rows))
    pair = "window or group" if any(group_size(row.control) for row in rows) else "window"
    table = Table(
        title=f"measured less control, cumulative ratio of σ at k = {place}, paired by {pair}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("model, corpus", overflow="fold", min_width=15)
    table.add_column("control", no_wrap=True)
    for name in ("measured", "control", "difference", "±95 %", "heads above"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        half = (row.interval[1] - row.interval[0]) / 2
        above = int((row.by_head > 0).sum())
        table.add_row(
            f"{row.model}, {row.corpus}",
            row.control,
            f"{row.measured:.3f}",
            f"{row.control_mean:.3f}",
            f"{row.mean:+.3f}",
            "" if math.isnan(half) else f"{half:.3f}",
            # heads of random weights are not those of the model
            "" if row.control == "random" else f"{above} of {row.by_head.size}",
        )
    out.print(table)


def model_table(models: Sequence[KnownModel]) -> None:
    """What `rankscope models` lists."""
    from rich.box import SIMPLE_HEAD

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("layers × heads", justify="right", no_wrap=True)
    table.add_column("what it is", min_width=28)
    for model in models:
        table.add_row(
            model.name,
            f"{model.layers} × {model.heads}",
            model.what + ("" if model.available else f" ({model.how})"),
        )
    out.print(table)
