"""Files are whole or not there, whatever happens, and damage is one clear error."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

from rankscope import atomic
from rankscope.atomic import aside_copy
from rankscope.exceptions import StoreError
from rankscope.store import containers, tables
from rankscope.store.files import FORMATS, check_target, export, load

if TYPE_CHECKING:
    from disks import SmallDisk


SUFFIXES = sorted(FORMATS)


def curves(n_samples: int = 3, seed: int = 0) -> xr.Dataset:
    """A dataset of random curves that compress badly."""
    values = np.random.default_rng(seed).random((n_samples, 4, 8))
    return xr.Dataset(
        {
            "singular_value": (("sample", "layer", "index"), values),
            "status": (("sample", "layer"), np.zeros((n_samples, 4), dtype=np.int8)),
        },
        {"sample": np.arange(n_samples), "layer": [0, 1, 2, 3], "attention": ("layer", [*"gglg"])},
        {"seed": seed, "flag": True},
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        (OSError(28, "No space left on device"), StoreError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("midway"), RuntimeError),
    ],
)
def test_a_failure_midway_leaves_the_old_file_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    old: bool,
    fault: BaseException,
    shown: type[BaseException],
) -> None:
    path = tmp_path / f"a.{suffix}"
    if old:
        export(curves(seed=1), path)
    calls = []

    def fail(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise fault
        return real(*args)

    module, name = (containers, "_values") if suffix in ("nc", "zarr") else (tables, "as_text")
    real = getattr(module, name)
    monkeypatch.setattr(module, name, fail)
    with pytest.raises(shown):
        export(curves(n_samples=3000), path, overwrite=True)
    assert os.listdir(tmp_path) == ([path.name] if old else [])
    monkeypatch.undo()
    if old:
        xr.testing.assert_identical(load(path), curves(seed=1))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_f21_full_disk_leaves_the_old_file_and_a_process_that_goes_on(
    small_disk: SmallDisk, suffix: str
) -> None:
    path = export(curves(seed=1), small_disk.path / f"a.{suffix}")
    # from nothing at all to nearly enough: HDF5 fails at another place each time
    for leave in (0, 2**12, 2**14, 2**17, 2**19):
        ballast = small_disk.fill(leave)
        with pytest.raises(StoreError, match="No space left") as error:
            export(curves(n_samples=5000), path, overwrite=True)
        assert "free some space" in error.value.remedy
        ballast.unlink()
        # what a failed library has left must not crash when it is cleared away
        gc.collect()
        assert os.listdir(small_disk.path) == [path.name]
    xr.testing.assert_identical(load(path), curves(seed=1))


def test_f21_zarr_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    path = export(curves(seed=1), tmp_path / "a.zarr")
    export(curves(seed=2), path, overwrite=True)
    xr.testing.assert_identical(load(path), curves(seed=2))
    assert os.listdir(tmp_path) == ["a.zarr"]
    real = os.rename

    def fail(source: Path, target: Path) -> None:
        if source.name.endswith(".new"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(StoreError, match="No space left"):
        export(curves(seed=3), path, overwrite=True)
    xr.testing.assert_identical(load(path), curves(seed=2))
    assert os.listdir(tmp_path) == ["a.zarr"]
    # killed between the two renames
    real(path, aside_copy(path))
    with pytest.raises(StoreError, match=r"its old content is .*rankscope.*old") as error:
        load(path)
    assert "to a.zarr" in error.value.remedy
    with pytest.raises(StoreError, match="interrupted overwrite"):
        check_target(path)
    export(curves(seed=4), path, overwrite=True)
    assert os.listdir(tmp_path) == ["a.zarr"]


KILLED = """
import os, random, signal, sys, time
import h5netcdf, h5py, pyarrow.parquet, zarr.codecs
import xarray as xr
from rankscope.store.files import export, load
sys.path.insert(0, sys.argv[3])
from test_export_faults import curves
path, kill = sys.argv[1], getattr(signal, sys.argv[2])
data = [curves(200, seed) for seed in (0, 1)]
start = time.time(); export(data[0], path); takes = time.time() - start
rng = random.Random(0)
for turn in range(20):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    if not child:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            export(data[1 - turn % 2], path, overwrite=True)
        finally:
            os._exit(0)
    time.sleep(rng.random() * 1.2 * takes)
    os.kill(child, kill); os.waitpid(child, 0)
    read = load(path)
    print(*[int(read.identical(one)) for one in data], flush=True)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kill", ["SIGKILL", "SIGINT"])
def test_f21_killed_at_20_random_moments(tmp_path: Path, suffix: str, kill: str) -> None:
    path = tmp_path / f"a.{suffix}"
    command = [sys.executable, "-c", KILLED, str(path), kill, str(Path(__file__).parent)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    outcomes = run.stdout.split("\n")[:-1]
    assert len(outcomes) == 20
    assert set(outcomes) <= {"1 0", "0 1"}
    if kill == "SIGINT":
        assert os.listdir(tmp_path) == [path.name]


def damage(path: Path, how: str) -> None:
    """Cut or spoil a file; of a Zarr folder, its largest one."""
    if path.is_dir():
        chunks = [one for one in path.rglob("*") if one.is_file() and "singular" in str(one)]
        path = max(chunks, key=lambda one: one.stat().st_size)
    content = path.read_bytes()
    half = len(content) // 2
    spoilt = {
        "half": content[:half],
        "tail": content[:-1],
        "empty": b"",
        "garbage": os.urandom(len(content)),
        "text": b"hello, world\n" * 99,
    }
    path.write_bytes(spoilt[how])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("how", ["half", "tail", "empty", "garbage", "text"])
def test_f21_damage_is_one_clear_error(tmp_path: Path, suffix: str, how: str) -> None:
    path = export(curves(), tmp_path / f"a.{suffix}")
    damage(path, how)
    with pytest.raises(StoreError) as error:
        load(path)
    assert str(path) in error.value.cause
    assert " bytes)" in error.value.cause
    assert error.value.remedy
    assert "\n" not in error.value.cause


def test_damaged_parts_of_folders_and_tables(tmp_path: Path) -> None:
    zarr = export(curves(), tmp_path / "a.zarr")
    (zarr / "status" / "c.0.0").unlink()
    with pytest.raises(StoreError, match="1 of status"):
        load(zarr)
    (zarr / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match="cannot read"):
        load(zarr)
    (zarr / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"without zarr\.json"):
        load(zarr)
    csv = export(curves(), tmp_path / "a.csv")
    head, *rows = csv.read_text().splitlines(keepends=True)
    for changed, words in [
        (rows, "does not start with|starts with"),
        ([head, *rows[:-1]], "ends before its last row"),
        ([head, *rows, rows[-1]], "more rows"),
        ([head, rows[0], rows[9], *rows[2:9], rows[1], *rows[10:]], "order"),
        ([head.replace('"format": 1', '"format": 2'), *rows], "update rankscope"),
        ([head[:300] + "\n", *rows], "first line is damaged"),
    ]:
        csv.write_text("".join(changed))
        with pytest.raises(StoreError, match=words):
            load(csv)


def test_f21_no_flipped_bit_of_a_parquet_file_changes_a_value(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    data = curves(20, 3)
    export(data, path)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(5)
    refused = 0
    for place in rng.integers(0, len(whole), 120):
        flipped = whole.copy()
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            found = load(path)
        except StoreError:
            refused += 1
        else:
            assert found.identical(data)
    assert refused > 60
