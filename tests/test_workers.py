"""Worker processes: the same bits as one process, one thread each, and deaths that cost nothing."""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import pytest
import xarray as xr

from rankscope import linalg
from rankscope.engine import Recipe, Resources, SpectraPlan, execute
from rankscope.engine.crew import _no_interrupt
from rankscope.engine.work import device_of
from rankscope.exceptions import MethodError, UsageError, WorkerError
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.store import locked, working_path
from rankscope.store.containers import read_container
from rankscope.store.files import load
from rankscope.store.locking import lock_path
from rankscope.text import Corpus
from run_stores import assert_bits_equal
from tiny import tiny_config
from worker_plans import Counting, Dying, Failing, Leaving, Marked, Refusing

RECIPE = Recipe(length=12, windows=6)
TWO = Resources(workers=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    return load_model(f"random:{folder}", tokenizer="hash")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_strings([" ".join(f"word{i % 37} of{i % 11}" for i in range(300))], "words")


@pytest.fixture
def whole(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, windows_by_themselves: None
) -> xr.Dataset:
    """The result of one process."""
    linalg.warm_up()
    return load(execute(SpectraPlan(model, corpus, RECIPE), model, tmp_path / "whole.nc"))


def marked(
    kind: type[Marked], model: LoadedModel, corpus: Corpus, mark: Path | None = None
) -> Marked:
    plan = kind(model, corpus, RECIPE)
    plan.mark = mark
    return plan


def test_f23_workers_have_one_thread_and_give_the_same_bits(
    model: LoadedModel, corpus: Corpus, whole: xr.Dataset, tmp_path: Path
) -> None:
    # after this process has used BLAS, a forked one might hang
    np.linalg.svd(np.eye(64))
    plan = marked(Counting, model, corpus, tmp_path / "threads")
    found = load(execute(plan, model, tmp_path / "run.nc", TWO))
    assert_bits_equal(found, whole)
    pid, pools = ast.literal_eval((tmp_path / "threads").read_text())
    assert pid != os.getpid()
    assert set(pools.values()) == {1}
    assert len(pools) >= 2
    assert not psutil.pid_exists(pid)


def test_worker_that_dies_is_replaced(
    model: LoadedModel, corpus: Corpus, whole: xr.Dataset, tmp_path: Path
) -> None:
    said: list[str] = []
    plan = marked(Dying, model, corpus, tmp_path / "died")
    found = load(execute(plan, model, tmp_path / "run.nc", TWO, told=said.append))
    assert (tmp_path / "died").exists()
    assert_bits_equal(found, whole)
    (line,) = said
    assert "SIGKILL" in line
    assert "window 1" in line


def test_workers_that_keep_dying_end_the_run_and_lose_nothing(
    model: LoadedModel, corpus: Corpus, whole: xr.Dataset, tmp_path: Path
) -> None:
    target = tmp_path / "run.nc"
    with pytest.raises(WorkerError, match="3 workers died over window 1") as caught:
        execute(marked(Dying, model, corpus), model, target, TWO)
    assert "goes on" in caught.value.remedy
    assert not target.exists()
    assert working_path(target).is_dir()
    seen: list[int] = []
    plan = SpectraPlan(model, corpus, RECIPE)
    execute(plan, model, target, progress=lambda done, _: seen.append(done))
    assert seen[0] >= 1
    assert_bits_equal(load(target), whole)


@pytest.mark.usefixtures("windows_by_themselves")
def test_workers_that_end_themselves_at_work_are_told_as_such(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.engine.crew.DEATHS", 2)
    said: list[str] = []
    with pytest.raises(WorkerError) as caught:
        execute(marked(Leaving, model, corpus), model, tmp_path / "run.nc", TWO, told=said.append)
    (line,) = said
    assert "ended with exit status 3 at window 1; another takes its place" in line
    assert caught.value.cause == (
        "2 workers died over window 1, the last one ended with exit status 3"
    )
    assert "goes on" in caught.value.remedy


def cannot_start(_pipe: Connection, _job: bytes, _number: int) -> None:
    """A process that ends before it says anything, as one whose script cannot be imported."""
    os._exit(1)


@pytest.mark.usefixtures("windows_by_themselves")
def test_worker_that_never_started_is_told_as_such_at_once(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.engine.crew.serve", cannot_start)
    said: list[str] = []
    with pytest.raises(WorkerError, match="exit status 1 before it could start") as caught:
        execute(
            SpectraPlan(model, corpus, RECIPE), model, tmp_path / "run.nc", TWO, told=said.append
        )
    assert "__main__" in caught.value.remedy
    assert said == []


@pytest.mark.usefixtures("windows_by_themselves")
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [(Refusing, MethodError, "do it elsewhere"), (Failing, RuntimeError, "ZeroDivisionError")],
)
def test_errors_of_a_worker_arrive_as_they_are(
    model: LoadedModel,
    corpus: Corpus,
    tmp_path: Path,
    kind: type[Marked],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error) as caught:
        execute(marked(kind, model, corpus), model, tmp_path / "run.nc", TWO)
    assert text in str(caught.value)


def test_model_put_together_by_hand_has_no_workers(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    own = LoadedModel(model.model, model.tokenizer, model.info)
    with pytest.raises(UsageError, match="put together by hand"):
        execute(SpectraPlan(own, corpus, RECIPE), own, tmp_path / "run.nc", TWO)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resources", [{"workers": 0}, {"threads": 0}, {"workers": -1}])
def test_no_worker_is_refused(resources: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="cannot do any work"):
        Resources(**resources)
    with pytest.raises(UsageError, match="cluster has its own"):
        Resources(workers=2, scheduler="tcp://localhost:1")


def test_each_worker_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert [device_of("cuda", number) for number in range(4)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:0",
    ]
    assert device_of("cuda:1", 2) == "cuda:1"
    assert device_of("cpu", 2) == "cpu"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert device_of("auto", 2) == "cpu"


def killed_run(folder: str, target: str, told: Connection) -> None:
    """A run of its own process, up to whatever ends it; it says how many windows are done."""
    from rankscope.engine import frame

    frame.BLOCK_TOKENS = 1
    found = load_model(f"random:{folder}", tokenizer="hash")
    text = " ".join(f"word{i % 37} of{i % 11}" for i in range(600))
    plan = SpectraPlan(found, Corpus.from_strings([text], "words"), Recipe(length=12, windows=60))
    told.send_bytes(b"begins")
    execute(plan, found, target, progress=lambda done, _: told.send_bytes(b"%d" % done))


def test_f19_f21_killed_at_20_random_moments_equals_uninterrupted(
    model: LoadedModel, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["rankscope.engine", "rankscope.models", "transformers.models.roberta.modeling_roberta"]
    )
    folder = str(model.arguments["spec"]).removeprefix("random:")  # type: ignore[index]

    def run(target: Path, words: float = inf, wait: float = 0) -> int | None:
        """Start a run, and kill it some time after so many words of its; its exit status."""
        heard, told = context.Pipe(duplex=False)
        child = context.Process(target=killed_run, args=(folder, str(target), told))
        child.start()
        told.close()
        with heard, suppress(EOFError):
            while words > 0:
                heard.recv_bytes()
                words -= 1
            time.sleep(wait)
            child.kill()
        child.join()
        return child.exitcode

    assert run(tmp_path / "whole.nc") == 0
    random = np.random.default_rng(7)
    target = tmp_path / "run.nc"
    kills, done = 0, []
    while kills < 20:
        # the first five kills fall anywhere from the start on, the others behind a stored window
        words = 1 if kills < 5 else int(random.integers(2, 6))
        kills += run(target, words, random.uniform(0, 0.3 if kills < 5 else 0.05)) != 0
        if target.exists():
            # finished between two kills: what is left is done to a run that starts anew
            assert_bits_equal(load(target), load(tmp_path / "whole.nc"))
            target.unlink()
        elif working_path(target).is_dir():
            with read_container(working_path(target), "zarr") as part:
                done.append(int((part["state"] >= 0).sum()))
    assert len(set(done)) > 3
    assert run(target) == 0
    assert_bits_equal(load(target), load(tmp_path / "whole.nc"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.nc", "whole.nc"]


SCRIPT = """
import sys
import threading
from pathlib import Path
from rankscope.engine import Resources, Recipe, SpectraPlan, execute, frame
from rankscope.models import load
from rankscope.text import Corpus

if __name__ == "__main__":
    frame.BLOCK_TOKENS = 1
    model = load("random:" + sys.argv[1], tokenizer="hash")
    text = " ".join(f"word{i % 37} of{i % 11}" for i in range(4000))
    plan = SpectraPlan(model, Corpus.from_strings([text], "words"), Recipe(length=12, windows=400))
    two = Resources(workers=2)
    execute(plan, model, sys.argv[2], two, progress=lambda *at: print(*at, flush=True))
"""


def test_workers_end_with_a_killed_main_process_and_its_lock_is_free(
    model: LoadedModel, tmp_path: Path
) -> None:
    script, target = tmp_path / "script.py", tmp_path / "run.zarr"
    script.write_text(SCRIPT)
    folder = str(model.arguments["spec"]).removeprefix("random:")  # type: ignore[index]
    main = subprocess.Popen(
        [sys.executable, str(script), folder, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert main.stdout is not None
    with main.stdout:
        for line in main.stdout:
            if int(line.split()[0]) > 4:
                break
    workers = psutil.Process(main.pid).children(recursive=True)
    assert len(workers) >= 2
    main.kill()
    main.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert lock_path(target).exists()
    with locked(target):
        pass
    assert not lock_path(target).exists()
    assert working_path(target).is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_waits_until_a_worker_has_been_started(number: signal.Signals) -> None:
    seen: list[str] = []
    before = signal.signal(number, lambda *_: seen.append("told"))
    try:
        with _no_interrupt():
            # another thread of the process takes a signal that the main one blocks
            sender = threading.Thread(target=os.kill, args=(os.getpid(), number))
            sender.start()
            sender.join()
            time.sleep(0.05)
            seen.append("started")
        deadline = time.monotonic() + 10
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen == ["started", "told"]
        assert callable(signal.getsignal(number))
    finally:
        signal.signal(number, before)
