"""A disk that is really small and really full, or really read-only, for the tests that need one.

Permissions do not stop the superuser, and a simulated error shows only what its author knew: so a
``tmpfs`` of 2 MiB is mounted. `conftest` makes the fixture known.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# set where a test runs once more in a namespace of its own, in which its user may mount
_INSIDE = "RANKSCOPE_TEST_NAMESPACE"


@dataclass(frozen=True)
class SmallDisk:
    """A file system of 2 MiB in memory.

    Attributes
    ----------
    path : Path
        Its folder, empty at first.
    """

    path: Path

    def fill(self, leave: int = 0) -> Path:
        """Fill the disk with one file, but for some bytes; delete the file to make room again."""
        ballast = self.path / "ballast"
        space = os.statvfs(self.path)
        ballast.write_bytes(bytes(max(0, space.f_bavail * space.f_bsize - leave)))
        return ballast

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written to it, by anybody."""
        # of the mount alone: to change the file system itself fails in a namespace of one's own
        _mount("-o", "remount,bind,ro", str(self.path))
        try:
            yield
        finally:
            _mount("-o", "remount,bind,rw", str(self.path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk | None]:
    """A small disk of the test's own; see `pytest_pyfunc_call` for users who may not mount."""
    if os.geteuid() != 0:
        yield None
        return
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        _give_up(f"the superuser cannot mount a small disk here: {error}")
    try:
        yield SmallDisk(folder)
    finally:
        # lazily: what a failed test has left open must not keep it
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of small disks once more in a namespace in which its user may mount."""
    if "small_disk" not in pyfuncitem.fixturenames or os.geteuid() == 0:
        return None
    if os.environ.get(_INSIDE):
        _give_up("the namespace did not make its user the superuser")
    try:
        subprocess.run(["unshare", "-Urm", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        _give_up(f"neither the superuser nor able to make a namespace to mount in: {error}")
    # a folder of its own: the outer session's is in use
    base = pyfuncitem.funcargs["tmp_path"]
    command = ["unshare", "-Urm", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    again = subprocess.run(
        [*command, f"--basetemp={base}/inside", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {_INSIDE: "1"},
        capture_output=True,
        text=True,
    )
    if again.returncode:
        pytest.fail(f"in a namespace of its own:\n{again.stdout}\n{again.stderr}", pytrace=False)
    return True


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def _give_up(reason: str) -> None:
    """In CI the loss of a check is a failure; elsewhere a reason to skip it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
