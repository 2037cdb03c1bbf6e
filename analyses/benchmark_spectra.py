"""How fast are spectra, and how much memory does a run need?

Three comparisons, both sides of each in one run, one BLAS thread a worker, minimum of several:
matrices a second against a loop of ``numpy.linalg.svd``; the whole command against the script that
people write first; peak memory of a 12×12 run above the loaded model, for few and for many windows.
Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analyses._timing import environment, interleaved, listed, ratio
from rankscope.engine.machine import usable_cores

Figures = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m analyses benchmark_spectra", description=__doc__
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--windows", type=int, default=24, help="for the whole command")
    parser.add_argument("--corpus", default=None, help="text file; the built-in text otherwise")
    parser.add_argument("--skip", nargs="*", default=[], choices=["matrices", "command", "memory"])
    options = parser.parse_args(argv)
    figures: Figures = {"benchmark": "spectra", "n": 512, "cores": usable_cores()}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(options.corpus) if options.corpus else _builtin_text(Path(folder))
        if "matrices" not in options.skip:
            figures |= _matrices(text, options.repeats)
        if "command" not in options.skip:
            figures |= _command(text, Path(folder), options.windows, max(2, options.repeats // 2))
        if "memory" not in options.skip:
            figures |= _memory(text)
    print(json.dumps(figures))


def _builtin_text(folder: Path) -> Path:
    """The built-in corpus as a file, so that the naive script reads the very same text."""
    from rankscope.text import load_corpus

    path = folder / "builtin.txt"
    whole = "".join(text.text for text in load_corpus("builtin").texts)
    path.write_text(whole, encoding="utf-8", newline="")
    return path


def _matrices(text: Path, repeats: int) -> Figures:
    """All heads of one window of the pretrained MiniLM."""
    import torch

    from rankscope import rank
    from rankscope.capture import capture
    from rankscope.linalg import one_blas_thread, singular_values, warm_up
    from rankscope.models import load
    from rankscope.text import load_corpus, windows

    warm_up()
    model = load("minilm")
    window = windows(load_corpus(str(text)), model.tokenizer, length=512, count=1)
    weights = torch.cat([attention.weights[0] for attention in capture(model, window)])
    count = len(weights)
    found: dict[str, npt.NDArray[Any]] = {}

    def numpy_loop() -> None:
        found["numpy"] = np.stack(
            [np.linalg.svd(matrix.double().numpy(), compute_uv=False) for matrix in weights]
        )

    def ours(workers: int) -> None:
        spectrum = singular_values(weights, workers=workers)
        found[f"{workers}"] = spectrum.singular_values
        found["status"] = spectrum.status

    with one_blas_thread():
        times = interleaved(
            {"numpy": numpy_loop, "one": lambda: ours(1), "two": lambda: ours(2)}, repeats
        )
    difference = np.abs(
        rank.cumulative_ratio(found["numpy"]) - rank.cumulative_ratio(found["1"])
    ).max()
    print(f"{count} captured matrices of 512 × 512, minilm")
    print(times["numpy"].line("numpy.linalg.svd, loop", count))
    print(times["one"].line("rankscope, one worker", count))
    print(times["two"].line("rankscope, two workers", count))
    speed, two = ratio(times["numpy"], times["one"]), ratio(times["one"], times["two"])
    print(f"one worker against numpy: {speed[0]:.2f} times ({speed[1]:.2f} … {speed[2]:.2f})")
    print(f"two workers against one: {two[0]:.2f} times ({two[1]:.2f} … {two[2]:.2f})")
    print(f"largest difference of the cumulative ratios: {difference:.1e}")
    refined = int((found["status"] == 2).sum())
    print(f"matrices that LAPACK did again: {refined} of {count}")
    return {
        "matrices": count,
        "speed_against_numpy": listed(speed),
        "speed_two_workers": listed(two),
        "largest_ratio_difference": float(difference),
        "refined": refined,
    }


def _command(text: Path, folder: Path, windows: int, repeats: int) -> Figures:
    """The command from start to file, against the naive script; processes, wall time."""
    from rankscope.models import load as load_model
    from rankscope.store.files import load

    model_folder = load_model("minilm").model.config.name_or_path
    naive = Path(__file__).with_name("_naive_spectra.py")
    out = folder / "naive.npz"

    def run(*command: str) -> None:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command[:3]} left with {done.returncode}: {done.stderr}")

    def script() -> None:
        run(sys.executable, str(naive), model_folder, str(text), "512", str(windows), str(out))

    def command(threads: int) -> None:
        target = folder / f"run-{threads}.nc"
        target.unlink(missing_ok=True)
        run(
            sys.executable, "-c", "from rankscope.cli import main; main()", "spectra",
            "--model", "minilm", "--corpus", str(text), "--windows", str(windows),
            "--threads", str(threads), "--out", str(target),
        )  # fmt: skip

    cores = usable_cores()
    command(1)  # fills the cache of compiled kernels
    times = interleaved(
        {"script": script, "one": lambda: command(1), "all": lambda: command(cores)},
        repeats,
    )
    with load(folder / "run-1.nc", lazy=True) as dataset:
        mine = dataset["cumulative_ratio"].to_numpy()[0, 0]
    difference = np.abs(mine - np.load(out)["cumulative_ratio"]).max()
    one, every = ratio(times["script"], times["one"]), ratio(times["script"], times["all"])
    print(f"whole run, minilm, {windows} windows of 512")
    for name, label in (("script", "naive script"), ("one", "rankscope spectra, one thread")):
        print(times[name].line(label, windows))
    print(times["all"].line(f"rankscope spectra, {cores} threads", windows))
    print(f"one thread against the script: {one[0]:.2f} times ({one[1]:.2f} … {one[2]:.2f})")
    print(f"{cores} threads against it: {every[0]:.2f} times ({every[1]:.2f} … {every[2]:.2f})")
    print(f"largest difference of the cumulative ratios: {difference:.1e}")
    return {
        "command_windows": windows,
        "command_speed_one_thread": listed(one),
        "command_speed_all_cores": listed(every),
        "command_ratio_difference": float(difference),
    }


_PEAK = """
import sys
from pathlib import Path
from rankscope import engine, linalg
from rankscope.engine.machine import return_freed_memory
from rankscope.models import load
from rankscope.text import load_corpus
return_freed_memory()
linalg.warm_up()
text, windows, folder, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
model = load("random:roberta-base")
corpus = load_corpus(text)
def run(name, **recipe):
    resources = engine.Resources(threads=threads)
    engine.run(model, corpus, engine.Recipe(**recipe), f"{folder}/{name}.nc", resources)
def now(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
# libraries load their code and set up their buffers at first use, whatever the size of the run
run("first", length=16, windows=1)
Path("/proc/self/clear_refs").write_text("5")
before = now("VmRSS")
run("measured", windows=windows)
print(now("VmHWM") - before)
"""


def _memory(text: Path) -> Figures:
    """Peak of a 12×12 run above the loaded model, from the kernel's own high-water mark.

    Loaded means model and libraries: the mark is taken after a run of one window of 16 tokens.
    """
    layer = 12 * 512 * 512 * 4
    peaks: dict[int, int] = {}
    for windows in (4, 64):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", _PEAK, str(text), str(windows), folder, "2"],
                check=True, env=environment(), capture_output=True, text=True,
            )  # fmt: skip
        peaks[windows] = int(done.stdout.split()[-1])
        print(
            f"peak above the loaded model, random:roberta-base, {windows} windows: "
            f"{peaks[windows] / 2**20:.1f} MiB = {peaks[windows] / layer:.2f} layers' P"
        )
    return {
        "layer_bytes": layer,
        "peak_bytes": {str(windows): peak for windows, peak in peaks.items()},
        "peak_in_layers": {str(k): round(v / layer, 3) for k, v in peaks.items()},
    }


if __name__ == "__main__":
    main(sys.argv[1:])
