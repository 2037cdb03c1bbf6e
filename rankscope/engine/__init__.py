"""A run: windows in, what was measured of every head out, through a store that can be resumed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.atomic import remove
from rankscope.engine.machine import estimate, free_memory
from rankscope.engine.measure_losses import InterventionPlan
from rankscope.engine.measure_methods import ComparisonPlan
from rankscope.engine.measure_spectra import SpectraPlan
from rankscope.engine.measure_truncation import TruncationPlan
from rankscope.engine.plan import Plan
from rankscope.engine.recipe import Recipe, Sampling
from rankscope.exceptions import MemoryLimit, RankscopeError, StoreError
from rankscope.linalg import Workers
from rankscope.store import RunStore, working_path
from rankscope.store.files import check_target, load

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.approximations import Approximation
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

__all__ = [
    "ComparisonPlan",
    "InterventionPlan",
    "Plan",
    "Progress",
    "Recipe",
    "Sampling",
    "SpectraPlan",
    "TruncationPlan",
    "estimate",
    "execute",
    "free_memory",
    "losses",
    "method_errors",
    "run",
    "spectra",
    "truncation_errors",
]

Progress = Callable[[int, int], None]


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
    return _in_memory(SpectraPlan(model, corpus, recipe or Recipe()), model, workers, progress)


def truncation_errors(
    model: LoadedModel,
    corpus: Corpus,
    sampling: Sampling | None = None,
    ranks: Sequence[int] | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Errors of P_low for every k, window, layer and head, in memory.

    Parameters
    ----------
    model, corpus : LoadedModel, Corpus
    sampling : Sampling, optional
    ranks : sequence of int, optional
        Where P_low itself is built: negative mass, row sums, the clipped variant.
    workers, progress
        As for :func:`spectra`.

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, layer, head, index and rank;
        see :data:`rankscope.engine.measure_truncation.TRUNCATION`.
    """
    plan = TruncationPlan(model, corpus, sampling or Sampling(), ranks)
    return _in_memory(plan, model, workers, progress)


def method_errors(
    model: LoadedModel,
    corpus: Corpus,
    methods: Sequence[Approximation],
    sampling: Sampling | None = None,
    *,
    spectral: bool = True,
    workers: int = 1,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Errors of methods on every window, layer and head, in memory.

    Parameters
    ----------
    model, corpus : LoadedModel, Corpus
    methods : sequence of Approximation
    sampling : Sampling, optional
    spectral : bool
        Whether the spectral error is computed too.
    workers, progress
        As for :func:`spectra`.

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, layer, head, method. Select one with
        ``dataset.sel({"method": name})``: ``sel(method=…)`` is xarray's own keyword.
    """
    plan = ComparisonPlan(model, corpus, sampling or Sampling(), methods, spectral)
    return _in_memory(plan, model, workers, progress)


def losses(
    model: LoadedModel,
    corpus: Corpus,
    methods: Sequence[Approximation],
    sampling: Sampling | None = None,
    *,
    mask_seed: int = 0,
    fraction: float = 0.15,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Loss of a model with its attention replaced by each method, in memory.

    Parameters
    ----------
    model : LoadedModel
        Loaded with ``head=True``; without a head its hidden states are compared.
    corpus : Corpus
    methods : sequence of Approximation
    sampling : Sampling, optional
        Its layers are those that are replaced.
    mask_seed, fraction
        Of the hidden tokens.
    progress : callable, optional

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, method; the first method is full attention.
    """
    plan = InterventionPlan(
        model, corpus, sampling or Sampling(), methods, mask_seed=mask_seed, fraction=fraction
    )
    return _in_memory(plan, model, 1, progress)


def _in_memory(
    plan: Plan, model: LoadedModel, workers: int, progress: Progress | None
) -> xr.Dataset:
    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        target = Path(folder) / "run.zarr"
        execute(plan, model, target, workers=workers, progress=progress)
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
        Whether a target, or a stopped run beside it, of other settings may be replaced.
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
    plan = SpectraPlan(model, corpus, recipe or Recipe())
    return execute(
        plan,
        model,
        target,
        workers=workers,
        progress=progress,
        overwrite=overwrite,
        memory_limit=memory_limit,
    )


def execute(
    plan: Plan,
    model: LoadedModel,
    target: str | Path,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    overwrite: bool = False,
    memory_limit: int | None = None,
) -> Path:
    """Compute what a plan holds into a file, window by window.

    Parameters
    ----------
    plan : Plan
    model : LoadedModel
        The one that the plan was made for.
    target, workers, progress, overwrite, memory_limit
        As for :func:`run`.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    RankscopeError
        As :func:`run`.
    """
    target = Path(target)
    pool = Workers(workers)
    if target.exists() and not overwrite and _holds(target, plan.settings_hash):
        return target
    check_target(target, attrs=plan.schema.attrs, overwrite=overwrite)
    needed = plan.estimate(model, workers)
    if memory_limit is not None and needed > memory_limit:
        raise MemoryLimit(
            f"the run needs about {needed / 2**20:.0f} MiB beside the model, "
            f"{memory_limit / 2**20:.0f} MiB are allowed",
            "use fewer workers or shorter windows",
        )
    plan.trial(model)
    store = _store(plan, working_path(target), overwrite)
    done = store.done()
    todo = [sample for sample in range(len(done)) if not done[sample]]
    finished = len(done) - len(todo)
    if progress is not None:
        progress(finished, len(done))
    try:
        with pool:
            for sample, fields in plan.compute(model, todo, pool):
                store.write(sample, fields)
                finished += 1
                if progress is not None:
                    progress(finished, len(done))
    except RankscopeError:
        # nothing that is worth keeping: the corrected command must not meet it
        if finished == 0:
            store.remove()
        raise
    return store.finish(target, overwrite=overwrite)


def _store(plan: Plan, folder: Path, overwrite: bool) -> RunStore:
    """The store of a run that was stopped, or a new one."""
    if folder.exists():
        try:
            return RunStore.open(folder, plan.settings_hash, recipe=plan.settings)
        except StoreError:
            if not overwrite:
                raise
            remove(folder)
    return RunStore.create(folder, plan.schema)


def _holds(target: Path, wanted: str) -> bool:
    """Whether the target already is the result of these very settings."""
    try:
        with load(target, lazy=True) as dataset:
            return bool(dataset.attrs.get("settings_hash") == wanted)
    except StoreError:
        return False
