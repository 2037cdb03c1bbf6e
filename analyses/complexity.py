"""What does each family cost as n grows: time and peak memory of `apply`, and their exponents?

One head with Gaussian query, key and value, float32, one thread, the same budget for every method
at every n; full attention, torch's fused kernel and every method that is cheap to run, in one run.
Times are the least of several turns through all of them; memory comes from a process of its own for
each figure. Beside them stands Linformer's table 3. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr

from analyses._complexity_fit import beside_published, best, missed, saved, with_exponents
from analyses._complexity_measure import peaks, times
from analyses._complexity_sides import FULL, FUSED, Side, sides
from rankscope import terminal
from rankscope.engine.machine import free_memory, usable_cores
from rankscope.engine.measure_methods import budget_of, label_of
from rankscope.exceptions import UsageError
from rankscope.store.files import check_target, export

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
TARGET = Path(__file__).with_name("out") / "complexity.nc"


def main(argv: Sequence[str]) -> None:
    """Measure, fit, print and write."""
    options = _parser().parse_args(argv)
    if options.quick:
        options.lengths, options.fit_from, options.budget = [64, 128, 256], 64, 32
        options.repeats, options.trials, options.shortest = 2, 1, 0.0
    lengths = sorted(set(options.lengths))
    _check(options, lengths)
    device = torch.device(options.device)
    check_target(options.out, overwrite=True)
    limit = int(options.memory_limit * 2**30)
    if device.type == "cpu" and limit > free_memory():
        limit = free_memory()
        terminal.note(f"only {limit / 2**30:.1f} GiB are free: that is the limit")
    with tempfile.TemporaryDirectory() as folder:
        measured = _chosen(sides(options.budget, lengths[-1], Path(folder)), options.only)
        possible = _possible(measured, lengths, options.d, limit)
        with terminal.progress("peak memory", "calls") as progress:
            peak = peaks(
                measured,
                lengths,
                possible,
                d=options.d,
                device=device,
                trials=options.trials,
                progress=progress,
            )
        with terminal.progress("time", "measurements") as progress:
            seconds = times(
                measured,
                lengths,
                possible,
                d=options.d,
                device=device,
                repeats=options.repeats,
                shortest=options.shortest,
                progress=progress,
            )
        dataset = _dataset(measured, lengths, seconds, peak, options)
    dataset = with_exponents(dataset, options.fit_from)
    export(dataset, options.out, overwrite=True)
    _print(dataset)
    print(json.dumps(_summary(dataset), allow_nan=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analyses complexity", description=__doc__)
    parser.add_argument("--device", default="cpu", help="or cuda")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--budget", type=int, default=128, help="of every method, at every n")
    parser.add_argument("--d", type=int, default=64, help="width of query, key and value")
    parser.add_argument("--repeats", type=int, default=9, help="turns of time through all")
    parser.add_argument("--trials", type=int, default=2, help="processes for each peak")
    parser.add_argument(
        "--shortest", type=float, default=0.02, help="seconds that a measurement lasts at least"
    )
    parser.add_argument("--fit-from", type=int, default=1024, help="smallest n of the exponents")
    parser.add_argument(
        "--memory-limit", type=float, default=6.0, help="GiB; what needs more is left out"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these methods, and full")
    parser.add_argument("--quick", action="store_true", help="tiny n, to see that it works")
    parser.add_argument("--out", type=Path, default=TARGET)
    return parser


def _check(options: argparse.Namespace, lengths: Sequence[int]) -> None:
    if lengths[0] < 2:
        raise UsageError(f"n = {lengths[0]} is no text", "use lengths of 2 or more")
    for name in ("repeats", "trials", "d"):
        if getattr(options, name) < 1:
            raise UsageError(f"{name} below 1 measures nothing", "use 1 or more")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device", "use --device cpu")


def _chosen(found: Sequence[Side], only: Sequence[str] | None) -> list[Side]:
    """The sides with one of the names, and full attention, which all are compared to."""
    names = {side.text.partition(":")[0] for side in found}
    if unknown := sorted(set(only or ()) - names):
        raise UsageError(
            f"{', '.join(unknown)} is not measured here", f"one of {', '.join(sorted(names))}"
        )
    wanted = names if only is None else {FULL, *only}
    return [side for side in found if side.text.partition(":")[0] in wanted]


def _possible(
    measured: Sequence[Side], lengths: Sequence[int], d: int, limit: int
) -> npt.NDArray[np.bool_]:
    """What can be measured: (sides, lengths); says what cannot, and why."""
    found = np.ones((len(measured), len(lengths)), dtype=bool)
    for place, side in enumerate(measured):
        for at, n in enumerate(lengths):
            needed = side.expected(n, d)[1]
            if n < side.least:
                found[place, at] = False
                terminal.note(f"{side.text} is left out at n = {n}, which has fewer rows than k")
            elif needed > limit:
                found[place, at] = False
                terminal.note(
                    f"{side.text} stops before n = {n}: it needs {needed / 2**30:.1f} GiB at once, "
                    f"the limit is {limit / 2**30:.1f} GiB"
                )
    return found


def _dataset(
    measured: Sequence[Side],
    lengths: Sequence[int],
    seconds: npt.NDArray[np.float64],
    peak: npt.NDArray[np.float64],
    options: argparse.Namespace,
) -> xr.Dataset:
    methods = [side.method for side in measured]
    # without the temporary file that a learned projection was read from
    labels = [
        FUSED
        if one is None
        else label_of(one).partition(",file=")[0]
        if side.text != FULL
        else FULL
        for side, one in zip(measured, methods, strict=True)
    ]
    expected = np.array([[side.expected(n, options.d) for n in lengths] for side in measured])
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    return xr.Dataset(
        {
            "seconds": (("method", "n", "repeat"), seconds),
            "peak_bytes": (("method", "n", "trial"), peak),
            "multiply_adds": (("method", "n"), expected[..., 0]),
            "largest_bytes": (("method", "n"), expected[..., 1]),
        },
        {
            "method": [side.text for side in measured],
            "n": list(lengths),
            "family": ("method", [FUSED if one is None else one.name for one in methods]),
            "label": ("method", labels),
            "budget": ("method", [0 if one is None else budget_of(one) for one in methods]),
            "group": ("method", [side.group for side in measured]),
        },
        {
            "d": options.d,
            "budget": options.budget,
            "fit_from": options.fit_from,
            "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
            "cores": usable_cores(),
            "threads": 1,
            "torch": torch.__version__,
            "memory_limit_gib": options.memory_limit,
        },
    )


def _print(dataset: xr.Dataset) -> None:
    lengths = [int(n) for n in dataset["n"].to_numpy()]
    time, memory = best(dataset, "time"), best(dataset, "memory")
    worst = dataset["seconds"].max("repeat") / time - 1
    print(
        f"one head, d = {dataset.attrs['d']}, budget {dataset.attrs['budget']}, "
        f"{dataset.attrs['device']}, one thread; ms (spread) / MiB at n, "
        f"exponents over n from {dataset.attrs['fit_from']} with 95 % intervals"
    )
    shown = lengths[:: max(1, len(lengths) // 3)][-3:] if len(lengths) > 3 else lengths
    shown = sorted({*shown[:-1], lengths[-1]})
    print(f"{'':48}" + "".join(f"{n:>28}" for n in shown) + f"{'time':>22}{'memory':>20}")
    for place, text in enumerate(dataset["method"].to_numpy()):
        row = ""
        for n in shown:
            one = {"n": n, "method": text}
            ms, mib = 1e3 * float(time.sel(one)), float(memory.sel(one)) / 2**20
            cell = f"{ms:.2f} ({100 * float(worst.sel(one)):.0f} %) / {mib:.2f}"
            row += f"{cell if math.isfinite(ms) else 'not measured':>28}"
        for name in ("time", "memory"):
            slope, low, high = (
                float(dataset[f"{name}_exponent{end}"][place]) for end in ("", "_low", "_high")
            )
            row += f"{slope:8.2f} ({low:.2f}…{high:.2f})"
        print(f"{text:48}{row}")
    for n in lengths:
        if math.isnan(float(time.sel({"n": n, "method": FULL}))):
            print(f"full attention was not measured from n = {n} on, for lack of memory")
            break
    _print_saved(dataset)
    for sentence in missed(dataset):
        print(f"MISSED: {sentence}")


def _print_saved(dataset: xr.Dataset) -> None:
    print(
        "full attention / Linformer, time and memory, here (one head, projections like learned "
        "ones)\nand in table 3 of the paper (16 GB V100: other hardware, another implementation)"
    )
    for k, n, (time, memory, their_time, their_memory) in beside_published(dataset):
        print(
            f"  k = {k:3}, n = {n:6}: {time:6.1f} / {memory:5.1f}"
            f"      table 3: {their_time:5.1f} / {their_memory:5.1f}"
        )


def _summary(dataset: xr.Dataset) -> dict[str, object]:
    """The figures of the last line; what is missing is null."""

    def number(value: float, digits: int = 3) -> float | None:
        return round(float(value), digits) if math.isfinite(value) else None

    methods = [str(text) for text in dataset["method"].to_numpy()]
    columns = [
        f"{name}_exponent{end}" for name in ("time", "memory") for end in ("", "_low", "_high")
    ]
    longest = int(dataset["n"].max())
    return {
        "analysis": "complexity",
        **{name: dataset.attrs[name] for name in ("device", "cores", "torch", "budget", "d")},
        "n": [int(n) for n in dataset["n"].to_numpy()],
        "exponents": {
            text: [number(float(dataset[column][place])) for column in columns]
            for place, text in enumerate(methods)
        },
        "saved_at_longest": {
            text: [number(value) for value in saved(dataset, text).get(longest, (math.nan,) * 2)]
            for text in methods
        },
        "beside_table_3": [
            [k, n, *(number(value) for value in four)] for k, n, four in beside_published(dataset)
        ],
        "missed": missed(dataset),
    }
