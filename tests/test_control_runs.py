"""Controls as runs: the same windows, what they must leave alone, differences, commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import SMALL, rankscope
from rankscope.capture import capture
from rankscope.controls import control_matrix, padded_attention, shortened, shuffled_tokens
from rankscope.engine import Recipe, Resources, SpectraPlan, execute, spectra
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.store.files import load
from rankscope.summary.differences import difference
from rankscope.text import Corpus, windows
from run_stores import assert_bits_equal
from tiny import tiny_config
from tolerances import GRAM_RATIO

RECIPE = Recipe(length=12, windows=3, skip=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    return load_model(f"random:{folder}", tokenizer="hash")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_strings([" ".join(f"word{i % 37} of{i % 11}" for i in range(300))], "words")


def singular(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(matrix.double().numpy(), compute_uv=False)


def expected(model: LoadedModel, corpus: Corpus, control: str, seed: int) -> np.ndarray:
    """Singular values (sample, layer, head, index) from the controls themselves, by LAPACK."""
    cut = windows(corpus, model.tokenizer, length=12, count=4)[1:]
    found = []
    for sample, window in enumerate(cut):
        if control == "tokens":
            stream = capture(model, [shuffled_tokens(window, seed)], values=False)
        elif control == "padded-7":
            stream = iter(padded_attention(model, shortened(window, 7), 12))
        else:
            stream = capture(model, [window], values=False)
        layers = []
        for attention in stream:
            heads = []
            for head in range(4):
                matrix = attention.matrix(0, head)
                if control in ("rows", "gaussian"):
                    matrix = control_matrix(
                        control, matrix, attention, head=head, sample=1 + sample, seed=seed
                    )
                heads.append(singular(matrix))
            layers.append(np.stack(heads))
        found.append(np.stack(layers))
    return np.stack(found)


@pytest.mark.parametrize("control", ["rows", "gaussian", "tokens", "padded-7"])
def test_control_is_measured_on_the_same_windows(
    model: LoadedModel, corpus: Corpus, control: str
) -> None:
    measured = spectra(model, corpus, RECIPE)
    recipe = replace(RECIPE, control=control, control_seed=5)
    found = spectra(model, corpus, recipe)
    wanted = expected(model, corpus, control, 5)
    values = found["singular_value"].to_numpy()[0, 0]
    sums = wanted.cumsum(-1) / wanted.sum(-1, keepdims=True)
    ratios = found["cumulative_ratio"].to_numpy()[0, 0]
    np.testing.assert_allclose(ratios, sums, atol=GRAM_RATIO)
    np.testing.assert_allclose(values[..., :4], wanted[..., :4], rtol=1e-5)
    # and it is not what the model does
    gap = np.abs(ratios - measured["cumulative_ratio"].to_numpy()[0, 0]).max()
    assert gap > 1e-3
    for name in ("text_id", "window", "token_start"):
        np.testing.assert_array_equal(found[name], measured[name])
    if control != "padded-7":
        np.testing.assert_array_equal(found["token_end"], measured["token_end"])
        np.testing.assert_array_equal(found["n_tokens"], measured["n_tokens"])
    assert str(found["model"].item()) == f"{control}:{measured['model'].item()}"
    assert found.attrs["control"] == control
    assert found.attrs["settings_hash"] != measured.attrs["settings_hash"]
    if control == "rows":
        kept = [one["row_entropy"].to_numpy() for one in (found, measured)]
        np.testing.assert_allclose(*kept, rtol=1e-5)


def test_controls_do_not_depend_on_who_computes_them(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    plan = SpectraPlan(model, corpus, replace(RECIPE, control="rows"))
    one = load(execute(plan, model, tmp_path / "one.nc"))
    two = load(execute(plan, model, tmp_path / "two.nc", Resources(workers=2)))
    assert_bits_equal(one, two)
    # window 2 of the text draws the same whatever windows come before it
    alone = spectra(model, corpus, replace(RECIPE, windows=1, skip=2, control="rows"))
    np.testing.assert_allclose(
        alone["singular_value"].isel(sample=0), one["singular_value"].isel(sample=1), rtol=1e-6
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"control": "noise"},
        {"control": "padded-12"},
        {"control": "padded-13"},
        {"control": "padded-0"},
        {"control": "padded-7", "special": "drop"},
        {"control": "rows", "control_seed": -1},
    ],
)
def test_controls_that_are_none_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(RECIPE, **changes)


def test_difference_is_paired_by_window(model: LoadedModel, corpus: Corpus) -> None:
    measured = spectra(model, corpus, RECIPE)
    control = spectra(model, corpus, replace(RECIPE, control="rows"))
    found = difference(measured, control)
    assert found.index == 3
    gaps = (measured["cumulative_ratio"] - control["cumulative_ratio"].to_numpy()).sel(index=3)
    by_window = gaps.mean(("layer", "head")).to_numpy().ravel()
    half = 4.302652729911275 * by_window.std(ddof=1) / np.sqrt(3)  # t(2) at .975
    np.testing.assert_allclose(found.mean, by_window.mean(), rtol=1e-12)
    wanted = (by_window.mean() - half, by_window.mean() + half)
    np.testing.assert_allclose(found.interval, wanted, rtol=1e-9)
    np.testing.assert_allclose(found.measured - found.control_mean, found.mean, rtol=1e-9)
    np.testing.assert_allclose(found.by_head, gaps.mean("sample").to_numpy()[0, 0], rtol=1e-12)
    assert (found.model, found.control, found.units) == ("random:model", "rows", 3)
    assert found.name == "rows:random:model"
    other = spectra(model, corpus, replace(RECIPE, skip=0, control="rows"))
    with pytest.raises(UsageError, match="another window"):
        difference(measured, other)


def test_commands_measure_controls_and_report_them(place: Path, capsys: Any) -> None:
    controls = ["--controls", "rows,padded-6"]
    assert rankscope("spectra", *SMALL, *controls, "--out", "run.nc") == 0
    shown = capsys.readouterr().out
    assert "measured less control" in shown
    assert {path.name for path in place.glob("*.nc")} == {
        "run.nc",
        "run--rows.nc",
        "run--padded-6.nc",
    }
    assert load("run--rows.nc").attrs["control"] == "rows"
    assert rankscope("truncate", *SMALL, "--out", "errors.nc") == 0
    assert rankscope("report", "run.nc", "run--rows.nc", "run--padded-6.nc", "errors.nc") == 0
    page = (place / "run.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") or page.lstrip().lower().startswith("<!doctype")
    assert "padded-6" in page
    capsys.readouterr()
    assert rankscope("spectra", *SMALL, "--controls", "nothing", "--out", "x.nc") == 2
    assert "no control 'nothing'" in capsys.readouterr().err
    assert rankscope("report", "errors.nc") == 2
    assert "spectra" in capsys.readouterr().err
    assert rankscope("report", "run.nc", "--out", "run.txt") == 2
    assert not (place / "x.nc").exists()


def test_report_says_how_to_go_without_the_model(place: Path, capsys: Any) -> None:
    assert rankscope("spectra", *SMALL, "--out", "run.zarr") == 0
    with (place / "text.txt").open("a", encoding="utf-8") as file:
        file.write(" More.")
    # no picture, but the page
    assert rankscope("report", "run.zarr") == 0
    said = capsys.readouterr().err
    assert "the text is no longer that of the run" in said
    assert "--no-pictures" in said
    assert (place / "run.html").stat().st_size > 100_000
    assert rankscope("report", "run.zarr", "--no-pictures", "--out", "plain.html") == 0
    assert "no picture" not in capsys.readouterr().err
    assert (place / "plain.html").read_bytes() == (place / "run.html").read_bytes()
