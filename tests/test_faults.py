"""What goes wrong around a run, through the command: the right result or one clear message.

Each of these ends with the status of its kind, without a traceback, and what was good is kept: the
same command, or the one that the message names, goes on from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import xarray as xr

from commands import rankscope
from faults import SIX, STORE, chunks_of, cut, files_of, refused, stopped_after, window_of
from rankscope.store import RunStore, working_path
from rankscope.store.files import load
from rankscope.store.locking import lock_path
from run_stores import assert_bits_equal

if TYPE_CHECKING:
    from disks import SmallDisk


# --- disks ---------------------------------------------------------------------------------------


def test_full_disk_while_windows_are_written(
    small_disk: SmallDisk, whole: xr.Dataset, computed: list[int], capsys: Any
) -> None:
    target = small_disk.path / "run.nc"
    ballast = small_disk.fill(leave=380_000)
    assert rankscope(*SIX, "--out", str(target)) == STORE
    refused(capsys.readouterr().err, "No space left", "free some space")
    # the window that found no room, and the one that was at work meanwhile
    done = len(computed)
    assert 1 < done < 6
    ballast.unlink()
    computed.clear()
    assert rankscope(*SIX, "--out", str(target)) == 0
    assert computed == list(range(computed[0], 6))
    assert 0 < computed[0] < done
    assert_bits_equal(load(target), whole)
    assert os.listdir(small_disk.path) == ["run.nc"]


@pytest.mark.parametrize("name", ["run.nc", "run.csv", "run.parquet"])
def test_full_disk_while_the_final_file_is_written(
    small_disk: SmallDisk,
    whole: xr.Dataset,
    computed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    name: str,
) -> None:
    target = small_disk.path / name
    real = RunStore.finish

    def finish(self: RunStore, *arguments: Any, **options: Any) -> Path:
        ballast = small_disk.fill(leave=30_000)
        try:
            return real(self, *arguments, **options)
        finally:
            ballast.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "finish", finish)
        assert rankscope(*SIX, "--out", str(target)) == STORE
    refused(capsys.readouterr().err, "No space left", "free some space")
    assert os.listdir(small_disk.path) == [f"{name}.partial"]
    computed.clear()
    assert rankscope(*SIX, "--out", str(target)) == 0
    assert computed == []
    assert_bits_equal(load(target), whole)


def test_read_only_folder_is_refused_before_the_model_is_loaded(
    small_disk: SmallDisk, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from rankscope.cli import measuring

    monkeypatch.setattr(measuring, "load_model", lambda *_: pytest.fail("the long work started"))
    for target in (small_disk.path / "run.nc", small_disk.path / "new" / "run.nc"):
        with small_disk.read_only():
            assert rankscope(*SIX, "--out", str(target)) == STORE
        refused(capsys.readouterr().err, str(target.parent), "another --out")
    assert os.listdir(small_disk.path) == []


# --- stores --------------------------------------------------------------------------------------


def cut_every_chunk(store: Path) -> set[int]:
    for chunk in chunks_of(store, states=False):
        cut(chunk)
    return {0, 1, 2, 3}


def lose_half_of_the_files(store: Path) -> set[int]:
    lost = chunks_of(store, states=False)[: 2 * 11]
    for chunk in lost:
        chunk.unlink()
    return {window_of(chunk) for chunk in lost}


def cut_the_newest_chunk(store: Path) -> set[int]:
    newest = max(chunks_of(store, states=False), key=lambda one: one.stat().st_mtime_ns)
    cut(newest)
    return {window_of(newest)}


def leave_a_stray_file(store: Path) -> set[int]:
    (store / "notes.txt").write_text("mine")
    (store / "status" / "c.0.0.9.0.0").write_text("no chunk of this run")
    (store / "status" / "c.0.0.0.0.0.12.partial").write_text("half a chunk")
    return set()


@pytest.mark.parametrize(
    ("damage", "windows"),
    [
        (cut_every_chunk, {0, 1, 2, 3}),
        (lose_half_of_the_files, {0, 1}),
        (cut_the_newest_chunk, {3}),
        (leave_a_stray_file, set()),
    ],
)
def test_damaged_store_keeps_what_is_good(
    place: Path,
    whole: xr.Dataset,
    computed: list[int],
    capsys: Any,
    damage: Callable[[Path], set[int]],
    windows: set[int],
) -> None:
    stopped_after(4, *SIX, "--out", "run.nc")
    assert damage(working_path("run.nc")) == windows
    capsys.readouterr()
    computed.clear()
    assert rankscope(*SIX, "--out", "run.nc") == 0
    assert computed == sorted({*windows, 4, 5})
    shown = capsys.readouterr().err
    numbers = ", ".join(map(str, sorted(windows)))
    assert (f"{len(windows)} windows are damaged ({numbers})" in shown) == bool(windows)
    assert_bits_equal(load("run.nc"), whole)
    assert not working_path("run.nc").exists()


@pytest.mark.parametrize("what", ["zarr.json", "state/zarr.json", "status/zarr.json"])
def test_store_without_its_description_is_left_alone(
    place: Path, whole: xr.Dataset, computed: list[int], capsys: Any, what: str
) -> None:
    stopped_after(2, *SIX, "--out", "run.nc")
    cut(working_path("run.nc") / what)
    before = files_of(working_path("run.nc"))
    capsys.readouterr()
    computed.clear()
    assert rankscope(*SIX, "--out", "run.nc") == STORE
    refused(capsys.readouterr().err, "run.nc.partial", "damaged")
    assert computed == []
    assert files_of(working_path("run.nc")) == before
    assert rankscope(*SIX, "--out", "run.nc", "--overwrite") == 0
    assert_bits_equal(load("run.nc"), whole)


@pytest.mark.parametrize("lose", [cut, Path.unlink])
def test_states_that_are_lost_are_had_from_the_windows(
    place: Path,
    whole: xr.Dataset,
    computed: list[int],
    capsys: Any,
    lose: Callable[[Path], None],
) -> None:
    stopped_after(4, *SIX, "--out", "run.nc")
    lose(working_path("run.nc") / "state" / "c.0.0.0")
    cut(working_path("run.nc") / "rank_90" / "c.0.0.2.0.0")
    capsys.readouterr()
    computed.clear()
    assert rankscope(*SIX, "--out", "run.nc") == 0
    assert computed == [2, 4, 5]
    shown = capsys.readouterr().err
    assert "which windows are done was lost; 4 of the windows 0 to 5 are there" in shown
    assert "1 windows are damaged (2)" in shown
    assert_bits_equal(load("run.nc"), whole)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--length", "11"], "recipe.length is 12 there and 11 here"),
        (["--seed", "1"], "model.seed is 0 there and 1 here"),
        (["--dtype", "float64"], 'model.dtype is "float32" there and "float64" here'),
        (["--corpus", "other.txt"], "corpus.sha256"),
        (["--driver", "svd"], 'recipe.driver is "gram" there and "svd" here'),
        (["--layers", "0"], "recipe.layers"),
        (["--special", "drop"], 'recipe.special is "keep" there and "drop" here'),
    ],
)
def test_store_of_other_settings_is_refused_and_kept(
    place: Path, windows_by_themselves: None, capsys: Any, changed: list[str], words: str
) -> None:
    text = Path("text.txt").read_text(encoding="utf-8")
    Path("other.txt").write_text(text.replace("again", "anew"), encoding="utf-8")
    stopped_after(2, *SIX, "--out", "run.nc")
    before = files_of(working_path("run.nc"))
    capsys.readouterr()
    assert rankscope(*SIX, *changed, "--out", "run.nc") == STORE
    refused(capsys.readouterr().err, words, "use the same settings, another output, or delete")
    assert files_of(working_path("run.nc")) == before


def test_other_weights_are_other_settings(
    place: Path, masked_lm: Path, windows_by_themselves: None, capsys: Any
) -> None:
    from folders import rewrite

    arguments = ["spectra", "--model", str(masked_lm), "--corpus", "text.txt", "--length", "12"]
    arguments += ["--windows", "3", "--workers", "1", "--out", "run.nc"]
    stopped_after(2, *arguments)
    query = "roberta.encoder.layer.1.attention.self.query.weight"
    rewrite(masked_lm, lambda weights: weights | {query: weights[query] * 2})
    capsys.readouterr()
    assert rankscope(*arguments) == STORE
    refused(capsys.readouterr().err, "model.weights_sha256 is")


@pytest.mark.parametrize("suffix", ["nc", "csv", "parquet", "zarr"])
def test_result_that_is_cut_is_neither_taken_nor_replaced(
    place: Path, whole: xr.Dataset, computed: list[int], capsys: Any, suffix: str
) -> None:
    target = Path(f"run.{suffix}")
    assert rankscope(*SIX, "--out", str(target)) == 0
    if suffix == "zarr":
        (target / "rank_90" / "c.0.0.2.0.0").unlink()
    else:
        cut(target)
    capsys.readouterr()
    computed.clear()
    assert rankscope(*SIX, "--out", str(target)) == STORE
    refused(capsys.readouterr().err, f"{target} exists", "no whole result", "overwrite")
    assert computed == []
    assert target.exists()
    assert rankscope(*SIX, "--out", str(target), "--overwrite") == 0
    assert_bits_equal(load(target), whole)


# --- locks ---------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from rankscope.store import locked
with locked("run.nc"):
    print("held", flush=True)
    time.sleep(100)
"""


def test_second_process_is_refused_and_a_killed_one_does_not_block(
    place: Path, whole: xr.Dataset, computed: list[int], capsys: Any
) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert rankscope(*SIX, "--out", "run.nc") == STORE
        refused(capsys.readouterr().err, f"another process: {holder.pid} on ", "another output")
        # nor may it be overwritten meanwhile
        assert rankscope(*SIX, "--out", "run.nc", "--overwrite") == STORE
        refused(capsys.readouterr().err, str(holder.pid))
        assert computed == []
        holder.send_signal(signal.SIGKILL)
    assert lock_path("run.nc").exists()
    assert rankscope(*SIX, "--out", "run.nc") == 0
    assert_bits_equal(load("run.nc"), whole)
    assert not lock_path("run.nc").exists()
