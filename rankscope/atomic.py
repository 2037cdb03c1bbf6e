"""Files and folders that are the old ones or the new ones, never something between.

What is new is written beside the target, on the same file system, flushed to the disk and renamed
into place in one step.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankscope.exceptions import StoreError

# beyond this many files one sync of the whole system is cheaper than one for each
_MANY_FILES = 256

_REMEDIES = {
    errno.ENOSPC: "free some space or choose another folder",
    errno.EDQUOT: "free some space or choose another folder",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that can be written",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file or folder beside the target, then put it in the target's place.

    Parameters
    ----------
    target : Path
        File or folder to write; its folder is made if it is missing.
    write : callable
        Writes to the path it is given. On any exception, an interrupt from the keyboard included,
        what it wrote is removed and the target stays as it was.
    """
    target = Path(os.path.realpath(target))
    temporary = beside(target, f"{secrets.token_hex(8)}.new")
    # no context manager: an interrupt in its own machinery would leave the file behind
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        install(temporary, target)
    except BaseException:
        remove(temporary)
        raise


def install(new: Path, target: Path) -> None:
    """Flush a file or folder and move it to the target, whose old content is removed.

    Parameters
    ----------
    new : Path
        File or folder on the target's file system.
    target : Path
        Its new name. An old folder there is exchanged in one step where the system can; elsewhere
        it is moved aside first, to the name that `aside_copy` gives, and back if anything fails.
    """
    flush(new)
    if not (new.is_dir() and target.is_dir()):
        os.replace(new, target)
        _flush_folder(target.parent)
        remove(aside_copy(target))
        return
    if _exchange(new, target):
        _flush_folder(target.parent)
        remove(new)
        remove(aside_copy(target))
        return
    aside = aside_copy(target)
    remove(aside)
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except BaseException:
        if not target.exists():
            os.rename(aside, target)
        raise
    _flush_folder(target.parent)
    remove(aside)


def aside_copy(target: Path) -> Path:
    """Where the old folder stands while a new one takes its name (it may not exist)."""
    return beside(target, "old")


def beside(target: Path, suffix: str) -> Path:
    """A hidden name in the target's folder that belongs to this target alone.

    The name is a hash because one that carries the target's could be too long for the file system.
    """
    target = Path(os.path.realpath(target))
    digest = hashlib.sha256(target.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return target.parent / f".rankscope-{digest}.{suffix}"


def remove_leftovers(target: Path) -> None:
    """Delete what killed writers of a target left beside it; only for who has locked the target."""
    pattern = beside(target, "*.new")
    for leftover in pattern.parent.glob(pattern.name):
        remove(leftover)


def remove(path: Path) -> None:
    """Delete a file or a folder tree, if it is there."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    # a thread of Zarr's may still be writing a chunk into it when an interrupt ended the main one
    for pause in (0.01, 0.05, 0.2, 0.5):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(pause)
    shutil.rmtree(path)


def flush(path: Path) -> None:
    """Force a file or all files of a folder on to the disk."""
    if not path.is_dir():
        _sync(path)
        return
    inside = [*path.rglob("*")]
    if len(inside) > _MANY_FILES and hasattr(os, "sync"):
        os.sync()
        return
    for entry in inside:
        if entry.is_file():
            _sync(entry)
        else:
            _flush_folder(entry)
    _flush_folder(path)


def describe_size(path: Path) -> str:
    """Size of a file or folder in words."""
    if path.is_dir():
        files = [one for one in path.rglob("*") if one.is_file()]
        return f"a folder of {len(files)} files, {sum(one.stat().st_size for one in files)} bytes"
    return f"{path.stat().st_size} bytes"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says when a file cannot be written into a `StoreError`."""
    try:
        yield
    except OSError as error:
        # HDF5 hides the system's reason in a long text of its own
        reason = error.strerror or str(error)
        full = "No space left" in reason
        remedy = _REMEDIES.get(errno.ENOSPC if full else error.errno or 0, "try another folder")
        raise StoreError(
            f"cannot write {path}: {reason}", f"{remedy}; what was there is unchanged"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a library raises over a damaged file into a `StoreError` with name and size."""
    try:
        yield
    except StoreError as error:
        raise StoreError(
            f"cannot read {path} ({describe_size(path)}): {error.cause}", error.remedy
        ) from error
    # every library has its own exceptions for damage, KeyError and the like among them
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(
            f"cannot read {path} ({describe_size(path)}): {reason}",
            "the file is damaged or cut: write it again",
        ) from error


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    # only POSIX systems let a folder be opened and flushed
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems have no such call
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)
