"""Results that are failures, texts without text, targets that cannot be: through the command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from commands import rankscope
from faults import SIX, STORE, refused, stopped_after
from rankscope.cli.running import BAD_HEADS
from rankscope.engine import Recipe, SpectraPlan, execute
from rankscope.exceptions import MemoryLimit, TextError, UsageError
from rankscope.models import load as load_model
from rankscope.status import State, Status
from rankscope.store import RunStore, working_path
from rankscope.store.files import load
from rankscope.text import load_corpus
from run_stores import assert_bits_equal

# --- results that are failures -------------------------------------------------------------------


def test_f11_failures_that_are_results_are_not_computed_again(
    place: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from rankscope.cli import measuring

    real = measuring.load_model

    def broken(*arguments: Any) -> Any:
        loaded = real(*arguments)
        with torch.no_grad():
            # one number of head 2's query in the last layer: no other head sees it
            loaded.model.encoder.layer[2].attention.self.query.weight[17, 0] = torch.nan
        return loaded

    monkeypatch.setattr(measuring, "load_model", broken)
    stopped_after(4, *SIX, "--out", "run.nc")
    computed.clear()
    assert rankscope(*SIX, "--out", "run.nc") == BAD_HEADS
    assert computed == [4, 5]
    assert "matrices left out: 6 non_finite" in capsys.readouterr().out
    found = load("run.nc")
    assert (found["state"] == State.bad).all()
    bad = found["status"] == Status.non_finite
    assert bad.sum() == 6
    assert bad.sel(layer=2, head=2).all()
    kept = found["cumulative_ratio"].where(~bad)
    assert int(kept.isel(index=0).count()) == 6 * 11
    # a finished result with bad windows is a result: it says so again, and computes nothing
    computed.clear()
    assert rankscope(*SIX, "--out", "run.nc") == BAD_HEADS
    assert computed == []


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("", ["--mode", "packed"], "no text in text.txt"),
        ("", ["--mode", "document"], "no text in text.txt"),
        ("\n  \n\n", ["--mode", "packed"], "nothing but whitespace"),
        ("\n  \n\n", ["--mode", "document", "--special", "drop"], "nothing but whitespace"),
    ],
)
def test_empty_text_is_refused(
    place: Path, capsys: Any, content: str, options: list[str], words: str
) -> None:
    Path("text.txt").write_text(content)
    before = sorted(place.iterdir())
    more = ["--unit", "line", "--windows", "all", "--out", "run.nc"]
    assert rankscope(*SIX, *options, *more) == TextError.exit_code
    refused(capsys.readouterr().err, words)
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("special", ["keep", "drop", "renormalise"])
def test_f13_blank_lines_among_texts_keep_their_number(
    place: Path, capsys: Any, special: str
) -> None:
    Path("text.txt").write_text("one two\n\n   \nthree\n")
    options = ["--unit", "line", "--mode", "document", "--windows", "all", "--special", special]
    assert rankscope(*SIX, *options, "--out", "run.nc") == 0
    found = load("run.nc").isel(model=0, corpus=0)
    assert found["text_id"].to_numpy().tolist() == [0, 1, 2, 3]
    if special == "keep":
        # <s> and </s> are tokens as others are
        assert found["n_tokens"].to_numpy().tolist() == [4, 2, 2, 3]
        assert (found["state"] == State.ok).all()
        return
    assert found["n_tokens"].to_numpy().tolist() == [2, 0, 0, 1]
    assert found["state"].to_numpy().tolist() == [State.ok, State.empty, State.empty, State.ok]
    assert np.isnan(found["cumulative_ratio"].isel(sample=[1, 2])).all()
    assert "2 empty" not in capsys.readouterr().err


def test_limits_of_memory_are_kept_before_anything_is_written(place: Path, capsys: Any) -> None:
    before = sorted(place.iterdir())
    two = ["--workers", "2", "--memory-limit", "900", "--out", "run.nc"]
    assert rankscope(*SIX[:-2], *two) == MemoryLimit.exit_code
    refused(capsys.readouterr().err, "900 MiB are allowed", "fewer workers")
    assert sorted(place.iterdir()) == before


# --- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a run – ω.nc", "x" * 240 + ".nc", "sub/../run.nc"])
def test_names_of_targets(place: Path, computed: list[int], name: str) -> None:
    Path("sub").mkdir()
    stopped_after(2, *SIX, "--out", name)
    computed.clear()
    assert rankscope(*SIX, "--out", name) == 0
    assert computed == [2, 3, 4, 5]
    assert load(name).sizes["sample"] == 6


def test_target_that_is_a_link_is_written_where_it_points(
    place: Path, whole: xr.Dataset, computed: list[int]
) -> None:
    Path("far").mkdir()
    Path("link.nc").symlink_to("far/run.nc")
    stopped_after(2, *SIX, "--out", "link.nc")
    computed.clear()
    assert rankscope(*SIX, "--out", "link.nc") == 0
    assert computed == [2, 3, 4, 5]
    assert Path("link.nc").is_symlink()
    assert_bits_equal(load("far/run.nc"), whole)
    assert not list(place.glob("*.partial"))
    shutil.rmtree("far")


def test_formats_of_one_stem_do_not_meet(place: Path, whole: xr.Dataset) -> None:
    stopped_after(2, *SIX, "--out", "run.nc")
    stopped_after(3, *SIX, "--out", "run.parquet")
    assert rankscope(*SIX, "--out", "run.parquet") == 0
    assert rankscope(*SIX, "--out", "run.nc") == 0
    assert_bits_equal(load("run.nc"), whole)
    assert_bits_equal(load("run.parquet"), whole)


def test_working_folder_that_is_a_file_is_left_alone(place: Path, capsys: Any) -> None:
    Path("run.nc.partial").write_text("mine")
    for more in ([], ["--overwrite"]):
        assert rankscope(*SIX, "--out", "run.nc", *more) == STORE
        refused(capsys.readouterr().err, "run.nc.partial")
        assert Path("run.nc.partial").read_text() == "mine"


def test_working_folder_of_someones_own_is_left_alone(place: Path, capsys: Any) -> None:
    Path("run.nc.partial").mkdir()
    Path("run.nc.partial/thesis.txt").write_text("mine")
    for more in ([], ["--overwrite"]):
        assert rankscope(*SIX, "--out", "run.nc", *more) == STORE
        refused(capsys.readouterr().err, "run.nc.partial")
        assert Path("run.nc.partial/thesis.txt").read_text() == "mine"


def test_overwrite_takes_a_folder_for_no_file(place: Path, capsys: Any) -> None:
    Path("run.nc").mkdir()
    Path("run.nc/thesis.txt").write_text("mine")
    Path("run.zarr").write_text("mine")
    for name in ("run.nc", "run.zarr"):
        for more in ([], ["--overwrite"]):
            assert rankscope(*SIX, "--out", name, *more) == STORE
            refused(capsys.readouterr().err, name)
    assert Path("run.nc/thesis.txt").read_text() == Path("run.zarr").read_text() == "mine"


@pytest.mark.parametrize("out", ["text.txt/run.nc", "run", "run.nc.gz"])
def test_targets_that_cannot_be(place: Path, capsys: Any, out: str) -> None:
    assert rankscope(*SIX, "--out", out) in (STORE, UsageError.exit_code)
    refused(capsys.readouterr().err)
    assert sorted(one.name for one in place.iterdir()) == ["model", "text.txt"]


def test_store_beside_a_whole_result_is_cleared_away(
    place: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # as if it was killed between its last two steps
        patch.setattr(RunStore, "remove", lambda self: None)
        assert rankscope(*SIX, "--out", "run.nc") == 0
    assert working_path("run.nc").is_dir()
    computed.clear()
    assert rankscope(*SIX, "--out", "run.nc") == 0
    assert computed == []
    assert not working_path("run.nc").exists()
    # what belongs to other settings is somebody's run that was stopped
    stopped_after(1, *SIX, "--seed", "1", "--out", "other.nc")
    working_path("other.nc").rename(working_path("run.nc"))
    assert rankscope(*SIX, "--out", "run.nc") == 0
    assert working_path("run.nc").is_dir()


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_relative_target_stays_where_it_was_when_the_folder_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    Path("sub").mkdir()
    model = load_model("random:model", tokenizer="hash")
    plan = SpectraPlan(model, load_corpus("text.txt"), Recipe(length=12, windows=3))
    target = f"run.{suffix}"
    found = execute(plan, model, target, progress=lambda *_: os.chdir(place / "sub"))
    assert found == Path(target)
    assert load(place / target).sizes["sample"] == 3
    assert not any((place / "sub").iterdir())
