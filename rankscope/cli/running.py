"""What commands do around a run: check, load, compute with progress, and say where things are."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rankscope import terminal
from rankscope.cli.options import Loading, Running
from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import control_of, group_size

if TYPE_CHECKING:
    from rankscope.engine import Plan
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

BAD_HEADS = 7
"""Exit status of a run that finished, but with matrices that could not be used."""

TOO_SHORT = 8
"""Exit status of a run whose text ended before its intervals were as narrow as was asked for."""

LARGE_TEXT = 5_000_000
"""Characters from which on reading and cutting a text take long enough to be told of."""

INTERRUPTED = 130
"""Exit status of a run that was stopped from the keyboard."""

TERMINATED = 143
"""Exit status of a run that was told to end, as batch systems do."""


def check_models(
    names: list[str], loading: Loading, length: int, running: Running | None = None
) -> list[str]:
    """Refuse models that cannot be loaded, or not take such windows, before anything is computed.

    With `running` also a wrong number of workers.

    Returns
    -------
    list of str
        The models' own names, as results carry them.

    Raises
    ------
    RankscopeError
    """
    from rankscope.models import check, check_length

    if running is not None:
        running.resources()
    own = []
    for name in names:
        info = check(name, **_here(loading, running))
        check_length(info, length)
        own.append(info.name)
    return own


def check_folder(folder: Path) -> None:
    """Make the folder of a result.

    Raises
    ------
    StoreError
        If it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be made: {error.strerror}", "choose another --out"
        ) from error
    if not os.access(folder, os.W_OK):
        raise StoreError(f"the folder {folder} cannot be written", "choose another --out")


def load_corpora(specs: list[str], options: Any) -> list[Corpus]:
    """Read corpora, and say what is worth knowing about them.

    Raises
    ------
    UsageError
        If two have the same name, since their results would.
    """
    from rankscope.text import load_corpus

    corpora = []
    for spec in dict.fromkeys(specs):
        large = os.path.isfile(spec) and os.path.getsize(spec) >= LARGE_TEXT
        with terminal.working(f"reading {spec}") if large else nullcontext():
            corpora.append(load_corpus(spec, options))
    names = [corpus.name for corpus in corpora]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise UsageError(
            f"two corpora have the name {', '.join(doubled)}", "rename one of the files"
        )
    for corpus in corpora:
        for remark in corpus.notes:
            terminal.note(f"{corpus.name}: {remark}")
    return corpora


def cutting(corpus: Corpus) -> AbstractContextManager[None]:
    """Say that the windows of a large text are being cut, which takes about a second a million."""
    size = sum(len(text.text) for text in corpus.texts)
    if size < LARGE_TEXT:
        return nullcontext()
    return terminal.working(
        f"cutting {corpus.name} into windows: {size / 1e6:.0f} million characters"
    )


def load_model(
    name: str, loading: Loading, running: Running | None = None, *, head: bool = False
) -> LoadedModel:
    """Load a model, with its kernels compiled before anything is timed."""
    from rankscope import linalg
    from rankscope.engine.machine import return_freed_memory
    from rankscope.models import load

    return_freed_memory()
    linalg.warm_up()
    chosen = _here(loading, running)
    model = load(name, allow_missing=loading.allow_missing, head=head, **chosen)
    if running is None or running.scheduler is None:
        return model
    return replace(model, arguments={**(model.arguments or {}), "device": loading.device})


def _here(loading: Loading, running: Running | None) -> dict[str, Any]:
    """How the model is loaded in this process: a cluster puts it on devices of its own."""
    arguments = loading.arguments()
    elsewhere = running is not None and running.scheduler is not None
    return arguments | {"device": "cpu"} if elsewhere else arguments


def compute(plan: Plan, model: LoadedModel, target: Path, running: Running, what: str = "") -> Path:
    """Run a plan into its file, with progress; an interrupt says how to go on.

    Raises
    ------
    RankscopeError, typer.Exit
    """
    from rankscope import engine
    from rankscope.engine.machine import usable_cores
    from rankscope.store import working_path

    given = running.resources()
    label = f"{what}{model.info.name} on {plan.schema.corpus}"
    limit = engine.free_memory() if running.memory_limit is None else running.memory_limit * 2**20
    needed = given.memory(plan, model)
    if given.scheduler is None:
        terminal.note(f"{label}: about {max(1, needed >> 20)} MiB beside the model")
    if given.workers * given.threads > usable_cores() and given.scheduler is None:
        terminal.note(
            f"{given.workers} workers of {given.threads} threads share {usable_cores()} cores"
        )
    if plan.frame.sampling.overlap:
        terminal.note("windows share tokens: intervals, which take them for apart, are too narrow")
    try:
        unit = "groups" if group_size(control_of(plan.schema.model)[0]) else "windows"
        with terminal.progress(label, unit) as progress:
            return engine.execute(
                plan,
                model,
                target,
                given,
                progress=progress,
                told=terminal.note,
                overwrite=running.overwrite,
                memory_limit=limit,
            )
    except KeyboardInterrupt as stopped:
        if working_path(target).exists():
            terminal.note(f"stopped; the same command goes on from {working_path(target)}")
        else:
            terminal.note("stopped before anything was stored; the same command begins anew")
        ended = isinstance(stopped, engine.Terminated)
        raise typer.Exit(TERMINATED if ended else INTERRUPTED) from None


def precision_reached(run: Path) -> bool:
    """Whether a run's intervals are as narrow as was asked for; true where nothing was."""
    from rankscope.store.files import load

    with load(run, lazy=True) as dataset:
        return bool(dataset.attrs.get("precision_reached", True))
