"""Runs that stop when their intervals are narrow: where, with what, and the same after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import TINY, rankscope
from rankscope.cli.running import TOO_SHORT
from rankscope.engine import Recipe, Resources, SpectraPlan, execute, spectra
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.store.files import load
from rankscope.summary import summarise
from rankscope.text import Corpus
from run_stores import assert_bits_equal
from tiny import tiny_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    return load_model(f"random:{folder}", tokenizer="hash")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """More windows than are needed, no two alike."""
    rng = np.random.default_rng(3)
    return Corpus.from_strings([" ".join(f"word{i}" for i in rng.integers(0, 400, 2000))], "words")


def widths(run: Any) -> tuple[float, float]:
    found = summarise(run, index=3).isel(model=0, corpus=0)
    at = found.sel(index=3)
    overall = float(at["interval_high"] - at["interval_low"])
    layers = (found["layer_mean_high"] - found["layer_mean_low"]).to_numpy()
    return overall, float(layers.max())


@pytest.mark.usefixtures("windows_by_themselves")
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_run_stops_at_the_first_look_that_is_narrow_enough(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, suffix: str
) -> None:
    recipe = Recipe(length=12, windows=None, precision=0.02)
    said: list[str] = []
    plan = SpectraPlan(model, corpus, recipe)
    found = load(execute(plan, model, tmp_path / f"run{suffix}", told=said.append))
    count = found.sizes["sample"]
    assert 8 < count < plan.n_samples
    assert len(said) > 1
    assert said[-1].startswith(f"{count} windows")
    overall, layer = widths(found)
    assert max(overall, layer) < 0.02
    assert found.attrs["precision_reached"]
    assert found.attrs["precision_overall"] == pytest.approx(overall, rel=1e-9)
    assert found.attrs["precision_widest_layer"] == pytest.approx(layer, rel=1e-9)
    # the windows themselves are those of a run of so many, and one look earlier was too early
    plain = spectra(model, corpus, Recipe(length=12, windows=count))
    np.testing.assert_array_equal(plain["singular_value"], found["singular_value"])
    earlier = int(said[-2].split()[0])
    assert max(widths(found.isel(sample=slice(0, earlier)))) >= 0.02


class Stopped(Exception):
    pass


@pytest.mark.parametrize("tokens", [1, 40])
def test_the_same_stop_after_an_interruption_and_with_workers(
    model: LoadedModel,
    corpus: Corpus,
    tmp_path: Path,
    tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # windows one by one, and in blocks of three
    monkeypatch.setattr("rankscope.engine.frame.BLOCK_TOKENS", tokens)
    plan = SpectraPlan(model, corpus, Recipe(length=12, windows=None, precision=0.02))
    whole = load(execute(plan, model, tmp_path / "whole.nc"))
    assert plan.schema.block == (1 if tokens == 1 else 3)

    def stop(done: int, _total: int) -> None:
        if done >= 9:
            raise Stopped

    with pytest.raises(Stopped):
        execute(plan, model, tmp_path / "run.nc", progress=stop)
    assert_bits_equal(load(execute(plan, model, tmp_path / "run.nc")), whole)
    if tokens > 1:
        two = execute(plan, model, tmp_path / "two.nc", Resources(workers=2))
        assert_bits_equal(load(two), whole)


def test_text_that_is_too_short_says_so(place: Path, capsys: Any) -> None:
    arguments = ["spectra", *TINY, "--length", "12", "--precision", "0.0001"]
    assert rankscope(*arguments, "--windows", "9", "--out", "run.nc") == TOO_SHORT
    shown = capsys.readouterr().err
    assert "narrower than 0.0001" in shown
    found = load("run.nc")
    assert found.sizes["sample"] == 9
    assert not found.attrs["precision_reached"]
    assert rankscope(*arguments, "--windows", "9", "--out", "run.nc") == TOO_SHORT


@pytest.mark.parametrize("precision", [0.0, -0.1, 1.0, float("nan")])
def test_precision_is_a_width(precision: float) -> None:
    with pytest.raises(UsageError, match="no width"):
        Recipe(precision=precision)


def test_interval_of_minilm_holds_the_mean_of_a_longer_run(
    minilm: LoadedModel, shared_data: Path
) -> None:
    """Short windows, so that it takes seconds; the analysis at n = 512 is in the README."""
    from rankscope.text import load_corpus

    text = load_corpus(str(shared_data / "wikitext103-test.txt"))
    recipe = Recipe(length=64, windows=None, precision=0.02)
    found = spectra(minilm, text, recipe)
    count = found.sizes["sample"]
    summary = summarise(found, index=16).isel(model=0, corpus=0).sel(index=16)
    longer = spectra(minilm, text, Recipe(length=64, windows=4 * count))
    mean = float(summarise(longer, index=16)["mean_ratio_curve"].sel(index=16).item())
    assert float(summary["interval_low"]) <= mean <= float(summary["interval_high"])
