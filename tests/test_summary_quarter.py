"""Windows of several lengths, each read at a quarter of its own."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from made_up import run_of
from rankscope.exceptions import StoreError
from rankscope.summary import summarise, table

T_975 = 4.30265
"""Two-sided 95 % point of Student's t with two degrees of freedom, as printed in tables."""


def first(summary: xr.Dataset, name: str) -> np.ndarray:
    """A variable of the only model and corpus."""
    return summary[name].isel(model=0, corpus=0).to_numpy()


def test_f14_mixed_lengths_are_read_at_a_quarter_of_each() -> None:
    # n = 8: σ (4, 2, 1, 1, 0 …), k = 2; n = 4: σ (5, 3, 1, 1), k = 1; energy 20/22 and 25/36
    spectra = np.zeros((3, 2, 1, 8))
    spectra[0, :, 0, :4] = [4, 2, 1, 1]
    spectra[1:, :, 0, :4] = [5, 3, 1, 1]
    spectra[2, 1, 0, :4] = [1, 1, 1, 1]
    summary = summarise(run_of(spectra, n_tokens=[8, 4, 4]))
    assert summary.attrs["ratio_index"] == 2
    units = np.array([[0.75, 0.5, 0.5], [0.75, 0.5, 0.25]])
    np.testing.assert_allclose(first(summary, "quarter_ratio")[:, 0], units.mean(1))
    np.testing.assert_allclose(first(summary, "quarter_layer_mean"), units.mean(1))
    half = T_975 * units.std(1, ddof=1) / np.sqrt(3)
    ends = [first(summary, f"quarter_layer_mean_{end}") for end in ("low", "high")]
    np.testing.assert_allclose(ends, [units.mean(1) - half, units.mean(1) + half], rtol=1e-5)
    energy = np.array([[20 / 22, 25 / 36, 25 / 36], [20 / 22, 25 / 36, 0.25]])
    np.testing.assert_allclose(first(summary, "energy_quarter_ratio")[:, 0], energy.mean(1))
    (row,) = table(summary)
    assert (row.index, row.place, row.n) == (0, "n/4 of each window", "4–8")
    assert (row.mean, row.energy_mean) == pytest.approx((units.mean(), energy.mean()))
    assert (row.minimum, row.maximum) == pytest.approx((0.5, 1.75 / 3))
    assert dict(row.layer_means) == pytest.approx(dict(enumerate(units.mean(1))))
    np.testing.assert_allclose(np.transpose(row.layer_intervals), ends)
    over = units.mean(0)
    assert row.interval[1] - row.mean == pytest.approx(
        T_975 * over.std(ddof=1) / np.sqrt(3), rel=1e-5
    )
    # whoever asks for a k gets that k
    (asked,) = table(summarise(run_of(spectra, n_tokens=[8, 4, 4]), index=2))
    assert (asked.index, asked.place) == (2, "2")
    assert asked.mean == pytest.approx(np.mean([[0.75, 0.8, 0.8], [0.75, 0.8, 0.5]]))


@pytest.mark.parametrize("n", [8, 10, 11])
def test_for_one_length_a_quarter_of_each_window_is_the_index_bit_for_bit(n: int) -> None:
    rng = np.random.default_rng(n)
    run = run_of(np.sort(rng.random((9, 2, 11, n)))[..., ::-1], text_id=[0, 0, 1, 2, 3, 4, 4, 4, 5])
    summary = summarise(run)
    at = summary.sel(index=2)
    for prefix in ("", "energy_"):
        for own, there in (
            ("quarter_ratio", f"{prefix}ratio_at"),
            ("quarter_mean", f"mean_{prefix}ratio_curve"),
            ("quarter_mean_low", f"{prefix}interval_low"),
            ("quarter_layer_mean", f"{prefix}layer_mean"),
            ("quarter_layer_mean_high", f"{prefix}layer_mean_high"),
        ):
            np.testing.assert_array_equal(at[f"{prefix}{own}"], at[there], err_msg=own)
    (row,), (asked,) = table(summary), table(summarise(run, index=2))
    assert row == asked
    assert row.place == "2"


def test_each_corpus_of_a_run_is_read_at_a_quarter_of_its_own_length() -> None:
    rng = np.random.default_rng(0)
    parts = [
        run_of(np.sort(rng.random((3, 1, 2, 16)))[..., ::-1], corpus=name, n_tokens=[n] * 3)
        for name, n in (("long", 16), ("short", 8))
    ]
    options = {"data_vars": "all", "coords": "minimal", "compat": "override", "join": "exact"}
    both = summarise(xr.concat(parts, "corpus", **options))
    assert both.attrs["ratio_index"] == 4
    rows, alone = table(both), [table(summarise(part))[0] for part in parts]
    assert [row.index for row in rows] == [4, 2]
    assert rows == alone


def test_a_summary_from_before_is_read_where_it_says() -> None:
    summary = summarise(run_of(np.ones((2, 1, 1, 8)), n_tokens=[4, 8]), index=4)
    old = summary.drop_vars([name for name in summary.data_vars if "quarter" in str(name)])
    del old.attrs["ratio_index_chosen"]
    (row,), (wanted,) = table(old), table(summary)
    assert row == wanted
    assert (row.index, row.mean) == (4, 0.75)


def test_curves_that_are_cut_are_refused() -> None:
    spectra = np.ones((2, 1, 1, 8))
    run = run_of(spectra, n_tokens=[8, 8])
    with pytest.raises(StoreError, match="the curves end at k = 2"):
        summarise(run.isel(index=slice(0, 2)))
