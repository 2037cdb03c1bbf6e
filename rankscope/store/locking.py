"""One process at a time on one target: a lock that the system releases when its holder dies."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rankscope.atomic import beside, writing
from rankscope.exceptions import StoreError

# A file that its holder has just removed looks like one that is held: it is tried again until then.
_PATIENCE_S = 0.2

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


def lock_path(target: str | os.PathLike[str]) -> Path:
    """The lock file of a target: a hidden file beside it, there only while a run is at work.

    Examples
    --------
    >>> lock_path("run.nc").suffix
    '.lock'
    """
    return beside(Path(target), "lock")


@contextmanager
def locked(target: str | os.PathLike[str]) -> Iterator[None]:
    """Keep every other process, and every other thread of this one, from working on a target.

    The lock is ``flock``'s: the system releases it when the holder ends, however it ends, so that
    what a killed holder leaves is only a file, which the next one takes over. Readers of the target
    are not kept out.

    Parameters
    ----------
    target : path
        Its folder is made if it is missing; links to one file share one lock.

    Raises
    ------
    StoreError
        If the target is locked, its folder cannot be written, or the file system has no locks.
    """
    target = Path(target)
    path = lock_path(target)
    identity: list[os.stat_result] = []

    def sign(descriptor: int) -> None:
        # through the lock's own descriptor: to close another one of the same file would release
        # the lock on file systems that emulate it
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(record).encode(), 0)
        identity.append(os.fstat(descriptor))

    # without flock filelock would turn to a file that outlives its holder; that is refused instead
    lock = FileLock(
        path,
        timeout=_PATIENCE_S,
        poll_interval=0.02,
        thread_local=False,
        fallback_to_soft=False,
        on_acquired=sign,
    )
    with writing(target):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(
                f"{target} is being written by {_holder(path)}",
                "wait for it, or stop it, or choose another output",
            ) from error
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise StoreError(
                    f"the file system of {path.parent} has no file locks ({error.strerror}), so a "
                    "second process could spoil the run",
                    "choose an output on another one, such as a local disk",
                ) from error
            raise
    owner = os.getpid()
    try:
        yield
    finally:
        # a forked child that comes by here holds nothing
        if os.getpid() == owner:
            # while it is held: whoever opened it meanwhile finds it gone and tries again
            with suppress(OSError):
                if os.path.samestat(os.stat(path), identity[-1]):
                    path.unlink()
            lock.release()


def _holder(path: Path) -> str:
    """Who holds a lock, in words; what the holder wrote may not be there yet."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        pid, host, since = record["pid"], record["host"], record["since"]
    except (OSError, ValueError, KeyError, TypeError):
        return "another process that has just started or ends just now"
    same = pid == os.getpid() and host == socket.gethostname()
    return f"{'this very process' if same else 'another process'}: {pid} on {host}, since {since}"
