"""The explorer's page: its numbers, pictures and origins, without a browser."""

from __future__ import annotations

import base64
import builtins
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from explorers import data_of, parsed
from made_up import run_of
from made_up_methods import compare_run, truncate_run
from rankscope import report
from rankscope.exceptions import StoreError, UsageError
from rankscope.report.collect import mean_spectra, packed
from rankscope.summary import summarise
from rankscope.summary.methods import summarise_methods

LAYERS, HEADS, N = 2, 3, 12


def numbers(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(*shape)


def made_run(**options: Any) -> xr.Dataset:
    rng = np.random.default_rng(3)
    decay = rng.uniform(0.1, 2, (3, LAYERS, HEADS, 1))
    return run_of(np.exp(-decay * np.arange(N)), text_id=[0, 0, 1], **options)


def test_curves_are_those_of_the_summary_at_every_k() -> None:
    run = made_run()
    (shown,) = data_of(report.explorer(run))
    summary = summarise(run).isel(model=0, corpus=0)
    for name, variable in (("cumulative", "mean_ratio"), ("energy", "mean_energy_ratio")):
        found = numbers(shown[name], LAYERS, HEADS, N)
        np.testing.assert_array_equal(found, summary[variable].to_numpy().astype(np.float32))
    k90 = numbers(shown["scalars"]["k90"], LAYERS, HEADS)
    np.testing.assert_array_equal(k90, summary["k90"].to_numpy().astype(np.float32))
    # what the run does not hold is not shown at all
    assert set(shown["scalars"]) == {"k90"}
    assert (shown["n"], shown["windows"], shown["nTokens"]) == (N, 3, N)
    assert shown["drawn"] == list(range(1, N + 1))


def test_mean_spectra_average_texts_and_leave_out_what_a_short_window_lacks() -> None:
    sigma = np.array([8.0, 4, 2, 1]) * np.ones((3, 1, 1, 1))
    sigma[1] *= 3
    sigma[2] *= 10
    run = run_of(sigma, text_id=[0, 0, 1], n_tokens=[4, 4, 2])
    found = mean_spectra(run.isel(model=0, corpus=0))[0, 0]
    # text 0: factors 1 and 3 give 2; text 1: factor 10, up to its own n = 2
    np.testing.assert_allclose(found, [48, 24, 4, 2], rtol=1e-12)


def test_unusable_matrices_are_missing_and_say_why() -> None:
    status = np.zeros((3, LAYERS, HEADS), np.int8)
    status[:, 1, 2], status[0, 0, 1] = 5, 6
    run = made_run(status=status)
    (shown,) = data_of(report.explorer(run))
    cumulative = numbers(shown["cumulative"], LAYERS, HEADS, N)
    missing = np.isnan(cumulative)
    assert missing[1, 2].all()
    assert missing.sum() == N
    spectrum = numbers(shown["spectrum"]["values"], LAYERS, HEADS, N)
    assert np.isnan(spectrum[1, 2]).all()
    assert np.isfinite(spectrum[0, 1]).all()
    assert shown["usable"] == [3, 2, 3, 3, 3, 0]
    assert shown["matrices"] == [3] * 6
    assert shown["notes"] == ["", "1 failed", "", "", "", "3 non_finite"]
    (of_summary,) = data_of(report.explorer(summarise(run)))
    # a summary counts status codes of all heads together
    assert of_summary["notes"] == [""] * 6
    assert of_summary["usable"] == shown["usable"]


def test_a_summary_shows_shares_in_place_of_singular_values() -> None:
    run = made_run()
    (shown,) = data_of(report.explorer(summarise(run)))
    share = numbers(shown["spectrum"]["values"], LAYERS, HEADS, N)
    assert shown["spectrum"]["isSigma"] is False
    np.testing.assert_allclose(share.sum(-1), 1, atol=1e-6)
    ratios = numbers(shown["cumulative"], LAYERS, HEADS, N)
    np.testing.assert_allclose(share.cumsum(-1), ratios, atol=1e-6)


def test_long_curves_are_thinned_for_drawing_only() -> None:
    n = 400
    run = run_of(np.exp(-np.arange(n) / 50) * np.ones((1, 1, 1, 1)))
    (shown,) = data_of(report.explorer(run))
    ks = shown["spectrum"]["ks"]
    assert ks[:64] == list(range(1, 65))
    assert ks[-1] == n
    assert len(ks) <= 160
    values = numbers(shown["spectrum"]["values"], len(ks))
    np.testing.assert_allclose(values, np.exp(-(np.array(ks) - 1) / 50), rtol=1e-6)
    assert numbers(shown["cumulative"], n).size == n


def errors_of(run: xr.Dataset) -> xr.Dataset:
    energy = run["energy_ratio"].to_numpy()[0, 0]
    matrix = np.sqrt(np.maximum(1 - energy, 0))
    curves = {"frobenius_error": matrix, "output_error": matrix / 2, "output_bound": matrix / 4}
    return truncate_run(curves, text_id=[0, 0, 1])


METHODS = ["truncated:k=8", "truncated:k=4", "uniform", "linformer:k=4,file=runs/e.safetensors"]


def compared() -> xr.Dataset:
    values = np.arange(3 * LAYERS * HEADS * 4, dtype=float).reshape(3, LAYERS, HEADS, 4)
    measures = {"output": values, "frobenius": values + 1, "cosine": values}
    return compare_run(measures, METHODS, text_id=[0, 0, 1])


def test_errors_of_p_low_and_of_methods_by_budget() -> None:
    run = made_run()
    (shown,) = data_of(report.explorer(run, errors=[compared(), errors_of(run)]))
    series = {(one["name"], one["measure"]): one for one in shown["errors"]}
    assert [one["name"] for one in shown["errors"]][:3] == [
        "P_low",
        "P_low",
        "best output of rank k",
    ]
    assert [name for name, one in series.items() if one["isBound"]] == [
        ("best output of rank k", "output")
    ]
    assert {name for name, _ in series} == {
        *("P_low", "best output of rank k", "truncated", "uniform", "linformer"),
    }
    energy = summarise_energy(run)
    p_low = numbers(series["P_low", "output"]["values"], LAYERS, HEADS, N)
    np.testing.assert_allclose(p_low, energy / 2, atol=1e-6)
    assert series["P_low", "output"]["ks"] is None
    assert series["truncated", "output"]["ks"] == [4, 8]
    assert series["uniform", "frobenius"]["ks"] == []
    means = summarise_methods(compared()).isel(model=0, corpus=0)
    found = numbers(series["truncated", "output"]["values"], LAYERS, HEADS, 2)
    np.testing.assert_allclose(found[..., 0], means["output"].isel(method=1))
    np.testing.assert_allclose(found[..., 1], means["output"].isel(method=0))
    assert series["linformer", "output"]["source"] == "3 windows of n = 512"


def summarise_energy(run: xr.Dataset) -> np.ndarray:
    """Mean of √(1 − energy ratio) over the windows of text 0, then over both texts."""
    matrix = np.sqrt(np.maximum(1 - run["energy_ratio"].to_numpy()[0, 0], 0))
    return np.asarray((matrix[:2].mean(0) + matrix[2]) / 2)


def test_a_head_that_a_run_of_errors_lacks_is_missing() -> None:
    run = made_run()
    part = errors_of(run).isel(layer=[1])
    (shown,) = data_of(report.explorer(run, errors=[part]))
    values = numbers(shown["errors"][0]["values"], LAYERS, HEADS, N)
    assert np.isnan(values[0]).all()
    assert np.isfinite(values[1]).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda errors: errors.assign_coords(model=["other"]), "'other'.*not shown"),
        (lambda errors: [errors, errors], "twice"),
    ],
)
def test_errors_that_do_not_belong_are_refused(change: Any, words: str) -> None:
    run = made_run()
    given = change(errors_of(run))
    errors = given if isinstance(given, list) else [given]
    with pytest.raises(UsageError, match=words):
        report.explorer(run, errors=errors)


def recorded(dataset: xr.Dataset, sha: str) -> xr.Dataset:
    model = {"name": "m", "family": "roberta", "dtype": "float32", "weights_sha256": sha}
    recipe = {
        "recipe": {"mode": "packed", "special": "drop"},
        "corpus": {"name": "c", "sha256": "f0"},
    }
    return dataset.assign_attrs(model_json=json.dumps(model), recipe_json=json.dumps(recipe))


def test_weights_are_named_and_must_be_the_same() -> None:
    run = recorded(made_run(), "ab" * 32)
    errors = errors_of(run)
    (shown,) = data_of(report.explorer(run, errors=[recorded(errors, "ab" * 32)]))
    facts = dict(shown["facts"])
    assert facts["weights"] == "sha256 abababababab"
    assert facts["windows"] == "3 windows, packed, n = 12, from 2 texts"
    assert "special tokens dropped" in facts["attention"]
    assert facts["corpus"] == "c, sha256 f0"
    with pytest.raises(UsageError, match=r"differ in their weights \(abababababab"):
        report.explorer(run, errors=[recorded(errors, "cd" * 32)])


def test_what_is_recorded_of_another_model_is_not_said_of_this_one() -> None:
    run = recorded(made_run(), "ab" * 32).assign_coords(model=["joined"])
    (shown,) = data_of(report.explorer(run))
    assert dict(shown["facts"])["weights"] == "not recorded"


def test_runs_of_several_models_are_all_there_and_none_twice() -> None:
    one, other = made_run(), made_run(model="m2")
    shown = data_of(report.explorer([one, other]))
    assert [run["model"] for run in shown] == ["m", "m2"]
    with pytest.raises(UsageError, match="two runs of model 'm'"):
        report.explorer([one, one])


def test_controls_by_name_and_of_another_model() -> None:
    run, other = made_run(), made_run(model="random:m")
    shuffled = xr.concat(
        [run.drop_attrs(), run.drop_attrs()],
        xr.DataArray(["rows", "tokens"], dims="control", name="control"),
    )
    shuffled["cumulative_ratio"][1] = 1.0
    shown, second = data_of(report.explorer([run, other], controls=[shuffled, other]))
    assert [one["name"] for one in shown["controls"]] == ["rows", "tokens", "random:m"]
    assert second["controls"] == []
    assert (numbers(shown["controls"][1]["cumulative"], -1) == 1).all()
    assert shown["controls"][0]["cumulative"] == shown["cumulative"]
    with pytest.raises(UsageError, match="'random:m' on 'c' fits no model"):
        report.explorer(run, controls=other.isel(layer=[0]))


@pytest.mark.parametrize("kind", ["spectra", "errors"])
def test_other_datasets_are_refused(kind: str) -> None:
    wrong = xr.Dataset({"x": ("y", [1.0])})
    with pytest.raises(StoreError, match="neither"):
        report.explorer(wrong if kind == "spectra" else made_run(), errors=[wrong])


def test_a_run_without_a_window_is_refused() -> None:
    run = made_run(status=np.full((3, LAYERS, HEADS), -1, np.int8))
    with pytest.raises(UsageError, match="no window"):
        report.explorer(run)


def test_names_cannot_break_the_page_and_nothing_is_linked() -> None:
    name = "</script><!--<script>{{DATA}}\u2028\\"
    text = report.explorer(made_run(model=name))
    scripts = parsed(text)
    assert json.loads(scripts.found["data"])[0]["model"] == name
    # the library, charts, data and the page's own script, and no more
    assert len(scripts.found) == 4
    assert scripts.linked == []
    assert re.search(r"default-src 'none'", text)
    style = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_packed_keeps_nan_and_infinity() -> None:
    found = numbers(packed([np.nan, np.inf, 0.1]), 3)
    np.testing.assert_array_equal(found, np.array([np.nan, np.inf, 0.1], np.float32))


def test_a_report_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "run.html"
    assert report.write_report(target, made_run()) == target
    before = target.read_bytes()
    assert before.startswith(b"<!DOCTYPE html>")
    with pytest.raises(UsageError, match=r"end the name in \.html"):
        report.write_report(tmp_path / "run.png", made_run())
    monkeypatch.setattr(report, "_write", _stopped)
    with pytest.raises(StoreError, match="No space left"):
        report.write_report(target, made_run(model="other"))
    assert target.read_bytes() == before
    assert [one.name for one in target.parent.iterdir()] == ["run.html"]


def _stopped(path: Path, text: str) -> None:
    path.write_text(text[:10])
    raise OSError(28, "No space left on device")


def test_without_altair_the_remedy_is_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.report import page

    real = builtins.__import__

    def lacking(name: str, *rest: Any, **options: Any) -> Any:
        if name in ("vl_convert", "altair"):
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *rest, **options)

    page._library.cache_clear()
    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(UsageError, match="needs altair") as caught:
        report.explorer(made_run())
    assert "rankscope[report]" in caught.value.remedy
