"""What commands do around a run: check, load, compute with progress, and say where things are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rankscope import terminal
from rankscope.cli.options import Loading, Running
from rankscope.exceptions import StoreError, UsageError

if TYPE_CHECKING:
    from rankscope.engine import Plan
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

BAD_HEADS = 7
"""Exit status of a run that finished, but with matrices that could not be used."""

INTERRUPTED = 130
"""Exit status of a run that was stopped from the keyboard."""


def check_models(names: list[str], loading: Loading, length: int) -> None:
    """Refuse models that cannot be loaded, or not take such windows, before anything is computed.

    Raises
    ------
    RankscopeError
    """
    from rankscope.models import check, check_length

    for name in names:
        check_length(check(name, **loading.arguments()), length)


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

    corpora = [load_corpus(spec, options) for spec in dict.fromkeys(specs)]
    names = [corpus.name for corpus in corpora]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise UsageError(
            f"two corpora have the name {', '.join(doubled)}", "rename one of the files"
        )
    for corpus in corpora:
        for remark in corpus.notes:
            terminal.note(f"{corpus.name}: {remark}")
    return corpora


def load_model(name: str, loading: Loading, *, head: bool = False) -> LoadedModel:
    """Load a model, with its kernels compiled before anything is timed."""
    from rankscope import linalg
    from rankscope.engine.machine import return_freed_memory
    from rankscope.models import load

    return_freed_memory()
    linalg.warm_up()
    return load(name, allow_missing=loading.allow_missing, head=head, **loading.arguments())


def compute(plan: Plan, model: LoadedModel, target: Path, running: Running, what: str = "") -> Path:
    """Run a plan into its file, with progress; an interrupt says how to go on.

    Raises
    ------
    RankscopeError, typer.Exit
    """
    from rankscope import engine
    from rankscope.engine.machine import usable_cores
    from rankscope.store import working_path

    workers = running.workers if running.workers is not None else usable_cores()
    label = f"{what}{model.info.name} on {plan.schema.corpus}"
    limit = engine.free_memory() if running.memory_limit is None else running.memory_limit * 2**20
    needed = plan.estimate(model, workers)
    terminal.note(f"{label}: about {max(1, needed >> 20)} MiB beside the model")
    try:
        with terminal.progress(label) as progress:
            return engine.execute(
                plan,
                model,
                target,
                workers=workers,
                progress=progress,
                overwrite=running.overwrite,
                memory_limit=limit,
            )
    except KeyboardInterrupt:
        terminal.note(f"stopped; the same command goes on from {working_path(target)}")
        raise typer.Exit(INTERRUPTED) from None


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "unnamed"
