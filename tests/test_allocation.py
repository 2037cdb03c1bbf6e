"""A total rank shared out: against brute force, by hand, and on the curves of a real model."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope import selection
from rankscope.exceptions import UsageError
from rankscope.selection import allocate, errors_at, lower_hull, total_error
from rankscope.selection.allocation import by_hull, exact
from rankscope.truncation import decompose, error_curves

if TYPE_CHECKING:
    from rankscope.models import LoadedModel

SUM = 1e-12
"""What the order of a sum of a few errors explains, relative to it."""


def falling(layers: int, heads: int, n: int, seed: int) -> np.ndarray:
    """Curves that fall to 0 in steps of very different size: not convex, some of them flat."""
    rng = np.random.default_rng(seed)
    steps = rng.exponential(size=(layers, heads, n)) ** 3 * (rng.random((layers, heads, n)) < 0.7)
    steps[..., -1] = 0.0
    return np.asarray(steps[..., ::-1].cumsum(-1)[..., ::-1])


def least(errors: np.ndarray, budget: int, minimum: int = 1) -> float:
    """Total error of the best ranks, found by trying all."""
    flat = errors.reshape(-1, errors.shape[-1])
    found = np.inf
    for ranks in product(range(minimum, flat.shape[1] + 1), repeat=len(flat)):
        if sum(ranks) <= budget:
            found = min(found, sum(row[k - 1] for row, k in zip(flat, ranks, strict=True)))
    return found


shapes = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 5))


@given(shapes, st.integers(0, 10**6), st.booleans(), st.data())
@settings(deadline=None)
def test_exact_is_the_best_of_all(
    shape: tuple[int, int, int], seed: int, monotone: bool, data: st.DataObject
) -> None:
    layers, heads, n = shape
    # any table of errors will do, curves that rise among them
    errors = falling(*shape, seed) if monotone else np.random.default_rng(seed).random(shape)
    minimum = data.draw(st.integers(1, n))
    budget = data.draw(st.integers(layers * heads * minimum, layers * heads * n))
    choice = allocate(errors, budget, minimum=minimum)
    assert choice.error == pytest.approx(least(errors, budget, minimum), rel=SUM, abs=SUM)
    assert choice.total <= budget
    assert choice.ranks.min() >= minimum
    assert choice.how["left_over"] == budget - choice.total
    assert choice.how["gap"] == 0.0
    assert choice.how["lower_bound"] <= choice.error


@given(shapes, st.integers(0, 10**6), st.data())
@settings(deadline=None)
def test_one_rank_a_layer_is_the_best_of_those(
    shape: tuple[int, int, int], seed: int, data: st.DataObject
) -> None:
    layers, heads, n = shape
    errors = falling(*shape, seed)
    budget = data.draw(st.integers(layers * heads, layers * heads * n))
    choice = allocate(errors, budget, by="layer")
    assert (choice.ranks == choice.ranks[:, :1]).all()
    assert choice.total <= budget
    assert choice.error == pytest.approx(least(errors.sum(1), budget // heads), rel=SUM, abs=SUM)


@given(st.integers(0, 10**6), st.sampled_from(["falling", "any", "steps"]))
@settings(deadline=None, max_examples=40)
def test_hull_bounds_the_exact_error_from_both_sides(seed: int, kind: str) -> None:
    """The hull knows nothing of the dynamic program: an independent check of larger cases."""
    rng = np.random.default_rng(seed)
    heads, n = int(rng.integers(2, 20)), int(rng.integers(2, 40))
    errors = {
        "falling": falling(1, heads, n, seed)[0],
        "any": rng.random((heads, n)),
        # many ties, and nothing to gain but in jumps
        "steps": np.sort(rng.integers(0, 3, (heads, n)), axis=-1)[:, ::-1].astype(np.float64),
    }[kind]
    budget = int(rng.integers(heads, heads * n + 1))
    rows = np.arange(heads)
    ranks, bound, price = by_hull(errors, budget)
    greedy = errors[rows, ranks - 1].sum()
    chosen, plain = exact(errors, budget), exact(errors, budget, narrow=False)
    found = errors[rows, chosen - 1].sum()
    slack = SUM * errors.sum()
    assert max(ranks.sum(), chosen.sum(), plain.sum()) <= budget
    assert min(ranks.min(), chosen.min(), plain.min()) >= 1
    assert price >= 0
    assert bound <= found + slack
    assert found <= greedy + slack
    # what the bound rules out makes no difference
    assert abs(found - errors[rows, plain - 1].sum()) <= slack


def test_hull_by_hand_and_as_a_property() -> None:
    np.testing.assert_allclose(lower_hull([3.0, 3.0, 0.0, 0.0]), [3.0, 1.5, 0.0, 0.0], atol=SUM)
    np.testing.assert_allclose(lower_hull([5.0]), [5.0], atol=0)
    errors = falling(3, 4, 30, seed=1)
    hull = lower_hull(errors)
    assert hull.shape == errors.shape
    assert (hull <= errors + SUM).all()
    assert (np.diff(hull, n=2) >= -SUM * errors.max()).all()
    # the largest such function touches every curve at both ends, and convex ones everywhere
    np.testing.assert_allclose(hull[..., [0, -1]], errors[..., [0, -1]], rtol=SUM)
    np.testing.assert_allclose(lower_hull(hull), hull, rtol=0, atol=SUM * errors.max())
    with pytest.raises(UsageError, match="finite"):
        lower_hull([1.0, np.nan])


def test_spending_rank_by_rank_fails_where_dynamic_programming_does_not() -> None:
    """A head that gains only at its fourth rank: each single step elsewhere looks better."""
    errors = np.array([[[10.0, 10.0, 10.0, 0.0], [3.0, 2.0, 1.5, 1.2], [3.0, 2.0, 1.5, 1.2]]])
    budget = 6
    ranks = np.ones((1, 3), np.int64)
    for _ in range(budget - 3):
        gain = errors_at(errors, ranks) - errors_at(errors, ranks + 1)
        ranks[0, int(gain.argmax())] += 1
    assert ranks.tolist() == [[1, 3, 2]]
    assert errors_at(errors, ranks).sum() == pytest.approx(13.5)
    best = allocate(errors, budget)
    assert best.ranks.tolist() == [[4, 1, 1]]
    assert best.error == pytest.approx(6.0) == least(errors, budget)


def test_greedy_on_the_hull_states_how_far_off_it_may_be() -> None:
    """Two heads that fall to 0 at rank 3 only, and budget for one and a half of them."""
    errors = np.array([[[4.0, 4.0, 0.0], [3.9, 3.0, 0.0]]])
    greedy = allocate(errors, 5, solver="greedy")
    # by hand: the first head's segment falls 2 a rank, the second's 1.95, of which one rank fits
    assert greedy.ranks.tolist() == [[3, 2]]
    assert greedy.how["lower_bound"] == pytest.approx(3.9 - 1.95)
    assert greedy.how["gap"] == pytest.approx(3.0 - 1.95)
    assert allocate(errors, 5).error == pytest.approx(3.0) == least(errors, 5)
    # worse than the best by no more than it says: the steep segment is the wrong one here
    trap = np.array([[[10.0, 0.0, 0.0, 0.0], [24.0, 24.0, 24.0, 0.0]]])
    greedy, best = allocate(trap, 5, solver="greedy"), allocate(trap, 5)
    assert (greedy.error, best.error) == (24.0, 10.0)
    assert greedy.error - greedy.how["gap"] <= best.error


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_freedom_and_budget_never_hurt(seed: int) -> None:
    errors = falling(3, 4, 7, seed)
    before = np.inf
    for budget in range(12, 12 * 7 + 1):
        head, layer, uniform = (allocate(errors, budget, by=by) for by in selection.BY)
        slack = SUM * errors.sum()
        assert head.error <= layer.error + slack
        assert layer.error <= uniform.error + slack
        assert max(head.total, layer.total, uniform.total) <= budget
        assert head.error <= before + slack
        before = head.error
    assert before == pytest.approx(errors[..., -1].sum(), abs=SUM)


@given(st.integers(0, 10**6), st.integers(12, 84))
@settings(deadline=None, max_examples=30)
def test_order_of_the_heads_means_nothing(seed: int, budget: int) -> None:
    # every error is another number, so that no two allocations tie
    errors = np.sort(np.random.default_rng(seed).random((12, 7)), axis=-1)[:, ::-1]
    order = np.random.default_rng(seed + 1).permutation(12)
    one = allocate(errors.reshape(3, 4, 7), budget)
    other = allocate(errors[order].reshape(3, 4, 7), budget)
    assert one.ranks.reshape(-1)[order].tolist() == other.ranks.reshape(-1).tolist()


def test_what_cannot_be_divided_is_left_over() -> None:
    errors = falling(2, 3, 8, seed=2) + np.arange(8, 0, -1)
    uniform = allocate(errors, 29, by="uniform")
    assert uniform.ranks.tolist() == [[4] * 3] * 2
    assert uniform.how == {"budget": 29, "by": "uniform", "minimum": 1, "left_over": 5}
    layer = allocate(errors, 29, by="layer")
    assert (layer.total, layer.how["left_over"]) == (27, 2)
    assert allocate(errors, 29).how["left_over"] == 0
    # rank that helps nowhere is not spent
    idle = allocate(np.zeros((2, 3, 8)), 29)
    assert (idle.total, idle.how["left_over"]) == (6, 23)


def test_smallest_rank_of_a_head_is_kept() -> None:
    errors = np.array([[[9.0, 5.0, 1.0, 0.0], [0.1, 0.1, 0.1, 0.1]]])
    assert allocate(errors, 5).ranks.tolist() == [[4, 1]]
    assert allocate(errors, 5, minimum=2).ranks.tolist() == [[3, 2]]
    assert allocate(errors, 4, minimum=2).ranks.tolist() == [[2, 2]]
    assert allocate(errors, 8, minimum=4).ranks.tolist() == [[4, 4]]


@pytest.mark.parametrize("by", selection.BY)
def test_budget_out_of_range_names_the_range(by: str) -> None:
    errors = falling(2, 3, 8, seed=3)
    for budget, minimum, span in ((5, 1, "6 … 48"), (49, 1, "6 … 48"), (17, 3, "18 … 48")):
        with pytest.raises(UsageError, match=span):
            allocate(errors, budget, by=by, minimum=minimum)
    assert (allocate(errors, 6, by=by).ranks == 1).all()
    assert allocate(errors, 48, by=by).error == pytest.approx(0.0)


def test_what_cannot_be_allocated_is_refused() -> None:
    errors = falling(2, 3, 8, seed=4)
    for minimum in (0, 9):
        with pytest.raises(UsageError, match="smallest rank"):
            allocate(errors, 20, minimum=minimum)
    with pytest.raises(UsageError, match=r"'heads'.*head, layer, uniform"):
        allocate(errors, 20, by="heads")
    with pytest.raises(UsageError, match=r"'quick'.*exact, greedy"):
        allocate(errors, 20, solver="quick")
    with pytest.raises(UsageError, match="shape"):
        allocate(errors[0], 20)
    errors[1, 2, 5], errors[0, 1] = np.inf, np.nan
    with pytest.raises(UsageError, match="no rank, for layer 0 head 1, layer 1 head 2 "):
        allocate(errors, 20)


@pytest.fixture(scope="module")
def real(minilm: LoadedModel) -> tuple[np.ndarray, np.ndarray]:
    """Output curves (window, layer, head, k) and norms of two windows of 128 tokens."""
    from rankscope.capture import capture
    from rankscope.text import load_corpus, windows

    text = windows(load_corpus("builtin"), minilm.tokenizer, length=128, count=2)
    curves, norms = np.zeros((2, 6, 12, 128)), np.zeros((2, 6, 12))
    for attention in capture(minilm, text):
        found = error_curves(decompose(attention.weights), attention.values)
        assert found.output is not None
        assert found.output_norm is not None
        for row, sample in enumerate(attention.samples):
            curves[sample, attention.layer] = found.output[row]
            norms[sample, attention.layer] = found.output_norm[row]
    return curves, norms


def test_output_curves_of_a_real_model_fall_and_are_not_convex(
    real: tuple[np.ndarray, ...],
) -> None:
    curves = real[0]
    assert (np.diff(curves) <= SUM).all()
    assert ((curves - lower_hull(curves)).max(-1) > 1e-3).mean() > 0.9


@pytest.mark.parametrize("objective", selection.OBJECTIVES)
def test_allocation_beats_uniform_ranks_on_windows_it_never_saw(
    real: tuple[np.ndarray, np.ndarray], objective: str
) -> None:
    curves, norms = real
    seen, unseen = (
        total_error(curves[row : row + 1], norms[row : row + 1], objective) for row in (0, 1)
    )
    budget = 72 * 32
    head, layer, uniform = (allocate(seen, budget, by=by) for by in selection.BY)
    assert head.total <= budget == uniform.total
    assert head.error < layer.error < uniform.error
    assert len(np.unique(head.ranks)) > 10
    assert errors_at(unseen, head.ranks).sum() < 0.9 * errors_at(unseen, uniform.ranks).sum()
    # the same ranks for other heads do worse than uniform ones: it is the heads that matter
    wrong = np.random.default_rng(0).permutation(head.ranks.ravel()).reshape(head.ranks.shape)
    assert errors_at(unseen, wrong).sum() > errors_at(unseen, uniform.ranks).sum()
    greedy = allocate(seen, budget, solver="greedy")
    slack = SUM * seen.sum()
    assert greedy.how["lower_bound"] - slack <= head.error <= greedy.error + slack
    assert greedy.how["gap"] < 0.01 * greedy.error
    json.dumps(dict(head.how), allow_nan=False)


def test_allocated_ranks_do_what_the_curves_promise(minilm: LoadedModel) -> None:
    """The predicted error is that of truncating every head of a layer at its own rank."""
    from rankscope.capture import capture
    from rankscope.text import load_corpus, windows

    text = windows(load_corpus("builtin"), minilm.tokenizer, length=64, count=1)
    attention = next(iter(capture(minilm, text)))
    whole = decompose(attention.weights)
    found = error_curves(whole, attention.values)
    assert found.output is not None
    assert found.output_norm is not None
    errors = total_error(found.output.numpy(), found.output_norm.numpy(), "absolute")
    choice = allocate(errors, 12 * 16)
    low = whole.output(torch.tensor(choice.ranks), attention.values)
    exact_output = whole.matrix @ attention.values.double()
    distance = float((low - exact_output).square().sum())
    assert choice.error == pytest.approx(distance, rel=1e-9)
