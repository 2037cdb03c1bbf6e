"""A run before and while it computes: its windows and layout, and the results of one window."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope import rank
from rankscope.attention import check_matrix, row_entropy
from rankscope.capture import Attention, capture
from rankscope.capture.roads import expected_layers, layer_reach
from rankscope.engine.recipe import Recipe
from rankscope.exceptions import UsageError
from rankscope.linalg import Spectrum, Workers
from rankscope.models import check_length
from rankscope.status import Status
from rankscope.store.schema import RunSchema, canonical_json, settings_hash
from rankscope.text import windows as cut_windows

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window


@dataclass(frozen=True)
class Plan:
    """Windows, layout and settings of a run, before anything is computed."""

    windows: Sequence[Window]
    sizes: NDArray[np.int64]
    schema: RunSchema
    recipe: Recipe
    group: str
    layers: tuple[int, ...]

    @property
    def settings_hash(self) -> str:
        return str(self.schema.attrs["settings_hash"])

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = json.loads(self.schema.attrs["recipe_json"])
        return settings

    @classmethod
    def of(cls, model: LoadedModel, corpus: Corpus, recipe: Recipe) -> Plan:

        check_length(model.info, recipe.length)
        counts = expected_layers(model.model)
        group = recipe.group or next(iter(counts))
        if group not in counts:
            raise UsageError(
                f"{model.info.name} has no {group} attention", f"one of {', '.join(counts)}"
            )
        layers = tuple(sorted(set(recipe.layers))) if recipe.layers else tuple(range(counts[group]))
        if bad := [layer for layer in layers if not 0 <= layer < counts[group]]:
            raise UsageError(
                f"{model.info.name} has no layer {', '.join(map(str, bad))}",
                f"its {group} has layers 0 to {counts[group] - 1}",
            )
        windows = cut_windows(
            corpus,
            model.tokenizer,
            length=recipe.length,
            count=recipe.windows,
            mode=recipe.mode,
            overlap=recipe.overlap,
        )
        sizes = np.array([_kept(window, recipe) for window in windows])
        reach = layer_reach(model.model)
        heads = model.info.n_heads if group == "encoder" else None
        if heads is None:
            heads = model.info.n_decoder_heads or model.info.n_heads
        schema = RunSchema(
            model=model.info.name,
            corpus=corpus.name,
            n_samples=len(windows),
            layers=layers,
            n_heads=heads,
            n_index=max(1, int(sizes.max())),
            text_id=np.array([window.text_id for window in windows]),
            window=np.array([window.number for window in windows]),
            token_start=np.array([window.start for window in windows]),
            token_end=np.array([window.end for window in windows]),
            layer_attention=tuple("local" if reach.get(i) else "global" for i in layers),
            centred=recipe.centred,
            attrs=_attributes(model, corpus, recipe, group),
        )
        return cls(windows, sizes, schema, recipe, group, layers)

    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Fields of every window of `todo`, as they are done."""
        alive = [sample for sample in todo if self.sizes[sample] > 0]
        for sample in sorted(set(todo) - set(alive)):
            yield sample, WindowResult(self, sample).fields()
        if not alive:
            return
        stream = capture(
            model,
            [self.windows[sample] for sample in alive],
            layers=self.layers,
            group=self.group,  # type: ignore[arg-type]
            special=self.recipe.special,  # type: ignore[arg-type]
            values=False,
        )
        current: WindowResult | None = None
        # closing: an error or an interrupt here must not leave the model borrowed
        with closing(stream):  # type: ignore[type-var]
            for attention in stream:
                sample = alive[attention.samples[0]]
                if current is None or current.sample != sample:
                    current = WindowResult(self, sample)
                # one layer at work; the forward pass prepares the next meanwhile
                current.add(attention, pool)
                del attention
                if current.complete:
                    yield sample, current.fields()


class WindowResult:
    """Results of one window, filled layer by layer."""

    def __init__(self, plan: Plan, sample: int) -> None:
        self.plan = plan
        self.sample = sample
        self.size = int(plan.sizes[sample])
        shape = (len(plan.layers), plan.schema.n_heads)
        curve = (*shape, plan.schema.n_index)
        self.curves = {
            name: np.full(curve, np.nan)
            for name in ("singular_value", "cumulative_ratio", "energy_ratio")
        }
        if plan.recipe.centred:
            self.curves["centred_singular_value"] = np.full(curve, np.nan)
        self.numbers = {
            name: np.full(shape, np.nan)
            for name in (
                *("row_entropy", "effective_rank", "stable_rank", "spectral_gap"),
                *("numerical_rank", "rank_90"),
            )
        }
        self.status = np.full(shape, Status.empty, dtype=np.int8)
        self.left = set(plan.layers)

    @property
    def complete(self) -> bool:
        return not self.left

    def add(self, attention: Attention, pool: Workers) -> None:
        """Let the workers decompose one layer, and file what they find."""
        place = self.plan.layers.index(attention.layer)
        count = attention.n_heads
        computed = torch.promote_types(attention.query.dtype, torch.float32)
        tolerance = min(self.size * torch.finfo(computed).eps, 0.5)
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
                driver=self.plan.recipe.driver,  # type: ignore[arg-type]
                centred=centred,
                device=attention.query.device,
            )

        self._file(place, decompose(measured, False), entropy, tolerance)
        if self.plan.recipe.centred:
            found = decompose(matrix, True).singular_values
            self.curves["centred_singular_value"][place, :count, : found.shape[-1]] = found
        self.left.discard(attention.layer)

    def _file(
        self, place: int, found: Spectrum, entropy: NDArray[np.float64], tolerance: float
    ) -> None:
        """Put what was found of one layer in its place."""
        count, width = found.singular_values.shape
        values = self.curves["singular_value"][place, :count]
        values[:, :width] = found.singular_values
        self.status[place, :count] = found.status
        usable = np.isin(found.status, [Status.ok, Status.fallback, Status.refined])
        spectra = np.where(usable[:, None], values, np.nan)
        size = np.full(count, self.size)
        for name, curve in (
            ("cumulative_ratio", rank.cumulative_ratio(spectra, size)),
            ("energy_ratio", rank.energy_ratio(spectra, size)),
        ):
            self.curves[name][place, :count] = curve
        for name, number in (
            ("row_entropy", np.where(usable, entropy, np.nan)),
            ("effective_rank", rank.effective_rank(spectra, size)),
            ("stable_rank", rank.stable_rank(spectra, size)),
            ("spectral_gap", rank.spectral_gap(spectra, size)),
            ("numerical_rank", rank.numerical_rank(spectra, tolerance, size)),
            ("rank_90", rank.rank_at(spectra, 0.9, size)),
        ):
            self.numbers[name][place, :count] = number

    def fields(self) -> dict[str, Any]:
        """Everything that the store keeps of this window."""
        return {
            **self.curves,
            **self.numbers,
            "n_tokens": np.int32(self.size),
            "status": self.status,
        }


def _kept(window: Window, recipe: Recipe) -> int:
    return window.n_tokens if recipe.special == "keep" else int((~window.special).sum())


def _attributes(
    model: LoadedModel, corpus: Corpus, recipe: Recipe, group: str
) -> Mapping[str, Any]:
    settings = {
        "recipe": asdict(recipe) | {"group": group},
        "model": {
            key: value
            for key, value in model.info.as_dict().items()
            if key not in ("spec", "device", "source")
        },
        "corpus": {
            "name": corpus.name,
            "sha256": corpus.sha256,
            "options": corpus.options.as_dict(),
        },
    }
    computed = torch.promote_types(model.model.dtype, torch.float32)
    stored = model.info.stored_dtype or model.info.dtype
    return {
        "title": "singular values of attention matrices",
        "settings_hash": settings_hash(settings),
        "recipe_json": canonical_json(settings),
        "model_json": canonical_json(model.info.as_dict()),
        "corpus_source": corpus.source,
        "stored_dtype": stored,
        "model_dtype": model.info.dtype,
        "matrix_dtype": str(computed).removeprefix("torch."),
        "spectrum_dtype": "float64",
        "float32_matmul_precision": "highest",
        "device": model.info.device,
        "versions_json": canonical_json(
            {
                name: importlib.metadata.version(name)
                for name in ("rankscope", "torch", "transformers", "numpy", "scipy", "numba")
            }
            | {"python": platform.python_version()}
        ),
    }
