"""Timing that both sides of a benchmark share: one BLAS thread, interleaved, minimum of several."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Environment of a process that uses one BLAS thread; OpenMP reads it only at its start."""


@dataclass(frozen=True)
class Times:
    """Seconds of several runs of one side."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The least disturbed run."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """(slowest − fastest) / fastest."""
        return (max(self.seconds) - self.best) / self.best

    def line(self, label: str, count: int) -> str:
        """One line for people: per item, with the spread."""
        middle = statistics.median(self.seconds)
        return (
            f"{label:28} {1e3 * self.best / count:9.2f} ms each at best, "
            f"{1e3 * middle / count:.2f} in the middle, spread {self.spread:.0%}"
        )


def interleaved(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Run all sides in turn, so that a change of the machine's speed meets them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - began)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def ratio(slow: Times, fast: Times) -> tuple[float, float, float]:
    """Best over best, and the lowest and highest ratio of runs that stood side by side."""
    pairs = [a / b for a, b in zip(slow.seconds, fast.seconds, strict=True)]
    return slow.best / fast.best, min(pairs), max(pairs)


def environment() -> dict[str, str]:
    """This process's environment with one BLAS thread and no network."""
    return {**os.environ, **ONE_THREAD, "HF_HUB_OFFLINE": "1"}


def listed(values: Sequence[float]) -> list[float]:
    """Rounded for the line of JSON."""
    return [round(float(value), 4) for value in values]
