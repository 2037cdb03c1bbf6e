"""A run before and while it computes: its windows and layout, and the results of one window."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope import rank
from rankscope.capture import Attention, capture
from rankscope.capture.attention import check_matrix, row_entropy
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

# layers whose decomposition may be under way at once: one at work, one waiting for a free worker
_IN_FLIGHT = 2


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
        )
        waiting: deque[tuple[int, WindowResult, Callable[[], None]]] = deque()
        current: WindowResult | None = None
        # closing: an error or an interrupt here must not leave the model borrowed
        with closing(stream):  # type: ignore[type-var]
            for attention in stream:
                sample = alive[attention.samples[0]]
                if current is None or current.sample != sample:
                    current = WindowResult(self, sample)
                waiting.append((sample, current, current.start(attention, pool)))
                del attention
                while len(waiting) >= _IN_FLIGHT:
                    yield from self._collect(waiting)
            while waiting:
                yield from self._collect(waiting)

    @staticmethod
    def _collect(
        waiting: deque[tuple[int, WindowResult, Callable[[], None]]],
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        sample, window, collect = waiting.popleft()
        collect()
        if not any(other is window for _, other, _ in waiting) and window.complete:
            yield sample, window.fields()


class WindowResult:
    """Results of one window, filled layer by layer."""

    def __init__(self, plan: Plan, sample: int) -> None:
        self.plan = plan
        self.sample = sample
        self.size = int(plan.sizes[sample])
        shape = (len(plan.layers), plan.schema.n_heads)
        curve = (*shape, plan.schema.n_index)
        self.values = np.full(curve, np.nan)
        self.centred = np.full(curve, np.nan) if plan.recipe.centred else None
        self.entropy = np.full(shape, np.nan)
        self.status = np.full(shape, Status.empty, dtype=np.int8)
        self.eps = float(np.finfo(np.float32).eps)
        self.left = set(plan.layers)

    @property
    def complete(self) -> bool:
        return not self.left

    def start(self, attention: Attention, pool: Workers) -> Callable[[], None]:
        """Send one layer to the workers; the result waits for them and files what they found."""
        place = self.plan.layers.index(attention.layer)
        count = attention.n_heads
        self.eps = float(torch.finfo(torch.promote_types(attention.query.dtype, torch.float32)).eps)

        def matrix(head: int) -> torch.Tensor:
            found = attention.matrix(0, head)
            check_matrix(found, attention, head)
            return found

        def measured(head: int) -> torch.Tensor:
            found = matrix(head)
            self.entropy[place, head] = row_entropy(found)
            return found

        options: dict[str, Any] = {
            "driver": self.plan.recipe.driver,
            "device": attention.query.device,
        }
        raw = pool.submit(measured, count, attention.shape, **options)
        centred: Callable[[], Spectrum] | None = None
        if self.centred is not None:
            centred = pool.submit(matrix, count, attention.shape, centred=True, **options)

        def collect() -> None:
            found = raw()
            width = found.singular_values.shape[-1]
            self.values[place, :count, :width] = found.singular_values
            self.status[place, :count] = found.status
            if centred is not None and self.centred is not None:
                self.centred[place, :count, :width] = centred().singular_values
            self.left.discard(attention.layer)

        return collect

    def fields(self) -> dict[str, Any]:
        """Everything that the store keeps of this window."""
        size = np.full(self.status.shape, self.size)
        usable = np.isin(self.status, [Status.ok, Status.fallback, Status.refined])
        spectra = np.where(usable[..., None], self.values, np.nan)
        tolerance = self.size * self.eps
        fields: dict[str, Any] = {
            "singular_value": self.values,
            "cumulative_ratio": rank.cumulative_ratio(spectra, size),
            "energy_ratio": rank.energy_ratio(spectra, size),
            "row_entropy": np.where(usable, self.entropy, np.nan),
            "effective_rank": rank.effective_rank(spectra, size),
            "stable_rank": rank.stable_rank(spectra, size),
            "spectral_gap": rank.spectral_gap(spectra, size),
            "numerical_rank": rank.numerical_rank(spectra, min(tolerance, 0.5), size),
            "rank_90": rank.rank_at(spectra, 0.9, size),
            "n_tokens": np.int32(self.size),
            "status": self.status,
        }
        if self.centred is not None:
            fields["centred_singular_value"] = self.centred
        return fields


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
