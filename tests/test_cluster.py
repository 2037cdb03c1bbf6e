"""A real Dask cluster of two worker processes: the same bits, and deaths that cost nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankscope.approximations import method
from rankscope.cli.options import Running
from rankscope.engine import (
    ComparisonPlan,
    InterventionPlan,
    Plan,
    Recipe,
    Resources,
    Sampling,
    SpectraPlan,
    TruncationPlan,
    execute,
)
from rankscope.engine.cluster import Cluster
from rankscope.engine.work import Job
from rankscope.exceptions import MethodError, UsageError, WorkerError
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.store import working_path
from rankscope.store.files import load
from rankscope.text import Corpus
from run_stores import assert_bits_equal
from worker_plans import Refusing

# distributed talks of what it closes, in its own time
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TESTS = Path(__file__).parent

STARTED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from distributed import LocalCluster

if __name__ == "__main__":
    options = dict(n_workers=int(sys.argv[2]), threads_per_worker=1, dashboard_address=None)
    with LocalCluster(processes=True, **options) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""

WORKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from distributed import Worker


async def main():
    async with Worker(sys.argv[2], nthreads=1, dashboard=False) as worker:
        await worker.finished()


asyncio.run(main())
"""


class Started:
    """A cluster in processes of its own."""

    def __init__(self, workers: int = 2) -> None:
        environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTED, str(TESTS), str(workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("tcp://")

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that do the work."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in found if "spawn_main" in " ".join(one.cmdline())]

    def stop(self) -> None:
        everyone = psutil.Process(self.process.pid).children(recursive=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        for one in everyone:
            one.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Started]:
    started = Started()
    yield started
    started.stop()


@pytest.fixture
def model(masked_lm: Path, windows_by_themselves: None) -> LoadedModel:
    return load_model(str(masked_lm), tokenizer="hash", head=True)


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.from_strings([" ".join(f"word{i % 37} of{i % 11}" for i in range(900))], "words")


SHORT = Sampling(length=12, windows=4)


def plan_of(kind: str, model: LoadedModel, corpus: Corpus) -> Plan:
    methods = [method("linformer:k=4,seed=1"), method("random:r=4,seed=2"), method("uniform")]
    if kind == "spectra":
        return SpectraPlan(model, corpus, Recipe(length=12, windows=4, centred=True))
    if kind == "mean":
        return SpectraPlan(model, corpus, Recipe(length=12, windows=7, control="mean-2"))
    if kind == "truncate":
        return TruncationPlan(model, corpus, SHORT, (2, 6))
    if kind == "compare":
        return ComparisonPlan(model, corpus, SHORT, methods)
    return InterventionPlan(model, corpus, SHORT, methods, pseudo=4)


@pytest.mark.parametrize("kind", ["spectra", "mean", "truncate", "compare", "intervene"])
def test_cluster_workers_and_this_process_give_the_same_bits(
    cluster: Started, model: LoadedModel, corpus: Corpus, tmp_path: Path, kind: str
) -> None:
    plan = plan_of(kind, model, corpus)
    here = load(execute(plan, model, tmp_path / "here.nc"))
    there = execute(plan, model, tmp_path / "there.nc", Resources(scheduler=cluster.address))
    assert_bits_equal(load(there), here)
    if kind in ("spectra", "intervene"):
        two = execute(plan, model, tmp_path / "two.nc", Resources(workers=2))
        assert_bits_equal(load(two), here)


def many(model: LoadedModel, corpus: Corpus) -> Plan:
    return SpectraPlan(model, corpus, Recipe(length=12, windows=150))


def test_worker_killed_in_the_middle_costs_nothing(
    cluster: Started, model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(done: int, _total: int) -> None:
        if done >= 20 and not killed:
            victim = cluster.workers[0]
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(victim.pid)

    plan = many(model, corpus)
    resources = Resources(scheduler=cluster.address)
    found = load(execute(plan, model, tmp_path / "run.nc", resources, progress=kill_one))
    assert killed
    assert_bits_equal(found, load(execute(plan, model, tmp_path / "here.nc")))


def test_scheduler_killed_and_command_repeated(
    cluster: Started,
    model: LoadedModel,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # how long the client tries to find it again
    monkeypatch.setattr("rankscope.engine.cluster.CONNECT_S", 5)
    other = Started()
    target = tmp_path / "run.nc"

    def kill_all(done: int, _total: int) -> None:
        if done >= 20:
            other.stop()

    plan = many(model, corpus)
    with pytest.raises(WorkerError, match="is gone") as caught:
        execute(plan, model, target, Resources(scheduler=other.address), progress=kill_all)
    assert "goes on" in caught.value.remedy
    assert not target.exists()
    assert working_path(target).is_dir()
    seen: list[int] = []
    resources = Resources(scheduler=cluster.address)
    execute(plan, model, target, resources, progress=lambda done, _: seen.append(done))
    assert seen[0] >= 20
    assert_bits_equal(load(target), load(execute(plan, model, tmp_path / "here.nc")))


class Alone:
    """A worker that nobody starts again."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(TESTS), address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_run_waits_for_a_worker_when_the_last_one_has_gone_and_not_for_ever(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.engine.cluster.CONNECT_S", 60)
    monkeypatch.setattr("rankscope.engine.cluster.FETCH_S", 1)
    started = Started(workers=0)
    said: list[str] = []
    alive = [Alone(started.address)]
    killed: list[int] = []

    def kill_at(done: int, _total: int) -> None:
        if (not killed and done >= 20) or (len(killed) == 1 and done >= 70):
            killed.append(done)
            alive[-1].kill()
            if len(killed) == 2:
                monkeypatch.setattr("rankscope.engine.cluster.PATIENCE_S", 2)

    def told(line: str) -> None:
        said.append(line)
        if "no worker" in line and len(alive) == 1:
            alive.append(Alone(started.address))

    plan, target = many(model, corpus), tmp_path / "run.nc"
    resources = Resources(scheduler=started.address)
    try:
        with pytest.raises(WorkerError, match=r"no worker for [2-9]\d* s") as caught:
            execute(plan, model, target, resources, progress=kill_at, told=told)
    finally:
        for one in alive:
            one.kill()
        started.stop()
    assert caught.value.exit_code == 23
    assert "dask worker" in caught.value.remedy
    assert len(killed) == 2
    # the first to go, the one that came, and the second to go
    words = [line.partition(": ")[2] for line in said]
    assert [line[:16] for line in words if line != "1 workers"] == [
        "no worker for 0 ",
        "1 workers again",
        "no worker for 0 ",
    ]
    assert not target.exists()
    seen: list[int] = []
    execute(plan, model, target, progress=lambda done, _: seen.append(done))
    assert seen[0] >= 70
    assert_bits_equal(load(target), load(execute(plan, model, tmp_path / "here.nc")))


def test_list_of_workers_is_asked_for_every_few_seconds(
    model: LoadedModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Cluster(Job.of(many(model, corpus), model, 1), "tcp://nowhere:1")
    lists = iter([{}, {"tcp://a": 0}, {"tcp://a": 0, "tcp://b": 0}])
    clock = [0.0]
    monkeypatch.setattr(crew, "_list", lambda: next(lists))
    monkeypatch.setattr("rankscope.engine.cluster.time.monotonic", lambda: clock[0])
    found = []
    for now in (0.0, 0.1, 1.0, 5.0, 5.2):
        clock[0] = now
        found.append(len(crew._workers()))
    assert found == [0, 1, 1, 1, 2]


def test_result_whose_worker_has_gone_is_not_waited_for_in_silence(
    model: LoadedModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    clock = [0.0]

    class Future:
        """A result that no worker hands over."""

        def result(self, timeout: float) -> None:
            clock[0] += timeout
            raise TimeoutError

    crew = Cluster(Job.of(many(model, corpus), model, 1), "tcp://nowhere:1", said.append)
    monkeypatch.setattr(crew, "_list", dict)
    monkeypatch.setattr(crew, "_check_connection", lambda: None)
    monkeypatch.setattr("rankscope.engine.cluster.time.monotonic", lambda: clock[0])
    with pytest.raises(WorkerError, match="no worker for 300 s"):
        crew._fetched(Future())
    assert [line.split("no worker for ")[1][:5] for line in said] == [
        "0 s; ",
        "60 s;",
        "120 s",
        "180 s",
        "240 s",
    ]


def test_errors_of_a_cluster_name_what_to_do(
    cluster: Started,
    model: LoadedModel,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resources = Resources(scheduler=cluster.address)
    plan = Refusing(model, corpus, Recipe(length=12, windows=4))
    with pytest.raises(MethodError, match="nothing can be done here") as caught:
        execute(plan, model, tmp_path / "run.nc", resources)
    assert caught.value.remedy == "do it elsewhere"
    monkeypatch.setattr("rankscope.engine.cluster.CONNECT_S", 1)
    began = time.monotonic()
    with pytest.raises(WorkerError, match="no Dask scheduler at tcp"):
        execute(plan, model, tmp_path / "none.nc", Resources(scheduler="tcp://127.0.0.1:1"))
    assert time.monotonic() - began < 60
    assert not working_path(tmp_path / "none.nc").exists()
    versions = {"rankscope": "0.0.0", "torch": "0"}
    monkeypatch.setattr("rankscope.engine.work.versions", lambda: versions)
    with pytest.raises(WorkerError, match=r"instead of 0\.0\.0") as caught_versions:
        execute(many(model, corpus), model, tmp_path / "old.nc", resources)
    assert "same versions" in caught_versions.value.remedy


def test_workers_and_a_scheduler_exclude_each_other() -> None:
    options: dict[str, Any] = dict(workers=1, scheduler="tcp://localhost:8786")
    with pytest.raises(UsageError, match="own workers"):
        Running(**options).resources()
    assert Running(scheduler="tcp://localhost:8786").resources().threads == 1
