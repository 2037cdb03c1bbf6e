"""Errors of methods and losses over windows and heads, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from made_up import run_of
from made_up_methods import METHODS, compare_run, intervene_run, truncate_run
from rankscope.exceptions import StoreError, UsageError
from rankscope.summary import summarise
from rankscope.summary.accumulate import CODES
from rankscope.summary.averages import quantiles
from rankscope.summary.losses import summarise_losses
from rankscope.summary.methods import (
    errors_by_layer,
    one_of,
    summarise_methods,
    summarise_truncation,
)
from rankscope.summary.rows import loss_rows, method_rows, truncation_rows

# two-sided 95 % points of Student's t, as printed in tables
T_975 = {1: 12.7062, 2: 4.30265, 3: 3.18245}
TWO = ("truncated:k=1", "truncated:k=2")


def first(summary: xr.Dataset, name: str) -> np.ndarray:
    """A variable of the only model and corpus."""
    return summary[name].isel(model=0, corpus=0).to_numpy()


def one_head(*values: float) -> np.ndarray:
    """The value of each window, of one layer, head and method."""
    return np.array(values).reshape(-1, 1, 1, 1)


def one_method(values: np.ndarray, **options: Any) -> xr.Dataset:
    return summarise_methods(compare_run({"output": values}, TWO[:1], **options))


# ---- compare


def test_f18_windows_of_a_text_come_first_and_texts_are_the_units() -> None:
    summary = one_method(one_head(0.5, 0.7, 0.9), text_id=[0, 0, 1])
    assert first(summary, "output").tolist() == [[[pytest.approx(0.75)]]]
    assert first(summary, "output_mean") == pytest.approx(0.75)
    # per-text means .6 and .9: half width t·s/√2 with s = .3/√2
    assert first(summary, "output_high")[0] - 0.75 == pytest.approx(T_975[1] * 0.15, rel=1e-5)
    assert 0.75 - first(summary, "output_low")[0] == pytest.approx(T_975[1] * 0.15, rel=1e-5)
    assert first(summary, "output_units").tolist() == [2]
    assert summary.attrs["interval_unit"] == "text"
    assert summary.attrs["recipe_json"] == "{}"
    apart = one_method(one_head(0.5, 0.9, 0.7), text_id=[0, 1, 0])
    np.testing.assert_allclose(apart["output_low"], summary["output_low"], rtol=1e-14)


def test_a_single_text_takes_its_windows_as_units_and_one_window_has_no_interval() -> None:
    summary = one_method(one_head(0.5, 0.6, 0.7), text_id=[4, 4, 4])
    assert summary["interval_unit"].item() == "window"
    half = T_975[2] * 0.1 / np.sqrt(3)
    assert first(summary, "output_high")[0] == pytest.approx(0.6 + half, rel=1e-5)
    alone = one_method(one_head(0.5))
    assert first(alone, "output_mean")[0] == 0.5
    assert np.isnan([first(alone, "output_low"), first(alone, "output_high")]).all()


def test_intervals_and_means_are_those_of_spectra() -> None:
    rng = np.random.default_rng(3)
    spectra = np.sort(rng.random((6, 2, 3, 5)))[..., ::-1]
    run = run_of(spectra, text_id=[0, 0, 1, 2, 2, 2])
    ours = summarise_truncation(
        truncate_run(
            {"ratio": run["cumulative_ratio"].to_numpy()[0, 0]}, text_id=[0, 0, 1, 2, 2, 2]
        )
    )
    theirs = summarise(run)
    pairs = {
        "ratio": "mean_ratio",
        "ratio_mean": "mean_ratio_curve",
        "ratio_low": "interval_low",
        "ratio_high": "interval_high",
    }
    for our_name, their_name in pairs.items():
        np.testing.assert_allclose(ours[our_name], theirs[their_name], rtol=1e-13)


def test_spread_is_over_the_means_of_heads() -> None:
    rng = np.random.default_rng(0)
    values = rng.random((3, 4, 5, 2))
    summary = summarise_methods(compare_run({"output": values}, TWO))
    heads = values.mean(0).reshape(20, 2)
    np.testing.assert_allclose(first(summary, "output_median"), np.median(heads, 0))
    np.testing.assert_allclose(first(summary, "output_q10"), np.quantile(heads, 0.1, axis=0))
    np.testing.assert_allclose(first(summary, "output_q90"), np.quantile(heads, 0.9, axis=0))
    np.testing.assert_allclose(first(summary, "output_min"), heads.min(0))
    np.testing.assert_allclose(first(summary, "output_max"), heads.max(0))
    np.testing.assert_allclose(first(summary, "output_mean"), heads.mean(0))
    assert summary["output"].dims == ("model", "corpus", "method", "layer", "head")
    np.testing.assert_allclose(first(summary, "output"), np.moveaxis(values.mean(0), -1, 0))


def test_an_undefined_measure_is_counted_and_never_averaged() -> None:
    values = np.full((2, 1, 2, 2), 0.5)
    values[0, 0, 0, 0] = np.nan
    values[1, 0, 0, 0] = 0.9
    values[:, :, :, 1] = np.nan
    summary = summarise_methods(compare_run({"kl": values, "output": np.ones_like(values)}, TWO))
    np.testing.assert_allclose(first(summary, "kl")[0], [[0.9, 0.5]])
    assert first(summary, "kl_count")[0].tolist() == [[1, 2]]
    assert first(summary, "kl_undefined").tolist() == [1, 4]
    assert first(summary, "kl_mean")[0] == pytest.approx(0.7)
    assert np.isnan(first(summary, "kl")[1]).all()
    everything = ("mean", "low", "high", "median", "q10", "q90", "min", "max")
    assert np.isnan([first(summary, f"kl_{name}")[1] for name in everything]).all()
    assert first(summary, "output_undefined").tolist() == [0, 0]
    rows = method_rows(summary)
    assert [row.measures["kl"].undefined for row in rows] == [1, 4]


@pytest.mark.parametrize("name", ["zero", "empty", "non_finite", "failed", "absent"])
def test_f11_bad_matrices_enter_no_mean(name: str) -> None:
    values = np.full((2, 1, 2, 1), 0.5)
    values[1, 0, 0] = 1e9
    codes = np.zeros((2, 1, 2))
    codes[1, 0, 0] = CODES[name]
    summary = one_method(values, status=codes)
    assert first(summary, "output").tolist() == [[[0.5, 0.5]]]
    assert first(summary, "output_count").tolist() == [[[1, 2]]]
    # a matrix that is not usable is not an undefined error
    assert first(summary, "output_undefined").tolist() == [0]
    (row,) = method_rows(summary)
    assert row.source.bad == ({} if name == "absent" else {name: 1})
    matrices = first(summary, "n_matrices")
    assert matrices.tolist() == ([[1, 2]] if name == "absent" else [[2, 2]])


def test_an_infinite_divergence_makes_its_mean_infinite_and_no_other() -> None:
    values = np.full((3, 1, 2, 2), 0.5)
    values[1, 0, 0, 0] = np.inf
    summary = summarise_methods(compare_run({"kl": values}, TWO))
    assert first(summary, "kl")[0].tolist() == [[np.inf, 0.5]]
    assert first(summary, "kl_mean").tolist() == [np.inf, 0.5]
    assert first(summary, "kl_min").tolist() == [0.5, 0.5]
    assert first(summary, "kl_max").tolist() == [np.inf, 0.5]
    assert np.isnan([first(summary, "kl_low")[0], first(summary, "kl_high")[0]]).all()
    assert first(summary, "kl_count")[0].tolist() == [[3, 3]]
    assert first(summary, "kl_undefined").tolist() == [0, 0]


def test_windows_that_were_never_computed_are_not_counted() -> None:
    codes = np.zeros((3, 1, 1))
    codes[2] = CODES["absent"]
    summary = one_method(one_head(0.5, 0.6, 0.9), status=codes)
    assert (int(summary["n_windows"].item()), int(summary["n_texts"].item())) == (2, 2)
    assert first(summary, "output_mean")[0] == pytest.approx(0.55)


def test_several_models_and_corpora_stay_apart() -> None:
    options = {"data_vars": "all", "coords": "minimal", "compat": "override", "join": "outer"}
    small = compare_run({"output": one_head(0.5, 0.6)}, TWO[:1], model="small")
    large = compare_run({"output": np.full((2, 2, 3, 1), 0.7)}, TWO[:1], model="large")
    summary = summarise_methods(xr.concat([small, large], "model", **options))
    np.testing.assert_allclose(summary["output_mean"].to_numpy().ravel(), [0.55, 0.7])
    assert first(summary, "output_undefined").tolist() == [0]
    assert [row.source.model for row in method_rows(summary)] == ["small", "large"]
    assert [row.source.n_bad for row in method_rows(summary)] == [0, 0]
    with pytest.raises(UsageError, match="2 of the dimension model"):
        one_of(summary)
    one = one_of(summary.sel(model="large"))
    assert one["output_mean"].shape == (1,)


def test_coordinates_of_the_methods_are_kept() -> None:
    values = np.ones((1, 1, 1, len(METHODS)))
    rows = method_rows(summarise_methods(compare_run({"output": values}, METHODS)))
    assert [row.method for row in rows] == [*METHODS]
    assert (rows[3].family, rows[3].label, rows[3].budget) == ("truncated", "truncated", 32)
    assert (rows[0].budget, rows[-1].budget) == (0, 128)
    assert rows[13].label == "linformer:projection=gaussian"


@pytest.mark.parametrize("name", ["method", "status", "text_id"])
def test_another_dataset_is_refused(name: str) -> None:
    run = compare_run({"output": one_head(0.5)}, TWO[:1])
    broken = run.isel(method=0, drop=True) if name == "method" else run.drop_vars(name)
    with pytest.raises(StoreError, match=name):
        summarise_methods(broken)
    with pytest.raises(StoreError, match="index"):
        summarise_truncation(run)
    with pytest.raises(StoreError, match="without a measure"):
        summarise_methods(run.drop_vars("output"))


def test_stored_runs_are_read_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    run = compare_run({"output": rng.random((7, 2, 3, 2))}, TWO, text_id=[0, 2, 0, 1, 1, 2, 3])
    run.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    whole = summarise_methods(run)
    seen: list[int] = []
    load = xr.Dataset.load

    def watched(self: xr.Dataset, **options: object) -> xr.Dataset:
        if "output" in self:
            seen.append(self.sizes["sample"])
        return load(self, **options)

    monkeypatch.setattr(xr.Dataset, "load", watched)
    monkeypatch.setattr("rankscope.summary.averages.BLOCK_BYTES", 3 * (2 * 3 * (2 * 8 + 1) + 4))
    with xr.open_dataset(tmp_path / "run.nc", engine="h5netcdf") as lazy:
        summary = summarise_methods(lazy)
        assert not lazy["output"]._in_memory
    assert seen == [3, 3, 1]
    xr.testing.assert_allclose(summary, whole, rtol=1e-12)
    assert summary.attrs == whole.attrs
    summary.to_netcdf(tmp_path / "summary.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "summary.nc", engine="h5netcdf") as stored:
        assert method_rows(stored) == method_rows(summary)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float64, (7, 2), elements=st.floats(-1e6, 1e6)), st.integers(0, 6))
def test_quantiles_agree_with_numpy(values: np.ndarray, lost: int) -> None:
    values[:lost, 0] = np.nan
    at = (0.0, 0.1, 0.5, 0.9, 1.0)
    np.testing.assert_allclose(
        quantiles(values, at), np.nanquantile(values, at, axis=0), rtol=1e-9, atol=1e-6
    )


def test_errors_by_layer_puts_runs_side_by_side() -> None:
    methods = ("full", "linformer:k=64,projection=mean", "linformer:k=128,projection=mean", *TWO)
    values = np.arange(4 * 5, dtype=float).reshape(1, 2, 2, 5)
    train = summarise_methods(compare_run({"output": values}, methods))
    held = summarise_methods(compare_run({"output": values[..., :2] + 100}, methods[:2]))
    errors = errors_by_layer(
        {"training": train, "held-out": held},
        names={"linformer:projection=mean": "mean", "truncated": "P_low"},
    )
    assert errors.dims == ("rank", "method", "split", "layer")
    assert errors["rank"].values.tolist() == [1, 2, 64, 128]
    at = errors.sel({"rank": 64, "method": "mean"})
    np.testing.assert_array_equal(at.sel(split="training"), values[0, :, :, 1].mean(1))
    np.testing.assert_array_equal(at.sel(split="held-out"), values[0, :, :, 1].mean(1) + 100)
    assert np.isnan(errors.sel({"rank": 128, "split": "held-out"})).all()
    both = train.isel(method=[1, 1])
    with pytest.raises(UsageError, match="P at rank 64 comes twice"):
        errors_by_layer({"training": both}, names={"linformer:projection=mean": "P"})
    with pytest.raises(UsageError, match="'gaussian'"):
        errors_by_layer({"training": train}, names={"gaussian": "g"})
    with pytest.raises(UsageError, match="'kl'"):
        errors_by_layer({"training": train}, "kl", names={"truncated": "P_low"})


# ---- truncate


def test_truncation_has_curves_chosen_ranks_and_what_has_no_rank() -> None:
    rng = np.random.default_rng(0)
    curve, mass, norm = rng.random((2, 1, 3, 4)), rng.random((2, 1, 3, 2)), rng.random((2, 1, 3))
    summary = summarise_truncation(
        truncate_run(
            {"output_error": curve},
            fixed={"output_norm": norm},
            chosen={"negative_mass": mass},
            ranks=(2, 3),
        )
    )
    assert summary["output_error"].dims == ("model", "corpus", "layer", "head", "index")
    np.testing.assert_allclose(first(summary, "output_error_mean"), curve.mean((0, 1, 2)))
    np.testing.assert_allclose(
        first(summary, "output_error_q90"), np.quantile(curve.mean(0), 0.9, axis=(0, 1))
    )
    np.testing.assert_allclose(first(summary, "negative_mass_mean"), mass.mean((0, 1, 2)))
    assert first(summary, "output_norm_mean") == pytest.approx(norm.mean())
    rows = truncation_rows(summary)
    assert [row.k for row in rows] == [2, 3]
    assert rows[1].errors["output_error"].mean == pytest.approx(curve[..., 2].mean())
    assert rows[1].chosen["negative_mass"].mean == pytest.approx(mass[..., 1].mean())
    assert rows[0].fixed["output_norm"].maximum == pytest.approx(norm.mean(0).max())
    (row,) = truncation_rows(summary, [4])
    assert row.chosen == {}
    assert row.errors["output_error"].minimum == pytest.approx(curve[..., 3].mean(0).min())
    with pytest.raises(UsageError, match="k = 9"):
        truncation_rows(summary, [1, 9])


def test_without_chosen_ranks_the_rows_are_powers_of_two() -> None:
    summary = summarise_truncation(truncate_run({"output_error": np.ones((1, 1, 1, 12))}))
    assert [row.k for row in truncation_rows(summary)] == [1, 2, 4, 8]


def test_f14_a_short_window_is_exact_beyond_its_own_n() -> None:
    curve = np.full((3, 1, 1, 4), 0.5)
    curve[0, ..., 2:] = np.nan
    curve[2] = np.nan
    summary = summarise_truncation(truncate_run({"output_error": curve}, sizes=[2, 4, 2]))
    # the third has no defined error at any k, so none beyond n either
    np.testing.assert_allclose(first(summary, "output_error_mean"), [0.5, 0.5, 0.25, 0.25])
    assert first(summary, "output_error_count")[0, 0].tolist() == [2, 2, 2, 2]
    assert first(summary, "output_error_undefined").tolist() == [1, 1, 1, 1]


# ---- intervene

THREE = ("full", "uniform", "truncated:k=8")


def test_every_masked_token_has_equal_weight() -> None:
    loss = np.array([[1.0, 3.0, 2.0], [2.0, 6.0, 2.0], [4.0, 5.0, 8.0]])
    summary = summarise_losses(intervene_run({"loss": loss}, THREE, masked=[1, 3, 4]))
    np.testing.assert_allclose(first(summary, "loss"), np.average(loss, axis=0, weights=[1, 3, 4]))
    difference = loss - loss[:, :1]
    np.testing.assert_allclose(
        first(summary, "loss_difference"), np.average(difference, axis=0, weights=[1, 3, 4])
    )
    # over three texts by hand, for uniform: S − R·W with W = (1, 3, 4)
    mean = (2 * 1 + 4 * 3 + 1 * 4) / 8
    left = [2 - mean, 12 - 3 * mean, 4 - 4 * mean]
    half = T_975[2] * np.sqrt(np.square(left).sum() / (3 * 2)) / (8 / 3)
    assert first(summary, "loss_difference_high")[1] == pytest.approx(mean + half, rel=1e-5)
    assert first(summary, "loss_difference_low")[1] == pytest.approx(mean - half, rel=1e-5)
    assert int(summary["n_masked_tokens"].item()) == 8


def test_the_pairs_are_what_tells_methods_apart() -> None:
    rng = np.random.default_rng(0)
    full = rng.normal(3, 1, 8)
    cost = rng.normal(0.1, 0.01, 8)
    loss = np.stack([full, full + 3, full + cost], axis=1)
    summary = summarise_losses(intervene_run({"loss": loss}, THREE))
    paired = [first(summary, f"loss_difference_{end}")[2] for end in ("low", "high")]
    single = [first(summary, f"loss_{end}")[2] for end in ("low", "high")]
    # equal weights: the plain interval of the mean
    half = 2.36462 * cost.std(ddof=1) / np.sqrt(8)
    assert paired == pytest.approx([cost.mean() - half, cost.mean() + half], rel=1e-4)
    assert paired[0] > 0
    assert single[1] - single[0] > 20 * (paired[1] - paired[0])
    assert [first(summary, f"loss_difference{end}")[0] for end in ("", "_low", "_high")] == [0] * 3


def test_windows_of_one_text_are_summed_before_the_interval() -> None:
    loss = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 7.0]])
    summary = summarise_losses(
        intervene_run({"loss": loss}, THREE[:2], masked=[2, 2, 4], text_id=[0, 0, 1])
    )
    # two texts of 4 tokens with means 2 and 6
    half = T_975[1] * np.sqrt(8) / np.sqrt(2)
    assert first(summary, "loss_difference")[1] == pytest.approx(4.0)
    assert first(summary, "loss_difference_high")[1] == pytest.approx(4 + half, rel=1e-5)
    assert first(summary, "loss_units").tolist() == [2, 2]
    one = summarise_losses(intervene_run({"loss": loss}, THREE[:2], text_id=[5, 5, 5]))
    assert one["interval_unit"].item() == "window"
    assert first(one, "loss_units").tolist() == [3, 3]


def test_undefined_losses_are_counted_and_a_window_without_masks_has_no_say() -> None:
    loss = np.array([[1.0, np.nan], [1.0, 3.0], [np.nan, np.nan], [9.0, 9.0]])
    hidden = np.array([[0.0, 0.2], [0.0, 0.4], [0.0, 0.6], [0.0, 0.8]])
    run = intervene_run(
        {"loss": loss, "hidden_error": hidden},
        THREE[:2],
        masked=[5, 5, 0, 5],
        status=[0, 0, 0, CODES["non_finite"]],
    )
    (full, uniform) = loss_rows(summarise_losses(run))
    assert (full.loss.mean, full.loss.undefined) == (1.0, 0)
    assert (uniform.loss.mean, uniform.loss.undefined, uniform.loss.units) == (3.0, 1, 1)
    assert (uniform.difference.mean, uniform.difference.undefined) == (2.0, 1)
    assert np.isnan(uniform.loss.low)
    # hidden states count by window, masks or not
    assert uniform.hidden_error.mean == pytest.approx(0.4)
    assert uniform.source.bad == {"non_finite": 1}
    assert uniform.masked_tokens == 10
    assert np.isnan(uniform.kl.mean)
    assert uniform.kl.undefined == 2


def test_losses_need_full_attention() -> None:
    run = intervene_run({"loss": np.ones((2, 1))}, THREE[1:2])
    with pytest.raises(StoreError, match="without full attention"):
        summarise_losses(run)
    with pytest.raises(StoreError, match="masked_tokens"):
        summarise_losses(run.drop_vars("masked_tokens"))
