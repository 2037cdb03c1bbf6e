"""Ratios and ranks of spectra that are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankscope import rank
from tolerances import ATOL

ATOL64 = ATOL["float64"]

spectra = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-6, 1e6)).map(
    lambda values: np.sort(values)[::-1]
)


def test_f05_two_ratios_are_two_quantities() -> None:
    np.testing.assert_allclose(rank.cumulative_ratio([4, 3]), [4 / 7, 1], atol=ATOL64)
    np.testing.assert_allclose(rank.energy_ratio([4, 3]), [0.64, 1], atol=ATOL64)
    np.testing.assert_allclose(rank.cumulative_ratio([4, 3, 2, 1]), [0.4, 0.7, 0.9, 1], atol=ATOL64)
    np.testing.assert_allclose(
        rank.energy_ratio([4, 3, 2, 1]), [16 / 30, 25 / 30, 29 / 30, 1], atol=ATOL64
    )


def test_closed_forms() -> None:
    n = 8
    identity, rank_one = np.ones(n), np.r_[np.sqrt(n), np.zeros(n - 1)]
    mixture = np.r_[1.0, np.full(n - 1, 0.75)]  # (1 − ε)I + ε·uniform with ε = 1/4
    assert rank.effective_rank(identity) == pytest.approx(n)
    assert rank.effective_rank(rank_one) == pytest.approx(1)
    assert rank.stable_rank(identity) == pytest.approx(n)
    assert rank.stable_rank(mixture) == pytest.approx(1 + 7 * 0.75**2)
    assert rank.numerical_rank(identity) == n
    assert rank.numerical_rank(rank_one) == 1
    assert rank.spectral_gap(mixture) == pytest.approx(0.25)
    assert rank.spectral_gap(rank_one) == 1
    assert rank.spectral_gap([3.0]) == 1


def test_rank_at_counts_what_is_needed() -> None:
    assert rank.rank_at([4, 3, 2, 1], 0.9) == 3
    assert rank.rank_at([4, 3, 2, 1], 0.91) == 4
    assert rank.rank_at([4, 3, 2, 1], 1.0) == 4
    # nine of ten equal values are 90 %, although their floating-point sum is a little less
    assert rank.rank_at(np.ones(10), 0.9) == 9


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        rank.rank_at([1.0], fraction)


def test_f13_all_zero_spectrum_has_no_ratio() -> None:
    for quantity in (rank.cumulative_ratio, rank.energy_ratio):
        assert np.isnan(quantity(np.zeros(7))).all()
    for number in (rank.effective_rank, rank.stable_rank, rank.numerical_rank, rank.spectral_gap):
        assert np.isnan(number(np.zeros(7)))
    assert np.isnan(rank.rank_at(np.zeros(7), 0.9))


def test_f11_unknown_values_give_unknown_ratios_and_touch_no_neighbour() -> None:
    batch = np.stack([np.ones(4), np.full(4, np.nan)])
    ratio = rank.cumulative_ratio(batch)
    np.testing.assert_allclose(ratio[0], [0.25, 0.5, 0.75, 1], atol=ATOL64)
    assert np.isnan(ratio[1]).all()
    np.testing.assert_array_equal(rank.rank_at(batch, 0.9), [4, np.nan])


def test_f14_ratio_is_one_beyond_the_size_of_a_matrix() -> None:
    padded = np.array([[1, 1, np.nan, np.nan], [1, 1, 1, 1]])
    size = np.array([2, 4])
    ratio = rank.cumulative_ratio(padded, size)
    np.testing.assert_allclose(ratio, [[0.5, 1, 1, 1], [0.25, 0.5, 0.75, 1]], atol=ATOL64)
    np.testing.assert_allclose(ratio.mean(axis=0), [0.375, 0.75, 0.875, 1], atol=ATOL64)
    np.testing.assert_allclose(rank.effective_rank(padded, size), [2, 4], atol=1e-9)
    np.testing.assert_array_equal(rank.rank_at(padded, 0.9, size), [2, 4])


def test_extreme_scales_neither_overflow_nor_vanish() -> None:
    for scale in (1e-200, 1e200):
        np.testing.assert_allclose(rank.energy_ratio([4 * scale, 3 * scale]), [0.64, 1])


@given(spectra)
def test_bounds_hold_for_any_spectrum(values: np.ndarray) -> None:
    n = len(values)
    sigma, energy = rank.cumulative_ratio(values), rank.energy_ratio(values)
    assert sigma[-1] == 1.0
    assert energy[-1] == 1.0
    assert (np.diff(sigma) >= -1e-15).all()
    # squares favour the large values, and equal shares are the slowest growth there is
    assert (energy >= sigma - 1e-9).all()
    assert (sigma >= np.arange(1, n + 1) / n - 1e-9).all()
    stable, effective = float(rank.stable_rank(values)), float(rank.effective_rank(values))
    assert 1 - 1e-9 <= stable <= n + 1e-9
    assert 1 - 1e-9 <= effective <= n + 1e-6
    assert stable <= float(rank.numerical_rank(values, 0.0)) + 1e-9


@given(spectra, st.floats(0.01, 100))
def test_scale_does_not_matter(values: np.ndarray, scale: float) -> None:
    np.testing.assert_allclose(
        rank.cumulative_ratio(values), rank.cumulative_ratio(values * scale), rtol=1e-9
    )
