"""What kills, damages or fills up: the store stays, and the same command finishes it."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.store import RunStore, working_path
from rankscope.store.files import FORMATS, export, load
from run_stores import HASH, RECIPE, assert_bits_equal, schema, window

if TYPE_CHECKING:
    from disks import SmallDisk


N, BLOCK = 480, 4


def blocks(path: Path, n_samples: int = N, block: int = BLOCK, n_index: int = 8) -> RunStore:
    """A store with all its windows, in blocks."""
    run = schema(n_samples, n_index, block=block)
    store = RunStore.create(path, run)
    for start in range(0, n_samples, block):
        store.write_block(
            start, [window(run, one) for one in range(start, min(start + block, n_samples))]
        )
    return store


def go_on(path: Path, told: Connection) -> None:
    """Write the blocks that are not done; tell when it starts, and of each."""
    run = schema(N, block=BLOCK)
    told.send_bytes(b"x")
    store = RunStore.open(path, HASH) if path.exists() else RunStore.create(path, run)
    done = store.done()
    for start in range(0, N, BLOCK):
        if not done[start : start + BLOCK].all():
            fields = [window(run, one) for one in range(start, start + BLOCK)]
            store.write_block(start, fields)
            told.send_bytes(b"x")


def files_of(folder: Path) -> dict[Path, bytes]:
    """Content of every file."""
    return {one.relative_to(folder): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_f19_killed_at_20_random_moments_equals_uninterrupted(tmp_path: Path) -> None:
    # children of a server that has imported everything: each starts at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "zarr.codecs", "xarray", "rankscope.store"])
    path, rng = tmp_path / "s", random.Random(6)
    progress: list[int] = []
    for _ in range(20):
        heard, told = context.Pipe(duplex=False)
        child = context.Process(target=go_on, args=(path, told))
        child.start()
        told.close()
        # the first kills fall into the making of the store, the others into any write of a block
        with suppress(EOFError):
            for _ in range(1 if len(progress) < 2 else rng.randrange(1, 3)):
                heard.recv_bytes()
        time.sleep(rng.random() * 0.01)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        heard.close()
        child.close()
        store = RunStore.open(path, HASH, RECIPE) if path.exists() else None
        progress.append(0 if store is None else int(store.done().sum()))
        if store is not None and len(progress) % 5 == 0:
            assert store.verify() == []
    assert progress == sorted(progress)
    assert len(set(progress)) >= 4
    assert not any(count % BLOCK for count in progress)
    heard, told = context.Pipe(duplex=False)
    with heard, told:
        go_on(path, told)
    target = RunStore.open(path, HASH, RECIPE).finish(tmp_path / "killed.zarr")
    whole = blocks(tmp_path / "t").finish(tmp_path / "whole.zarr")
    assert files_of(target) == files_of(whole)
    assert_bits_equal(load(target), load(whole))


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "gone": lambda content: None,
    "bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "zeros": lambda content: bytes(len(content)),
    "other": lambda content: content + b"more",
}


def spoil(chunk: Path, how: str) -> None:
    """Damage one file."""
    content = DAMAGE[how](chunk.read_bytes())
    chunk.unlink()
    if content is not None:
        chunk.write_bytes(content)


@pytest.mark.parametrize("how", [*DAMAGE])
def test_damaged_chunks_are_found_and_only_their_windows_computed_anew(
    tmp_path: Path, how: str
) -> None:
    run = schema(10, block=4)
    blocks(tmp_path / "s", 10, 4)
    whole = files_of(tmp_path / "s")
    spoil(tmp_path / "s" / "rank_90" / "c.0.0.1.0.0", how)
    spoil(tmp_path / "s" / "singular_value" / "c.0.0.2.0.0.0", how)
    store = RunStore.open(tmp_path / "s", HASH, RECIPE)
    assert store.done().all()
    calls: list[tuple[int, int]] = []
    assert store.verify(lambda *call: calls.append(call)) == [4, 5, 6, 7, 8, 9]
    assert calls == [(4, 10), (8, 10), (10, 10)]
    store.forget([4, 5, 6, 7, 8, 9])
    assert store.done().tolist() == [True] * 4 + [False] * 6
    assert store.verify() == []
    # one by one, as no chunk that is damaged may be read again
    for sample in (9, 8, 5, 4, 6, 7):
        store.write(sample, window(run, sample))
    assert store.verify() == []
    assert files_of(tmp_path / "s") == whole


def test_windows_that_are_not_done_are_not_verified(tmp_path: Path) -> None:
    store = blocks(tmp_path / "s", 8, 4)
    store.forget(range(4, 8))
    spoil(tmp_path / "s" / "rank_90" / "c.0.0.1.0.0", "half")
    assert store.verify() == []
    store.forget([])
    store.forget([0, 0])
    assert store.done().tolist() == [False, True, True, True] + [False] * 4
    for wrong in ([8], [-1, 2]):
        with pytest.raises(StoreError, match="no sample"):
            store.forget(wrong)


def test_writing_beside_windows_of_a_damaged_chunk_is_one_clear_error(tmp_path: Path) -> None:
    store = blocks(tmp_path / "s", 4, 4)
    spoil(tmp_path / "s" / "rank_90" / "c.0.0.0.0.0", "half")
    with pytest.raises(StoreError, match="damaged") as error:
        store.write(1, window(schema(4), 1))
    assert "computed anew" in error.value.remedy
    assert store.done().tolist() == [True, False, True, True]


@pytest.mark.parametrize("how", ["half", "empty", "bit"])
def test_damaged_states_are_named_and_nothing_is_deleted(tmp_path: Path, how: str) -> None:
    store = blocks(tmp_path / "s", 8, 4)
    chunk = tmp_path / "s" / "state" / "c.0.0.0"
    spoil(chunk, how)
    before = files_of(tmp_path / "s")
    for act in (
        lambda: RunStore.open(tmp_path / "s", HASH, RECIPE),
        store.done,
        store.verify,
        lambda: store.forget([1]),
        lambda: store.write(0, window(schema(8), 0)),
        lambda: store.finish(tmp_path / "a.zarr"),
    ):
        with pytest.raises(StoreError, match="windows 0 to 7") as error:
            act()
        assert str(chunk) in error.value.cause
        assert "delete this file" in error.value.remedy
    assert files_of(tmp_path / "s") == before
    # the remedy
    chunk.unlink()
    assert not RunStore.open(tmp_path / "s", HASH, RECIPE).done().any()


def test_full_disk_while_writing_loses_nothing(small_disk: SmallDisk, tmp_path: Path) -> None:
    n = 400
    run = schema(n, n_index=64, block=8)
    path = working_path(small_disk.path / "run.zarr")
    store = RunStore.create(path, run)

    def write() -> None:
        for start in range(0, n, 8):
            store.write_block(start, [window(run, one) for one in range(start, start + 8)])

    with pytest.raises(StoreError, match="No space left") as error:
        write()
    assert "free some space" in error.value.remedy
    store = RunStore.open(path, HASH, RECIPE)
    done = np.flatnonzero(store.done())
    assert 8 <= len(done) < n
    assert done.tolist() == [*range(len(done))]
    assert store.verify() == []
    with store.dataset() as dataset:
        last = int(done[-1])
        found = dataset["energy_ratio"][0, 0, last].values
    np.testing.assert_array_equal(found, window(run, last)["energy_ratio"])


@pytest.fixture(scope="module")
def complete_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run all of whose windows are done, to be copied."""
    return blocks(tmp_path_factory.mktemp("complete") / "s", 40, 8, n_index=32).path


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_full_disk_while_finishing_keeps_the_store_and_the_old_target(
    small_disk: SmallDisk, tmp_path: Path, complete_store: Path, suffix: str
) -> None:
    target = export(xr.Dataset(attrs={"old": 1}), small_disk.path / f"a.{suffix}")
    shutil.copytree(complete_store, tmp_path / "s")
    store = RunStore.open(tmp_path / "s", HASH, RECIPE)
    # enough for the trial of the target, not for the result
    ballast = small_disk.fill(leave=100_000)
    with pytest.raises(StoreError, match="No space left") as error:
        store.finish(target, overwrite=True)
    assert "free some space" in error.value.remedy
    assert "damaged" not in error.value.cause
    assert sorted(os.listdir(small_disk.path)) == sorted([target.name, "ballast"])
    assert load(target).attrs == {"old": 1}
    assert files_of(tmp_path / "s") == files_of(complete_store)
    ballast.unlink()
    store.finish(target, overwrite=True)
    assert os.listdir(tmp_path) == ["disk"]
    with RunStore.open(complete_store, HASH, RECIPE).dataset() as whole:
        assert_bits_equal(load(target), whole.load())


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_read_only_target_keeps_the_store(
    small_disk: SmallDisk, tmp_path: Path, suffix: str
) -> None:
    store = blocks(tmp_path / "s", 2, 2)
    target = small_disk.path / f"a.{suffix}"
    with small_disk.read_only():
        with pytest.raises(StoreError, match="cannot be written") as error:
            store.finish(target)
        assert error.value.remedy == "choose another folder"
        with pytest.raises(StoreError, match="Read-only"):
            RunStore.create(working_path(target), schema(2))
    assert store.done().all()
    assert load(store.finish(target)).sizes["sample"] == 2


def test_store_on_a_disk_that_became_read_only(small_disk: SmallDisk) -> None:
    run = schema(8, block=4)
    path = small_disk.path / "s"
    RunStore.create(path, run).write_block(0, [window(run, one) for one in range(4)])
    with small_disk.read_only():
        # it can still be looked at
        store = RunStore.open(path, HASH, RECIPE)
        assert store.done().sum() == 4
        assert store.verify() == []
        for act in (lambda: store.write(4, window(run, 4)), lambda: store.forget([0])):
            with pytest.raises(StoreError, match="Read-only") as error:
                act()
            assert error.value.remedy
    assert store.done().sum() == 4
    store.write(4, window(run, 4))
