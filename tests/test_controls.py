"""Controls made of a matrix: what is kept, known spectra, and draws that depend on place."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attentions import attention
from matrices import closed_forms, stochastic
from rankscope.controls import (
    MATRIX_CONTROLS,
    control_matrix,
    gaussian_rows,
    mean_matrix,
    shuffled_rows,
    support,
)
from rankscope.exceptions import UsageError
from rankscope.linalg import singular_values
from rankscope.rank import cumulative_ratio
from tolerances import ATOL, RTOL

EXACT = {"rtol": RTOL["float64"], "atol": ATOL["float64"]}
CAUSAL = torch.ones(24, 24).tril().to(torch.bool)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(sharpness: float, causal: bool = False, n: int = 24) -> torch.Tensor:
    one = attention(n, batch=1, heads=1, sharpness=sharpness, causal=causal)
    return one.weights[0, 0]


def entropies(matrix: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(matrix.double()).sum(dim=1)


def spectrum(matrix: torch.Tensor) -> np.ndarray:
    return np.linalg.svd(matrix.double().numpy(), compute_uv=False)


# rows


@pytest.mark.parametrize("causal", [False, True])
def test_shuffled_rows_keep_their_values(causal: bool) -> None:
    matrix = made(2.0, causal)
    found = shuffled_rows(matrix, seeded(), CAUSAL if causal else None)
    assert torch.equal(found.sort(dim=1).values, matrix.sort(dim=1).values)
    assert not torch.equal(found, matrix)
    torch.testing.assert_close(entropies(found), entropies(matrix), **EXACT)
    if causal:
        assert bool((found[~CAUSAL] == 0).all())
        assert bool((found[CAUSAL] > 0).all())
    # what columns had in common is gone: no column sum survives
    assert float((found.sum(dim=0) - matrix.sum(dim=0)).abs().min()) > 0


def test_every_order_of_a_row_comes_up_equally_often() -> None:
    draws, random = 6000, seeded()
    whole = torch.tensor([[0.5, 0.3, 0.2]]).expand(draws, 3)
    # one more column that the mask hides, in the middle
    masked = torch.tensor([[0.5, 0.0, 0.3, 0.2]]).expand(draws, 4)
    seen = torch.tensor([[True, False, True, True]]).expand(draws, 4)
    for found in (
        shuffled_rows(whole, random),
        shuffled_rows(masked, random, seen)[:, [0, 2, 3]],
    ):
        orders, counts = np.unique(found.numpy(), axis=0, return_counts=True)
        assert len(orders) == 6
        # binomial with p = 1/6: 1000 ± 29, seed fixed
        assert np.abs(counts - draws / 6).max() < 4 * math.sqrt(draws * 5 / 36)


def test_uniform_rows_cannot_be_shuffled() -> None:
    uniform = torch.full((8, 8), 1 / 8, dtype=torch.float64)
    assert torch.equal(shuffled_rows(uniform, seeded()), uniform)


@pytest.mark.parametrize("name", ["identity", "permutation", "sink"])
def test_rows_of_one_entry_give_roots_of_counts(name: str) -> None:
    matrix, before = closed_forms(64)[name]
    found = shuffled_rows(torch.from_numpy(matrix), seeded(3))
    counts = np.sort(found.sum(dim=0).numpy())[::-1]
    assert counts.sum() == 64
    assert set(found.unique().tolist()) == {0.0, 1.0}
    np.testing.assert_allclose(spectrum(found), np.sqrt(counts), atol=1e-7)
    assert np.abs(spectrum(found) - before).max() > 0.5


def test_number_of_columns_that_random_rows_hit() -> None:
    n, draws, random = 32, 400, seeded()
    hit = [int((shuffled_rows(torch.eye(n), random).sum(0) > 0).sum()) for _ in range(draws)]
    chance = (1 - 1 / n) ** n
    both = (1 - 2 / n) ** n
    variance = n * chance + n * (n - 1) * both - (n * chance) ** 2
    assert abs(np.mean(hit) - n * (1 - chance)) < 4 * math.sqrt(variance / draws)
    assert abs(np.var(hit) / variance - 1) < 0.3


def test_mean_gram_matrices_of_shuffled_rows() -> None:
    """The docstring's E[PᵀP] and E[PPᵀ], against all 6³ orders of the rows of a 3 × 3 matrix."""
    matrix = stochastic(3, 1, 2.0) * np.array([[1.0], [0.5], [0.25]])
    orders = [list(itertools.permutations(row)) for row in matrix]
    every = np.array(list(itertools.product(*orders)))
    sums, squares = matrix.sum(axis=1), (matrix**2).sum(axis=1)
    ones = np.full((3, 3), 1 / 3)
    a = (sums**2).sum() / 3
    b = (squares.sum() - a) / 2
    np.testing.assert_allclose(
        (every.transpose(0, 2, 1) @ every).mean(axis=0), a * ones + b * (np.eye(3) - ones), **EXACT
    )
    np.testing.assert_allclose(
        (every @ every.transpose(0, 2, 1)).mean(axis=0),
        np.outer(sums, sums) / 3 + np.diag(squares - sums**2 / 3),
        **EXACT,
    )
    # and the draws come from the same 6³
    drawn = shuffled_rows(torch.from_numpy(matrix), seeded()).numpy()
    assert (np.abs(every - drawn).max(axis=(1, 2)) == 0).any()


def test_shuffled_rows_of_even_entries_follow_the_quarter_circle() -> None:
    """Without columns in common the centred part has σ/√r on [0, 2], density √(4 − x²)/π."""
    n = 256
    matrix = torch.from_numpy(stochastic(n, 0, 0.3))
    # sorted rows have all in common, so that the spectrum before is far from it
    matrix = matrix.sort(dim=1).values
    found = shuffled_rows(matrix, seeded())
    level = float(((matrix**2).sum(dim=1) - 1 / n).mean().sqrt())
    values = spectrum(found - 1 / n) / level
    grid = np.linspace(0, 2, 2001)
    mass = (grid * np.sqrt(4 - grid**2) / 2 + 2 * np.arcsin(grid / 2)) / np.pi
    quantiles = np.interp((np.arange(n) + 0.5) / n, mass, grid)[::-1]
    assert np.abs(values - quantiles).max() < 0.1
    assert np.abs(spectrum(matrix - 1 / n) / level - quantiles).max() > 5


# softmax of Gaussian logits


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sharpness", [1e-7, 0.01, 0.5, 3.0, 30.0, 1e4])
def test_gaussian_rows_have_the_entropies_of_the_rows(sharpness: float, causal: bool) -> None:
    matrix = made(sharpness, causal)
    found = gaussian_rows(matrix, seeded(), CAUSAL if causal else None)
    assert float((entropies(found) - entropies(matrix)).abs().max()) < 2e-10
    torch.testing.assert_close(found.sum(dim=1), matrix.sum(dim=1), **EXACT)
    assert bool((found >= 0).all())
    if causal:
        assert bool((found[~CAUSAL] == 0).all())
    # the values are not those of P: that is what sets this control apart from `rows`
    if sharpness == 0.5:
        assert not torch.allclose(found.sort(dim=1).values, matrix.sort(dim=1).values, rtol=1e-3)


@pytest.mark.parametrize("columns", [2, 3, 5])
def test_gaussian_rows_of_few_columns_are_found_too(columns: int) -> None:
    """Two largest logits that almost tie need a temperature far from where the search starts."""
    matrix = torch.rand(4000, columns, generator=seeded(), dtype=torch.float64) ** 12
    matrix /= matrix.sum(dim=1, keepdim=True)
    found = gaussian_rows(matrix, seeded(1))
    assert float((entropies(found) - entropies(matrix)).abs().max()) < 2e-10


def test_gaussian_rows_are_a_softmax_of_their_logits() -> None:
    matrix = made(1.5)
    found = gaussian_rows(matrix, seeded(7))
    logits = torch.randn(24, 24, generator=seeded(7), dtype=torch.float64)
    for row, drawn, wanted in zip(found, logits, entropies(matrix), strict=True):
        # one temperature, found here by plain bisection
        low, high = 0.0, 1e3
        for _ in range(80):
            middle = (low + high) / 2
            entropy = float(torch.special.entr(torch.softmax(middle * drawn, 0)).sum())
            low, high = (middle, high) if entropy > float(wanted) else (low, middle)
        torch.testing.assert_close(row, torch.softmax(low * drawn, 0), rtol=1e-7, atol=1e-12)


def test_gaussian_rows_of_rows_at_both_ends() -> None:
    uniform = torch.full((5, 8), 1 / 8)
    assert torch.equal(gaussian_rows(uniform, seeded()), uniform)
    # the logarithm of any width, above or below that of the sum of its entropies
    for n in range(1, 40):
        uniform = torch.full((1, n), 1 / n, dtype=torch.float64)
        torch.testing.assert_close(gaussian_rows(uniform, seeded()), uniform, **EXACT)
    under_mask = made(0.0, causal=True)
    torch.testing.assert_close(gaussian_rows(under_mask, seeded(), CAUSAL), under_mask, **EXACT)
    sink = torch.zeros(64, 8)
    sink[:, 0] = 1
    found = gaussian_rows(sink, seeded())
    assert torch.equal(found.sort(dim=1).values, sink.sort(dim=1).values)
    assert int((found.sum(dim=0) > 0).sum()) == 8
    # a first token of a causal model sees itself alone: uniform and single at once
    first = gaussian_rows(made(2.0, causal=True), seeded(), CAUSAL)[0]
    assert first.tolist() == [1.0] + [0.0] * 23


def test_gaussian_rows_keep_what_dropping_special_tokens_left() -> None:
    matrix = made(2.0)[:, 1:-1]
    matrix[3] = 0.0
    found = gaussian_rows(matrix, seeded())
    torch.testing.assert_close(found.sum(dim=1), matrix.sum(dim=1), **EXACT)
    assert float((entropies(found) - entropies(matrix)).abs().max()) < 2e-10
    assert bool((found[3] == 0).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_stay_so(bad: float) -> None:
    matrix = made(1.0)
    matrix[5, 2] = bad
    found = gaussian_rows(matrix, seeded())
    assert bool(found[5].isnan().all())
    others = torch.arange(24) != 5
    torch.testing.assert_close(
        found[others], gaussian_rows(made(1.0), seeded())[others], rtol=1e-7, atol=1e-12
    )
    assert not bool(shuffled_rows(matrix, seeded())[5].isfinite().all())


def test_float32_stays_float32() -> None:
    matrix = made(2.0).float()
    for make in MATRIX_CONTROLS.values():
        found = make(matrix, seeded(), None)
        assert found.dtype == torch.float32
        assert float((entropies(found) - entropies(matrix)).abs().max()) < 1e-6


# both, from a captured layer


def test_mask_comes_from_the_bias() -> None:
    causal = attention(24, causal=True)
    seen = support(causal, 1, 2)
    assert seen is not None
    assert torch.equal(seen, CAUSAL)
    assert support(attention(24), 0, 0) is None
    # a bias of positions hides nothing; one of a head may
    bias = torch.zeros(3, 24, 24, dtype=torch.float64)
    bias[2, :, 4] = -torch.inf
    own = replace(attention(24), bias=bias)
    assert support(own, 0, 1) is None
    seen = support(own, 0, 2)
    assert seen is not None
    assert seen.logical_not().nonzero()[:, 1].unique().tolist() == [4]
    # special tokens taken out of P are taken out of its mask
    keep = torch.arange(24) % 23 > 0
    inner = replace(causal, keep_rows=keep, keep_columns=keep, special="renormalise")
    seen = support(inner, 0, 0)
    assert seen is not None
    assert torch.equal(seen, CAUSAL[1:-1, 1:-1])
    assert inner.matrix(0, 0).shape == seen.shape


@pytest.mark.parametrize("control", list(MATRIX_CONTROLS))
def test_draws_depend_on_seed_and_place_alone(control: str) -> None:
    whole = attention(24, causal=True)
    matrix = whole.matrix(0, 1)

    def drawn(given: object = whole, **place: int) -> torch.Tensor:
        place = {"head": 1, "sample": 4, "seed": 0} | place
        return control_matrix(control, matrix, given, **place)  # type: ignore[arg-type]

    torch.manual_seed(1)
    first = drawn()
    torch.manual_seed(2)
    alone = replace(whole, query=whole.query[:1], key=whole.key[:1], value=None, samples=(0,))
    assert torch.equal(first, drawn())
    assert torch.equal(first, drawn(alone))
    others = [drawn(seed=1), drawn(sample=5), drawn(head=2), drawn(replace(whole, layer=1))]
    assert not any(torch.equal(first, other) for other in others)
    assert bool((first[~CAUSAL] == 0).all())
    spectra = [spectrum(one) for one in (first, *others)]
    assert len({round(float(one[3]), 12) for one in spectra}) == 5


def test_controls_of_one_place_share_no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MATRIX_CONTROLS:
        monkeypatch.setitem(
            MATRIX_CONTROLS, name, lambda _matrix, random, _seen: torch.rand(4, generator=random)
        )
    given = attention(24)
    rows, gaussian = (
        control_matrix(one, given.matrix(0, 0), given, head=0, sample=0) for one in MATRIX_CONTROLS
    )
    assert not torch.isclose(rows, gaussian).any()


# mean matrix


def test_permutations_average_to_uniform() -> None:
    """FIELD case: mean of spectra (1, 1), ratio .5; spectrum of the mean (1, 0), ratio 1."""
    for n in (2, 5):
        mean = mean_matrix(torch.eye(n).roll(shift, 1) for shift in range(n))
        torch.testing.assert_close(mean, torch.full((n, n), 1 / n, dtype=torch.float64))
        ratio = cumulative_ratio(singular_values(mean).singular_values)[0]
        assert ratio == pytest.approx(1.0)
        each = cumulative_ratio(singular_values(torch.eye(n)).singular_values)[0]
        assert each == pytest.approx(1 / n)


def test_mean_sums_in_float64_and_keeps_ky_fan_sums_below() -> None:
    given = [torch.from_numpy(stochastic(12, seed, 3.0)).float() for seed in range(7)]
    mean = mean_matrix(given)
    exact = np.mean([one.double().numpy() for one in given], axis=0)
    np.testing.assert_allclose(mean.numpy(), exact, rtol=1e-14)
    # float32 sums would not do
    assert np.abs(torch.stack(given).mean(dim=0).numpy() / exact - 1).max() > 1e-9
    whole = np.cumsum(spectrum(mean))
    parts = np.mean([np.cumsum(spectrum(one)) for one in given], axis=0)
    assert (whole <= parts + 1e-12).all()
    assert whole[-1] < 0.9 * parts[-1]


def test_mean_leaves_what_it_is_given_as_it_is() -> None:
    given = [torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)]
    mean_matrix(given)
    assert torch.equal(given[0], torch.eye(3, dtype=torch.float64))


def test_mean_with_a_matrix_that_is_not_finite_is_not_finite_there() -> None:
    broken = torch.eye(2)
    broken[0, 1] = torch.nan
    mean = mean_matrix([torch.eye(2), broken])
    assert mean.isnan().tolist() == [[False, True], [False, False]]


def test_matrices_without_a_mean_are_refused() -> None:
    with pytest.raises(UsageError, match="equal length"):
        mean_matrix([torch.eye(2), torch.eye(3)])
    with pytest.raises(UsageError, match="no matrix"):
        mean_matrix([])


# refusals


def test_what_is_no_control_is_refused() -> None:
    whole = attention(24)
    matrix = whole.matrix(0, 0)
    with pytest.raises(UsageError, match="one of rows, gaussian"):
        control_matrix("columns", matrix, whole, head=0, sample=0)
    with pytest.raises(UsageError, match="seed -1"):
        control_matrix("rows", matrix, whole, head=0, sample=0, seed=-1)
    with pytest.raises(UsageError, match="negative"):
        gaussian_rows(matrix - 0.5, seeded())
    for make in MATRIX_CONTROLS.values():
        with pytest.raises(UsageError, match="one \\(n, m\\) matrix"):
            make(matrix[None], seeded(), None)
        with pytest.raises(UsageError, match="not 0 where"):
            make(matrix, seeded(), CAUSAL)
        with pytest.raises(UsageError, match="does not fit"):
            make(matrix, seeded(), CAUSAL[:5])
