"""A run: windows in, spectra of every head out, through a store that survives being stopped."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope import rank
from rankscope.capture import capture
from rankscope.capture.attention import Attention, check_matrix, check_special, row_entropy
from rankscope.capture.roads import expected_layers, layer_reach
from rankscope.exceptions import MemoryLimit, StoreError, UsageError
from rankscope.linalg import Spectrum, Workers, check_driver
from rankscope.status import Status
from rankscope.store import RunStore, working_path
from rankscope.store.files import check_target, load
from rankscope.store.schema import RunSchema, canonical_json, settings_hash
from rankscope.text import windows as cut_windows

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window

Progress = Callable[[int, int], None]

# layers whose decomposition may be under way at once: one at work, one waiting for a free worker
_IN_FLIGHT = 2


@dataclass(frozen=True)
class Recipe:
    """What is measured, and how; stored with every result.

    P is taken after the softmax, its singular values (not eigenvalues) uncentred, one decomposition
    for every window, layer and head; curves are averaged afterwards, never the matrices.

    Attributes
    ----------
    length : int
        Tokens of a window, special tokens included.
    windows : int or None
        How many; all that the corpus holds when None.
    mode : {"packed", "document", "overlap"}
    overlap : int
        Tokens that neighbouring windows share, in the mode of that name.
    special : {"keep", "drop", "renormalise"}
        Treatment of special tokens.
    group : {"encoder", "decoder", "cross"} or None
        Which attention of a model that has several; None means its first.
    layers : tuple of int or None
    driver : {"gram", "svd"}
    centred : bool
        Also the spectrum of P less its mean row.
    """

    length: int = 512
    windows: int | None = 8
    mode: str = "packed"
    overlap: int = 0
    special: str = "keep"
    group: str | None = None
    layers: tuple[int, ...] | None = None
    driver: str = "gram"
    centred: bool = False

    def __post_init__(self) -> None:
        check_special(self.special)
        check_driver(self.driver)


def spectra(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Spectra of every head, in memory; for runs that fit (8 windows of 12×12 heads: 15 MB).

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    recipe : Recipe, optional
    workers : int
        Threads; the result does not depend on it.
    progress : callable, optional
        Called with windows done and windows in all.

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, layer, head, index; see :mod:`rankscope.store`.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        target = Path(folder) / "run.zarr"
        run(model, corpus, recipe, target, workers=workers, progress=progress)
        return load(target)


def run(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe | None,
    target: str | Path,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    overwrite: bool = False,
    memory_limit: int | None = None,
) -> Path:
    """Spectra of every head into a file, window by window.

    A run that was stopped goes on from the folder beside its target; memory does not grow with the
    number of windows. A target that already holds the same settings is left as it is.

    Parameters
    ----------
    model, corpus, recipe, workers, progress
        As for :func:`spectra`.
    target : path
        ``.nc``, ``.zarr``, ``.csv`` or ``.parquet``.
    overwrite : bool
        Whether a target of other settings may be replaced.
    memory_limit : int, optional
        Bytes that the run may need beside the loaded model; checked against the estimate before
        it starts.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    RankscopeError
        Of a kind that tells what is wrong with windows, model, memory or target.
    """
    recipe = recipe or Recipe()
    target = Path(target)
    pool = Workers(workers)
    plan = _Plan.of(model, corpus, recipe)
    if target.exists() and not overwrite and _holds(target, plan.settings_hash):
        return target
    check_target(target, attrs=plan.schema.attrs, overwrite=overwrite)
    needed = estimate(model, recipe, workers)
    if memory_limit is not None and needed > memory_limit:
        raise MemoryLimit(
            f"the run needs about {needed / 2**20:.0f} MiB beside the model, "
            f"{memory_limit / 2**20:.0f} MiB are allowed",
            "use fewer workers or shorter windows",
        )
    folder = working_path(target)
    store = (
        RunStore.open(folder, plan.settings_hash, recipe=plan.settings)
        if folder.exists()
        else RunStore.create(folder, plan.schema)
    )
    done = store.done()
    todo = [sample for sample in range(len(plan.windows)) if not done[sample]]
    finished = len(plan.windows) - len(todo)
    if progress is not None:
        progress(finished, len(plan.windows))
    with pool:
        for sample, fields in plan.compute(model, todo, pool):
            store.write(sample, fields)
            finished += 1
            if progress is not None:
                progress(finished, len(plan.windows))
    return store.finish(target, overwrite=overwrite)


def estimate(model: LoadedModel, recipe: Recipe, workers: int) -> int:
    """Memory that a run needs beside the loaded model, in bytes; the number of windows is no part.

    Parameters
    ----------
    model : LoadedModel
    recipe : Recipe
    workers : int

    Returns
    -------
    int
        Estimate: what each worker holds of one matrix at a time, two layers of query, key and
        value, the hidden states of the forward pass, and the spectra of one window.
    """
    config = model.model.config.get_text_config()
    n = recipe.length
    hidden = int(getattr(config, "hidden_size", None) or config.d_model)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    width = torch.finfo(model.model.dtype).bits // 8
    # scores, softmax and sorted copy in float32; the matrix and its Gram matrix in float64
    matrices = workers * n * n * (3 * 4 + 2 * 8)
    states = n * width * (3 * 3 * hidden + 4 * hidden + 2 * inner)
    curves = model.info.n_layers * model.info.n_heads * n * 8 * (4 if recipe.centred else 3)
    return matrices + states + 2 * curves


@dataclass(frozen=True)
class _Plan:
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
    def of(cls, model: LoadedModel, corpus: Corpus, recipe: Recipe) -> _Plan:
        from rankscope.models import check_length

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
            yield sample, _Window(self, sample).fields()
        if not alive:
            return
        stream = capture(
            model,
            [self.windows[sample] for sample in alive],
            layers=self.layers,
            group=self.group,  # type: ignore[arg-type]
            special=self.recipe.special,  # type: ignore[arg-type]
        )
        waiting: deque[tuple[int, _Window, Callable[[], None]]] = deque()
        current: _Window | None = None
        # closing: an error or an interrupt here must not leave the model borrowed
        with closing(stream):  # type: ignore[type-var]
            for attention in stream:
                sample = alive[attention.samples[0]]
                if current is None or current.sample != sample:
                    current = _Window(self, sample)
                waiting.append((sample, current, current.start(attention, pool)))
                del attention
                while len(waiting) >= _IN_FLIGHT:
                    yield from self._collect(waiting)
            while waiting:
                yield from self._collect(waiting)

    @staticmethod
    def _collect(
        waiting: deque[tuple[int, _Window, Callable[[], None]]],
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        sample, window, collect = waiting.popleft()
        collect()
        if not any(other is window for _, other, _ in waiting) and window.complete:
            yield sample, window.fields()


class _Window:
    """Results of one window, filled layer by layer."""

    def __init__(self, plan: _Plan, sample: int) -> None:
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


def _holds(target: Path, wanted: str) -> bool:
    """Whether the target already is the result of these very settings."""
    try:
        with load(target, lazy=True) as dataset:
            return bool(dataset.attrs.get("settings_hash") == wanted)
    except StoreError:
        return False


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


def free_memory() -> int:
    """Bytes that a run may take on this machine now: nine tenths of what is available."""
    import psutil

    return int(psutil.virtual_memory().available * 0.9)
