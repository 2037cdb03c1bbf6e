"""A run's store: windows come one by one, in any order, and a stopped run goes on unharmed."""

from __future__ import annotations

import gc
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.status import State
from rankscope.store import (
    RunStore,
    finishing,
    layout,
    settings_hash,
    tables,
    working_path,
)
from rankscope.store.files import FORMATS, export, load
from rankscope.store.schema import CENTRED, CURVE, MATRIX, SPECTRA
from run_stores import HASH, RECIPE, assert_bits_equal, complete, full_at, schema, window


@pytest.mark.parametrize("suffix", sorted(FORMATS))
@pytest.mark.parametrize("centred", [False, True])
def test_finished_run_holds_what_was_written(tmp_path: Path, suffix: str, centred: bool) -> None:
    run = schema(centred=centred)
    target = tmp_path / "out" / f"run.{suffix}"
    assert complete(working_path(tmp_path / "run"), run).finish(target) == target
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == [target.name]
    read = load(target)
    assert dict(read.sizes) == dict(zip(CURVE, (1, 1, 3, 2, 3, 8), strict=True))
    assert {*read.data_vars} == {*SPECTRA, *(CENTRED if centred else []), "state"}
    for sample in range(3):
        for name, values in window(run, sample).items():
            stored = read[name].isel(model=0, corpus=0, sample=sample)
            assert stored.dims == read[name].dims[3:]
            np.testing.assert_array_equal(
                stored.values, values, strict=name not in ("status", "n_tokens")
            )
    assert read["status"].dtype == np.int8
    assert read["n_tokens"].dtype == np.int32
    assert read["status"].attrs["flag_meanings"].split()[1] == "fallback"
    assert read["status"].attrs["flag_values"].tolist() == [0, 1, 2, 3, 4, 5, 6, -1]
    assert read["model"].item() == run.model
    assert read["corpus"].item() == "NA"
    assert read["index"].values.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read["layer"].values.tolist() == [0, 5]
    assert read["attention"].values.tolist() == ["global", "local"]
    assert read["token_end"].dtype == np.int64
    assert read["token_end"].values.tolist() == [6, 12, 18]
    assert read.attrs == run.attrs


def test_all_formats_hold_the_same(tmp_path: Path) -> None:
    files = [
        complete(tmp_path / "store", schema()).finish(tmp_path / f"run.{suffix}")
        for suffix in FORMATS
    ]
    first, *others = map(load, files)
    for other in others:
        assert_bits_equal(first, other)


def test_f19_resume_neither_doubles_nor_reorders(tmp_path: Path) -> None:
    run = schema(n_samples=2)
    RunStore.create(tmp_path / "s", run).write(1, window(run, 1))
    store = RunStore.open(tmp_path / "s", HASH, RECIPE)
    assert store.done().tolist() == [False, True]
    for sample in (0, 1, 1):
        store.write(sample, window(run, sample))
    assert store.done().tolist() == [True, True]
    resumed = load(store.finish(tmp_path / "a.nc"))
    assert resumed["sample"].values.tolist() == [0, 1]
    assert_bits_equal(resumed, load(complete(tmp_path / "t", run).finish(tmp_path / "b.nc")))


def test_f19_window_half_written_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = schema()
    store = complete(tmp_path / "s", run)

    full_at(monkeypatch, "rank_90")
    with pytest.raises(StoreError, match="No space left"):
        store.write(1, window(run, 1))
    assert store.done().tolist() == [True, False, True]
    with pytest.raises(StoreError, match="1 of 3 samples are not computed yet"):
        store.finish(tmp_path / "a.nc")
    assert sorted(os.listdir(tmp_path)) == ["s"]
    with store.dataset() as partial:
        assert partial["state"].values.tolist() == [[[State.bad, State.absent, State.bad]]]


def test_f19_other_settings_are_named(tmp_path: Path) -> None:
    complete(tmp_path / "s", schema())
    other = {"model": "m", "text": {"length": 256, "mode": "packed"}, "seed": 1}
    named = "layers is only there; seed is only here; text.length is 512 there and 256 here"
    with pytest.raises(StoreError, match=f": {named} ") as error:
        RunStore.open(tmp_path / "s", settings_hash(other), other)
    assert "use the same settings" in error.value.remedy
    with pytest.raises(StoreError, match=f"hash {HASH:.12} there and {'0' * 12} here"):
        RunStore.open(tmp_path / "s", "0" * 64)


def test_settings_hash_is_that_of_canonical_json() -> None:
    assert settings_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    one = {"a": (1, 2), "b": np.float64(0.5), "c": {"y": True, "x": None}}
    other = {"c": {"x": None, "y": np.bool_(True)}, "b": 0.5, "a": [1, np.int64(2)]}
    assert settings_hash(one) == settings_hash(other)
    for change in ({"a": [2, 1]}, {"b": 0.25}, {"c": {"x": None, "y": 1}}, {"d": 0}):
        assert settings_hash(one | change) != settings_hash(one)
    with pytest.raises(TypeError, match="type object"):
        settings_hash({"a": object()})
    with pytest.raises(ValueError, match="JSON"):
        settings_hash({"a": np.nan})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": None}, r"lacks the fields \['status'\]"),
        ({"more": np.zeros(2)}, r"has \['more'\] too many"),
        ({"rank_90": np.zeros((3, 2))}, r"rank_90 has the shape \(3, 2\), not \(2, 3\)"),
        ({"status": np.full((2, 3), 300)}, "loses something as int8"),
        ({"status": np.full((2, 3), -1)}, "status absent"),
        ({"status": np.full((2, 3), np.nan)}, "loses something"),
        ({"n_tokens": np.array(2**40)}, "loses something as int32"),
        ({"n_tokens": np.array("8")}, "loses something"),
        ({"rank_90": np.full((2, 3), 2**60 + 1)}, "loses something as float64"),
    ],
)
def test_f19_fields_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    run = schema()
    store = RunStore.create(tmp_path / "s", run)
    fields = {name: one for name, one in (window(run, 0) | change).items() if one is not None}
    with pytest.raises(StoreError, match=words):
        store.write(0, fields)
    with pytest.raises(StoreError, match="no sample 3"):
        store.write(3, window(run, 0))
    assert not store.done().any()


def test_schema_is_checked() -> None:
    for change in (
        {"n_samples": 0},
        {"axes": {"layer": np.arange(0), "head": np.arange(3), "index": np.arange(4)}},
        {"axes": {"layer": np.arange(2), "head": np.arange(3)}},
        {"labels": {"attention": ("layer", np.array(["global"]))}},
        {"text_id": np.zeros(9)},
        {"attrs": {}},
        {"variables": {"status": (MATRIX, "int8", "x"), "alone": (("layer",), "int8", "x")}},
    ):
        with pytest.raises(ValueError, match=r"needs|at least|does not have"):
            schema(**change)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: (path / "zarr.json").unlink(),
        lambda path: (path / "zarr.json").write_text('{"zarr_'),
        lambda path: (path / "zarr.json").write_bytes(b""),
        lambda path: shutil.rmtree(path / "energy_ratio"),
        lambda path: (path / "status" / "zarr.json").write_text("x"),
        lambda path: (path / "state" / "c.0.0.0").write_bytes(b"\x00" * 9),
        lambda path: (path / "model" / "c.0").write_bytes(b"\x28\xb5"),
    ],
)
def test_f19_damaged_store_is_one_clear_error(tmp_path: Path, spoil: Any) -> None:
    path = tmp_path / "s"
    complete(path, schema())
    spoil(path)
    with pytest.raises(StoreError) as error:
        RunStore.open(path, HASH, RECIPE)
    assert str(path) in error.value.cause
    assert error.value.remedy


def test_store_that_is_not_there_or_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run store"):
        RunStore.open(tmp_path / "s", HASH)
    export(xr.Dataset({"v": ("x", [1.0])}), tmp_path / "mean.zarr")
    with pytest.raises(StoreError, match="is no run store"):
        RunStore.open(tmp_path / "mean.zarr", HASH)
    with pytest.raises(StoreError, match=r"exists \(a folder"):
        RunStore.create(tmp_path / "mean.zarr", schema())


def test_unfinished_run_does_not_load_as_a_result(tmp_path: Path) -> None:
    run = schema()
    RunStore.create(tmp_path / "s", run).write(0, window(run, 0))
    with pytest.raises(StoreError, match="parts of it are missing") as error:
        load(tmp_path / "s")
    assert "to finish it" in error.value.remedy


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_finish_keeps_the_store_when_it_cannot_write(tmp_path: Path, suffix: str) -> None:
    target = export(xr.Dataset(attrs={"old": 1}), tmp_path / f"a.{suffix}")
    store = complete(tmp_path / "s", schema())
    with pytest.raises(StoreError, match="exists"):
        store.finish(target)
    assert load(target).attrs == {"old": 1}
    assert store.done().all()
    store.finish(target, overwrite=True)
    assert load(target).attrs == schema().attrs
    assert os.listdir(tmp_path) == [target.name]


def test_finish_refuses_a_store_that_lost_a_chunk(tmp_path: Path) -> None:
    store = complete(tmp_path / "s", schema())
    (tmp_path / "s" / "rank_90" / "c.0.0.1.0.0").unlink()
    with pytest.raises(StoreError, match="lost parts of rank_90"):
        store.finish(tmp_path / "a.nc")
    assert os.listdir(tmp_path) == ["s"]


def test_finish_refuses_a_damaged_store(tmp_path: Path) -> None:
    store = complete(tmp_path / "s", schema())
    chunk = tmp_path / "s" / "rank_90" / "c.0.0.1.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-3])
    for suffix in ("nc", "csv", "parquet"):
        with pytest.raises(StoreError, match=r"run store .*s is damaged") as error:
            store.finish(tmp_path / f"a.{suffix}")
        assert "computed anew" in error.value.remedy
    assert os.listdir(tmp_path) == ["s"]


def test_finish_on_another_file_system_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    store = complete(tmp_path / "s", schema())
    monkeypatch.setattr(finishing, "install", fail)
    store.finish(tmp_path / "a.zarr")
    assert os.listdir(tmp_path) == ["a.zarr"]
    monkeypatch.undo()
    whole = complete(tmp_path / "t", schema()).finish(tmp_path / "b.zarr")
    assert_bits_equal(load(tmp_path / "a.zarr"), load(whole))


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_memory_does_not_grow_with_the_number_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    n_index = 512 if suffix == "csv" else 8192
    # cut at every window, small as they are here
    monkeypatch.setattr(tables, "_PIECE_ROWS", 6 * n_index)
    monkeypatch.setattr(layout, "_PIECE_BYTES", 6 * n_index * 8)
    # a table has 20 columns of text
    held_by_one = (20 if suffix == "csv" else 3) * 6 * n_index * 8

    def peak(n_samples: int) -> int:
        run = schema(n_samples, n_index=n_index)
        fields = window(run, 0)
        gc.collect()
        tracemalloc.start()
        store = RunStore.create(tmp_path / f"s{n_samples}", run)
        for sample in range(n_samples):
            store.write(sample, fields)
        store.finish(tmp_path / f"{n_samples}.{suffix}")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1)
    few, many = 6, 18
    assert peak(many) - peak(few) < (many - few) * held_by_one / 3
