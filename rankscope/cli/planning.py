"""The command `plan`: what a run would take in time, memory and disk, before it is started."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope import terminal
from rankscope.cli.options import (
    Centred,
    Driver,
    DriverOption,
    Loading,
    Model,
    OneCorpus,
    TextChoice,
    WindowChoice,
    bundled,
)
from rankscope.cli.running import check_models, load_corpora, load_model
from rankscope.exceptions import StoreError, UsageError

if TYPE_CHECKING:
    from rankscope.engine.forecast import Forecast


@bundled
def plan(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    driver: DriverOption = Driver.gram,
    centred: Centred = False,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", help="For a corpus of that many tokens: 100000000, 1e8, 100M."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-j", help="Worker processes; one for every core by default."),
    ] = None,
    calibrate: Annotated[
        int | None,
        typer.Option("--calibrate", help="Windows to time; about 12 seconds of them by default."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="Of the result: .nc or .zarr.")] = ".nc",
    folder: Annotated[
        Path, typer.Option("--folder", help="Where the result would lie: its disk counts.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What `spectra` would take in time, memory and disk; all windows unless --windows says."""
    from rankscope.engine.forecast import forecast
    from rankscope.engine.machine import usable_cores

    wanted = None if tokens is None else count_of(tokens)
    chosen = format.removeprefix(".")
    if chosen not in ("nc", "zarr"):
        raise UsageError(f"--format {format!r}", "use .nc or .zarr")
    for count, what in ((workers, "--workers"), (calibrate, "--calibrate")):
        if count is not None and count < 1:
            raise UsageError(f"{what} {count}", "use at least 1")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise StoreError(
            f"{folder} is no folder that can be written", "make it, or choose another --folder"
        )
    recipe = replace(windows, windows=windows.windows or "all").recipe(driver, centred)
    options = text.options()
    check_models([model], loading, windows.length)
    (one,) = load_corpora([corpus], options)
    began = time.perf_counter()
    loaded = load_model(model, loading)
    seconds = time.perf_counter() - began
    terminal.note(f"{loaded.info.name} on {one.name}: computing a few windows")
    found = forecast(
        loaded,
        one,
        recipe,
        workers=usable_cores() if workers is None else workers,
        tokens=wanted,
        calibrate=calibrate,
        format=chosen,
        folder=folder,
        loading=seconds,
    )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        show(found)


def count_of(text: str) -> int:
    """A number of tokens from its words.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> [count_of(text) for text in ("100000000", "1e8", "100M", "2.5k", "1_000")]
    [100000000, 100000000, 100000000, 2500, 1000]
    """
    sizes = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
    plain = text.strip().lower().replace("_", "")
    found = re.fullmatch(r"(\d+)(?:\.(\d{1,18}))?(?:e(\d{1,2}))?([kmgb]?)", plain)
    if found is not None:
        whole, part, power, unit = found.groups(default="")
        # whole numbers all the way: 0.1e8 is one million to the last token
        digits = int(whole + part) * int(10 ** int(power or 0)) * sizes[unit]
        number, rest = divmod(digits, int(10 ** len(part)))
        if number > 0 and rest == 0:
            return number
    raise UsageError(f"--tokens {text!r} is no number of tokens", "such as 100000000, 1e8 or 100M")


def show(found: Forecast) -> None:
    """Print a forecast in plain lines."""
    cal, count = found.calibration, found.count
    spread = f"{_time(min(cal.seconds))} to {_time(max(cal.seconds))}"
    loading = "" if found.loading is None else f", loading the model {_time(found.loading)}"
    many = found.workers > 1
    at_work = f", each worker {_bytes(found.worker_bytes)}" if many else ""
    result = (
        "the result is that folder"
        if found.format == "zarr"
        else f"result .nc {_bytes(found.file_bytes)}, both at once {_bytes(found.disk)}"
    )
    lines = [
        f"windows         {count.windows:,} of {found.length} tokens{_counted(found)}",
        (
            f"a window        {_time(cal.mean)} on one worker, one thread ({spread}, median "
            f"{_time(statistics.median(cal.seconds))}, standard error "
            f"{_time(cal.standard_error)}); writing it {_time(cal.writing)}"
        ),
        (
            f"start-up        {_time(found.start_up(found.workers))}: tokenising "
            f"{count.rate:,.0f} tokens a second{loading}"
        ),
        f"time, 1 worker  {_total(found, 1)}",
        *([f"time, {found.workers} workers {_total(found, found.workers)}"] if many else []),
        (
            f"memory          {_bytes(found.memory)} in all: main process "
            f"{_bytes(found.main_bytes)}, of it {_bytes(found.text_bytes)} of windows and text"
            f"{at_work}; {_bytes(found.memory_free)} free here"
        ),
        (
            f"disk            working folder {_bytes(found.folder_bytes)}, {found.entries:,} files "
            f"and folders; {result}; {_bytes(found.disk_free)} free"
        ),
    ]
    terminal.out.print(f"{found.model} on {found.corpus}", markup=False)
    for line in lines:
        terminal.out.print(f"  {line}", markup=False)
    for note in found.notes():
        terminal.out.print(
            f"  note: {note}",
            markup=False,
            style="yellow" if terminal.out.is_terminal else None,
        )
    terminal.out.print(
        f"An estimate from {cal.windows} windows on this machine; a cluster of other machines "
        "differs. Workers are taken to have a core each and to share only the writing; the "
        "intervals know how windows differ, not how machines do.",
        markup=False,
    )


def _counted(found: Forecast) -> str:
    count = found.count
    if count.given:
        how = f" in a corpus of {count.tokens:,} tokens"
    elif count.tokens_low == count.tokens_high:
        how = f", counted: {count.tokens:,} tokens in {count.texts:,} texts"
    else:
        share = count.sampled / max(1, count.characters)
        how = (
            f", from a sample of {share:.1%} of the text: {count.tokens_low:,} to "
            f"{count.tokens_high:,} tokens"
        )
    return how if count.exact else f"{how} ({count.low:,} to {count.high:,} windows)"


def _total(found: Forecast, workers: int) -> str:
    low, high = found.interval(workers)
    between = "" if low != low else f" ({_time(low)} to {_time(high)})"
    return f"{_time(found.seconds(workers))}{between}"


def _time(seconds: float) -> str:
    """A time in the unit that people would use.

    Examples
    --------
    >>> [_time(seconds) for seconds in (0.0123, 2.5, 200, 7200, 1e6)]
    ['12.3 ms', '2.5 s', '3.3 min', '2.0 h', '11.6 days']
    """
    if seconds != seconds:
        return "unknown"
    for limit, size, name in (
        (1, 1e-3, "ms"),
        (120, 1, "s"),
        (5400, 60, "min"),
        (172800, 3600, "h"),
    ):
        if seconds < limit:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 86400:,.1f} days"


def _bytes(count: float) -> str:
    """A size in the unit that people would use.

    Examples
    --------
    >>> [_bytes(count) for count in (2048, 5 * 2**20, 3 * 2**40)]
    ['2.0 KiB', '5.0 MiB', '3.0 TiB']
    """
    size = count / 1024
    for name in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {name}"
        size /= 1024
    return f"{size:,.1f} TiB"
