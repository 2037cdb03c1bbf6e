"""A run: windows in, spectra of every head out, through a store that survives being stopped."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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
from rankscope.exceptions import MemoryLimit, StoreError
from rankscope.linalg import Workers
from rankscope.store import RunStore, working_path
from rankscope.store.files import check_target, load

if TYPE_CHECKING:
    import xarray as xr

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
    "run",
    "spectra",
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
    store = _store(plan, working_path(target), overwrite)
    done = store.done()
    todo = [sample for sample in range(len(done)) if not done[sample]]
    finished = len(done) - len(todo)
    if progress is not None:
        progress(finished, len(done))
    with pool:
        for sample, fields in plan.compute(model, todo, pool):
            store.write(sample, fields)
            finished += 1
            if progress is not None:
                progress(finished, len(done))
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
