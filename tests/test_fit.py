"""Fitting projections to a model: resumed, refused in time, and read by the methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from commands import SMALL, TINY, rankscope
from rankscope.approximations import method
from rankscope.approximations.fitted import Projections, read_projections
from rankscope.engine import ComparisonPlan, Sampling, execute
from rankscope.engine.fit import Fit, fit
from rankscope.exceptions import MethodError, StoreError, UsageError
from rankscope.models import LoadedModel, load
from rankscope.store import working_path
from rankscope.store.files import load as read
from rankscope.text import Corpus
from tiny import tiny_config

WINDOWS = Sampling(length=12, windows=6)
QUICK = Fit(k=4, held_out=2, epochs=2)


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    folder = tmp_path / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    return load(f"random:{folder}", tokenizer="hash")


@pytest.fixture
def corpus() -> Corpus:
    words = " ".join(f"word{i % 11} of{i % 7}" for i in range(200))
    return Corpus.from_strings([words], "words")


def same(one: Projections, other: Projections) -> bool:
    sides = [(one.e, other.e), *([(one.f, other.f)] if one.f and other.f else [])]
    return all(
        torch.equal(mine[layer], theirs[layer]) for mine, theirs in sides for layer in mine
    ) and (one.training_error, one.how) == (other.training_error, other.how)


def stopping(after: int) -> Any:
    def progress(done: int, _: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("projection", ["learned", "learned-conv", "svd"])
def test_fitted_file_is_what_the_methods_read(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, projection: Any
) -> None:
    settings = Fit(k=4, projection=projection, held_out=0 if projection == "svd" else 2, epochs=2)
    path = fit(model, corpus, WINDOWS, settings, tmp_path / "p.safetensors")
    stored = read_projections(path)
    assert stored.layers == (0, 1, 2)
    assert (stored.kind, stored.length, stored.windows) == (projection, 12, 6)
    assert stored.text_sha256 == corpus.sha256
    kind = projection.removesuffix("-conv")
    texts = [f"linformer:k=4,projection={kind},file={path}", "linformer:k=4"]
    later = Sampling(length=12, windows=2, skip=8)
    plan = ComparisonPlan(model, corpus, later, [method(text) for text in texts])
    found = read(execute(plan, model, tmp_path / "run.nc"))
    assert bool((found["output"] > 0).all())
    assert not working_path(path).exists()
    if projection != "svd":
        # never worse than where it started, on the windows that decide when to stop
        assert set(stored.validation_error) == {0, 1, 2}
        assert all(0 < error < 2 for error in stored.validation_error.values())


def test_stopped_and_resumed_equals_uninterrupted(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    whole = fit(model, corpus, WINDOWS, QUICK, tmp_path / "whole.safetensors")
    target = tmp_path / "p.safetensors"
    with pytest.raises(KeyboardInterrupt):
        fit(model, corpus, WINDOWS, QUICK, target, progress=stopping(2))
    assert not target.exists()
    assert len(list(working_path(target).iterdir())) == 2
    before = {one: one.stat().st_mtime_ns for one in working_path(target).iterdir()}
    told: list[str] = []
    fit(model, corpus, WINDOWS, QUICK, target, told=told.append)
    assert before
    # the layers that were there are not fitted again
    assert {line.split(",")[0] for line in told} == {"layer 2"}
    assert same(read_projections(target), read_projections(whole))
    assert not working_path(target).exists()


def test_same_settings_change_nothing_and_others_are_refused(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    target = fit(model, corpus, WINDOWS, QUICK, tmp_path / "p.safetensors")
    stamp = target.stat().st_mtime_ns
    fit(model, corpus, WINDOWS, QUICK, target)
    assert target.stat().st_mtime_ns == stamp
    other = Fit(k=3, held_out=2, epochs=2)
    with pytest.raises(StoreError, match=r"fit\.k is 4 there and 3 here"):
        fit(model, corpus, WINDOWS, other, target)
    assert target.stat().st_mtime_ns == stamp
    fit(model, corpus, WINDOWS, other, target, overwrite=True)
    assert read_projections(target).k(0) == 3


def test_sharing_layerwise_gives_one_matrix(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    settings = Fit(k=4, sharing="layerwise", held_out=2, epochs=2)
    stored = read_projections(fit(model, corpus, WINDOWS, settings, tmp_path / "p.safetensors"))
    assert stored.f is None
    assert torch.equal(stored.e[0], stored.e[2])
    assert len(stored.validation_error) == 3


@pytest.mark.parametrize(
    ("settings", "windows", "target", "kind", "cause"),
    [
        (Fit(k=13), WINDOWS, "p.safetensors", MethodError, "k = 13"),
        (Fit(k=4), WINDOWS, "p.txt", UsageError, "safetensors"),
        (Fit(k=4), Sampling(length=12, windows=None), "p.safetensors", UsageError, "number"),
    ],
)
def test_refused_before_anything_is_captured(
    model: LoadedModel,
    corpus: Corpus,
    tmp_path: Path,
    settings: Fit,
    windows: Sampling,
    target: str,
    kind: type[Exception],
    cause: str,
) -> None:
    with pytest.raises(kind, match=cause):
        fit(model, corpus, windows, settings, tmp_path / target)
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_commands_fit_and_evaluate(place: Path, capsys: Any) -> None:
    small = [one for one in SMALL if one not in ("--workers", "1")]
    line = ["linformer", "fit", *small, "-k", "4", "--held-out", "2", "--epochs", "2"]
    assert rankscope(*line, "--out", "p.safetensors") == 0
    shown = capsys.readouterr()
    assert "held out" in shown.out
    assert "epoch 1" in shown.err
    again = ["linformer", "evaluate", "p.safetensors", *SMALL, "--skip", "5", "--out", "e.nc"]
    assert rankscope(*again) == 0
    shown = capsys.readouterr()
    # three windows were fitted to and two held out; only others are a test
    assert "careful" not in shown.err
    for word in ("learned", "P_low", "P·RᵀR", "random"):
        assert word in shown.out
    assert read("e.nc").sizes["method"] == 6
    same = ["linformer", "evaluate", "p.safetensors", *SMALL, "--skip", "4", "--out", "same.nc"]
    assert rankscope(*same) == 0
    assert "careful" in capsys.readouterr().err
    # drawn weights are told apart by their seed
    assert rankscope(*again[:-1], "x.nc", "--seed", "1") == 17
    assert "seed 1" in capsys.readouterr().err
    wide = ["linformer", "fit", *TINY, "--length", "12", "-k", "40", "--windows", "2"]
    assert rankscope(*wide, "--out", "q.safetensors") == 17
    assert not Path("q.safetensors").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"k": -3},
        {"seed": -1},
        {"epochs": 0},
        {"held_out": -1},
        {"patience": 0},
        {"projection": "learned", "held_out": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Fit(**{"k": 4, "projection": "svd", **wrong})  # type: ignore[arg-type]


def test_another_dtype_is_another_fit(model: LoadedModel, corpus: Corpus, tmp_path: Path) -> None:
    target = fit(model, corpus, WINDOWS, QUICK, tmp_path / "p.safetensors")
    double = load(model.info.spec, tokenizer="hash", dtype="float64")
    with pytest.raises(StoreError, match="dtype"):
        fit(double, corpus, WINDOWS, QUICK, target)


@pytest.mark.parametrize("projection", ["svd", "learned"])
def test_f29_causal_models_are_refused_before_anything_is_fitted(
    corpus: Corpus, tmp_path: Path, projection: Any
) -> None:
    folder = tmp_path / "causal"
    tiny_config("gpt2").save_pretrained(folder)
    causal = load(f"random:{folder}", tokenizer="hash")
    settings = Fit(k=4, projection=projection, held_out=2)
    with pytest.raises(MethodError, match="causal"):
        fit(causal, corpus, WINDOWS, settings, tmp_path / "p.safetensors")
    assert [one.name for one in tmp_path.iterdir()] == ["causal"]
