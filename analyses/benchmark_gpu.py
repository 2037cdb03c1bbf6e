"""Ready for a GPU: the same numbers as on the CPU, then times, stage by stage, and peak memory.

First correctness (spectra, truncation curves, Linformer, CPU against device, on captured attention
of the built-in model). Then the spectra of a model: forward pass, Gram matrices, eigenvalues and
transfer, each closed by a synchronisation; the Gram road against batched values-only SVD; sizes of
chunks; overlap of capture and decomposition on and off; the CPU with two workers beside. Then
spectra, truncation and Linformer at the shapes of RoBERTa-base (12 heads of 64) and -large (16
heads of 64) with random weights. Without a CUDA device it runs on the CPU, says that no GPU was
measured, and shows that it works and nothing more. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from analyses import _gpu_roads
from rankscope import rank
from rankscope.approximations import method
from rankscope.attention import Attention
from rankscope.capture import capture
from rankscope.linalg import Workers, full_precision
from rankscope.models import load
from rankscope.models.loading import check_device
from rankscope.text import load_corpus, windows
from rankscope.truncation import decompose, error_curves

SHAPES = {"roberta-base": 12, "roberta-large": 16}
METHODS = ("linformer:k=128", "linformer:k=128,projection=gaussian", "truncated:k=128")


def main(argv: Sequence[str]) -> None:
    """Check first, then time."""
    parser = argparse.ArgumentParser(prog="python -m analyses benchmark_gpu", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="builtin", help="whose spectra are timed by stage")
    parser.add_argument("--length", type=int, default=512, help="tokens of its windows")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    check_device(options.device)
    device = torch.device(options.device)
    measured = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if measured else "cpu"
    if not measured:
        print("no GPU was measured: the figures below are a CPU's on the roads of a GPU")
    figures: dict[str, Any] = {
        "benchmark": "gpu",
        "device": name,
        "gpu_measured": measured,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "float32_matmul_precision": "highest",
    }
    with full_precision():
        figures["largest_difference"] = _correct(device)
        figures |= _roads(options.model, options.length, options.windows, device, options.repeats)
        rows = []
        for shape in options.shapes:
            for n in options.lengths:
                row = {"shape": shape, "n": n, **_times(SHAPES[shape], n, device, options.repeats)}
                rows.append(row)
                print(json.dumps(row))
    print(json.dumps(figures | {"rows": rows}))


def _roads(
    spec: str, length: int, count: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Stages, chunks and overlap of a model's spectra, and the CPU beside."""
    sides = []
    for where in (str(device), "cpu"):
        model = load(spec, device=where)
        cut = windows(load_corpus("builtin"), model.tokenizer, length=length, count=count)
        sides.append(_gpu_roads.Side(model, cut, torch.device(where)))
    there, here = sides
    return {
        "model": spec,
        "length": length,
        **_gpu_roads.stages(there, repeats),
        **_gpu_roads.chunks(there, repeats),
        **_gpu_roads.overlap(there, repeats),
        **_gpu_roads.beside_the_cpu(there, here, repeats),
    }


def _correct(device: torch.device) -> dict[str, float]:
    """Largest difference of every kind of result between the CPU and the device."""
    model = load("builtin")
    window = windows(load_corpus("builtin"), model.tokenizer, length=256, count=1)
    worst: dict[str, float] = {}

    def note(what: str, here: Any, there: Any) -> None:
        difference = np.abs(np.asarray(here) - np.asarray(there)).max()
        worst[what] = max(worst.get(what, 0.0), float(difference))

    for found in capture(model, window):
        moved = _to(found, device)
        ratios = [rank.cumulative_ratio(_spectra(one)) for one in (found, moved)]
        note("cumulative_ratio", *ratios)
        curves = [error_curves(decompose(one.weights), one.values) for one in (found, moved)]
        assert curves[0].output is not None
        assert curves[1].output is not None
        note("output_error", curves[0].output, curves[1].output.cpu())
        for text in METHODS:
            outputs = [method(text).apply(one).cpu() for one in (found, moved)]
            note(text, *outputs)
    print("largest differences between the CPU and the device:")
    for what, difference in worst.items():
        print(f"  {what:45} {difference:.1e}")
    return worst


def _times(heads: int, n: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Milliseconds and peak memory of one layer of one window."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, n, 64, generator=generator) for _ in range(3))
    layer = _to(
        Attention(query, key, value, 0.125, None, 0, torch.zeros(1, n, dtype=torch.int64)), device
    )
    work: dict[str, Callable[[], object]] = {
        "attention": lambda: layer.output,
        "spectra": lambda: _spectra(layer),
        "truncation": lambda: [
            error_curves(decompose(layer.matrix(0, head)), layer.values[0, head])
            for head in range(heads)
        ],
        **{text: partial(method(text).apply, layer) for text in METHODS},
    }
    row: dict[str, Any] = {}
    for what, run in work.items():
        run()
        milliseconds, peak = [], 0
        for _ in range(repeats):
            spent, used = _timed(run, device)
            milliseconds.append(spent)
            peak = max(peak, used)
        spread = (max(milliseconds) - min(milliseconds)) / min(milliseconds)
        row[what] = {
            "ms": round(min(milliseconds), 3),
            "median_ms": round(statistics.median(milliseconds), 3),
            "spread": round(spread, 3),
            "peak_mib": round(peak / 2**20, 1),
        }
    return row


def _timed(run: Callable[[], object], device: torch.device) -> tuple[float, int]:
    """Milliseconds by device events, and peak memory; on a CPU by the clock, without memory."""
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - began), 0
    torch.cuda.reset_peak_memory_stats(device)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(stop)), torch.cuda.max_memory_allocated(device)


def _spectra(attention: Attention) -> Any:
    with Workers(1) as pool:
        return pool.decompose(
            lambda head: attention.matrix(0, head),
            attention.n_heads,
            attention.shape,
            device=attention.query.device,
        ).singular_values


def _to(attention: Attention, device: torch.device) -> Attention:
    bias = attention.bias
    return replace(
        attention,
        query=attention.query.to(device),
        key=attention.key.to(device),
        value=attention.values.to(device),
        tokens=attention.tokens.to(device),
        bias=None if bias is None else bias.to(device),
    )
