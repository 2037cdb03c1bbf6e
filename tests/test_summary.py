"""Means, intervals and counts over windows, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import run_of
from rankscope.exceptions import StoreError, UsageError
from rankscope.summary import assemble, combine, relative_curve, summarise, table
from rankscope.summary.accumulate import CODES, Accumulator
from rankscope.summary.units import Moments, mean_of_present

# two-sided 95 % points of Student's t, as printed in tables
T_975 = {1: 12.7062, 2: 4.30265, 3: 3.18245}


def first(summary: xr.Dataset, name: str) -> np.ndarray:
    """A variable of the only model and corpus."""
    return summary[name].isel(model=0, corpus=0).to_numpy()


def two_point(*firsts: float) -> np.ndarray:
    """Spectra of n = 2, one window each, whose ratio at 1 is the number given."""
    return np.array([[[[x, 1 - x]]] for x in firsts])


def test_f14_mixed_lengths_are_one_population() -> None:
    summary = summarise(run_of(np.ones((2, 1, 1, 4)), n_tokens=[2, 4]))
    np.testing.assert_allclose(first(summary, "mean_ratio")[0, 0], [0.375, 0.75, 0.875, 1.0])
    np.testing.assert_allclose(first(summary, "mean_ratio_curve"), [0.375, 0.75, 0.875, 1.0])
    assert first(summary, "count")[0, 0].tolist() == [2, 2, 1, 1]
    half = summary["relative_ratio_curve"].sel(fraction=0.5)
    assert half.item() == pytest.approx(0.5)
    assert (int(summary["n_tokens_min"].item()), int(summary["n_tokens_max"].item())) == (2, 4)


def test_f14_relative_curve_reads_every_length_at_its_own_k() -> None:
    run = run_of(np.ones((2, 1, 1, 4)), n_tokens=[2, 4])
    curve = relative_curve(run, [0.0, 0.125, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(
        first(curve, "relative_ratio_curve"), [0.0, 0.125, 0.25, 0.5, 1.0], atol=1e-15
    )
    # sigma (3, 1): .75 at k/n = .5, so half of it at .25
    single = relative_curve(run_of(np.array([[[[3.0, 1.0]]]])), [0.25, 0.75])
    np.testing.assert_allclose(first(single, "relative_ratio_curve"), [0.375, 0.875])
    for wrong in ([-0.1], [1.1], [np.nan]):
        with pytest.raises(UsageError, match="fractions"):
            relative_curve(run, wrong)


def test_f05_both_ratios_under_their_own_names() -> None:
    summary = summarise(run_of(np.array([[[[4.0, 3.0]]]])))
    np.testing.assert_allclose(first(summary, "mean_ratio")[0, 0], [0.571429, 1], atol=1e-6)
    np.testing.assert_allclose(first(summary, "mean_energy_ratio")[0, 0], [0.64, 1])


def test_f07_the_mean_of_spectra_not_the_spectrum_of_a_mean() -> None:
    # identity and swap have the same spectrum (1, 1), their mean matrix has (1, 0)
    summary = summarise(run_of(np.ones((2, 1, 1, 2))))
    assert first(summary, "mean_ratio")[0, 0, 0] == pytest.approx(0.5)


def test_f18_windows_are_averaged_within_a_text_before_the_texts() -> None:
    summary = summarise(run_of(two_point(0.5, 0.7, 0.9), text_id=[0, 0, 1]))
    assert first(summary, "mean_ratio")[0, 0, 0] == pytest.approx(0.75)
    assert first(summary, "mean_ratio_curve")[0] == pytest.approx(0.75)
    assert int(summary["n_units"].item()) == 2
    # per-text means .6 and .9: s = .3/√2, half width t·s/√2 = t·.15
    low, high = first(summary, "interval_low")[0], first(summary, "interval_high")[0]
    assert high - 0.75 == pytest.approx(T_975[1] * 0.15, rel=1e-5)
    assert 0.75 - low == pytest.approx(T_975[1] * 0.15, rel=1e-5)


def test_f18_windows_of_a_text_may_lie_apart_in_a_run() -> None:
    apart = summarise(run_of(two_point(0.5, 0.9, 0.7), text_id=[0, 1, 0]))
    together = summarise(run_of(two_point(0.5, 0.7, 0.9), text_id=[0, 0, 1]))
    np.testing.assert_allclose(apart["mean_ratio"], together["mean_ratio"], rtol=1e-14)
    np.testing.assert_allclose(apart["interval_low"], together["interval_low"], rtol=1e-14)


def test_interval_over_texts_by_hand() -> None:
    summary = summarise(run_of(two_point(0.5, 0.6, 0.7, 0.8)))
    half = T_975[3] * np.std([0.5, 0.6, 0.7, 0.8], ddof=1) / 2
    assert first(summary, "interval_high")[0] == pytest.approx(0.65 + half, rel=1e-5)
    assert first(summary, "interval_low")[1] == pytest.approx(1.0)
    assert summary["interval_unit"].item() == summary.attrs["interval_unit"] == "text"
    energies = [x**2 / (x**2 + (1 - x) ** 2) for x in (0.5, 0.6, 0.7, 0.8)]
    half = T_975[3] * np.std(energies, ddof=1) / 2
    expected = np.mean(energies) + half
    assert first(summary, "energy_interval_high")[0] == pytest.approx(expected, rel=1e-5)
    # half of k/n = .5 lies on the line from 0 to the value at k = 1
    relative = summary.sel(fraction=0.25)
    assert relative["relative_interval_high"].item() == pytest.approx(
        (0.65 + T_975[3] * np.std([0.5, 0.6, 0.7, 0.8], ddof=1) / 2) / 2, rel=1e-5
    )


def test_a_single_text_takes_its_windows_as_units() -> None:
    summary = summarise(run_of(two_point(0.5, 0.6, 0.7), text_id=[4, 4, 4]))
    assert summary.attrs["interval_unit"] == "window"
    assert int(summary["n_units"].item()) == 3
    half = first(summary, "interval_high")[0] - 0.6
    assert half == pytest.approx(T_975[2] * 0.1 / np.sqrt(3), rel=1e-5)


def test_one_unit_has_no_interval() -> None:
    summary = summarise(run_of(two_point(0.5)))
    assert first(summary, "mean_ratio_curve")[0] == 0.5
    assert np.isnan(first(summary, "interval_low")).all()
    assert np.isnan(first(summary, "interval_high")).all()


@pytest.mark.parametrize("name", ["zero", "empty", "non_finite", "failed", "absent"])
def test_f11_bad_matrices_enter_no_mean(name: str) -> None:
    spectra = np.ones((2, 1, 2, 2))
    spectra[:, :, 0] = [3.0, 1.0]
    spectra[1, 0, 0] = [1e9, 0.0]
    codes = np.zeros((2, 1, 2), np.int8)
    codes[1, 0, 0] = CODES[name]
    summary = summarise(run_of(spectra, status=codes))
    np.testing.assert_allclose(first(summary, "mean_ratio")[0, :, 0], [0.75, 0.5])
    assert first(summary, "count")[0].tolist() == [[1, 1], [2, 2]]
    # heads count equally, although one of them has half the windows
    assert first(summary, "mean_ratio_curve")[0] == pytest.approx(0.625)
    counts = dict(zip(summary["status"].values, first(summary, "status_count"), strict=True))
    assert counts[name] == 1
    assert counts["ok"] == 3
    expected = {} if name == "absent" else {name: 1}
    assert table(summary)[0].bad == expected


@pytest.mark.parametrize("name", ["ok", "fallback", "refined"])
def test_every_usable_status_enters_the_mean(name: str) -> None:
    codes = np.full((1, 1, 1), CODES[name], np.int8)
    assert first(summarise(run_of(two_point(0.7), status=codes)), "mean_ratio")[0, 0, 0] == 0.7


def test_a_head_that_is_bad_everywhere_is_missing_not_zero() -> None:
    codes = np.zeros((2, 2, 2), np.int8)
    codes[:, 1, 0] = CODES["non_finite"]
    codes[:, 0, :] = CODES["failed"]
    summary = summarise(run_of(np.ones((2, 2, 2, 2)), status=codes))
    np.testing.assert_array_equal(first(summary, "ratio_at"), [[np.nan, np.nan], [np.nan, 0.5]])
    np.testing.assert_array_equal(first(summary, "layer_mean"), [np.nan, 0.5])
    assert first(summary, "mean_ratio_curve").tolist() == [0.5, 1.0]


def test_nothing_usable_gives_nan_and_zero_counts() -> None:
    codes = np.full((2, 1, 1), CODES["zero"], np.int8)
    summary = summarise(run_of(np.ones((2, 1, 1, 4)), status=codes))
    row = table(summary)[0]
    assert np.isnan([row.mean, row.minimum, row.k90_median, *row.interval]).all()
    assert (row.windows, row.n_bad) == (2, 2)


def test_windows_without_any_matrix_are_not_counted() -> None:
    codes = np.zeros((3, 1, 1), np.int8)
    codes[2] = CODES["absent"]
    summary = summarise(run_of(two_point(0.5, 0.6, 0.9), status=codes))
    assert int(summary["n_windows"].item()) == 2
    assert first(summary, "mean_ratio_curve")[0] == pytest.approx(0.55)


def test_a_usable_status_with_a_missing_ratio_is_refused() -> None:
    run = run_of(two_point(0.5, 0.6))
    run["energy_ratio"][0, 0, 1, 0, 0, 1] = np.nan
    with pytest.raises(StoreError, match="marked good"):
        summarise(run)


def test_ratio_at_defaults_to_a_quarter_of_n() -> None:
    spectra = np.ones((1, 2, 2, 8))
    spectra[0, 1] = [8.0, 0, 0, 0, 0, 0, 0, 0]
    summary = summarise(run_of(spectra))
    assert summary.attrs["ratio_index"] == 2
    np.testing.assert_allclose(first(summary, "ratio_at"), [[0.25, 0.25], [1, 1]])
    np.testing.assert_allclose(first(summary, "layer_mean"), [0.25, 1])
    at_five = summarise(run_of(spectra), index=5)
    np.testing.assert_allclose(first(at_five, "ratio_at"), [[0.625, 0.625], [1, 1]])
    assert at_five.attrs["ratio_index"] == 5
    assert at_five.attrs["recipe_json"] == "{}"
    for wrong in (0, 9):
        with pytest.raises(UsageError, match="index"):
            summarise(run_of(spectra), index=wrong)


def test_table_has_the_numbers_of_the_terminal() -> None:
    spectra = np.ones((3, 2, 2, 4))
    spectra[:, 1, 1] = [97.0, 1.0, 1.0, 1.0]
    spectra[2, 0, 0] = [5.0, 5.0, 0.0, 0.0]
    (row,) = table(summarise(run_of(spectra)))
    assert (row.model, row.corpus, row.windows, row.texts, row.n, row.index) == (
        *("m", "c", 3, 3, "4", 1),
    )
    per_head = np.array([[(0.25 + 0.25 + 0.5) / 3, 0.25], [0.25, 0.97]])
    assert row.mean == pytest.approx(per_head.mean())
    assert (row.minimum, row.maximum) == (pytest.approx(0.25), pytest.approx(0.97))
    assert dict(row.layer_means) == pytest.approx(dict(enumerate(per_head.mean(1))))
    # 90 %: four values for the eight flat matrices, two for one, one for three
    assert (row.k90_median, row.k90_min, row.k90_max) == (4.0, 1.0, 4.0)
    assert row.interval[0] < row.mean < row.interval[1]


def test_k90_median_of_an_even_number_lies_between() -> None:
    spectra = np.zeros((2, 1, 1, 4))
    spectra[0, 0, 0, :1] = 1.0
    spectra[1] = 1.0
    (row,) = table(summarise(run_of(spectra)))
    assert (row.k90_median, row.k90_min, row.k90_max) == (2.5, 1.0, 4.0)


def test_several_models_and_corpora_in_one_dataset() -> None:
    parts = [
        run_of(two_point(x, x), model=model, corpus=corpus)
        for x, model, corpus in ((0.5, "a", "p"), (0.6, "a", "q"), (0.7, "b", "p"), (0.8, "b", "q"))
    ]
    options = {"data_vars": "all", "coords": "minimal", "compat": "override", "join": "exact"}
    rows = [xr.concat(parts[i : i + 2], "corpus", **options) for i in (0, 2)]
    summary = summarise(xr.concat(rows, "model", **options))
    np.testing.assert_allclose(summary["ratio_at"].to_numpy()[:, :, 0, 0], [[0.5, 0.6], [0.7, 0.8]])
    assert [(row.model, row.corpus) for row in table(summary)] == [
        *(("a", "p"), ("a", "q"), ("b", "p"), ("b", "q")),
    ]


def test_combine_keeps_models_of_different_shape_apart() -> None:
    small = run_of(np.ones((1, 2, 2, 2)), model="small")
    large = run_of(np.full((1, 3, 4, 2), [3.0, 1.0]), model="large")
    parts = combine([small, summarise(large)])
    assert [dict(part.sizes)["layer"] for part in parts] == [2, 3]
    assert [row.mean for row in table(parts)] == [0.5, 0.75]
    with pytest.raises(UsageError, match="'small'"):
        combine([small, small])


def test_combine_takes_padding_out_again() -> None:
    small = run_of(np.ones((1, 2, 2, 2)), model="small")
    large = run_of(np.full((1, 3, 4, 2), [3.0, 1.0]), model="large")
    both = xr.concat(
        [small, large], "model", data_vars="all", coords="minimal", compat="override", join="outer"
    )
    parts = combine([both])
    assert [(part.sizes["layer"], part.sizes["head"]) for part in parts] == [(2, 2), (3, 4)]
    assert [row.mean for row in table(parts)] == [0.5, 0.75]
    assert all(row.n_bad == 0 for row in table(parts))


def test_combine_keeps_a_layer_that_went_wrong() -> None:
    codes = np.zeros((1, 2, 1), np.int8)
    codes[0, 1] = CODES["non_finite"]
    (part,) = combine([run_of(np.ones((1, 2, 1, 2)), status=codes)])
    assert part.sizes["layer"] == 2


@pytest.mark.parametrize("name", ["cumulative_ratio", "status", "text_id"])
def test_a_dataset_without_what_is_needed_is_named(name: str) -> None:
    with pytest.raises(StoreError, match=name):
        summarise(run_of(two_point(0.5)).drop_vars(name))


def test_a_part_of_the_index_axis_is_refused() -> None:
    with pytest.raises(StoreError, match="index axis"):
        summarise(run_of(np.ones((1, 1, 1, 4))).isel(index=[0, 3]))


def test_stored_runs_are_read_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    run = run_of(np.sort(rng.random((7, 2, 3, 8)))[..., ::-1], text_id=[0, 0, 1, 1, 1, 2, 3])
    run.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    whole = summarise(run)
    seen: list[int] = []
    load = xr.Dataset.load

    def watched(self: xr.Dataset, **options: object) -> xr.Dataset:
        if "cumulative_ratio" in self:
            seen.append(self.sizes["sample"])
        return load(self, **options)

    monkeypatch.setattr(xr.Dataset, "load", watched)
    # two curves of 8, rank_90 and a status of 2 × 3 heads, and n
    monkeypatch.setattr(
        "rankscope.summary.averages.BLOCK_BYTES", 3 * (2 * 3 * (2 * 8 * 8 + 8 + 1) + 4)
    )
    with xr.open_dataset(tmp_path / "run.nc", engine="h5netcdf") as lazy:
        blocks = summarise(lazy)
        assert not lazy["cumulative_ratio"]._in_memory
    assert seen == [3, 3, 1]
    xr.testing.assert_allclose(blocks, whole, rtol=1e-12)
    assert blocks.attrs == whole.attrs


def test_a_summary_outlives_the_file_of_its_run(tmp_path: Path) -> None:
    run = run_of(two_point(0.5, 0.6)).assign_coords(attention=("layer", ["global"]))
    run.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "run.nc", engine="h5netcdf") as lazy:
        summary = summarise(lazy)
    assert summary["attention"].values.tolist() == ["global"]
    summary.to_netcdf(tmp_path / "summary.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "summary.nc", engine="h5netcdf") as stored:
        xr.testing.assert_identical(stored.load(), summary)
        assert table(stored) == table(summary)


def test_feeding_window_by_window_equals_summarise() -> None:
    rng = np.random.default_rng(1)
    run = run_of(np.sort(rng.random((5, 2, 3, 8)))[..., ::-1], text_id=[0, 0, 1, 2, 2])
    accumulator = Accumulator(2, 3, 8)
    for sample in range(5):
        window = run.isel(model=0, corpus=0, sample=sample)
        accumulator.result()  # looking at what is there so far changes nothing
        accumulator.add(
            text_id=int(window["text_id"]),
            n_tokens=int(window["n_tokens"]),
            status=window["status"].to_numpy(),
            cumulative_ratio=window["cumulative_ratio"].to_numpy(),
            energy_ratio=window["energy_ratio"].to_numpy(),
            scalars={"rank_90": window["rank_90"].to_numpy()},
        )
    coords = {name: run[name] for name in ("model", "corpus", "layer", "head", "index")}
    fed = assemble([[accumulator.result()]], coords, run.attrs)
    xr.testing.assert_allclose(fed, summarise(run), rtol=1e-12)
    assert fed.attrs == summarise(run).attrs
    with pytest.raises(StoreError, match="text 0"):
        accumulator.add(
            text_id=0,
            n_tokens=8,
            status=np.zeros((2, 3)),
            cumulative_ratio=np.ones((2, 3, 8)),
            energy_ratio=np.ones((2, 3, 8)),
        )


def test_infinity_in_a_bad_matrix_does_no_harm() -> None:
    accumulator = Accumulator(1, 2, 2)
    ratio = np.array([[[np.inf, -np.inf], [0.5, 1.0]]])
    accumulator.add(
        text_id=0,
        n_tokens=2,
        status=np.array([[CODES["non_finite"], CODES["ok"]]]),
        cumulative_ratio=ratio,
        energy_ratio=ratio,
    )
    assert accumulator.result()["mean_ratio_curve"][1].tolist() == [0.5, 1.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-1e3, 1e3), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_moments_agree_with_numpy(stream: list[tuple[float, bool]]) -> None:
    moments = Moments((2,), (2,))
    for value, keep in stream:
        moments.add(np.array([value, -value]), np.array([keep, True]))
    kept = [value for value, keep in stream if keep]
    mean = np.mean(kept) if kept else np.nan
    variance = np.var(kept, ddof=1) if len(kept) > 1 else np.nan
    np.testing.assert_allclose(moments.mean[0], mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.variance[0], variance, rtol=1e-9, atol=1e-6)


def test_the_mean_of_what_is_present_may_be_infinite() -> None:
    values = np.array([[1.0, np.inf, np.nan], [-np.inf, np.inf, 2.0], [np.nan] * 3, [1, 3, np.nan]])
    assert mean_of_present(values, (1,)).tolist() == pytest.approx(
        [np.inf, np.nan, np.nan, 2.0], nan_ok=True
    )


def test_a_large_offset_does_not_spoil_the_variance() -> None:
    moments = Moments((), ())
    for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        moments.add(value)
    # the textbook sum of squares loses all digits here
    assert float(moments.variance) == pytest.approx(30.0, abs=1e-5)
