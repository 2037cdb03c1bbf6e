"""Windows are written in blocks, and what became of each is known without reading the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.status import State, Status, state_of
from rankscope.store import RunStore, containers, finishing
from rankscope.store.files import FORMATS, export, load
from rankscope.store.schema import WINDOW
from run_stores import HASH, RECIPE, assert_bits_equal, complete, full_at, schema, window

CODES = {one.name: int(one) for one in Status}


@pytest.mark.parametrize(
    ("names", "state"),
    [
        ("ok ok", "ok"),
        ("ok refined zero", "ok"),
        ("ok empty", "ok"),
        ("zero", "ok"),
        ("empty empty", "empty"),
        ("ok fallback refined", "fallback"),
        ("fallback empty", "fallback"),
        ("fallback failed", "bad"),
        ("ok non_finite", "bad"),
        ("empty non_finite", "bad"),
        ("ok absent", "absent"),
        ("failed absent", "absent"),
    ],
)
def test_state_of_a_window(names: str, state: str) -> None:
    codes = np.array([CODES[name] for name in names.split()], np.int8)
    assert state_of(codes) is State[state]
    assert state_of(codes[::-1].reshape(1, -1)) is State[state]
    assert state_of(np.array(codes[0])) is state_of(codes[:1])


def test_state_of_refuses_a_code_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="9"):
        state_of(np.array([0, 9]))


@pytest.mark.parametrize("block", [0, 257, -1])
def test_schema_refuses_a_block_out_of_range(block: int) -> None:
    with pytest.raises(ValueError, match="at most 256"):
        schema(block=block)


def test_schema_refuses_a_state_of_the_plan() -> None:
    variables = {**schema().variables, "state": (WINDOW, "int8", "mine")}
    with pytest.raises(ValueError, match="the store adds it"):
        schema(variables=variables)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    """Eleven windows, written one by one."""
    folder = tmp_path_factory.mktemp("whole")
    return load(complete(folder / "s", schema(11)).finish(folder / "a.nc"))


@pytest.mark.parametrize("block", [1, 4, 256])
def test_blocks_hold_the_same_as_single_windows(
    tmp_path: Path, block: int, whole: xr.Dataset
) -> None:
    run = schema(11, block=block)
    store = RunStore.create(tmp_path / "s", run)
    assert store.block == block
    # out of order, the last one shorter
    for start in reversed(range(0, 11, block)):
        stop = min(start + block, 11)
        store.write_block(start, [window(run, one) for one in range(start, stop)])
    assert len([*(tmp_path / "s" / "singular_value").glob("c.*")]) == -(-11 // block)
    copied = store.finish(tmp_path / "c.parquet", samples=10)
    assert_bits_equal(load(copied), whole.isel(sample=slice(0, 10)))


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_finished_blocks_hold_the_same(tmp_path: Path, suffix: str, whole: xr.Dataset) -> None:
    run = schema(11, block=4)
    store = RunStore.create(tmp_path / "s", run)
    store.write_block(0, [window(run, one) for one in range(11)])
    assert_bits_equal(load(store.finish(tmp_path / f"b.{suffix}")), whole)


def test_windows_of_a_block_come_one_by_one_and_in_any_way(
    tmp_path: Path, whole: xr.Dataset
) -> None:
    run = schema(11, block=4)
    store = RunStore.create(tmp_path / "s", run)
    done = np.zeros(11, bool)
    # within a block, over the borders of two, over three, and what is there once more
    for start, stop in ((5, 6), (3, 5), (10, 11), (6, 11), (1, 2), (0, 9)):
        store.write_block(start, [window(run, one) for one in range(start, stop)])
        done[start:stop] = True
        assert store.done().tolist() == done.tolist()
        values = np.asarray(store._arrays["rank_90"])[0, 0]
        np.testing.assert_array_equal(values[done], whole["rank_90"].values[0, 0, done])
        assert np.isnan(values[~done]).all()
    assert_bits_equal(load(store.finish(tmp_path / "c.nc")), whole)


def test_states_say_what_became_of_each_window(tmp_path: Path) -> None:
    run = schema(5, block=2)
    store = RunStore.create(tmp_path / "s", run)
    codes = [Status.ok, Status.fallback, Status.empty, Status.failed]
    fields = [window(run, 0) | {"status": np.full((2, 3), code)} for code in codes]
    store.write_block(0, fields)
    with store.dataset() as partial:
        assert partial["state"].values.tolist() == [[[0, 1, 2, 3, -1]]]
        assert partial["state"].dtype == np.int8
        assert partial["state"].attrs["flag_values"].tolist() == [0, 1, 2, 3, -1]
        assert partial["state"].attrs["flag_meanings"] == "ok fallback empty bad absent"
        assert partial["state"].attrs["long_name"] == "what became of the window"
    assert store.done().tolist() == [True] * 4 + [False]


def test_states_of_a_block_share_a_file(tmp_path: Path) -> None:
    for block in (48, 256):
        store = RunStore.create(tmp_path / str(block), schema(4, block=block))
        chunk = json.loads((store.path / "state" / "zarr.json").read_text())
        step = chunk["chunk_grid"]["configuration"]["chunk_shape"][2]
        assert step % block == 0
        assert 4096 - block < step <= 4096


def test_done_reads_only_states(tmp_path: Path) -> None:
    run = schema(5000, n_index=3)
    store = RunStore.create(tmp_path / "s", run)
    for sample in (0, 4095, 4096, 4999):
        store.write(sample, window(run, sample))
    for name in run.variables:
        for chunk in (tmp_path / "s" / name / "c").rglob("*"):
            if chunk.is_file():
                chunk.unlink()
    again = RunStore.open(tmp_path / "s", HASH, RECIPE)
    assert np.flatnonzero(again.done()).tolist() == [0, 4095, 4096, 4999]


@pytest.mark.parametrize("block", [1, 4])
def test_nothing_is_written_unless_all_fits(tmp_path: Path, block: int) -> None:
    run = schema(6, block=block)
    store = RunStore.create(tmp_path / "s", run)
    good = [window(run, sample) for sample in range(3)]
    store.write_block(0, good)
    before = {one: one.read_bytes() for one in (tmp_path / "s").rglob("*") if one.is_file()}
    for bad, words in [
        ({"status": np.full((2, 3), 9)}, "status that does not exist: 9"),
        ({"rank_90": np.zeros(3)}, "rank_90 has the shape"),
        ({"state": np.int8(0)}, r"has \['state'\] too many"),
    ]:
        with pytest.raises(StoreError, match=words):
            store.write_block(1, [*good[:2], good[2] | bad])
    for start, words in ((4, "samples 4 to 6"), (-1, "no samples -1")):
        with pytest.raises(StoreError, match=words):
            store.write_block(start, good)
    with pytest.raises(StoreError, match="the run has no"):
        store.write_block(0, [])
    after = {one: one.read_bytes() for one in (tmp_path / "s").rglob("*") if one.is_file()}
    assert before == after


def test_windows_being_replaced_are_not_done_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = schema(4, block=4)
    store = complete(tmp_path / "s", run)

    full_at(monkeypatch, "n_tokens")
    with pytest.raises(StoreError, match="No space left"):
        store.write_block(1, [window(run, 3), window(run, 3)])
    assert RunStore.open(tmp_path / "s", HASH).done().tolist() == [True, False, False, True]


def without_state(path: Path) -> None:
    """Make a folder what an earlier version wrote."""
    tree = json.loads((path / "zarr.json").read_text())
    layout = json.loads(tree["attributes"]["rankscope_layout_json"])
    del layout["variables"]["state"]
    tree["attributes"]["rankscope_layout_json"] = json.dumps(layout)
    (path / "zarr.json").write_text(json.dumps(tree))
    containers_state = path / "state"
    for one in sorted(containers_state.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    containers_state.rmdir()


def test_files_of_an_earlier_version_load_and_its_unfinished_runs_are_refused(
    tmp_path: Path, whole: xr.Dataset
) -> None:
    old = whole.drop_vars("state")
    for suffix in FORMATS:
        assert_bits_equal(load(export(old, tmp_path / f"old.{suffix}")), old)
    RunStore.create(tmp_path / "s", schema())
    without_state(tmp_path / "s")
    with pytest.raises(StoreError, match="earlier version") as error:
        RunStore.open(tmp_path / "s", HASH, RECIPE)
    assert "delete the folder" in error.value.remedy
    assert (tmp_path / "s").is_dir()


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_run_that_stopped_early_keeps_its_first_windows(
    tmp_path: Path, suffix: str, whole: xr.Dataset
) -> None:
    run = schema(11, block=4)
    store = RunStore.create(tmp_path / "s", run)
    store.write_block(0, [window(run, sample) for sample in range(6)])
    with pytest.raises(StoreError, match="1 of 7 samples are not computed"):
        store.finish(tmp_path / f"a.{suffix}", samples=7)
    for count in (0, 12):
        with pytest.raises(StoreError, match="no first"):
            store.finish(tmp_path / f"a.{suffix}", samples=count)
    attrs = {"took": 5, "precision": {"wanted": 0.01, "reached": True}}
    read = load(store.finish(tmp_path / f"a.{suffix}", samples=5, attrs=attrs))
    assert_bits_equal(read, whole.isel(sample=slice(0, 5)).assign_attrs(attrs))
    assert os.listdir(tmp_path) == [f"a.{suffix}"]


def test_lost_chunks_matter_only_where_windows_are_taken(tmp_path: Path) -> None:
    run = schema(9, block=3)
    store = RunStore.create(tmp_path / "s", run)
    store.write_block(0, [window(run, sample) for sample in range(9)])
    (tmp_path / "s" / "rank_90" / "c.0.0.2.0.0").unlink()
    with pytest.raises(StoreError, match="lost parts of rank_90"):
        store.finish(tmp_path / "a.nc", samples=7)
    assert load(store.finish(tmp_path / "a.nc", samples=6)).sizes["sample"] == 6


@pytest.mark.parametrize("suffix", ["csv", "zarr"])
def test_attributes_are_added_at_the_end(tmp_path: Path, suffix: str) -> None:
    store = complete(tmp_path / "s", schema(1))
    read = load(store.finish(tmp_path / f"a.{suffix}", attrs={"flag": True, "none": None}))
    assert read.attrs == {**schema(1).attrs, "flag": True, "none": None}


def test_move_that_fails_leaves_a_store_without_the_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = complete(tmp_path / "s", schema())

    def fail(new: Path, _: Path) -> None:
        assert containers.read_container(new, "zarr").attrs["took"] == 5
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(finishing, "install", fail)
    with pytest.raises(StoreError, match="No space left"):
        store.finish(tmp_path / "a.zarr", attrs={"took": 5})
    monkeypatch.undo()
    again = RunStore.open(tmp_path / "s", HASH, RECIPE)
    with again.dataset() as dataset:
        assert dataset.attrs == schema().attrs
    assert load(again.finish(tmp_path / "a.zarr", attrs={"took": 6})).attrs["took"] == 6
