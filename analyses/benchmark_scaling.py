"""Do runs scale, and does the forecast hold?

Windows a second of one worker process and of two, each measured between its first and its last
window, so that start-up falls out; peak memory of a worker and of the main process for few and for
many windows of a small model; and the time that `rankscope plan` foretells against a measured run.
One BLAS thread a worker, both sides in one run, best of several. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyses._timing import Times, environment, interleaved, listed, ratio
from rankscope.engine import Recipe, Resources, SpectraPlan, execute
from rankscope.engine.crew import Processes
from rankscope.engine.machine import usable_cores
from rankscope.engine.work import Block, Job, plan_part
from rankscope.store import RunStore, working_path

if TYPE_CHECKING:
    from rankscope.linalg import Workers
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

Figures = dict[str, Any]
PARTS = ("workers", "memory", "plan")
GOAL = 1.8


class Timed(SpectraPlan):
    """Spectra that say which process finished each window, when, and its processor time so far."""

    mark = "finished"

    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The fields of each window, and the mark beside them."""
        for sample, fields in super().compute(model, todo, pool):
            # this clock is the same for all processes of a machine
            yield sample, fields | {self.mark: (os.getpid(), time.monotonic(), time.process_time())}


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m analyses benchmark_scaling", description=__doc__
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="one or more of them, by commas")
    parser.add_argument("--model", default="random:roberta-base", help="of workers and plan")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--repeats", type=int, default=3, help="of one worker against two")
    parser.add_argument("--windows", type=int, default=8, help="of each worker that are timed")
    parser.add_argument("--small", default="builtin", help="model of the memory's part")
    parser.add_argument("--small-length", type=int, default=64)
    parser.add_argument("--few", type=int, default=100, help="windows of the memory's part")
    parser.add_argument("--many", type=int, default=2000)
    parser.add_argument("--run", type=int, default=32, help="windows of the run that is foretold")
    parser.add_argument("--run-workers", type=int, nargs="*", default=[1, 2], help="of that run")
    parser.add_argument("--calibrate", type=int, default=None, help="windows of the forecast")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; one of {', '.join(PARTS)}")
    figures: Figures = {"benchmark": "scaling", "n": options.length, "cores": usable_cores()}
    figures["load_before"] = round(os.getloadavg()[0], 2)
    if {"workers", "plan"} & set(parts):
        from rankscope import linalg
        from rankscope.text import load_corpus

        began = time.monotonic()
        from rankscope.models import load

        linalg.warm_up()
        model, corpus = load(options.model), load_corpus(options.corpus)
        loading = time.monotonic() - began
        print(f"{options.model}, windows of {options.length} tokens, {usable_cores()} cores")
        if "workers" in parts:
            figures |= _workers(model, corpus, options)
        if "plan" in parts:
            figures |= _plan(model, corpus, options, loading)
    if "memory" in parts:
        figures |= _memory(options)
    print(json.dumps(figures))


def _workers(model: LoadedModel, corpus: Corpus, options: argparse.Namespace) -> Figures:
    """Windows a second, results written by the main process as in a run."""
    plan = Timed(model, corpus, Recipe(length=options.length, windows=None))
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    busy: dict[str, list[float]] = {"one": [], "two": []}

    def side(name: str, workers: int) -> None:
        rate, cores = _rate(plan, model, workers, options.windows)
        seconds[name].append(1 / rate)
        busy[name].append(cores)

    interleaved({"one": lambda: side("one", 1), "two": lambda: side("two", 2)}, options.repeats)
    one, two = Times(tuple(seconds["one"])), Times(tuple(seconds["two"]))
    gain = ratio(one, two)
    print(one.line("one worker process", 1))
    print(two.line("two worker processes", 1))
    reached = "reached" if gain[0] >= GOAL else "NOT reached"
    print(
        f"two against one: {gain[0]:.2f} times ({gain[1]:.2f} … {gain[2]:.2f}); "
        f"the goal of {GOAL} is {reached}"
    )
    # a forward pass has a thread of its own: a worker may have more than one core to itself
    cores = {name: max(values) for name, values in busy.items()}
    print(f"cores in use: {cores['one']:.2f} by one worker, {cores['two']:.2f} by two")
    return {
        "cores_in_use": {"1": round(cores["one"], 3), "2": round(cores["two"], 3)},
        "windows_per_second": {"1": round(1 / one.best, 4), "2": round(1 / two.best, 4)},
        "two_over_one": listed(gain),
        "goal": GOAL,
    }


def _rate(plan: Timed, model: LoadedModel, workers: int, windows: int) -> tuple[float, float]:
    """Windows a second of all workers while all of them are at work, and the cores they use.

    Each worker's own rate, between its windows that were finished at or after the moment when the
    last of the workers had finished its first; their sum.
    """
    ends: dict[int, list[tuple[float, float]]] = defaultdict(list)
    enough = False
    step = plan.schema.block

    def blocks() -> Iterator[Block]:
        # over and over, so that nobody runs out of work before all have been timed
        for number in count():
            start = number * step % (plan.n_samples - plan.n_samples % step or step)
            if enough:
                return
            yield plan_part(plan, range(start, min(start + step, plan.n_samples)))

    def timed() -> dict[int, list[tuple[float, float]]]:
        common = max(own[0][0] for own in ends.values())
        return {pid: [end for end in own if end[0] >= common] for pid, own in ends.items()}

    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.create(working_path(Path(folder) / "run.zarr"), plan.schema)
        with Processes(Job.of(plan, model, 1), workers, None) as crew:
            for result in crew.run(blocks()):
                marks = [fields.pop(plan.mark) for fields in result.fields]
                store.write_block(result.start, result.fields)
                # a block is done as a whole: its last window tells when
                pid, *end = marks[-1]
                ends[pid].append((end[0], end[1]))
                if len(ends) == workers:
                    enough = min(map(len, timed().values())) > -(-windows // step)
    rate = cores = 0.0
    for own in timed().values():
        (began, busy), (ended, busy_then) = own[0], own[-1]
        rate += step * (len(own) - 1) / (ended - began)
        cores += (busy_then - busy) / (ended - began)
    return rate, cores


def _plan(
    model: LoadedModel, corpus: Corpus, options: argparse.Namespace, loading: float
) -> Figures:
    """What is foretold against what a run takes, from windows to file."""
    from rankscope.engine.forecast import forecast

    recipe = Recipe(length=options.length, windows=options.run)
    found = forecast(model, corpus, recipe, workers=2, calibrate=options.calibrate, loading=loading)
    figures: Figures = {"calibrated_windows": found.calibration.windows, "run": options.run}
    for workers in options.run_workers:
        # the model is loaded here already; that of the workers is not
        foretold = found.seconds(workers) - loading
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            plan = SpectraPlan(model, corpus, recipe)
            target = execute(plan, model, Path(folder) / "run.nc", Resources(workers=workers))
            measured = time.monotonic() - began
            size = target.stat().st_size
        share, bytes_share = foretold / measured, found.file_bytes / size
        hours = found.seconds(workers, 1000) / 3600
        print(
            f"{options.run} windows, workers {workers}: foretold {foretold:.1f} s, measured "
            f"{measured:.1f} s, ratio {share:.2f}; file {bytes_share:.2f} of its size; "
            f"1,000 windows would take {hours:.2f} h"
        )
        figures[f"foretold_over_measured_{workers}"] = round(share, 4)
        figures["file_over_measured"] = round(bytes_share, 4)
    return figures


_PEAK = """
import json, sys
from pathlib import Path
import psutil
from rankscope import engine
from rankscope.models import load
from rankscope.text import load_corpus
from rankscope.engine.machine import return_freed_memory
return_freed_memory()
name, length, text, folder, *counts = sys.argv[1:]
model, corpus = load(name), load_corpus(text)
def peak(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
for windows in counts:
    workers = {}
    def look(done, total):
        for child in psutil.Process().children():
            if any("spawn_main" in word for word in child.cmdline()):
                workers[child.pid] = peak(child.pid)
    recipe = engine.Recipe(length=int(length), windows=int(windows))
    target = f"{folder}/{windows}.nc"
    engine.run(model, corpus, recipe, target, engine.Resources(workers=2), progress=look)
    print(json.dumps({"main": peak("self"), "workers": list(workers.values())}))
"""


def _memory(options: argparse.Namespace) -> Figures:
    """Peak memory from the kernel's own high-water marks, read by the parent of the workers.

    One process runs both, the small one first: its own mark says how much the large one adds.
    """
    counts = (options.few, options.many)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [options.small, options.small_length, options.corpus, folder, *counts]
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, *map(str, arguments)],
            check=True, env=environment(), capture_output=True, text=True,
        )  # fmt: skip
    few, many = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    for windows, found in zip(counts, (few, many), strict=True):
        workers = ", ".join(f"{peak / 2**20:.1f}" for peak in found["workers"])
        print(
            f"{options.small}, {windows} windows of {options.small_length}: peak of the workers "
            f"{workers} MiB, of the main process {found['main'] / 2**20:.1f} MiB"
        )
    share = max(many["workers"]) / max(few["workers"])
    print(f"a worker's peak, many windows over few: {share:.3f}")
    return {
        "peak_bytes": {str(options.few): few, str(options.many): many},
        "worker_peak_ratio": round(share, 4),
        "main_peak_ratio": round(many["main"] / few["main"], 4),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
