"""A run that goes on elsewhere: what it was begun with is kept, what it goes on with is said."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch

from rankscope.engine import Recipe, SpectraPlan, execute, resuming
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.store import RunStore, working_path
from rankscope.store.files import load
from rankscope.text import Corpus
from tiny import tiny_config

RECIPE = Recipe(length=12, windows=6)

pytestmark = pytest.mark.usefixtures("windows_by_themselves")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    return load_model(f"random:{folder}", tokenizer="hash")


def plan_of(model: LoadedModel) -> SpectraPlan:
    words = " ".join(f"word{i % 37} of{i % 11}" for i in range(300))
    return SpectraPlan(model, Corpus.from_strings([words], "words"), RECIPE)


def stop_after(model: LoadedModel, target: Path, windows: int, told: list[str]) -> None:
    def progress(done: int, _: int) -> None:
        if done >= windows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan_of(model), model, target, progress=progress, told=told.append)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Another version of torch, until it is undone."""
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "1.0" if name == "torch" else real(name)
    )
    return monkeypatch


def test_other_versions_are_said_once_and_kept(
    model: LoadedModel, tmp_path: Path, older: pytest.MonkeyPatch
) -> None:
    target, told = tmp_path / "run.nc", list[str]()
    stop_after(model, target, 2, told)
    older.undo()
    older.setattr("rankscope.engine.frame.BLOCK_TOKENS", 1)
    now = importlib.metadata.version("torch")
    stop_after(model, target, 4, told)
    said = [line for line in told if "instead of" in line]
    assert len(said) == 1
    assert said[0].startswith(f"{working_path(target)}: goes on with torch {now} instead of 1.0;")
    told.clear()
    execute(plan_of(model), model, target, told=told.append)
    assert told == []
    attrs = load(target).attrs
    assert json.loads(attrs["versions_json"])["torch"] == "1.0"
    assert [one["torch"] for one in json.loads(attrs["later_versions_json"])] == [now]


def test_run_of_one_version_names_no_other(model: LoadedModel, tmp_path: Path) -> None:
    target, told = tmp_path / "run.nc", list[str]()
    stop_after(model, target, 3, told)
    execute(plan_of(model), model, target, told=told.append)
    assert told == []
    attrs = load(target).attrs
    assert "later_versions_json" not in attrs
    assert json.loads(attrs["versions_json"])["torch"] == importlib.metadata.version("torch")


def test_devices_of_all_parts_are_kept(model: LoadedModel, tmp_path: Path) -> None:
    target = tmp_path / "run.zarr"
    stop_after(model, target, 2, [])
    plan = plan_of(model)
    store = RunStore.open(working_path(target), plan.settings_hash)
    store.record({"device": "cuda:1"})
    stop_after(model, target, 4, [])
    execute(plan_of(model), model, target)
    assert load(target).attrs["device"] == "cpu, cuda:1"
    # what was not computed elsewhere does not say so
    execute(plan_of(model), model, tmp_path / "own.zarr")
    assert load(tmp_path / "own.zarr").attrs["device"] == str(torch.device("cpu"))


def test_check_of_what_is_done_shows_progress(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, told = tmp_path / "run.nc", list[str]()
    stop_after(model, target, 3, told)
    assert told == []
    monkeypatch.setattr(resuming, "CHECK_LINES", 0.0)
    execute(plan_of(model), model, target, told=told.append)
    assert f"{working_path(target)}: 3 of 3 windows that are done have been checked" in told
