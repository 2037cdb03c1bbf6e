"""The benchmark of scaling: its arithmetic on made-up workers, and a small real run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from analyses import benchmark_scaling as scaling
from rankscope.engine import Recipe
from rankscope.engine.work import Block, Result, run_block
from rankscope.linalg import Workers
from rankscope.models import load
from rankscope.text import load_corpus


class MadeUpCrew:
    """Computes here, and says that workers with a clock of their own did it.

    Worker i finishes its first window at 10·(i + 1), and one every `pace` from then on; it keeps
    one and a half cores busy.
    """

    paces = (0.5, 0.25)

    def __init__(self, job: Any, workers: int, told: Any) -> None:
        self.plan, self.workers = job.plan, workers

    def __enter__(self) -> MadeUpCrew:
        return self

    def __exit__(self, *raised: Any) -> None:
        pass

    def run(self, blocks: Iterable[Block]) -> Iterator[Result]:
        model = load("builtin")
        clocks = [10.0 * (worker + 1) for worker in range(self.workers)]
        with Workers(1) as pool:
            for block in blocks:
                worker = clocks.index(min(clocks))
                windows = dict(zip(block.samples, block.windows, strict=True))
                result = run_block(self.plan.holding(windows), model, block.samples, pool)
                for fields in result.fields:
                    fields[scaling.Timed.mark] = (worker, clocks[worker], 1.5 * clocks[worker])
                clocks[worker] += self.paces[worker]
                yield result


@pytest.mark.usefixtures("windows_by_themselves")
def test_rate_is_that_of_the_time_when_all_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "Processes", MadeUpCrew)
    model = load("builtin")
    plan = scaling.Timed(model, load_corpus("builtin"), Recipe(length=8, windows=30))
    # the first twenty windows of the one that was ready early are no part of it
    assert scaling._rate(plan, model, 1, 6) == pytest.approx((2.0, 1.5))
    assert scaling._rate(plan, model, 2, 6) == pytest.approx((2.0 + 4.0, 3.0))


def test_small_benchmark_ends_with_json(capsys: Any) -> None:
    small = ["--parts", "memory,plan", "--model", "builtin", "--length", "64", "--run", "40"]
    sizes = ["--run-workers", "1", "--small-length", "16", "--few", "64", "--many", "128"]
    scaling.main([*small, *sizes, "--calibrate", "16"])
    shown = capsys.readouterr().out
    figures = json.loads(shown.splitlines()[-1])
    assert figures["run"] == 40
    assert figures["calibrated_windows"] == 16
    assert figures["foretold_over_measured_1"] > 0
    assert "foretold_over_measured_2" not in figures
    assert figures["file_over_measured"] == pytest.approx(1, abs=0.1)
    for peaks in figures["peak_bytes"].values():
        assert len(peaks["workers"]) == 2
        assert min(peaks["main"], *peaks["workers"]) > 100 * 2**20
    assert figures["worker_peak_ratio"] == pytest.approx(1, abs=0.1)
    assert "a worker's peak" in shown


def test_unknown_part_is_refused(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        scaling.main(["--parts", "speed"])
    assert "no part speed" in capsys.readouterr().err
