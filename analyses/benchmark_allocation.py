"""How fast is a total rank shared out, and what is it worth?

Real output curves: every head of the pretrained MiniLM on windows of 512 tokens; several windows
stand in for the heads of larger models. The dynamic program is timed against the same in NumPy and
against itself without the bound from the hull, all in one run, minimum of several. Then the total
error at one budget, by head, by layer and uniform, on the window of the choice and on the others.
Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analyses._timing import interleaved, listed, ratio
from rankscope import selection
from rankscope.selection.allocation import by_hull, exact

Figures = dict[str, Any]
Array = npt.NDArray[np.float64]


def main(argv: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m analyses benchmark_allocation", description=__doc__
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--mean", type=int, default=128, help="budget, in ranks a head")
    parser.add_argument("--corpus", default="builtin")
    options = parser.parse_args(argv)
    curves, norms = _curves(options.corpus, options.length)
    figures: Figures = {"benchmark": "allocation", "n": options.length, "mean": options.mean}
    heads = curves.reshape(-1, options.length)
    _first_call(heads)
    for shape in ((12, 12), (24, 16)):
        count = shape[0] * shape[1]
        figures |= _speed(heads[:count], shape, options.mean, options.repeats)
    figures |= _worth(curves, norms, options.mean)
    print(json.dumps(figures))


def _curves(corpus: str, length: int) -> tuple[Array, Array]:
    """Output curves (window, layer, head, k) and norms (window, layer, head) of the MiniLM."""
    from rankscope.capture import capture
    from rankscope.linalg import one_blas_thread
    from rankscope.models import load
    from rankscope.text import load_corpus, windows
    from rankscope.truncation import decompose, error_curves

    model = load("minilm")
    text = windows(load_corpus(corpus), model.tokenizer, length=length, count=6)
    curves = np.zeros((6, 6, 12, length))
    norms = np.zeros((6, 6, 12))
    with one_blas_thread():
        for attention in capture(model, text):
            found = error_curves(decompose(attention.weights), attention.values)
            assert found.output is not None
            assert found.output_norm is not None
            for row, sample in enumerate(attention.samples):
                curves[sample, attention.layer] = found.output[row].numpy()
                norms[sample, attention.layer] = found.output_norm[row].numpy()
    return curves, norms


def _first_call(heads: Array) -> None:
    """Compile, or read the cache of compiled kernels."""
    for narrow in (True, False):
        exact(heads[:2], 8, narrow=narrow)


def _speed(heads: Array, shape: tuple[int, int], mean: int, repeats: int) -> Figures:
    count = len(heads)
    budget, rows = count * mean, np.arange(count)
    found: dict[str, npt.NDArray[np.int64]] = {}
    bound = [0.0]

    def hull() -> None:
        found["hull"], bound[0], _ = by_hull(heads, budget)

    def ours(name: str, narrow: bool) -> None:
        found[name] = exact(heads, budget, narrow=narrow)

    def numpy() -> None:
        found["numpy"] = _in_numpy(heads, budget)

    times = interleaved(
        {
            "numpy": numpy,
            "plain": lambda: ours("plain", False),
            "narrow": lambda: ours("narrow", True),
            "hull": hull,
        },
        repeats,
    )
    errors = {name: float(heads[rows, ranks - 1].sum()) for name, ranks in found.items()}
    gap = errors["hull"] - bound[0]
    # the same optimum on three roads, above the bound and below the greedy one
    slack = 1e-12 * float(heads.sum())
    assert abs(errors["numpy"] - errors["narrow"]) <= slack
    assert abs(errors["plain"] - errors["narrow"]) <= slack
    assert bound[0] - slack <= errors["narrow"] <= errors["hull"] + slack
    name = f"{shape[0]}x{shape[1]}"
    print(f"{shape[0]} × {shape[1]} heads, n = {heads.shape[1]}, budget {count} · {mean}")
    print(times["numpy"].line("dynamic program in NumPy", 1))
    print(times["plain"].line("rankscope, every k", 1))
    print(times["narrow"].line("rankscope, narrowed", 1))
    print(times["hull"].line("greedy on the hull", 1))
    against = {
        "against_numpy": ratio(times["numpy"], times["narrow"]),
        "every_k_against_numpy": ratio(times["numpy"], times["plain"]),
    }
    for label, (best, low, high) in against.items():
        print(f"{label.replace('_', ' ')}: {best:.1f} times ({low:.1f} … {high:.1f})")
    print(
        f"total error {errors['narrow']:.6f}, greedy {errors['hull']:.6f}, "
        f"at most {gap:.1e} from the best"
    )
    return {
        f"{name}_seconds": {key: round(one.best, 5) for key, one in times.items()},
        f"{name}_error": errors["narrow"],
        f"{name}_greedy_gap": gap,
        **{f"{name}_{label}": listed(values) for label, values in against.items()},
    }


def _in_numpy(heads: Array, budget: int) -> npt.NDArray[np.int64]:
    """The same dynamic program over every k, one vector operation for each head and k."""
    n = heads.shape[1]
    best = np.full(budget + 1, np.inf)
    best[0] = 0.0
    chosen = np.zeros((len(heads), budget + 1), np.int16)
    for row, curve in enumerate(heads):
        after = np.full(budget + 1, np.inf)
        for k in range(1, n + 1):
            total = best[: budget + 1 - k] + curve[k - 1]
            better = total < after[k:]
            np.copyto(after[k:], total, where=better)
            chosen[row, k:][better] = k
        best = after
    at = int(np.argmin(best))
    ranks = np.zeros(len(heads), np.int64)
    for row in range(len(heads) - 1, -1, -1):
        ranks[row] = chosen[row, at]
        at -= int(ranks[row])
    return ranks


def _worth(curves: Array, norms: Array, mean: int) -> Figures:
    """Total error, allocated on the first window, there and on the other five."""
    figures: Figures = {}
    budget = curves.shape[1] * curves.shape[2] * mean
    for objective in selection.OBJECTIVES:
        seen = selection.total_error(curves[:1], norms[:1], objective)
        unseen = selection.total_error(curves[1:], norms[1:], objective)
        print(f"total error ({objective}), budget 72 · {mean}: window of the choice, other windows")
        for by in reversed(selection.BY):
            choice = selection.allocate(seen, budget, by)
            held_out = float(selection.errors_at(unseen, choice.ranks).sum())
            span = f"{choice.ranks.min()} … {choice.ranks.max()}"
            print(f"  {by:8} {choice.error:12.5g} {held_out:12.5g}   ranks {span}")
            figures[f"{objective}_{by}"] = [choice.error, held_out]
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
