"""Truncation of every head: the error of P_low for every rank, and its side effects at some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from rankscope.attention import Attention, check_matrix
from rankscope.engine.frame import Frame
from rankscope.engine.machine import hidden_states
from rankscope.engine.plan import LayerPlan, WindowResult
from rankscope.engine.recipe import Sampling
from rankscope.errors import matrix_errors, output_errors
from rankscope.exceptions import UsageError
from rankscope.linalg import Workers
from rankscope.store.schema import CURVE, MATRIX, WINDOW, Variables
from rankscope.truncation import clip_and_renormalise, decompose, error_curves

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

AT_RANK = (*MATRIX, "rank")

TRUNCATION: Variables = {
    "frobenius_error": (CURVE, "float64", "relative Frobenius error of the rank-k truncation"),
    "spectral_error": (CURVE, "float64", "relative spectral error of the rank-k truncation"),
    "nuclear_error": (CURVE, "float64", "relative nuclear error of the rank-k truncation"),
    "output_error": (CURVE, "float64", "relative Frobenius error of the output at rank k"),
    "output_bound": (CURVE, "float64", "the least relative error of any output of rank k"),
    "output_norm": (MATRIX, "float64", "Frobenius norm of the output"),
    "mean_row_error": (MATRIX, "float64", "relative Frobenius error of the mean row alone"),
    "mean_row_output_error": (MATRIX, "float64", "the same for the output"),
    "negative_mass": (AT_RANK, "float64", "mean sum of the negative entries of a row"),
    "row_sum_drift": (AT_RANK, "float64", "largest distance of a row sum from that of P"),
    "clipped_frobenius_error": (AT_RANK, "float64", "Frobenius error, clipped and renormalised"),
    "clipped_output_error": (AT_RANK, "float64", "output error, clipped and renormalised"),
    "n_tokens": (WINDOW, "int32", "size n of the window's matrices"),
    "status": (MATRIX, "int8", "what became of the matrix"),
}
"""Variables of a run of truncations."""

RANKS = (16, 32, 64, 128, 256)


class TruncationPlan(LayerPlan):
    """Errors of P_low of every window, layer and head.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    sampling : Sampling
    ranks : sequence of int, optional
        Where P_low itself is built: its negative mass, row sums and clipped variant. Those above
        the longest window are left out when none are given, and refused when they are.
    """

    values = True

    def __init__(
        self,
        model: LoadedModel,
        corpus: Corpus,
        sampling: Sampling,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.frame = Frame.of(model, corpus, sampling)
        self.ranks = _ranks(ranks, self.frame.length)
        self.schema = self.frame.schema(
            "errors of truncated attention matrices",
            TRUNCATION,
            {
                "index": np.arange(1, self.frame.length + 1),
                "rank": np.array(self.ranks, dtype=np.int64),
            },
            settings={"truncation": {"ranks": list(self.ranks)}},
        )

    def estimate(self, model: LoadedModel, threads: int) -> int:
        n = self.frame.length
        # P, its square, two sets of vectors, P_k, its clipped copy and differences, in float64
        curves = 5 * len(self.frame.layers) * self.frame.n_heads * n * 8
        return threads * 10 * n * n * 8 + hidden_states(model, n) + 2 * curves

    def add(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> None:
        (result,) = results
        if attention.query.device.type == "cpu":
            found = pool.map(lambda head: self._measure(attention, head), attention.n_heads)
        else:
            found = [self._measure(attention, head) for head in range(attention.n_heads)]
        result.file(place, {name: np.stack([one[name] for one in found]) for name in found[0]})

    def _measure(self, attention: Attention, head: int) -> dict[str, np.ndarray]:
        exact = attention.matrix(0, head)
        check_matrix(exact, attention, head)
        value = attention.values[0, head].to(torch.float64)
        whole = decompose(exact)
        curves = error_curves(whole, value)
        named = {
            "frobenius_error": curves.frobenius,
            "spectral_error": curves.spectral,
            "nuclear_error": curves.nuclear,
            "output_error": curves.output,
            "output_bound": curves.output_bound,
            "output_norm": curves.output_norm,
            "mean_row_error": curves.mean_row,
            "mean_row_output_error": curves.mean_row_output,
            "status": whole.status,
        }
        found = {name: one.cpu().numpy() for name, one in named.items() if one is not None}
        # a rank beyond the matrix' own leaves no error; what is not there is not NaN but 0
        short = len(self.schema.axes["index"]) - found["output_error"].shape[0]
        for name in ("frobenius", "spectral", "nuclear", "output"):
            found[f"{name}_error"] = _padded(found[f"{name}_error"], short)
        found["output_bound"] = _padded(found["output_bound"], short)
        at_rank: dict[str, list[float]] = defaultdict(list)
        product = whole.matrix @ value
        for k in self.ranks:
            low = whole.truncate(k)
            raw = matrix_errors(whole.matrix, low, spectral=False)
            clipped = clip_and_renormalise(low)
            at_rank["negative_mass"].append(float(raw["negative_mass"]))
            at_rank["row_sum_drift"].append(float(raw["row_sum_drift"]))
            after = matrix_errors(whole.matrix, clipped, spectral=False)
            at_rank["clipped_frobenius_error"].append(float(after["frobenius"]))
            error = output_errors(product, clipped @ value)["output"]
            at_rank["clipped_output_error"].append(float(error))
        return found | {name: np.array(numbers) for name, numbers in at_rank.items()}


def _padded(curve: np.ndarray, short: int) -> np.ndarray:
    """A curve with zeros for the ranks beyond the matrix; NaN stays NaN."""
    return np.concatenate([curve, np.zeros(short) + 0 * curve[-1:]]) if short else curve


def _ranks(ranks: Sequence[int] | None, length: int) -> tuple[int, ...]:
    if ranks is None:
        return tuple(k for k in RANKS if k <= length) or (length,)
    chosen = tuple(sorted(set(ranks)))
    if not chosen or chosen[0] < 1 or chosen[-1] > length:
        raise UsageError(
            f"ranks {', '.join(map(str, chosen)) or 'none'} do not fit windows of {length} tokens",
            f"use ranks from 1 to {length}",
        )
    return chosen
