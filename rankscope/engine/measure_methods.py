"""Approximations side by side: the errors of every method on every window, layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.approximations import Approximation, Shape
from rankscope.approximations.truncated import KEPT_BYTES
from rankscope.attention import Attention, check_matrix
from rankscope.engine.frame import Frame
from rankscope.engine.machine import hidden_states
from rankscope.engine.plan import LayerPlan, WindowResult
from rankscope.engine.recipe import Sampling
from rankscope.errors import MATRIX_MEASURES, OUTPUT_MEASURES, matrix_errors, output_errors
from rankscope.exceptions import UsageError
from rankscope.linalg import Workers
from rankscope.status import Status
from rankscope.store.schema import MATRIX, WINDOW, Variables

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window

ERRORS: Variables = {
    **{
        name: ((*MATRIX, "method"), "float64", what)
        for name, what in {**MATRIX_MEASURES, **OUTPUT_MEASURES}.items()
    },
    "n_tokens": (WINDOW, "int32", "size n of the window's matrices"),
    "status": (MATRIX, "int8", "what became of the matrix"),
}
"""Variables of a comparison."""


class ComparisonPlan(LayerPlan):
    """Errors of several methods on every window, layer and head.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    sampling : Sampling
    methods : sequence of Approximation
        Each is checked against the model and the windows before anything is computed.
    spectral : bool
        Whether the spectral error of the matrix is computed too, the dearest of them.
    """

    values = True

    def __init__(
        self,
        model: LoadedModel,
        corpus: Corpus,
        sampling: Sampling,
        methods: Sequence[Approximation],
        spectral: bool = True,
    ) -> None:
        self.frame = Frame.of(model, corpus, sampling)
        self.methods = checked_methods(methods, self.frame.shape)
        self.spectral = spectral
        self.schema = self.frame.schema(
            "errors of approximated attention",
            ERRORS,
            {"method": np.array([str(one) for one in self.methods])},
            labels=method_labels(self.methods),
            settings={"comparison": {"methods": recorded(self.methods), "spectral": spectral}},
        )

    def trial(self, model: LoadedModel) -> None:
        self.frame.try_methods(model, self.methods)

    def estimate(self, model: LoadedModel, threads: int) -> int:
        n, heads = self.frame.length, self.frame.n_heads
        # P once; for each method at work its matrix and what it is made from; of one head, in
        # float64, both matrices, their difference and logarithms; one decomposition is kept
        layer = heads * n * n * 4
        kept = min(2 * heads * n * n * 8, KEPT_BYTES)
        one_head = 8 * n * n * 8
        return layer + threads * (3 * layer + one_head) + kept + hidden_states(model, n)

    def holding(self, windows: Mapping[int, Window]) -> ComparisonPlan:
        part = super().holding(windows)
        assert isinstance(part, ComparisonPlan)
        part.methods = tuple(with_whole_paths(one) for one in self.methods)
        return part

    def add(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> None:
        (result,) = results
        exact = attention.weights
        for head in range(attention.n_heads):
            check_matrix(exact[0, head], attention, head)
        output = exact @ attention.values
        good = torch.isfinite(exact).flatten(2).all(dim=-1) & torch.isfinite(output).flatten(2).all(
            dim=-1
        )

        def measure(number: int) -> dict[str, torch.Tensor]:
            method = self.methods[number]
            found = output_errors(output, method.apply(attention))
            if method.linear:
                implied = method.matrix(attention)
                # head by head: in float64 a whole layer would be several times as large
                heads = [
                    matrix_errors(exact[:, head], implied[:, head], spectral=self.spectral)
                    for head in range(attention.n_heads)
                ]
                found |= {
                    name: torch.stack([one[name] for one in heads], dim=1) for name in heads[0]
                }
            return found

        if attention.query.device.type == "cpu":
            measured = pool.map(measure, len(self.methods))
        else:
            measured = [measure(number) for number in range(len(self.methods))]
        status = np.where(good[0].cpu().numpy(), Status.ok, Status.non_finite).astype(np.int8)
        arrays: dict[str, NDArray[Any]] = {"status": status}
        for name in {**MATRIX_MEASURES, **OUTPUT_MEASURES}:
            rows = np.full((attention.n_heads, len(self.methods)), np.nan)
            for number, found in enumerate(measured):
                if name in found:
                    rows[:, number] = found[name][0].cpu().numpy()
            rows[status != Status.ok] = np.nan
            arrays[name] = rows
        result.file(place, arrays)


def checked_methods(methods: Sequence[Approximation], shape: Shape) -> tuple[Approximation, ...]:
    """The methods of a run, each once, all of them fit for its model and windows.

    Raises
    ------
    UsageError, MethodError
    """
    if not methods:
        raise UsageError("no method was given", "name one or more, such as truncated:k=128")
    found = tuple(dict.fromkeys(methods))
    for method in found:
        method.check(shape)
    return found


def with_whole_paths(method: Approximation) -> Approximation:
    """The same method, with the files that it reads named from the root."""
    found: dict[str, Any] = {}
    for one in fields(method):
        value = getattr(method, one.name)
        if isinstance(value, Path):
            found[one.name] = value.absolute()
        elif isinstance(value, Approximation):
            found[one.name] = with_whole_paths(value)
    return replace(method, **found)


def recorded(methods: Sequence[Approximation]) -> list[dict[str, Any]]:
    """The methods' settings as a run keeps them."""
    return [method.settings() for method in methods]


def method_labels(methods: Sequence[Approximation]) -> dict[str, tuple[str, NDArray[Any]]]:
    """Coordinates on the dimension method: its family, its text without budget, its budget."""
    budgets = [budget_of(method) for method in methods]
    return {
        "family": ("method", np.array([method.name for method in methods])),
        "label": ("method", np.array([label_of(method) for method in methods])),
        "budget": ("method", np.array(budgets, dtype=np.int64)),
    }


def budget_of(method: Approximation) -> int:
    """The budget as one number; 0 for a method that has none, or one for each layer or head."""
    value = getattr(method, method.budget) if method.budget else 0
    return value if isinstance(value, int) else 0


def label_of(method: Approximation) -> str:
    """The method's text without its budget: what methods of one curve have in common.

    Examples
    --------
    >>> from rankscope.approximations import method
    >>> label_of(method("truncated:k=128,rows=clipped"))
    'truncated:rows=clipped'
    """
    name, _, rest = str(method).partition(":")
    if not budget_of(method):
        return str(method)
    parts = [part for part in rest.split(",") if part.partition("=")[0] != method.budget]
    return f"{name}:{','.join(parts)}" if parts else name
