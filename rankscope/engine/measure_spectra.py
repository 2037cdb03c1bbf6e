"""Spectra: singular values of every head, their ratios and what they sum up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope import rank
from rankscope.attention import (
    Attention,
    check_matrix,
    check_measures,
    row_entropy,
    row_measures,
)
from rankscope.controls import (
    MATRIX_CONTROLS,
    control_matrix,
    mean_matrix,
    shortened,
    shuffled_tokens,
)
from rankscope.engine.frame import Frame
from rankscope.engine.machine import estimate
from rankscope.engine.measure_means import group_bytes, in_groups
from rankscope.engine.plan import Filing, LayerPlan, WindowResult
from rankscope.engine.recipe import Recipe
from rankscope.linalg import Spectrum, Workers
from rankscope.status import Status
from rankscope.store.schema import CENTRED, SPECTRA
from rankscope.summary.precision import Precision

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window


class SpectraPlan(LayerPlan):
    """Singular values of every window, layer and head; with the control ``mean-M`` of every group.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    recipe : Recipe
    """

    batched = True

    def __init__(self, model: LoadedModel, corpus: Corpus, recipe: Recipe) -> None:
        self.recipe = recipe
        padded_to = recipe.length if recipe.padded else None
        self.frame = Frame.of(model, corpus, recipe, edit=_edit(recipe), padded_to=padded_to)
        what = "attention matrices"
        if recipe.mean is not None:
            self.frame = in_groups(self.frame, recipe.mean)
            what = f"means of {recipe.mean} attention matrices"
        self.schema = self.frame.schema(
            f"singular values of {what}",
            {**SPECTRA, **CENTRED} if recipe.centred else SPECTRA,
            {"index": np.arange(1, self.frame.length + 1)},
            attrs={"spectrum_dtype": "float64"}
            | ({"control": recipe.control} if recipe.control else {}),
        )

    def estimate(self, model: LoadedModel, threads: int) -> int:
        needed = estimate(model, self.recipe, threads)
        if self.recipe.mean is not None:
            needed += group_bytes(model, self.recipe.length, self.recipe.mean, threads)
        return needed

    def check_control(self, control: str) -> None:
        """Refuse a control that the windows of this run cannot have, before they are measured.

        Parameters
        ----------
        control : str
            As for :class:`Recipe`.

        Raises
        ------
        UsageError
        """
        recipe = replace(self.recipe, control=control, precision=None)
        if recipe.mean is not None:
            in_groups(self.frame, recipe.mean)

    def rule(self) -> Precision | None:
        if self.recipe.precision is None:
            return None
        return Precision(
            len(self.frame.layers),
            self.frame.n_heads,
            width=self.recipe.precision,
            texts=len({window.text_id for window in self.frame.windows.values()}),
        )

    def add(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> Filing | None:
        if self.recipe.control in MATRIX_CONTROLS:
            self._add_control(results, place, attention, pool)
            return None
        if self.recipe.mean is not None:
            self._add_mean(results, place, attention, pool)
            return None
        if attention.query.device.type != "cpu":
            return self._add_later(results, place, attention, pool)
        matrix: Callable[[int], torch.Tensor]
        measured: Callable[[int], torch.Tensor]
        if len(results) > 1:
            # many small matrices are had at once: one by one they would take ten times as long
            whole = attention.weights.flatten(0, 1)
            rows = row_measures(whole, attention.causal).to(torch.float64).numpy()
            check_measures(rows, attention)
            entropy = rows[:, 0]
            matrix = measured = whole.__getitem__
        else:
            # large ones one by one, so that only those at work are alive
            entropy = np.full(attention.n_heads, np.nan)

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
                len(entropy),
                attention.shape,
                driver=self.recipe.driver,  # type: ignore[arg-type]
                centred=centred,
            )

        spectra = [decompose(measured, False)]
        if self.recipe.centred:
            spectra.append(decompose(matrix, True))
        self._file(results, place, attention, spectra, entropy)
        return None

    def _add_mean(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> None:
        """The same of the mean P of a group, whose windows are the rows of the batch."""
        entropy = np.full(attention.n_heads, np.nan)

        def own(row: int, head: int) -> torch.Tensor:
            found = attention.matrix(row, head)
            check_matrix(found, attention, head)
            return found

        def matrix(head: int) -> torch.Tensor:
            rows = range(attention.query.shape[0])
            mean = mean_matrix(own(row, head) for row in rows)
            entropy[head] = row_entropy(mean)
            # in the type of P again: a solver would look for digits that P does not have
            return mean.to("cpu", attention.dtype)

        spectra = self._decomposed(matrix, len(entropy), attention, pool)
        self._file(results, place, attention, spectra, entropy)

    def _decomposed(
        self,
        load: Callable[[int], torch.Tensor],
        count: int,
        attention: Attention,
        pool: Workers,
    ) -> list[Spectrum]:
        """Spectra of matrices in the place of P, each loaded when its turn comes."""
        return [
            pool.decompose(
                load,
                count,
                attention.shape,
                driver=self.recipe.driver,  # type: ignore[arg-type]
                centred=centred,
            )
            for centred in ((False, True) if self.recipe.centred else (False,))
        ]

    def _add_control(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> None:
        """The same of matrices that are drawn, each by the place of the P that it stands for."""
        heads = attention.n_heads
        entropy = np.full(len(results) * heads, np.nan)

        def matrix(number: int) -> torch.Tensor:
            row, head = divmod(number, heads)
            own = attention.matrix(row, head)
            check_matrix(own, attention, head)
            found = control_matrix(
                str(self.recipe.control),
                own,
                attention,
                row=row,
                head=head,
                sample=self.recipe.skip + results[row].sample,
                seed=self.recipe.control_seed,
            ).cpu()
            entropy[number] = row_entropy(found)
            return found

        spectra = self._decomposed(matrix, len(entropy), attention, pool)
        self._file(results, place, attention, spectra, entropy)

    def _add_later(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> Filing:
        """The same on a GPU, which goes on with it while the next layer is captured."""
        heads, rows = attention.n_heads, len(results)

        def matrix(number: int) -> torch.Tensor:
            return attention.matrix(*divmod(number, heads))

        def matrices(start: int, stop: int) -> torch.Tensor:
            if rows == 1:
                return attention.heads(slice(start, stop)).weights[0]
            return torch.stack([matrix(number) for number in range(start, stop)])

        pending = pool.decompose_later(
            matrix,
            rows * heads,
            attention.shape,
            driver=self.recipe.driver,  # type: ignore[arg-type]
            centred=(False, True) if self.recipe.centred else (False,),
            device=attention.query.device,
            load_many=matrices,
            measure=lambda weights: row_measures(weights, attention.causal),
        )

        def file() -> None:
            done = pending.result()
            assert done.measured is not None
            check_measures(done.measured, attention)
            self._file(results, place, attention, done.spectra, done.measured[:, 0])

        return file

    def _file(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        spectra: Sequence[Spectrum],
        entropy: NDArray[np.float64],
    ) -> None:
        size = results[0].size
        tolerance = min(size * torch.finfo(attention.dtype).eps, 0.5)
        found = self._described(spectra[0], entropy, size, tolerance)
        if self.recipe.centred:
            found["centred_singular_value"] = spectra[1].singular_values
        for row, result in enumerate(results):
            own = slice(row * attention.n_heads, (row + 1) * attention.n_heads)
            result.file(place, {name: values[own] for name, values in found.items()})

    def _described(
        self, found: Spectrum, entropy: NDArray[np.float64], size: int, tolerance: float
    ) -> dict[str, NDArray[Any]]:
        """What is kept of matrices of one size, one row each."""
        count, rows = found.singular_values.shape
        values = np.full((count, self.frame.length), np.nan)
        values[:, :rows] = found.singular_values
        usable = np.isin(found.status, [Status.ok, Status.fallback, Status.refined])
        spectra = np.where(usable[:, None], values, np.nan)
        sizes = np.full(count, size)
        return {
            "singular_value": values,
            "status": found.status,
            "cumulative_ratio": rank.cumulative_ratio(spectra, sizes),
            "energy_ratio": rank.energy_ratio(spectra, sizes),
            "row_entropy": np.where(usable, entropy, np.nan),
            "effective_rank": rank.effective_rank(spectra, sizes),
            "stable_rank": rank.stable_rank(spectra, sizes),
            "spectral_gap": rank.spectral_gap(spectra, sizes),
            "numerical_rank": rank.numerical_rank(spectra, tolerance, sizes),
            "rank_90": rank.rank_at(spectra, 0.9, sizes),
        }


def _edit(recipe: Recipe) -> Callable[[Window], Window] | None:
    """What a control does to every window before the model sees it."""
    if recipe.control == "tokens":
        return lambda window: shuffled_tokens(window, recipe.control_seed)
    if recipe.padded is not None:
        length = recipe.padded
        return lambda window: shortened(window, length)
    return None
