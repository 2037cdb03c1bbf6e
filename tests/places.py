"""A device made up for tests: the CPU, with memory as one wishes and a record of the calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from matrices import stochastic
from rankscope.linalg.batched import BatchedRoad
from rankscope.linalg.devices import Place
from rankscope.linalg.results import Decomposition

CPU = torch.device("cpu")
DRIVERS: Any = ("gram", "svd")
PLENTY = 2**40


class Made(Place):
    """The CPU with memory made up, and a record of what it was asked for."""

    def __init__(self, free: int = PLENTY) -> None:
        super().__init__(CPU)
        self.memory = free
        self.released = 0
        self.fetched: list[tuple[int, ...]] = []
        self.marks: list[str] = []
        self.left = 0

    def free(self) -> int:
        return self.memory

    def release(self) -> None:
        self.released += 1

    def mark(self) -> object:
        self.marks.append(threading.current_thread().name)
        return len(self.marks)

    @contextmanager
    def working(self, mark: object) -> Iterator[None]:
        try:
            yield
        finally:
            self.left += 1

    def fetch(self, tensor: torch.Tensor) -> np.ndarray:
        self.fetched.append(tuple(tensor.shape))
        return super().fetch(tensor)


def batch_of(count: int, n: int = 24, sharpness: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(np.stack([stochastic(n, seed, sharpness) for seed in range(count)]))


def reference(matrices: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(matrices.double().numpy(), compute_uv=False)


def solve(matrices: torch.Tensor, road: BatchedRoad | None = None, **options: Any) -> Decomposition:
    road = road or BatchedRoad(Made())
    return road.decompose(
        lambda start, stop: matrices[start:stop],
        len(matrices),
        tuple(matrices.shape[1:]),  # type: ignore[arg-type]
        **options,
    )
