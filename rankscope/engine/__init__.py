"""A run: windows in, what was measured of every head out, through a store that can be resumed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.callbacks import Progress
from rankscope.engine.execution import Resources, Terminated, execute
from rankscope.engine.machine import estimate, free_memory
from rankscope.engine.measure_losses import InterventionPlan
from rankscope.engine.measure_methods import ComparisonPlan
from rankscope.engine.measure_spectra import SpectraPlan
from rankscope.engine.measure_truncation import TruncationPlan
from rankscope.engine.plan import Plan
from rankscope.engine.recipe import Recipe, Sampling
from rankscope.store.files import load

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
    "Resources",
    "Sampling",
    "SpectraPlan",
    "Terminated",
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


def spectra(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe | None = None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Spectra of every head, in memory; for runs that fit (8 windows of 12×12 heads: 15 MB).

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    recipe : Recipe, optional
    threads : int
        They share the heads of a layer; the result does not depend on it.
    progress : callable, optional
        Called with windows done and windows in all.

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, layer, head, index; see :mod:`rankscope.store`.
    """
    return _in_memory(SpectraPlan(model, corpus, recipe or Recipe()), model, threads, progress)


def truncation_errors(
    model: LoadedModel,
    corpus: Corpus,
    sampling: Sampling | None = None,
    ranks: Sequence[int] | None = None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Errors of P_low for every k, window, layer and head, in memory.

    Parameters
    ----------
    model, corpus : LoadedModel, Corpus
    sampling : Sampling, optional
    ranks : sequence of int, optional
        Where P_low itself is built: negative mass, row sums, the clipped variant.
    threads, progress
        As for :func:`spectra`.

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, layer, head, index and rank;
        see :data:`rankscope.engine.measure_truncation.TRUNCATION`.
    """
    plan = TruncationPlan(model, corpus, sampling or Sampling(), ranks)
    return _in_memory(plan, model, threads, progress)


def method_errors(
    model: LoadedModel,
    corpus: Corpus,
    methods: Sequence[Approximation],
    sampling: Sampling | None = None,
    *,
    spectral: bool = True,
    threads: int = 1,
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
    threads, progress
        As for :func:`spectra`.

    Returns
    -------
    xarray.Dataset
        Dims model, corpus, sample, layer, head, method. Select one with
        ``dataset.sel({"method": name})``: ``sel(method=…)`` is xarray's own keyword.
    """
    plan = ComparisonPlan(model, corpus, sampling or Sampling(), methods, spectral)
    return _in_memory(plan, model, threads, progress)


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
    plan: Plan, model: LoadedModel, threads: int, progress: Progress | None
) -> xr.Dataset:
    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        target = Path(folder) / "run.zarr"
        execute(plan, model, target, Resources(threads=threads), progress=progress)
        return load(target)


def run(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe | None,
    target: str | Path,
    resources: Resources | None = None,
    **options: Any,
) -> Path:
    """Spectra of every head into a file, window by window.

    A run that was stopped goes on from the folder beside its target; memory does not grow with the
    number of windows. A target that already holds the same settings is left as it is.

    Parameters
    ----------
    model, corpus, recipe
        As for :func:`spectra`.
    target, resources
        As for :func:`execute`.
    **options
        `progress`, `told`, `overwrite` and `memory_limit` of :func:`execute`.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    RankscopeError
        Of a kind that tells what is wrong with windows, model, memory, workers or target.
    """
    return execute(
        SpectraPlan(model, corpus, recipe or Recipe()), model, target, resources, **options
    )
