"""Patterns of sparse attention against their definitions, entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rankscope.approximations import patterns
from rankscope.approximations.bigbird import BigBird, RandomBand, RandomKeys
from rankscope.approximations.draws import generator
from rankscope.approximations.longformer import Global, Longformer
from rankscope.approximations.sparse import Band, Dilated, Sparse
from rankscope.approximations.strips import Pattern
from rankscope.exceptions import MethodError, UsageError

EVERY: tuple[Sparse, ...] = (
    Band(6),
    Dilated(6, dilation=(1, 3)),
    Longformer(6, g=2),
    Longformer(4, dilation=(1, 2), place="even", g=3),
    Global(6),
    RandomKeys(6),
    RandomBand(8),
    BigBird(20),
    BigBird(20, r=0),
    BigBird(18, mode="etc"),
    BigBird(22, mode="etc", r=2),
)


def distances(n: int) -> np.ndarray:
    place = np.arange(n)
    return np.abs(place[:, None] - place[None, :])


@pytest.mark.parametrize("n", [1, 2, 7, 37, 150])
@pytest.mark.parametrize("w", [2, 6, 40])
def test_band_is_every_token_at_most_half_the_width_away(n: int, w: int) -> None:
    assert np.array_equal(Band(w).pattern(n).toarray(), distances(n) <= w // 2)


@pytest.mark.parametrize("n", [1, 2, 7, 37, 150])
@pytest.mark.parametrize("dilation", [1, 2, 3, 200])
def test_dilated_band_takes_every_so_manyth_token(n: int, dilation: int) -> None:
    far = distances(n)
    expected = (far % dilation == 0) & (far <= 3 * dilation)
    assert np.array_equal(Dilated(6, dilation=dilation).pattern(n).toarray(), expected)


def test_dilations_are_gone_through_by_the_heads() -> None:
    made = Dilated(4, dilation=(1, 3))
    for head, dilation in enumerate((1, 3, 1, 3, 1)):
        alone = Dilated(4, dilation=dilation).pattern(40)
        assert (made.pattern(40, head) != alone).nnz == 0


@pytest.mark.parametrize("n", [1, 3, 37, 150])
def test_longformer_is_the_band_and_the_cross_of_its_global_tokens(n: int) -> None:
    made = Longformer(6, dilation=2, g=2, place="even")
    chosen = np.isin(np.arange(n), patterns.positions(n, 2, "even").numpy())
    band = Dilated(6, dilation=2).pattern(n).toarray()
    assert np.array_equal(made.pattern(n).toarray(), band | chosen[:, None] | chosen[None, :])


def test_global_tokens_by_id_stand_where_the_ids_stand() -> None:
    tokens = torch.tensor([0, 8, 7, 2, 9, 9, 2, 6])
    found = Global(ids=(0, 2)).pattern(8, tokens=tokens).toarray()
    chosen = np.isin(np.arange(8), [0, 3, 6])
    assert np.array_equal(found, np.eye(8, dtype=bool) | chosen[:, None] | chosen[None, :])
    # by id and by position together; a text without the id has none
    both = Longformer(2, g=2, ids=2).pattern(8, tokens=tokens).toarray()
    assert np.array_equal(both.all(axis=1), np.isin(np.arange(8), [0, 1, 3, 6]))
    nothing = Global(ids=77).pattern(8, tokens=tokens).toarray()
    assert np.array_equal(nothing, np.eye(8, dtype=bool))
    with pytest.raises(UsageError, match="8 tokens"):
        Global(ids=0).pattern(8)


def test_even_positions_are_evenly_spread() -> None:
    found = patterns.positions(100, 7, "even")
    gaps = found.diff()
    assert int(gaps.max() - gaps.min()) <= 1
    assert int(found[0]) in range(5, 9)
    assert int(found[-1]) in range(91, 95)
    assert patterns.positions(3, 9, "even").tolist() == [0, 1, 2]
    assert patterns.positions(9, 3, "first").tolist() == [0, 1, 2]


@pytest.mark.parametrize("r", [1, 5, 20, 38, 60])
def test_random_keys_are_r_different_ones_beside_the_token(r: int) -> None:
    n = 40
    found = RandomKeys(r).pattern(n)
    assert found.diagonal().all()
    assert set(np.diff(found.indptr)) == {min(r + 1, n)}


def test_random_keys_of_a_random_band_are_outside_the_band() -> None:
    made = RandomBand(12)
    assert made.w == 6
    found = made.pattern(60)
    inside = Band(6).pattern(60)
    assert (found.multiply(inside) != inside).nnz == 0
    assert (np.diff(found.indptr) == np.diff(inside.indptr) + 6).all()
    # where a band leaves fewer than are wanted, all of them are taken
    assert RandomBand(60).pattern(40).nnz == 40 * 40


@pytest.mark.parametrize("number", [5, 30])
def test_every_set_of_random_keys_is_equally_likely(number: int) -> None:
    """χ² over the sets of 2 of 5 and of 30, which are drawn in two different ways."""
    rows, nothing = 20_000, torch.zeros(20_000, dtype=torch.int64)
    found = patterns.draw_outside(nothing, nothing, 0, number, 2, generator(0, 0, 0))
    sets, counts = np.unique(found.sort(dim=1).values.numpy(), axis=0, return_counts=True)
    assert len(sets) == math.comb(number, 2)
    expected = rows / len(sets)
    chi = float(((counts - expected) ** 2 / expected).sum())
    # mean k - 1, standard deviation √(2(k - 1)) for k sets
    assert abs(chi - (len(sets) - 1)) < 5 * math.sqrt(2 * (len(sets) - 1))


def test_numbers_are_drawn_outside_of_what_is_left_out() -> None:
    low, high = torch.tensor([0, 3, 8, -1]), torch.tensor([2, 6, 20, 3])
    found = patterns.draw_outside(low, high, 1, 9, 4, generator(1, 0, 0))
    allowed = [range(2, 9), [1, 2, 6, 7, 8], range(1, 8), range(3, 9)]
    for row, choice in zip(found.tolist(), allowed, strict=True):
        assert len(set(row)) == 4
        assert set(row) <= set(choice)
    few = patterns.draw_outside(torch.tensor([2, 0]), torch.tensor([8, 0]), 0, 9, 5,
                                generator(1, 0, 0))  # fmt: skip
    assert sorted(few[0].tolist()) == [-1, -1, 0, 1, 8]
    assert -1 not in few[1]


def test_draws_differ_between_heads_layers_and_seeds_and_not_between_calls() -> None:
    for made in (RandomKeys(6), RandomBand(8), BigBird(20)):
        first = made.pattern(150)
        assert (made.pattern(150) != first).nnz == 0
        for other in (
            made.pattern(150, head=1),
            made.pattern(150, layer=1),
            type(made)(made.settings()[str(made.budget)], seed=1).pattern(150),
        ):
            assert (other != first).nnz > 0


@pytest.mark.parametrize("n", [40, 37, 10, 3, 1])
def test_big_bird_itc_is_its_definition_in_blocks(n: int) -> None:
    made = BigBird(40, r=1)
    b = made.block
    assert b == 5
    number = math.ceil(n / b)
    found = made.pattern(n).toarray()
    block = np.arange(n) // b
    ends = np.isin(block, [0, number - 1])
    sure = (np.abs(block[:, None] - block[None, :]) <= 1) | ends[:, None] | ends[None, :]
    assert (found >= sure).all()
    more = found & ~sure
    for i in range(number):
        rows = more[block == i]
        # all queries of a block have the same random block, a whole one and only one
        assert (rows == rows[0]).all()
        left = number - len({0, number - 1, *range(max(0, i - 1), min(number, i + 2))})
        wanted = 0 if i in (0, number - 1) else min(1, left)
        assert len(set(block[rows[0]])) == wanted
        assert rows[0].sum() == wanted * b


def test_big_bird_has_the_sizes_of_the_paper() -> None:
    itc, etc = BigBird(640), BigBird(764, mode="etc")
    assert (itc.block, itc.random_blocks, len(itc.global_tokens(4096))) == (64, 3, 128)
    assert (etc.block, etc.random_blocks, len(etc.global_tokens(4096))) == (84, 0, 256)
    entries = np.diff(itc.pattern(4096).indptr)
    assert np.median(entries) == (3 + 2 + 3) * 64
    assert np.median(np.diff(etc.pattern(4096).indptr)) == 3 * 84 + 256


def test_big_bird_etc_sees_its_first_tokens_from_everywhere() -> None:
    made = BigBird(18, mode="etc")
    found = made.pattern(50).toarray()
    chosen = np.arange(50) < len(made.global_tokens(50))
    assert chosen.sum() == 6
    block = np.arange(50) // made.block
    near = np.abs(block[:, None] - block[None, :]) <= 1
    assert np.array_equal(found, near | chosen[:, None] | chosen[None, :])


@pytest.mark.parametrize("made", EVERY, ids=str)
@pytest.mark.parametrize("n", [1, 2, 23, 150])
def test_every_pattern_is_a_clean_matrix_with_a_diagonal(made: Sparse, n: int) -> None:
    layout = made.layout(n, head=1)
    found = layout.sparse()
    assert found.shape == (n, n)
    assert found.dtype == bool
    assert found.data.all()
    assert found.has_canonical_format
    assert found.diagonal().all()
    assert np.array_equal(found.toarray(), layout.mask().numpy())
    # no entry is computed in two strips
    assert sum(len(rows) for rows, _ in layout._pairs()) == found.nnz


@pytest.mark.parametrize("budget", [32, 64, 128, 256])
def test_budgets_are_score_entries_of_a_query(budget: int) -> None:
    """Methods are compared at equal budget: the entries really computed, at n = 512."""
    for made in (
        Band(budget),
        Longformer(budget),
        Global(budget),
        RandomKeys(budget),
        RandomBand(budget),
        BigBird(budget),
        BigBird(budget, mode="etc"),
    ):
        mean = made.pattern(512).nnz / 512
        assert 0.75 * budget < mean <= budget + 3, (made, mean)


@pytest.mark.parametrize(("layers", "w"), [(1, 8), (2, 8), (3, 4), (4, 6)])
@pytest.mark.parametrize("dilation", [1, 3])
def test_reach_grows_by_half_the_width_each_layer(layers: int, w: int, dilation: int) -> None:
    """Claim C7: after l layers l·w/2 on each side, with a dilation d l·d·w/2, exactly."""
    n = 101
    step = Dilated(w, dilation=dilation).pattern(n).astype(np.int64)
    reached = step
    for _ in range(layers - 1):
        reached = ((reached @ step) > 0).astype(np.int64)
    row = np.abs(np.flatnonzero(reached.toarray()[50]) - 50)
    assert row.max() == layers * dilation * w // 2
    assert len(row) == layers * w + 1
    if dilation == 1:
        assert (reached != Band(layers * w).pattern(n).astype(np.int64)).nnz == 0


def test_patterns_are_cheap_for_long_texts() -> None:
    n = 16_384
    for made in (Band(64), Longformer(64), RandomKeys(32), BigBird(64), BigBird(64, mode="etc")):
        assert made.pattern(n).nnz < 100 * n


def test_schedules_spend_the_same() -> None:
    rising = patterns.schedule("rising", 32, 512, 12)
    falling = patterns.schedule("falling", 32, 512, 12)
    fixed = patterns.schedule("fixed", 32, 512, 12)
    assert rising == tuple(sorted(rising)) == falling[::-1]
    assert (rising[0], rising[-1]) == (32, 512)
    assert len(set(fixed)) == 1
    assert abs(sum(rising) - sum(fixed)) <= 12
    for one in (rising, falling, fixed):
        Band(one)
    for kind, low, high, layers in (("up", 2, 4, 3), ("rising", 3, 8, 3), ("fixed", 8, 2, 3),
                                    ("fixed", 2, 4, 1), ("falling", 0, 4, 3)):  # fmt: skip
        with pytest.raises(UsageError):
            patterns.schedule(kind, low, high, layers)  # type: ignore[arg-type]


def test_widths_by_layer_are_used_and_missing_ones_refused() -> None:
    made = Band((2, 8))
    assert (made.pattern(20, layer=0) != Band(2).pattern(20)).nnz == 0
    assert (made.pattern(20, layer=1) != Band(8).pattern(20)).nnz == 0
    with pytest.raises(MethodError, match="layer 2"):
        made.pattern(20, layer=2)
    with pytest.raises(UsageError, match="0 tokens"):
        made.pattern(0)


def test_a_pattern_without_globals_is_left_as_it_is() -> None:
    plain = Pattern(5, (patterns.band(5, 2),))
    assert patterns.with_globals(plain, torch.arange(0)) is plain
