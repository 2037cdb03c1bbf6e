"""What is there of a run already: its result, or the store of one that was stopped."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rankscope.atomic import remove
from rankscope.callbacks import Progress, Told
from rankscope.engine.plan import Plan
from rankscope.exceptions import StoreError
from rankscope.store import RunStore
from rankscope.store.files import load
from rankscope.store.schema import differences

CHECK_LINES = 5.0
"""Seconds between two lines of a check of what is done."""


def open_store(plan: Plan, folder: Path, overwrite: bool, say: Told) -> RunStore:
    """The store of a run that was stopped, less what is damaged in it, or a new one."""
    if not os.path.lexists(folder):
        return RunStore.create(folder, plan.schema)
    # an overwrite must never delete what is someone's own
    if not (folder / "zarr.json").is_file():
        raise StoreError(
            f"{folder}, where the windows of this run belong, is no run store",
            "move it away, or choose another output",
        )
    try:
        store = RunStore.open(folder, plan.settings_hash, recipe=plan.settings, told=say)
        bad = store.verify(_lines(folder, say))
    except StoreError:
        if not overwrite:
            raise
        remove(folder)
        return RunStore.create(folder, plan.schema)
    if bad:
        store.forget(bad)
        say(
            f"{folder}: {len(bad)} windows are damaged ({_listed(bad)}) and are computed "
            "again; the others are kept"
        )
    _record_versions(store, plan, say)
    return store


def _record_versions(store: RunStore, plan: Plan, say: Told) -> None:
    """Keep what a run was begun with, and what it goes on with."""
    attrs, own = store.layout.attrs, str(plan.schema.attrs["versions_json"])
    later = json.loads(attrs.get("later_versions_json", "[]"))
    before = [json.loads(attrs["versions_json"]), *later]
    now = json.loads(own)
    if now in before:
        return
    if not store.done().any():
        store.record({"versions_json": own})
        return
    changed = [
        f"{name} {now.get(name, 'absent')} instead of {before[-1].get(name, 'none')}"
        for name in sorted({*now, *before[-1]})
        if now.get(name) != before[-1].get(name)
    ]
    store.record({"later_versions_json": json.dumps([*later, now], sort_keys=True)})
    say(
        f"{store.path}: goes on with {', '.join(changed)}; the result names both, and its last "
        "digits may differ from those of a run with one of them"
    )


def _lines(folder: Path, say: Told) -> Progress:
    """Progress of a check in lines, if it takes long enough to ask what is going on."""
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= CHECK_LINES:
            last = now
            say(f"{folder}: {done} of {total} windows that are done have been checked")

    return line


def clear(folder: Path, plan: Plan) -> None:
    """Delete the store of a run that was stopped between its last two steps."""
    if folder.is_dir():
        with suppress(StoreError):
            RunStore.open(folder, plan.settings_hash).remove()


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} …" if len(numbers) > 8 else shown


def holds(target: Path, plan: Plan) -> bool:
    """Whether the target already is the result of these very settings.

    Raises
    ------
    StoreError
        If it is that of others, which are named, or no whole result.
    """
    try:
        with load(target, lazy=True) as dataset:
            stored = dataset.attrs.get("settings_hash")
            known = json.loads(dataset.attrs.get("recipe_json", "null"))
    except StoreError as error:
        raise StoreError(
            f"{target} exists, and is no whole result: {error.cause}",
            "delete it, choose another name, or allow to overwrite it",
        ) from error
    changed = differences(known, plan.settings) if known and stored != plan.settings_hash else []
    if changed:
        raise StoreError(
            f"{target} exists, and is of other settings: {'; '.join(changed)}",
            "use the same settings, choose another name, or allow to overwrite it",
        )
    return bool(stored == plan.settings_hash)
