"""LSH attention against counting by hand, and what its parameters mean."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import Approximation, lsh, method
from rankscope.approximations.lsh import Lsh, rotations
from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError

DOUBLE = torch.float64


def clusters(n: int = N) -> Attention:
    """Six groups of tokens far from each other, scattered over the text."""
    given = attention(n)
    draw = torch.Generator().manual_seed(1)
    centre = torch.randn(2, 3, 6, 8, generator=draw, dtype=DOUBLE)
    centre = 5 * centre / centre.norm(dim=-1, keepdim=True)
    member = torch.randperm(n, generator=draw) % 6
    noise = 0.1 * torch.randn(2, 2, 3, n, 8, generator=draw, dtype=DOUBLE)
    return replace(
        given, query=centre[:, :, member] + noise[0], key=centre[:, :, member] + noise[1]
    )


class TestLsh(Conformance):
    methods = (
        "lsh:entries=8",
        "lsh:entries=16,rounds=2",
        "lsh:entries=24,rounds=2,buckets=4",
        "lsh:entries=6,rounds=1,buckets=16",
        "lsh:entries=16,mode=shared",
        "lsh:entries=6,rounds=1,mode=shared",
        "lsh:entries=48,rounds=1",
        "lsh:entries=600",
    )
    exact = ("lsh:entries=48,rounds=1", "lsh:entries=600")
    accurate: ClassVar = {"lsh:entries=64": 0.3}

    def easy(self) -> Attention:
        return clusters()

    def test_causal_attention_keeps_the_future_out_or_is_refused(
        self, made: Approximation, text: str
    ) -> None:
        """No weight on later tokens; that they move the chunks is tested by itself, below."""
        given = attention(N, causal=True)
        matrix = made.matrix(given)
        assert not bool(matrix.triu(1).any())
        torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(2, 3, N, dtype=DOUBLE))
        value = given.values.clone()
        value[:, :, N // 2 :] += 1.0
        after, before = made.apply(replace(given, value=value)), made.apply(given)
        torch.testing.assert_close(after[:, :, : N // 2], before[:, :, : N // 2], rtol=0, atol=1e-9)
        assert not made.causal


def bucket_numbers(x: torch.Tensor, turn: torch.Tensor, factors: tuple[int, ...]) -> list[int]:
    """Hashes of single vectors, digit by digit."""
    found = []
    for row in x:
        number, unit, column = 0, 1, 0
        for factor in factors:
            turned = (row @ turn)[column : column + factor // 2].tolist()
            both = turned + [-one for one in turned]
            number += unit * both.index(max(both))
            unit, column = unit * factor, column + factor // 2
        found.append(number)
    return found


def meetings(queries: list[int], keys: list[int], chunk: int) -> set[tuple[int, int]]:
    """Pairs that one round brings together, counted by hand from the buckets."""
    order = sorted(range(len(queries)), key=lambda i: (queries[i], i))
    order_of_keys = sorted(range(len(keys)), key=lambda j: (keys[j], j))
    found = set()
    for start in range(0, len(queries), chunk):
        bucket = queries[order[start]]
        before = sum(one < bucket for one in queries)
        place = sum(one < bucket for one in keys) + (start - before) * keys.count(
            bucket
        ) // queries.count(bucket)
        seen = [order_of_keys[t] for t in range(place - chunk, place + chunk) if 0 <= t < len(keys)]
        found |= {(i, j) for i in order[start : start + chunk] for j in seen}
    return found


def by_hand(made: Lsh, given: Attention, factors: tuple[int, ...]) -> torch.Tensor:
    """The softmax over the union of the pairs of all rounds, for the first head."""
    n, m = given.shape
    q, k = given.query[0, 0], given.key[0, 0]
    if made.mode == "shared":
        k = q / q.norm(dim=-1, keepdim=True)
    chunk = made.entries // (2 * made.rounds)
    turns = rotations(
        factors, 8, rounds=made.rounds, heads=given.n_heads, seed=made.seed, group=given.group
    )[:, 0]
    pairs: set[tuple[int, int]] = set()
    for turn in turns:
        queries = bucket_numbers(q, turn, factors)
        keys = queries if made.mode == "shared" else bucket_numbers(k, turn, factors)
        pairs |= meetings(queries, keys, chunk)
    matrix = torch.zeros(n, m, dtype=DOUBLE)
    for i in range(n):
        columns = [j for j in range(m) if (i, j) in pairs]
        if given.causal:
            columns = [j for j in columns if j <= i]
        if made.mode == "shared":
            columns = [j for j in columns if j != i]
        columns = columns or [i]
        matrix[i, columns] = torch.softmax(given.scale * k[columns] @ q[i], dim=-1)
    return matrix


@pytest.mark.parametrize("n", [24, 37])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mode", ["own", "shared"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_pairs_and_their_weights_counted_by_hand(
    rounds: int, mode: str, causal: bool, n: int
) -> None:
    made = Lsh(entries=8 * rounds, rounds=rounds, mode=mode, buckets=4, seed=3)  # type: ignore[arg-type]
    given = attention(n, causal=causal)
    expected = by_hand(made, given, (4,))
    torch.testing.assert_close(made.matrix(given)[0, 0], expected, rtol=1e-9, atol=1e-12)
    # here pairs that several rounds see are corrected for, there they are just one entry
    output = made.apply(given)[0, 0]
    torch.testing.assert_close(output, expected @ given.values[0, 0], rtol=1e-9, atol=1e-9)


def test_pairs_in_cross_attention() -> None:
    made, given = Lsh(entries=24, rounds=3, buckets=8), attention(20, m=31)
    expected = by_hand(made, given, (8,))
    torch.testing.assert_close(made.matrix(given)[0, 0], expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(MethodError, match="20 tokens"):
        Lsh(entries=24, mode="shared").apply(given)
    with pytest.raises(MethodError, match="31 keys"):
        made.apply(replace(given, bias=torch.full((20, 31), -1e9).triu(1)))


def test_many_buckets_are_hashed_digit_by_digit() -> None:
    # 64 buckets, at most 2·4 for each of two hashes
    made, given = Lsh(entries=8, rounds=1, buckets=64, seed=1), attention(37)
    expected = by_hand(made, given, (8, 8))
    torch.testing.assert_close(made.matrix(given)[0, 0], expected, rtol=1e-9, atol=1e-12)
    assert lsh._factors(2**13, 8) == (4, 4, 8, 8, 8)
    assert lsh._factors(32, 64) == (32,)
    assert lsh._factors(8, 2) == (2, 2, 2)
    assert [Lsh(entries=8, rounds=1)._buckets(n, 4) for n in (1, 3, 8, 24, 37, 64)] == [
        2,
        2,
        4,
        8,
        16,
        32,
    ]


def test_a_pair_seen_twice_counts_once() -> None:
    """Were every sighting counted, pairs that meet in all rounds would weigh too much."""
    made, given = Lsh(entries=24, rounds=3, buckets=4), attention(N, batch=1, heads=1)
    turns = rotations((4,), 8, rounds=3, heads=1, seed=0)[:, 0]
    counts = torch.zeros(N, N, dtype=DOUBLE)
    for turn in turns:
        q, k = (bucket_numbers(x[0, 0], turn, (4,)) for x in (given.query, given.key))
        for i, j in meetings(q, k, 4):
            counts[i, j] += 1
    assert set(counts.unique().tolist()) == {0, 1, 2, 3}
    powers = torch.exp(given.scale * given.query[0, 0] @ given.key[0, 0].T)
    once, often = powers * (counts > 0), powers * counts
    ours = made.apply(given)[0, 0]
    for weights, same in ((once, True), (often, False)):
        output = weights / weights.sum(dim=-1, keepdim=True) @ given.values[0, 0]
        assert torch.allclose(ours, output, rtol=0, atol=1e-9) == same


def test_identical_vectors_share_a_bucket_and_their_chunks_follow_the_text() -> None:
    n, chunk = 14, 4
    given = attention(n)
    same = given.query[:, :, :1].expand(-1, -1, n, -1)
    chunk_of = torch.arange(n) // chunk
    behind = chunk_of[:, None] - chunk_of
    own = ((behind == 0) | (behind == 1)).to(DOUBLE)
    for mode in ("own", "shared"):
        made = Lsh(entries=2 * chunk, rounds=1, mode=mode, buckets=8)  # type: ignore[arg-type]
        seen = own if mode == "own" else own - torch.eye(n, dtype=DOUBLE)
        matrix = made.matrix(replace(given, query=same, key=same))
        expected = (seen / seen.sum(dim=-1, keepdim=True)).expand_as(matrix)
        torch.testing.assert_close(matrix, expected, rtol=1e-9, atol=1e-12)


def test_hashing_ignores_lengths_and_separates_opposites() -> None:
    x = attention(40).query
    turn = rotations((16,), 8, rounds=1, heads=3, seed=0)[0]
    bucket = lsh._hash(x, turn, (16,))
    assert torch.equal(lsh._hash(0.01 * x, turn, (16,)), bucket)
    assert torch.equal(lsh._hash(-x, turn, (16,)), (bucket + 8) % 16)
    assert bucket.unique().tolist() == list(range(16))


def test_itself_only_when_alone() -> None:
    given = attention(N, causal=True)
    made = Lsh(entries=8, rounds=2, mode="shared")
    matrix = made.matrix(given)
    itself = matrix.diagonal(dim1=-2, dim2=-1)
    others = matrix.sum(dim=-1) - itself
    assert set(itself.unique().tolist()) == {0.0, 1.0}
    assert bool(((itself == 1) == (others == 0)).all())
    # the first token has no earlier one
    assert bool((itself[:, :, 0] == 1).all())
    assert bool((Lsh(entries=96, rounds=2, mode="shared").matrix(given)[..., 1, 0] == 1).all())
    # in own mode a token may attend to itself beside others
    own = Lsh(entries=48, rounds=1).matrix(given).diagonal(dim1=-2, dim2=-1)
    assert bool(((own[..., 1:] > 0) & (own[..., 1:] < 1)).all())


def test_shared_mode_sees_all_but_itself_at_full_budget() -> None:
    given = attention(N)
    key = given.query / given.query.norm(dim=-1, keepdim=True)
    itself = torch.zeros(N, N, dtype=DOUBLE).fill_diagonal_(-torch.inf)
    expected = torch.softmax(given.scale * given.query @ key.mT + itself, dim=-1)
    found = Lsh(entries=600, mode="shared").matrix(given)
    torch.testing.assert_close(found, expected)


def test_later_tokens_move_the_chunks_but_get_no_weight() -> None:
    """Why the method does not count as causal, though its matrix is triangular."""
    given = attention(N, causal=True)
    query, key = given.query.clone(), given.key.clone()
    query[:, :, N // 2 :] *= -1
    key[:, :, N // 2 :] *= -1
    for mode in ("own", "shared"):
        made = Lsh(entries=8, rounds=2, mode=mode)  # type: ignore[arg-type]
        before = made.matrix(given)[:, :, : N // 2]
        after = made.matrix(replace(given, query=query, key=key))[:, :, : N // 2]
        assert not torch.allclose(before, after)
        assert not bool(after.triu(1).any())


@pytest.mark.parametrize("shape", [(3, N, N), (N, N), (2, 1, N, N), (1, 1, 1, N), (2, 3, N, N)])
def test_position_biases_are_added(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    bias = torch.randn(shape, generator=draw, dtype=DOUBLE)
    given = replace(attention(N), bias=bias)
    torch.testing.assert_close(Lsh(entries=48, rounds=1).matrix(given), given.weights)
    made = Lsh(entries=16)
    bare, found = made.matrix(replace(given, bias=None)), made.matrix(given)
    weights = bare * bias.exp()
    torch.testing.assert_close(found, weights / weights.sum(dim=-1, keepdim=True))
    torch.testing.assert_close(made.apply(given), found @ given.values)


@pytest.mark.parametrize("mode", ["own", "shared"])
def test_local_masks_hold(mode: str) -> None:
    near = (torch.arange(N)[:, None] - torch.arange(N)).abs() <= 2
    bias = torch.zeros(N, N, dtype=DOUBLE).masked_fill(~near, -torch.inf)
    given = replace(attention(N), bias=bias, local=2)
    made = Lsh(entries=16, mode=mode)  # type: ignore[arg-type]
    matrix = made.matrix(given)
    assert not bool(matrix[..., ~near].any())
    torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(2, 3, N, dtype=DOUBLE))
    torch.testing.assert_close(made.apply(given), matrix @ given.values)


def test_draws_differ_by_head_and_layer_and_stay_for_windows() -> None:
    base = rotations((8,), 4, rounds=2, heads=2, seed=0)
    assert base.shape == (2, 2, 4, 4)
    assert not torch.isclose(base[0, 0], base[1, 0]).any()
    assert not torch.isclose(base[0, 0], base[0, 1]).any()
    assert not torch.isclose(base, rotations((8,), 4, rounds=2, heads=2, seed=0, layer=1)).any()
    given, made = attention(N, batch=1), Lsh(entries=8)
    twice = replace(
        given,
        query=given.query.repeat(2, 1, 1, 1),
        key=given.key.repeat(2, 1, 1, 1),
        value=given.values.repeat(2, 1, 1, 1),
    )
    output = made.apply(twice)
    torch.testing.assert_close(output[0], output[1])
    assert not torch.allclose(made.apply(replace(given, layer=1)), made.apply(given))


def test_f11_one_bad_head_leaves_the_others() -> None:
    given = attention(N)
    query = given.query.clone()
    query[1, 0] = torch.nan
    for text in ("lsh:entries=16", "lsh:entries=16,mode=shared"):
        found = method(text).apply(replace(given, query=query))
        bad = torch.isnan(found).flatten(2).any(dim=-1)
        assert bad.sum() == 1
        assert bool(bad[1, 0])
        torch.testing.assert_close(found[~bad], method(text).apply(given)[~bad])
        matrix = method(text).matrix(replace(given, query=query))
        assert torch.equal(torch.isnan(matrix).flatten(2).any(dim=-1), bad)


def test_a_zero_vector_in_shared_mode_has_no_direction() -> None:
    given = attention(N)
    query = given.query.clone()
    query[:, :, 3] = 0.0
    assert bool(
        torch.isfinite(Lsh(entries=16, mode="shared").apply(replace(given, query=query))).all()
    )


def test_settings_that_make_no_chunks_are_refused() -> None:
    for text in (
        "lsh:entries=12",
        "lsh:entries=0",
        "lsh:entries=8,rounds=0",
        "lsh:entries=8,buckets=6",
        "lsh:entries=8,buckets=1",
        "lsh:entries=8,seed=-2",
    ):
        with pytest.raises(UsageError):
            method(text)


def test_cost_counts_hashes_and_scores() -> None:
    # 512 tokens, chunks of 16: 64 buckets in two digits of 8, 8 columns
    made = Lsh(entries=128, rounds=4)
    expected = 4 * (2 * 512 * 64 * 8 + 512 * 32 * (64 + 64))
    assert made.cost(512, 512, 64, 64).multiply_adds == expected
    assert made.cost(512, 512, 64, 64).bytes == 4 * 512 * 32
    shared = replace(made, mode="shared")
    assert shared.cost(512, 512, 64, 64).multiply_adds == expected - 4 * 512 * 64 * 8
    for budget in (32, 64, 128, 256):
        one = made.at_budget(budget)
        assert 2 * one._chunk(512, 512) * one.rounds == budget
