"""How fast are the truncation errors of all ranks, against building every truncation?

Both sides in one run, one BLAS thread, minimum of several, on captured P and V of a pretrained
model: the closed-form curves of all n ranks from one decomposition, and the loop that people write,
one SVD with vectors and then P_k and its two errors for every k. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
import torch

from analyses._timing import interleaved, listed, ratio
from rankscope.capture import capture
from rankscope.linalg import one_blas_thread
from rankscope.models import load
from rankscope.text import load_corpus, windows
from rankscope.truncation import decompose, error_curves


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m analyses benchmark_truncation", description=__doc__
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--heads", type=int, default=6, help="spread over all layers")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    model = load(options.model)
    window = windows(load_corpus(options.corpus), model.tokenizer, length=options.length, count=1)
    found = [(one.weights[0], one.values[0]) for one in capture(model, window)]
    weights = torch.cat([pair[0] for pair in found]).double()
    values = torch.cat([pair[1] for pair in found]).double()
    every = max(1, len(weights) // options.heads)
    weights, values = weights[::every], values[::every]
    curves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def explicit() -> None:
        curves["explicit"] = [_explicit(p, v) for p, v in zip(weights, values, strict=True)]

    def closed() -> None:
        curves["closed"] = [_closed(p, v) for p, v in zip(weights, values, strict=True)]

    with one_blas_thread():
        closed()
        times = interleaved({"explicit": explicit, "closed": closed}, options.repeats)
    count = len(weights)
    difference = max(
        float(np.abs(ours - theirs).max())
        for mine, loop in zip(curves["closed"], curves["explicit"], strict=True)
        for ours, theirs in zip(mine, loop, strict=True)
    )
    speed = ratio(times["explicit"], times["closed"])
    n = weights.shape[-1]
    print(f"{count} captured matrices of {n} × {n} and their values, {options.model}")
    print(times["explicit"].line(f"explicit, {n} ranks", count))
    print(times["closed"].line("closed form, all ranks", count))
    print(f"closed form: {speed[0]:.1f} times as fast ({speed[1]:.1f} … {speed[2]:.1f})")
    print(f"largest difference of a relative error: {difference:.1e}")
    print(
        json.dumps(
            {
                "benchmark": "truncation",
                "n": n,
                "matrices": count,
                "speed": listed(speed),
                "milliseconds_a_matrix": listed([1e3 * times["closed"].best / count]),
                "largest_difference": difference,
            }
        )
    )


def _closed(weights: torch.Tensor, value: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    curves = error_curves(decompose(weights), value)
    assert curves.output is not None
    return curves.frobenius.numpy(), curves.output.numpy()


def _explicit(weights: torch.Tensor, value: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """P_k and its errors for every k, as the definitions read."""
    u, sigma, vh = torch.linalg.svd(weights, full_matrices=False)
    whole, product = weights.norm(), (weights @ value).norm()
    matrix, output = [], []
    for k in range(1, len(sigma) + 1):
        difference = weights - (u[:, :k] * sigma[:k]) @ vh[:k]
        matrix.append(float(difference.norm() / whole))
        output.append(float((difference @ value).norm() / product))
    return np.array(matrix), np.array(output)
