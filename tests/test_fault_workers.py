"""What goes wrong with worker processes, through the command: quick ends, and nothing left behind.

The signals are those of a keyboard and of a batch system: they reach every process of the group.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import xarray as xr

from commands import TINY, rankscope
from rankscope.cli import measuring
from rankscope.cli.running import INTERRUPTED, TERMINATED
from rankscope.exceptions import MemoryLimit, ModelError, NotAModelFolder, WorkerError
from rankscope.store import RunStore, working_path
from rankscope.store.files import load
from rankscope.store.locking import lock_path
from run_stores import assert_bits_equal
from worker_plans import Starving

ALL = ["spectra", *TINY, "--length", "12", "--windows", "80"]
TWO = [*ALL, "--workers", "2", "--out", "run.nc"]
# whoever runs the tests in the background has the interrupt ignored
ALONE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from rankscope.engine import frame; frame.BLOCK_TOKENS = 1\n"
    "from rankscope.cli import main; main()"
)


@pytest.fixture
def whole(place: Path, windows_by_themselves: None) -> xr.Dataset:
    """The result that nothing happened to."""
    assert rankscope(*ALL, "--workers", "1", "--out", "whole.nc") == 0
    return load("whole.nc")


def is_worker(process: psutil.Process) -> bool:
    """Whether a child is a worker; others, which a library asks something, may just have ended."""
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def signalled(number: int, windows: int) -> tuple[int, str]:
    """Exit status and error stream of a run whose whole group gets a signal.

    It comes when so many windows are stored; for 0, when the workers have just been started.
    """
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, *TWO],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        main = psutil.Process(running.pid)
        workers: list[psutil.Process] = []
        while running.poll() is None:
            workers = [one for one in main.children() if is_worker(one)]
            stored = len([*(working_path("run.nc") / "status").glob("c.*")])
            if len(workers) == 2 and stored >= windows:
                break
            time.sleep(0.005)
        os.killpg(running.pid, number)
        _, shown = running.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    return running.returncode, shown


@pytest.mark.parametrize(
    ("number", "windows", "wanted"),
    [
        (signal.SIGINT, 0, INTERRUPTED),
        (signal.SIGINT, 3, INTERRUPTED),
        (signal.SIGTERM, 3, TERMINATED),
    ],
)
def test_signals_end_a_run_of_two_workers_and_it_goes_on(
    place: Path, whole: xr.Dataset, number: int, windows: int, wanted: int
) -> None:
    # on a machine that stalls the run may be over before it is stopped: then once more
    for _ in range(5):
        status, shown = signalled(number, windows)
        if status != 0:
            break
        Path("run.nc").unlink()
    assert status == wanted, shown
    assert "Traceback" not in shown
    assert "the same command goes on from run.nc.partial" in shown
    assert not Path("run.nc").exists()
    assert not lock_path("run.nc").exists()
    assert rankscope(*ALL, "--workers", "1", "--out", "run.nc") == 0
    assert_bits_equal(load("run.nc"), whole)


def test_sigterm_is_the_callers_own_again_after_a_run(place: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert rankscope(*ALL[:-1], "3", "--workers", "1", "--out", "run.nc") == 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("workers", ["1", "2"])
def test_process_that_is_short_of_memory_says_so(
    place: Path,
    windows_by_themselves: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    workers: str,
) -> None:
    if workers == "1":
        # the limit would stay with the process of the tests
        monkeypatch.setattr(Starving, "act", lambda self: bytearray(2**62))
    monkeypatch.setattr("rankscope.engine.SpectraPlan", Starving)
    arguments = [*ALL[:-1], "6", "--workers", workers, "--out", "run.nc"]
    assert rankscope(*arguments) == MemoryLimit.exit_code
    shown = capsys.readouterr().err
    assert "ran out of memory" in shown
    assert "remedy: use fewer workers" in shown
    assert "Traceback" not in shown
    assert not Path("run.nc").exists()
    monkeypatch.undo()
    os.chdir(place)
    assert rankscope(*arguments[:-3], "1", "--out", "run.nc") == 0


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [("deleted", NotAModelFolder, "tiny"), ("changed", ModelError, "give all workers the same")],
)
def test_model_that_changes_while_workers_load_it(
    place: Path,
    masked_lm: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    what: str,
    kind: type[ModelError],
    words: str,
) -> None:
    from folders import rewrite

    real = measuring.load_model
    query = "roberta.encoder.layer.1.attention.self.query.weight"

    def load_model(*arguments: Any) -> Any:
        loaded = real(*arguments)
        if what == "deleted":
            shutil.rmtree(masked_lm)
        else:
            rewrite(masked_lm, lambda weights: weights | {query: weights[query] * 2})
        return loaded

    monkeypatch.setattr(measuring, "load_model", load_model)
    options = ["--length", "12", "--windows", "6", "--workers", "2", "--out", "run.nc"]
    status = rankscope("spectra", "--model", str(masked_lm), "--corpus", "text.txt", *options)
    shown = capsys.readouterr().err
    assert status == kind.exit_code, shown
    assert words in shown
    assert "Traceback" not in shown
    assert not working_path("run.nc").exists()


UNGUARDED = """
from rankscope.engine import Resources, Recipe, SpectraPlan, execute
from rankscope.exceptions import WorkerError
from rankscope.models import load
from rankscope.text import Corpus

corpus = Corpus.from_strings(["word one of two " * 40], "words")
model = load("random:model", tokenizer="hash")
plan = SpectraPlan(model, corpus, Recipe(length=12, windows=6))
print("STARTS", flush=True)
try:
    execute(plan, model, "run.nc", Resources(workers=2))
except WorkerError as error:
    print(error.exit_code, error)
"""


def test_script_without_a_guard_ends_with_its_remedy(place: Path) -> None:
    Path("script.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"{WorkerError.exit_code} worker ")
    assert "if __name__ == '__main__':" in last
    # this process and the worker, not workers of workers
    assert done.stdout.count("STARTS") <= 3
    assert not working_path("run.nc").exists()


def test_interrupt_in_any_write_loses_no_window(
    place: Path, windows_by_themselves: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankscope import store as store_of_runs

    arguments = [*ALL[:-1], "24", "--workers", "1"]
    assert rankscope(*arguments, "--out", "whole.nc") == 0
    whole = load("whole.nc")
    settings = whole.attrs["settings_hash"]
    real, calls = store_of_runs.put_windows, [0]

    def put_windows(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] % 29 == 0:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(store_of_runs, "put_windows", put_windows)
    done: list[int] = []
    while (status := rankscope(*arguments, "--out", "run.nc")) == INTERRUPTED and len(done) < 40:
        done.append(int(RunStore.open(working_path("run.nc"), settings).done().sum()))
    assert status == 0
    assert len(done) > 8
    assert done == sorted(done)
    assert_bits_equal(load("run.nc"), whole)
