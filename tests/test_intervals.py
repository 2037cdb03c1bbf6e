"""What an interval rests on: variances, units, batches of windows, and many windows at once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from made_up import run_of
from made_up_methods import compare_run, intervene_run
from made_up_windows import fed, random_run
from rankscope.exceptions import StoreError
from rankscope.summary import summarise, table
from rankscope.summary.accumulate import CODES, Accumulator
from rankscope.summary.losses import summarise_losses
from rankscope.summary.methods import summarise_methods
from rankscope.summary.rows import method_rows
from rankscope.summary.units import Batches, batch_length


def first(summary: xr.Dataset, name: str) -> np.ndarray:
    """A variable of the only model and corpus."""
    return summary[name].isel(model=0, corpus=0).to_numpy()


def text_means(run: xr.Dataset, name: str) -> np.ndarray:
    """The mean of every text (text, layer, head, index), by hand."""
    values, texts = run[name].to_numpy()[0, 0], run["text_id"].to_numpy()
    return np.stack([values[texts == text].mean(0) for text in np.unique(texts)])


# ---- variances


def test_variance_is_that_of_the_means_of_texts() -> None:
    run = random_run([0, 0, 1, 2, 2, 2, 3])
    summary = summarise(run)
    for ratio, name in (("cumulative_ratio", "ratio"), ("energy_ratio", "energy_ratio")):
        expected = text_means(run, ratio).var(0, ddof=1)
        np.testing.assert_allclose(first(summary, f"{name}_variance"), expected, rtol=1e-11)
    assert expected.max() > 1e-3


def test_variance_leaves_out_what_is_not_usable() -> None:
    run = random_run([0, 1, 2, 3, 4], seed=1, bad=0.5)
    ratio = run["cumulative_ratio"].to_numpy()[0, 0]
    usable = np.isfinite(ratio[..., :1]).sum(0)
    assert usable.min() == 1
    assert usable.max() > 2
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.where(usable > 1, np.nansum((ratio - np.nanmean(ratio, 0)) ** 2, 0), np.nan)
        expected = expected / (usable - 1)
    np.testing.assert_allclose(first(summarise(run), "ratio_variance"), expected, atol=1e-15)


@pytest.mark.parametrize("windows", [5, 200])
def test_variance_of_a_single_text_is_that_of_its_windows(windows: int) -> None:
    # the second text has no usable matrix, so that it is none
    run = random_run([3] * windows + [4], seed=windows)
    run["status"][0, 0, -1] = CODES["failed"]
    ratio = run["cumulative_ratio"].to_numpy()[0, 0, :-1]
    summary = summarise(run)
    np.testing.assert_allclose(
        first(summary, "ratio_variance"), ratio.var(0, ddof=1), rtol=1e-10, atol=1e-15
    )
    assert (summary["interval_unit"].item(), int(summary["n_texts"].item())) == ("window", 2)


def test_one_unit_has_no_variance_and_no_layer_interval() -> None:
    summary = summarise(random_run([0]))
    assert np.isnan(first(summary, "ratio_variance")).all()
    assert np.isnan(first(summary, "energy_ratio_variance")).all()
    assert np.isnan(first(summary, "layer_mean_low")).all()
    assert np.isfinite(first(summary, "layer_mean")).all()


# ---- layers


@pytest.mark.parametrize("index", [1, 3])
def test_interval_of_a_layer_is_over_the_means_of_texts(index: int) -> None:
    run = random_run([0, 0, 1, 2, 2, 2, 3])
    summary = summarise(run, index=index)
    for prefix, ratio in (("", "cumulative_ratio"), ("energy_", "energy_ratio")):
        units = text_means(run, ratio)[..., index - 1].mean(-1)
        half = stats.t.ppf(0.975, 3) * units.std(0, ddof=1) / 2
        mean = units.mean(0)
        np.testing.assert_allclose(first(summary, f"{prefix}layer_mean"), mean)
        np.testing.assert_allclose(first(summary, f"{prefix}layer_mean_low"), mean - half)
        np.testing.assert_allclose(first(summary, f"{prefix}layer_mean_high"), mean + half)
    assert summary["layer_mean_low"].dims == ("model", "corpus", "layer")
    (row,) = table(summary)
    low, high = first(summary, "layer_mean_low"), first(summary, "layer_mean_high")
    assert row.layer_intervals == tuple(zip(low, high, strict=True))
    (old,) = table(summary.drop_vars(["layer_mean_low", "layer_mean_high", "batch_windows"]))
    assert np.isnan(old.layer_intervals).all()
    assert (row.batch_windows, old.batch_windows) == (1, 1)


def test_a_layer_rests_on_the_units_in_which_it_is_usable() -> None:
    run = random_run([0, 1, 2, 3])
    run["status"][0, 0, 1, 1] = CODES["non_finite"]
    summary = summarise(run, index=2)
    assert first(summary, "layer_units").tolist() == [4, 3]
    ratio = run["cumulative_ratio"].to_numpy()[0, 0][[0, 2, 3], 1, :, 1].mean(-1)
    half = stats.t.ppf(0.975, 2) * ratio.std(ddof=1) / np.sqrt(3)
    assert first(summary, "layer_mean_high")[1] == pytest.approx(ratio.mean() + half)


# ---- batches of windows


@pytest.mark.parametrize("windows", [1, 2, 63, 64, 65, 127, 128, 300, 1000])
def test_batches_are_those_of_a_direct_computation(windows: int) -> None:
    values = np.random.default_rng(windows).random((windows, 2))
    there = np.ones((windows, 1), bool)
    there[5:40] = windows <= 128
    batches = Batches((2,), (1,))
    batches.add_many(values, there)
    length = batches.length
    assert length == batch_length(windows)
    assert windows < 64 or 32 <= windows // length <= 63
    full = windows // length * length
    parts = [
        values[start : start + length][there[start : start + length, 0]].mean(0)
        for start in range(0, full, length)
        if there[start : start + length].any()
    ]
    assert batches.count.tolist() == [len(parts)]
    expected = np.var(parts, axis=0, ddof=1) if len(parts) > 1 else np.full(2, np.nan)
    np.testing.assert_allclose(batches.variance, expected, rtol=1e-11)


def test_windows_of_a_single_text_are_put_in_batches_everywhere() -> None:
    rng = np.random.default_rng(0)
    windows = 203
    values = np.cumsum(rng.normal(size=windows)) * 0.001 + 0.5
    # two windows that are not usable are in no batch
    status = np.zeros(windows)
    status[[7, 100]] = CODES["failed"]
    good = values[status == 0]
    means = good[:200].reshape(50, 4).mean(1)
    half = stats.t.ppf(0.975, 49) * means.std(ddof=1) / np.sqrt(50)
    ends = [good.mean() - half, good.mean() + half]
    text_id = [0] * windows

    spectra = np.stack([values, 1 - values], -1)[:, None, None]
    codes = status.astype(np.int8).reshape(-1, 1, 1)
    spectra_summary = summarise(run_of(spectra, text_id=text_id, status=codes))
    head = values.reshape(-1, 1, 1, 1)
    compared = summarise_methods(
        compare_run({"output": head}, ("truncated:k=1",), text_id=text_id, status=codes)
    )
    losses = summarise_losses(
        intervene_run(
            {"loss": np.stack([np.zeros(windows), values], 1)},
            ("full", "truncated:k=1"),
            masked=[3] * windows,
            text_id=text_id,
            status=status.tolist(),
        )
    )
    found = (
        (spectra_summary, ("interval_low", "interval_high")),
        (spectra_summary, ("layer_mean_low", "layer_mean_high")),
        (compared, ("output_low", "output_high")),
        (losses, ("loss_low", "loss_high")),
    )
    for summary, names in found:
        place = 1 if summary is losses else 0
        assert [first(summary, name)[place] for name in names] == pytest.approx(ends, rel=1e-9)
        assert summary["batch_windows"].item() == 4
        assert summary["n_units"].item() == 50
        assert summary["interval_unit"].item() == "window"
    assert first(losses, "loss_units").tolist() == first(compared, "output_units").tolist() * 2
    assert table(spectra_summary)[0].batch_windows == 4
    assert method_rows(compared)[0].source.batch_windows == 4


def series(windows: int, memory: float, runs: int, seed: int) -> np.ndarray:
    """Stationary AR(1) series of variance 1 and mean 0 (windows, runs)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(windows, runs))
    for step in range(1, windows):
        fresh = values[step] * np.sqrt(1 - memory**2)
        values[step] = memory * values[step - 1] + fresh
    return values


@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_batches_cover_where_windows_are_not_independent(memory: float) -> None:
    runs, windows = 1500, 640
    values = series(windows, memory, runs, 11)
    # a layer is a run, so that one accumulator does them all
    accumulator = Accumulator(runs, 1, 1, fractions=np.zeros(0))
    ratios = values[:, :, None, None]
    accumulator.add_many(
        text_id=np.zeros(windows, int),
        n_tokens=np.ones(windows, int),
        status=np.zeros((windows, runs, 1), int),
        cumulative_ratio=ratios,
        energy_ratio=ratios,
    )
    half = accumulator.result()["layer_half_width"][1][:, 0]
    mean = values.mean(0)
    batched = (np.abs(mean) < half).mean()
    plain = stats.t.ppf(0.975, windows - 1) * values.std(0, ddof=1) / np.sqrt(windows)
    taken_as_independent = (np.abs(mean) < plain).mean()
    assert 0.92 < batched < 0.97
    if memory:
        # windows count for a quarter of what they seem: Φ(1.96 / 2) on both sides
        assert taken_as_independent == pytest.approx(0.673, abs=0.04)
    else:
        assert 0.93 < taken_as_independent < 0.97


# ---- many windows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_windows_together_are_windows_one_by_one(
    seed: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    per_text = rng.integers(1, (2, 4, 30, 4)[seed], 40)
    texts = np.repeat(rng.permutation(400)[:40], per_text).tolist()
    run = random_run(texts, seed=seed, bad=0.3, length=5)
    codes = run["status"].to_numpy()[0, 0]
    codes[rng.random(len(texts)) < 0.2] = CODES["absent"]
    if seed == 3:
        # no text is usable before the last but one
        codes[: -per_text[-2:].sum()] = CODES["empty"]
    alone = fed(run, Accumulator(2, 3, 5)).result()
    pair = run.isel(model=0, corpus=0)
    many = Accumulator(2, 3, 5)
    monkeypatch.setattr("rankscope.summary.accumulate.PIECE_BYTES", piece * 6 * 8 * 2 * (6 + 129))
    half = len(texts) // 2
    for part in (slice(0, half), slice(half, None)):
        names = ("status", "cumulative_ratio", "energy_ratio", "text_id", "n_tokens")
        many.add_many(
            **{name: pair[name].to_numpy()[part] for name in names},
            scalars={"rank_90": pair["rank_90"].to_numpy()[part]},
        )
    together = many.result()
    assert together.keys() == alone.keys()
    for name, (dims, values) in together.items():
        assert dims == alone[name][0]
        if np.asarray(values).dtype.kind == "f":
            np.testing.assert_allclose(values, alone[name][1], rtol=1e-12, atol=1e-14, err_msg=name)
        else:
            np.testing.assert_array_equal(values, alone[name][1], err_msg=name)


@pytest.mark.parametrize("texts", [[0, 1, 0], [5, 5, 2, 3, 5, 5], [1, 2, 3, 4, 2, 6]])
def test_a_text_that_comes_back_is_refused(texts: list[int]) -> None:
    run = random_run(texts).isel(model=0, corpus=0)
    names = ("status", "cumulative_ratio", "energy_ratio", "text_id", "n_tokens")
    with pytest.raises(StoreError, match=f"text {texts[-2] if texts[-1] == 6 else texts[0]} "):
        Accumulator(2, 3, 6).add_many(**{name: run[name].to_numpy() for name in names})


@pytest.mark.parametrize("texts", [1, 100_000])
def test_memory_does_not_grow_with_the_windows(
    texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.summary.averages.BLOCK_BYTES", 256 * 1024)
    monkeypatch.setattr("rankscope.summary.accumulate.PIECE_BYTES", 2**20)
    peaks = {}
    for windows in (20, 200, 2000):
        run = random_run([place % texts for place in range(windows)], length=32)
        run.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
        with xr.open_dataset(tmp_path / "run.nc", engine="h5netcdf") as lazy:
            bytes_of_windows = lazy["cumulative_ratio"].nbytes + lazy["energy_ratio"].nbytes
            tracemalloc.start()
            summarise(lazy)
            peaks[windows] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    # a number a window, such as its text, is held
    assert bytes_of_windows > 6e6
    assert peaks[200] < peaks[2000] + 300_000
    assert peaks[2000] < peaks[200] + 300_000
