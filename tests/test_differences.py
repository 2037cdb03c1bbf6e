"""A run less its control: which windows are paired, and what its interval is over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from made_up import run_of
from rankscope.exceptions import UsageError
from rankscope.summary import summarise, table
from rankscope.summary.accumulate import CODES
from rankscope.summary.differences import PAIRING, Difference, difference


def one_run(
    seed: int,
    length: int,
    texts: list[int],
    *,
    model: str = "m",
    sizes: list[int] | None = None,
    status: np.ndarray | None = None,
) -> xr.Dataset:
    """A run of 2 layers and 3 heads, with the coordinates by which windows are paired."""
    rng = np.random.default_rng(seed)
    spectra = np.sort(rng.random((len(texts), 2, 3, length)))[..., ::-1]
    run = run_of(spectra, text_id=texts, n_tokens=sizes, model=model, status=status)
    numbers = {name: ("sample", range(len(texts))) for name in PAIRING if name not in run}
    return run.assign_coords(numbers)


def ratio_at(run: xr.Dataset, ks: np.ndarray) -> np.ndarray:
    """The ratio of every window at its own k (window, layer, head), by hand."""
    ratio = run["cumulative_ratio"].to_numpy()[0, 0]
    return np.stack([window[..., k - 1] for window, k in zip(ratio, ks, strict=True)])


@pytest.mark.parametrize("texts", [[0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 2, 1, 3, 0]])
@pytest.mark.parametrize("longer", ["measured", "control"])
def test_curves_of_another_length_are_paired_by_window(
    texts: list[int], longer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control padded to 512 beside windows of at most 40 has thirteen times the bytes."""
    lengths = (96, 8) if longer == "measured" else (8, 96)
    sizes = [8] * 7
    runs = [
        one_run(seed, length, texts, model=model, sizes=sizes)
        for seed, length, model in zip((0, 1), lengths, ("m", "padded-8:m"), strict=True)
    ]
    wanted = difference(*runs)
    gap = ratio_at(runs[0], np.full(7, 2)) - ratio_at(runs[1], np.full(7, 2))
    means = [gap[np.array(texts) == text].mean(0) for text in sorted(set(texts))]
    np.testing.assert_allclose(wanted.by_head, np.mean(means, 0), rtol=1e-12)
    assert wanted.index == 2
    for run, name in zip(runs, ("one", "other"), strict=True):
        run.to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
    for windows in (1, 3):
        monkeypatch.setattr(
            "rankscope.summary.averages.BLOCK_BYTES", windows * 6 * (8 * 104 + 2) + 1
        )
        with (
            xr.open_dataset(tmp_path / "one.nc", engine="h5netcdf") as one,
            xr.open_dataset(tmp_path / "other.nc", engine="h5netcdf") as other,
        ):
            found = difference(one, other)
            assert not one["cumulative_ratio"]._in_memory
        same(found, wanted)


def same(found: Difference, wanted: Difference) -> None:
    assert vars(found).keys() == vars(wanted).keys()
    for name, value in vars(found).items():
        if isinstance(value, str):
            assert value == vars(wanted)[name]
        else:
            np.testing.assert_allclose(value, vars(wanted)[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("lost_of", ["measured", "control"])
def test_an_interval_is_over_the_texts_of_which_both_have_a_matrix(lost_of: str) -> None:
    texts = [0, 1, 1, 1]
    codes = np.zeros((4, 2, 3), np.int8)
    codes[0] = CODES["failed"]
    whole, lost = one_run(0, 8, texts), one_run(1, 8, texts, model="rows:m", status=codes)
    if lost_of == "measured":
        whole, lost = (
            one_run(0, 8, texts, status=codes),
            one_run(1, 8, texts, model="rows:m"),
        )
    found = difference(whole, lost)
    gap = ratio_at(whole, np.full(4, 2)) - ratio_at(lost, np.full(4, 2))
    by_window = gap[1:].mean((1, 2))
    half = stats.t.ppf(0.975, 2) * by_window.std(ddof=1) / np.sqrt(3)
    assert (found.unit, found.units) == ("window", 3)
    assert found.mean == pytest.approx(by_window.mean())
    assert found.interval == pytest.approx((by_window.mean() - half, by_window.mean() + half))


def test_a_head_counts_where_both_have_its_matrix() -> None:
    texts = [0, 1, 2]
    codes = np.zeros((3, 2, 3), np.int8)
    codes[1, 0, 0], other = CODES["non_finite"], codes.copy()
    other[2, 0, 0], other[:, 1, 2] = CODES["failed"], CODES["empty"]
    one = one_run(0, 8, texts, status=codes)
    control = one_run(1, 8, texts, model="rows:m", status=other)
    found = difference(one, control)
    gap = ratio_at(one, np.full(3, 2)) - ratio_at(control, np.full(3, 2))
    wanted = gap.mean(0)
    wanted[0, 0], wanted[1, 2] = gap[0, 0, 0], np.nan
    np.testing.assert_allclose(found.by_head, wanted, rtol=1e-12)
    assert found.mean == pytest.approx(np.nanmean(wanted))
    assert (found.unit, found.units) == ("text", 3)


def test_f14_windows_of_several_lengths_are_read_at_a_quarter_of_each() -> None:
    sizes = [1, 5, 8, 12, 16, 40]
    one = one_run(0, 40, [*range(6)], sizes=sizes)
    control = one_run(1, 64, [*range(6)], model="rows:m", sizes=sizes)
    found = difference(one, control)
    ks = np.array([1, 1, 2, 3, 4, 10])
    first, second = ratio_at(one, ks).mean((1, 2)), ratio_at(control, ks).mean((1, 2))
    assert found.measured == pytest.approx(first.mean())
    assert found.control_mean == pytest.approx(second.mean())
    half = stats.t.ppf(0.975, 5) * (first - second).std(ddof=1) / np.sqrt(6)
    assert found.interval == pytest.approx((found.mean - half, found.mean + half))
    # the very number of the table, and no place on a curve over k
    (row,) = table(summarise(one))
    assert row.mean == pytest.approx(found.measured)
    assert (found.index, found.place, row.place) == (0, *["n/4 of each window"] * 2)
    assert found.attrs()["difference_index"] == 0
    at_ten = difference(one, control, index=10)
    assert at_ten.place == "10"
    assert at_ten.measured == pytest.approx(ratio_at(one, np.full(6, 10)).mean())


def test_an_index_that_is_not_in_both_is_refused() -> None:
    one, control = one_run(0, 8, [0, 1]), one_run(1, 4, [0, 1], model="rows:m", sizes=[4, 4])
    for index in (0, -1, 5, 9):
        with pytest.raises(UsageError, match=f"index {index} is not in both"):
            difference(one, control, index=index)
    same(difference(one, control), difference(one, control, index=2))
    short = one_run(1, 1, [0, 1], model="rows:m", sizes=[1, 1])
    with pytest.raises(UsageError, match="index 2 is not in both"):
        difference(one, short)


def test_a_control_that_has_no_usable_matrix_gives_no_difference() -> None:
    codes = np.full((3, 2, 3), CODES["failed"], np.int8)
    control = one_run(1, 8, [0, 1, 2], model="rows:m", status=codes)
    found = difference(one_run(0, 8, [0, 1, 2]), control)
    assert np.isnan([found.mean, found.measured, found.control_mean, *found.interval]).all()
    assert np.isnan(found.by_head).all()
    assert found.units == 0
