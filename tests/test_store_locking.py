"""One process at a time works on a target; a holder that was killed keeps nobody away."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankscope.atomic import aside_copy
from rankscope.exceptions import StoreError
from rankscope.store import RunStore, locked, working_path
from rankscope.store.files import load
from rankscope.store.locking import lock_path
from run_stores import schema, window

if TYPE_CHECKING:
    from disks import SmallDisk


@pytest.fixture
def context() -> ForkServerContext:
    """Starts processes from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "zarr.codecs", "xarray", "rankscope.store"])
    return context


def hold(target: Path, pipe: Connection) -> None:
    """Hold the lock until told to let go; say whether it was to be had."""
    try:
        with locked(target):
            pipe.send("held")
            pipe.recv()
    except StoreError as error:
        pipe.send(error.cause)


def race(target: Path, rounds: int, ours: Path, barrier: Any, out: Connection) -> None:
    """Take the lock in many rounds, and see whether anybody else has it too."""
    won = clashes = 0
    for _ in range(rounds):
        barrier.wait()
        try:
            with locked(target):
                won += 1
                try:
                    # the proof that one is alone: it fails if the file is there
                    os.close(os.open(ours, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    clashes += 1
                else:
                    ours.unlink()
        except StoreError as error:
            if "is being written by" not in error.cause:
                raise
    out.send((won, clashes))


@pytest.fixture
def holder(context: ForkServerContext, tmp_path: Path) -> Iterator[tuple[Any, Connection]]:
    """Another process that holds the lock of ``run.zarr``."""
    here, there = context.Pipe()
    child = context.Process(target=hold, args=(tmp_path / "run.zarr", there))
    child.start()
    there.close()
    with here:
        assert here.recv() == "held"
        yield child, here
        if child.is_alive():
            child.kill()
        child.join()


def test_lock_is_there_only_while_it_is_held(tmp_path: Path) -> None:
    target = tmp_path / "new" / "run.zarr"
    with locked(target):
        assert os.listdir(target.parent) == [lock_path(target).name]
        record = json.loads(lock_path(target).read_text())
        assert record["pid"] == os.getpid()
        assert record["host"] == socket.gethostname()
        with locked(tmp_path / "new" / "other.zarr"):
            pass
    assert os.listdir(target.parent) == []
    with pytest.raises(RuntimeError, match="mine"), locked(target):
        raise RuntimeError("mine")
    assert os.listdir(target.parent) == []
    with locked(target):
        pass


def test_second_process_is_refused_and_readers_are_not(
    tmp_path: Path, holder: tuple[Any, Connection]
) -> None:
    child, pipe = holder
    target = tmp_path / "run.zarr"
    with (
        pytest.raises(StoreError, match="is being written by another process") as error,
        locked(target),
    ):
        pass
    assert f": {child.pid} on {socket.gethostname()}, since 20" in error.value.cause
    assert str(target) in error.value.cause
    assert error.value.remedy == "wait for it, or stop it, or choose another output"
    run = schema(1)
    store = RunStore.create(working_path(target), run)
    store.write(0, window(run, 0))
    assert load(store.finish(target)).sizes["sample"] == 1
    pipe.send("let go")
    child.join()
    with locked(target):
        pass
    assert os.listdir(tmp_path) == ["run.zarr"]


def test_killed_holder_keeps_nobody_away(tmp_path: Path, holder: tuple[Any, Connection]) -> None:
    child, _ = holder
    target = tmp_path / "run.zarr"
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert lock_path(target).exists()
    with locked(target):
        assert json.loads(lock_path(target).read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("leftover", [b"", b"{", b"x" * 5000, b'{"pid": 1}'])
def test_whatever_stands_in_an_old_lock_file_does_no_harm(tmp_path: Path, leftover: bytes) -> None:
    target = tmp_path / "run.zarr"
    lock_path(target).write_bytes(leftover)
    # held by somebody who has not written who it is
    with lock_path(target).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="just started"), locked(target):
            pass
    with locked(target):
        assert json.loads(lock_path(target).read_text())["pid"] == os.getpid()


def test_same_process_is_refused_a_second_time(tmp_path: Path) -> None:
    target = tmp_path / "run.zarr"
    causes: list[str] = []

    def again() -> None:
        try:
            with locked(target):
                causes.append("held twice")
        except StoreError as error:
            causes.append(error.cause)

    with locked(target):
        again()
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        # the refused ones have not taken it away
        again()
    assert len(causes) == 3
    for cause in causes:
        assert f"this very process: {os.getpid()} on" in cause


def test_links_to_a_target_share_its_lock_and_long_names_have_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    name = "ä" * 120 + ".zarr"
    with locked(tmp_path / "folder" / name):
        with pytest.raises(StoreError), locked(tmp_path / "link" / name):
            pass
        path = lock_path(tmp_path / "link" / name)
        assert path.parent == tmp_path / "folder"
        assert path.stem == aside_copy(tmp_path / "folder" / name).stem


def test_lock_file_of_another_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "run.zarr"
    with locked(target):
        # removed by hand, and made anew by another process that now holds it
        lock_path(target).rename(tmp_path / "old")
        lock_path(target).write_text("of another")
    assert lock_path(target).read_text() == "of another"


def test_processes_that_race_are_never_in_it_together(
    tmp_path: Path, context: ForkServerContext
) -> None:
    rounds, n = 60, 3
    target, ours = tmp_path / "run.zarr", tmp_path / "alone"
    barrier = context.Barrier(n)
    pipes, children = [], []
    for _ in range(n):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=race, args=(target, rounds, ours, barrier, there))
        child.start()
        there.close()
        pipes.append(here)
        children.append(child)
    found = [pipe.recv() for pipe in pipes]
    for pipe, child in zip(pipes, children, strict=True):
        child.join()
        assert child.exitcode == 0
        pipe.close()
    assert sum(clashes for _, clashes in found) == 0
    # in every round somebody had it
    assert sum(won for won, _ in found) >= rounds
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match="has no file locks") as error, locked(tmp_path / "a.nc"):
        pass
    assert "local disk" in error.value.remedy


def test_read_only_folder_is_one_clear_error(small_disk: SmallDisk) -> None:
    target = small_disk.path / "run.zarr"
    with (
        small_disk.read_only(),
        pytest.raises(StoreError, match="Read-only") as error,
        locked(target),
    ):
        pass
    assert error.value.remedy.startswith("choose a folder that can be written")


def test_full_disk_is_one_clear_error(small_disk: SmallDisk) -> None:
    target = small_disk.path / "run.zarr"
    ballast = small_disk.fill()
    with pytest.raises(StoreError, match="No space left"), locked(target):
        pass
    ballast.unlink()
    with locked(target):
        pass
    assert os.listdir(small_disk.path) == []
