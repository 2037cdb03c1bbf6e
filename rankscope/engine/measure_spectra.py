"""Spectra: singular values of every head, their ratios and what they sum up to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope import rank
from rankscope.attention import Attention, check_matrix, row_entropy
from rankscope.engine.frame import Frame
from rankscope.engine.machine import estimate
from rankscope.engine.plan import LayerPlan, WindowResult
from rankscope.engine.recipe import Recipe
from rankscope.linalg import Spectrum, Workers
from rankscope.status import Status
from rankscope.store.schema import CENTRED, SPECTRA

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus


class SpectraPlan(LayerPlan):
    """Singular values of every window, layer and head.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    recipe : Recipe
    """

    def __init__(self, model: LoadedModel, corpus: Corpus, recipe: Recipe) -> None:
        self.recipe = recipe
        self.frame = Frame.of(model, corpus, recipe)
        self.schema = self.frame.schema(
            "singular values of attention matrices",
            {**SPECTRA, **CENTRED} if recipe.centred else SPECTRA,
            {"index": np.arange(1, self.frame.length + 1)},
            attrs={"spectrum_dtype": "float64"},
        )

    def estimate(self, model: LoadedModel, workers: int) -> int:
        return estimate(model, self.recipe, workers)

    def add(self, result: WindowResult, place: int, attention: Attention, pool: Workers) -> None:
        count = attention.n_heads
        tolerance = min(result.size * torch.finfo(attention.dtype).eps, 0.5)
        entropy = np.full(count, np.nan)

        def matrix(head: int) -> torch.Tensor:
            found = attention.matrix(0, head)
            check_matrix(found, attention, head)
            return found

        def measured(head: int) -> torch.Tensor:
            found = matrix(head)
            entropy[head] = row_entropy(found)
            return found

        def decompose(load: Callable[[int], torch.Tensor], centred: bool) -> Spectrum:
            return pool.decompose(
                load,
                count,
                attention.shape,
                driver=self.recipe.driver,  # type: ignore[arg-type]
                centred=centred,
                device=attention.query.device,
            )

        _file(result, place, decompose(measured, False), entropy, tolerance)
        if self.recipe.centred:
            found = decompose(matrix, True).singular_values
            result.file(place, {"centred_singular_value": found})


def _file(
    result: WindowResult,
    place: int,
    found: Spectrum,
    entropy: NDArray[np.float64],
    tolerance: float,
) -> None:
    """Put what was found of one layer in its place."""
    count = len(found.status)
    result.file(place, {"singular_value": found.singular_values, "status": found.status})
    usable = np.isin(found.status, [Status.ok, Status.fallback, Status.refined])
    values = result.fields["singular_value"][place, :count]
    spectra = np.where(usable[:, None], values, np.nan)
    size = np.full(count, result.size)
    result.file(
        place,
        {
            "cumulative_ratio": rank.cumulative_ratio(spectra, size),
            "energy_ratio": rank.energy_ratio(spectra, size),
            "row_entropy": np.where(usable, entropy, np.nan),
            "effective_rank": rank.effective_rank(spectra, size),
            "stable_rank": rank.stable_rank(spectra, size),
            "spectral_gap": rank.spectral_gap(spectra, size),
            "numerical_rank": rank.numerical_rank(spectra, tolerance, size),
            "rank_90": rank.rank_at(spectra, 0.9, size),
        },
    )
