"""Spectra on a device, stage by stage: solvers, chunks, overlap, and the CPU beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from analyses._timing import Times, interleaved, ratio
from rankscope.attention import Attention
from rankscope.capture import capture
from rankscope.linalg import Pending, Workers
from rankscope.linalg.batched import BatchedRoad, working_set
from rankscope.linalg.devices import place_of
from rankscope.models import LoadedModel
from rankscope.text import Window

CHUNKS = (1, 2, 4, 8, 16, 32, 64)
"""Sizes that are tried, up to the heads of a layer."""


@dataclass(frozen=True)
class Side:
    """A model on one device, and the windows that are timed."""

    model: LoadedModel
    windows: Sequence[Window]
    device: torch.device

    def layers(self) -> Any:
        """The stream of its layers."""
        return capture(self.model, self.windows, values=False)

    def timed(
        self, sides: dict[str, Callable[[], object]], repeats: int
    ) -> tuple[dict[str, Times], dict[str, Any]]:
        """Times of all sides in turn, after one run that does not count, and what is kept."""

        def closed(side: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                side()
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)

            return run

        ready = {name: closed(side) for name, side in sides.items()}
        for side in ready.values():
            side()
        times = interleaved(ready, repeats)
        kept = {
            name: {"ms": round(1e3 * one.best, 3), "spread": round(one.spread, 3)}
            for name, one in times.items()
        }
        for name, one in times.items():
            print(f"  {one.line(name, 1)}")
        return times, kept


def stages(side: Side, repeats: int) -> dict[str, Any]:
    """One window: the forward pass with every P, and the steps of one layer's spectra."""
    weights = _middle(side).weights[0]
    wide = weights.to(torch.float64)
    gram = wide.mT @ wide
    place = place_of(side.device)
    # one road for all runs, so that the spot check that it owes is in the run that does not count
    road = _road(side)
    found = torch.zeros(len(weights), weights.shape[1] + 2, dtype=torch.float64, device=side.device)

    def forward() -> None:
        for layer in side.layers():
            _ = layer.weights

    print(f"stages, {len(weights)} heads of {weights.shape[1]} × {weights.shape[2]}:")
    times, kept = side.timed(
        {
            "forward pass and P": forward,
            "Gram, one layer": lambda: wide.mT @ wide,
            "eigenvalues, one layer": lambda: torch.linalg.eigvalsh(gram),
            "transfer, one layer": lambda: place.fetch(found),
            "values-only SVD, one layer": lambda: torch.linalg.svdvals(wide),
            "Gram road, one layer": lambda: road.decompose(*_batch(weights)),
            "SVD road, one layer": lambda: road.decompose(*_batch(weights), driver="svd"),
        },
        repeats,
    )
    return {
        "stages": kept,
        "svd_over_gram": _compared(
            "SVD road over Gram road",
            times["SVD road, one layer"],
            times["Gram road, one layer"],
        ),
    }


def chunks(side: Side, repeats: int) -> dict[str, Any]:
    """One layer in chunks of several sizes, against the size that free memory allows."""
    weights = _middle(side).weights[0]
    free = _road(side)
    free.decompose(*_batch(weights))
    sizes = {size: _road(side, size) for size in CHUNKS if size < len(weights)}
    sides: dict[str, Callable[[], object]] = {
        f"chunks of {size}": lambda road=road: road.decompose(*_batch(weights))  # type: ignore[misc]
        for size, road in sizes.items()
    }
    sides["by free memory"] = lambda: free.decompose(*_batch(weights))
    shape = (weights.shape[1], weights.shape[2])
    print(
        f"chunks, {free.chunks[0]} by free memory, "
        f"{working_set(shape) / 2**20:.1f} MiB reckoned for a matrix:"
    )
    _, kept = side.timed(sides, repeats)
    return {"chunks": kept, "chunk_by_free_memory": free.chunks[0]} | _measured_set(
        side, free, weights
    )


def overlap(side: Side, repeats: int) -> dict[str, Any]:
    """All layers, each decomposed before the next is taken, and while it is taken."""

    def run(ahead: int) -> None:
        with Workers(1) as pool:
            waiting: list[Pending] = []
            for layer in side.layers():
                waiting.append(_later(pool, layer, side.device))
                if len(waiting) > ahead:
                    waiting.pop(0).result()
            for pending in waiting:
                pending.result()

    print(f"overlap, {len(side.windows)} windows:")
    times, kept = side.timed(
        {"one after the other": lambda: run(0), "overlapped": lambda: run(1)}, repeats
    )
    gain = _compared(
        "one after the other over overlapped", times["one after the other"], times["overlapped"]
    )
    return {"overlap": kept, "overlap_gain": gain}


def beside_the_cpu(side: Side, here: Side, repeats: int) -> dict[str, Any]:
    """Windows on the device, and on the CPU with two workers."""

    def run(one: Side, workers: int) -> None:
        with Workers(workers) as pool:
            waiting: list[Pending] = []
            for layer in one.layers():
                waiting.append(_later(pool, layer, one.device))
                if len(waiting) > 1:
                    waiting.pop(0).result()
            for pending in waiting:
                pending.result()

    print(f"spectra of {len(side.windows)} windows:")
    name = str(side.device)
    times, kept = side.timed(
        {f"on {name}": lambda: run(side, 1), "two workers on the CPU": lambda: run(here, 2)},
        repeats,
    )
    gain = _compared(
        f"two CPU workers over {name}", times["two workers on the CPU"], times[f"on {name}"]
    )
    return {"windows": kept, "cpu_over_device": gain}


def _later(pool: Workers, layer: Attention, device: torch.device) -> Pending:
    return pool.decompose_later(
        lambda head: layer.matrix(0, head),
        layer.n_heads,
        layer.shape,
        device=device,
        load_many=lambda start, stop: layer.heads(slice(start, stop)).weights[0],
    )


def _middle(side: Side) -> Attention:
    """The middle layer of the first window."""
    layers = list(capture(side.model, side.windows[:1], values=False))
    found: Attention = layers[len(layers) // 2]
    return found


def _road(side: Side, largest: int | None = None) -> BatchedRoad:
    return BatchedRoad(place_of(side.device), largest=largest)


def _batch(
    weights: torch.Tensor,
) -> tuple[Callable[[int, int], torch.Tensor], int, tuple[int, int]]:
    def load(start: int, stop: int) -> torch.Tensor:
        return weights[start:stop]

    return load, len(weights), (weights.shape[1], weights.shape[2])


def _measured_set(side: Side, road: BatchedRoad, weights: torch.Tensor) -> dict[str, Any]:
    """Peak memory of a layer for each matrix, to hold the model of it against."""
    if side.device.type != "cuda":
        return {}
    torch.cuda.synchronize(side.device)
    torch.cuda.reset_peak_memory_stats(side.device)
    before = torch.cuda.memory_allocated(side.device)
    road.decompose(*_batch(weights))
    peak = (torch.cuda.max_memory_allocated(side.device) - before) / len(weights)
    print(f"  measured: {peak / 2**20:.1f} MiB for a matrix")
    reckoned = working_set((weights.shape[1], weights.shape[2]))
    return {"bytes_a_matrix": {"measured": round(peak), "reckoned": reckoned}}


def _compared(label: str, slow: Times, fast: Times) -> list[float]:
    best, low, high = ratio(slow, fast)
    print(f"  {label}: {best:.2f} (runs side by side {low:.2f} … {high:.2f})")
    return [round(value, 3) for value in (best, low, high)]
