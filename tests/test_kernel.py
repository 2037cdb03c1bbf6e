"""Performer, the linear transformer and cosFormer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import Approximation, method
from rankscope.approximations.draws import generator
from rankscope.approximations.kernel import (
    CHUNK,
    CosFormer,
    LinearTransformer,
    Performer,
    directions,
    positive_features,
    trigonometric_features,
)
from rankscope.attention import Attention
from rankscope.errors import matrix_errors
from rankscope.exceptions import MethodError, UsageError

EVERY = ("performer:features=64", "linear", "cosformer")


class TestKernel(Conformance):
    methods = (
        "performer:features=64",
        "performer:features=5",
        "performer:features=37,orthogonal=false",
        "linear",
        "cosformer",
    )
    accurate: ClassVar = {"performer:features=16384": 0.3}

    def easy(self) -> Attention:
        # at the usual sharpness the estimator would need millions of features
        return attention(N, sharpness=0.7)


class TestTrigonometric(Conformance):
    methods = (
        "performer:features=1024,estimator=trigonometric",
        "performer:features=1024,estimator=trigonometric,orthogonal=false",
    )
    accurate: ClassVar = {"performer:features=4096,estimator=trigonometric": 0.25}

    def easy(self) -> Attention:
        return attention(N, sharpness=0.7)

    def test_apply_is_the_matrix_times_the_values(self, made: Approximation) -> None:
        """Within the rounding of its entries, which are far larger than 1 where a sum is near 0."""
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            given = attention(N, d_v=5, dtype=dtype)
            output, matrix = made.apply(given), made.matrix(given)
            assert output.dtype == matrix.dtype == dtype
            size = matrix.abs().sum(dim=-1, keepdim=True)
            assert float(((output - matrix @ given.values) / size).abs().max()) < tolerance


def vectors(d: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    draw = generator(5, 0, 0)
    return tuple(0.3 * torch.randn(6, d, generator=draw, dtype=torch.float64) for _ in range(2))


def estimates(estimator: str, *, orthogonal: bool, number: int, draws: int) -> torch.Tensor:
    """φ(q)ᵀφ(k) of independent draws, each from a seed of its own: (draws, 6, 6)."""
    q, k = vectors()
    phi = positive_features if estimator == "positive" else trigonometric_features
    heads = 50
    found = []
    for seed in range(draws // heads):
        drawn = directions(number, 4, heads=heads, seed=seed, orthogonal=orthogonal)
        found.append(phi(q, drawn) @ phi(k, drawn).mT)
    return torch.cat(found)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("estimator", ["positive", "trigonometric"])
def test_features_give_the_kernel_in_expectation(estimator: str, orthogonal: bool) -> None:
    found = estimates(estimator, orthogonal=orthogonal, number=6, draws=20_000)
    q, k = vectors()
    exact = torch.exp(q @ k.T)
    error = found.std(dim=0) / math.sqrt(len(found))
    z = (found.mean(dim=0) - exact) / error
    # 36 values: 4.5 standard errors have a chance of less than 1 in 4,000
    assert float(z.abs().max()) < 4.5
    # and a kernel that is 1 % off would not pass
    off = (found.mean(dim=0) - 1.01 * exact) / error
    assert float(off.abs().max()) > 6


@pytest.mark.parametrize("estimator", ["positive", "trigonometric"])
def test_orthogonal_directions_have_the_smaller_variance(estimator: str) -> None:
    apart, together = (
        estimates(estimator, orthogonal=orthogonal, number=4, draws=20_000).var(dim=0).mean()
        for orthogonal in (False, True)
    )
    assert float(together) < 0.95 * float(apart)


def test_more_features_have_the_variance_of_a_mean() -> None:
    few, many = (
        estimates("positive", orthogonal=False, number=m, draws=20_000).var(dim=0).mean()
        for m in (4, 16)
    )
    assert float(few / many) == pytest.approx(4, rel=0.15)


def test_directions_are_orthogonal_normal_vectors() -> None:
    drawn = directions(10, 4, heads=2000, seed=3)
    assert drawn.shape == (2000, 10, 4)
    gram = drawn[:, :4] @ drawn[:, :4].mT
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    assert float((gram - torch.diag_embed(lengths)).abs().max()) < 1e-12
    # χ² with 4 degrees of freedom has mean 4 and variance 8
    count = lengths.numel()
    assert abs(float(lengths.mean()) - 4) < 4 * math.sqrt(8 / count)
    assert float(lengths.var()) == pytest.approx(8, rel=0.1)
    # every coordinate is a standard normal, whatever block it is in
    flat = drawn.flatten(0, 1)
    assert float((flat.mean(dim=0) * math.sqrt(len(flat))).abs().max()) < 4
    assert float((flat.T @ flat / len(flat) - torch.eye(4)).abs().max()) < 0.05


def test_directions_differ_by_head_layer_group_and_seed_and_stay_for_windows() -> None:
    base = directions(8, 4, heads=2, seed=0)
    assert not torch.equal(base[0], base[1])
    for other in (
        directions(8, 4, heads=2, seed=1),
        directions(8, 4, heads=2, seed=0, layer=1),
        directions(8, 4, heads=2, seed=0, group="cross"),
    ):
        assert not torch.isclose(other, base).any()
    again = directions(8, 4, heads=2, seed=0)
    assert torch.equal(again, base)
    again.zero_()
    assert torch.equal(directions(8, 4, heads=2, seed=0), base)
    made = Performer(features=16)
    twice = attention(7, batch=1)
    stacked = replace(twice, query=twice.query.repeat(2, 1, 1, 1), key=twice.key.repeat(2, 1, 1, 1))
    matrix = made.matrix(replace(stacked, value=None))
    torch.testing.assert_close(matrix[0], matrix[1], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(made.matrix(replace(twice, layer=1)), made.matrix(twice))


@pytest.mark.parametrize("estimator", ["positive", "trigonometric"])
def test_the_shifts_cancel(estimator: str) -> None:
    given = attention(11, sharpness=1.0)
    made = Performer(features=24, estimator=estimator, seed=2)  # type: ignore[arg-type]
    positive = estimator == "positive"
    phi = positive_features if positive else trigonometric_features
    drawn = directions(24 if positive else 12, 8, heads=3, seed=2)
    root = given.scale**0.5
    weights = phi(root * given.query, drawn) @ phi(root * given.key, drawn).mT
    expected = weights / weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(made.matrix(given), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_large_vectors_neither_overflow_nor_vanish(causal: bool) -> None:
    """Exponents of ±1000 in float32: without shifts every row would be 0/0 or ∞/∞."""
    given = attention(40, sharpness=60.0, causal=causal)
    given = replace(given, key=10 * given.key)
    exact = Performer(features=32).matrix(given)
    assert float((exact.sum(dim=-1) - 1).abs().max()) < 1e-12 or causal
    single = replace(
        given,
        query=given.query.float(),
        key=given.key.float(),
        value=given.values.float(),
        bias=None if given.bias is None else given.bias.clamp_min(-3e38).float(),
    )
    found = Performer(features=32).matrix(single)
    if causal:
        # rows that are far below the rest in every feature are not made up
        bad = torch.isnan(exact).any(dim=-1)
        assert torch.equal(torch.isnan(found).any(dim=-1), bad)
        exact, found = exact[~bad], found[~bad]
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-2)


def test_the_trigonometric_estimator_hides_nothing() -> None:
    given = attention(N, sharpness=2.0)
    matrix = Performer(features=64, estimator="trigonometric").matrix(given)
    found = matrix_errors(given.weights, matrix, spectral=False)
    assert float(found["negative_mass"].min()) > 1
    assert bool(torch.isnan(found["kl"]).all())
    assert float(found["row_sum_drift"].max()) < 1e-8
    with pytest.raises(UsageError, match="even"):
        Performer(features=7, estimator="trigonometric")


@pytest.mark.parametrize("text", EVERY)
def test_causal_prefix_sums_are_the_masked_matrix(text: str) -> None:
    n = 2 * CHUNK + 17
    given = attention(n, causal=True, batch=1, d_v=3)
    free = replace(given, causal=False, bias=None)
    made = method(text)
    weights = made.matrix(free)
    # rows were divided by their own sums, which cancels when they are divided again
    masked = weights.tril()
    expected = masked / masked.sum(dim=-1, keepdim=True)
    if text == "cosformer":
        expected = torch.nan_to_num(expected)
    torch.testing.assert_close(made.apply(given), expected @ given.values, rtol=1e-8, atol=1e-8)


def one_head(query: list[list[float]], key: list[list[float]]) -> Attention:
    """Attention of one head from its vectors."""
    q, k = (torch.tensor([[rows]], dtype=torch.float64) for rows in (query, key))
    tokens = torch.zeros(1, len(query), dtype=torch.int64)
    return Attention(query=q, key=k, value=k, scale=0.5, bias=None, layer=0, tokens=tokens)


def test_linear_transformer_by_hand() -> None:
    half = -math.log(2)
    given = one_head([[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, half]])
    # φ(0, 1) = (1, 2), φ(1, 0) = (2, 1); φ(0, 0) = (1, 1), φ(1, −ln 2) = (2, ½)
    expected = torch.tensor([[3 / 6, 3 / 6], [3 / 7.5, 4.5 / 7.5]], dtype=torch.float64)
    torch.testing.assert_close(LinearTransformer().matrix(given)[0, 0], expected)


def test_linear_transformer_keeps_far_negative_vectors() -> None:
    given = one_head([[-40.0]], [[-40.0]])
    single = replace(given, query=given.query.float(), key=given.key.float(), value=None)
    assert LinearTransformer().matrix(single).item() == 1.0


def test_cosformer_by_its_definition() -> None:
    given = attention(9, m=13, batch=1, heads=1)
    weights = torch.zeros(9, 13, dtype=torch.float64)
    for i in range(9):
        for j in range(13):
            product = float(given.query[0, 0, i].relu() @ given.key[0, 0, j].relu())
            weights[i, j] = product * math.cos(math.pi / 2 * (i - j) / 13)
    expected = weights / weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(CosFormer().matrix(given)[0, 0], expected)


def test_cosformer_row_without_weight_is_zero_and_is_reported() -> None:
    given = one_head([[-1.0, 2.0], [1.0, -1.0]], [[1.0, -1.0], [2.0, -3.0]])
    matrix = CosFormer().matrix(given)
    expected = torch.tensor([[0.0, 0.0], [1 * math.cos(math.pi / 4), 2.0]], dtype=torch.float64)
    torch.testing.assert_close(matrix[0, 0, 0], expected[0])
    torch.testing.assert_close(matrix[0, 0, 1], expected[1] / expected[1].sum())
    torch.testing.assert_close(CosFormer().apply(given), matrix @ given.values)
    drift = matrix_errors(given.weights, matrix, spectral=False)["row_sum_drift"]
    assert float(drift) == pytest.approx(1.0)


@pytest.mark.parametrize("text", EVERY)
def test_biases_that_features_cannot_hold_are_refused(text: str) -> None:
    made, given = method(text), attention(N)
    plain = attention(N, causal=True)
    assert plain.bias is not None
    local = torch.full((N, N), -1e9, dtype=torch.float64).triu(3)
    finite = torch.zeros(3, N, N, dtype=torch.float64)
    made.apply(replace(given, bias=finite))
    finite[1, 3, 2] = 0.5
    with pytest.raises(MethodError, match="mask"):
        made.apply(replace(given, bias=local))
    with pytest.raises(MethodError, match="relative positions"):
        made.matrix(replace(given, bias=finite))
    with pytest.raises(MethodError, match="local mask of this causal layer"):
        made.apply(replace(plain, local=4))
    hidden = plain.bias.clone()
    hidden[10, 2] = -1e9
    with pytest.raises(MethodError, match="causal"):
        made.apply(replace(plain, bias=hidden))
    with pytest.raises(MethodError, match="causal"):
        made.apply(replace(plain, bias=plain.bias + finite[1]))


@pytest.mark.parametrize("text", EVERY)
def test_special_tokens_are_left_out_before_the_rows_are_normalised(text: str) -> None:
    given = attention(N, causal=True)
    keep = torch.ones(N, dtype=torch.bool)
    keep[[0, 7]] = False
    cut = replace(given, keep_rows=keep, keep_columns=keep, special="renormalise")
    small = attention(N)
    few = replace(
        small,
        query=small.query[:, :, keep],
        key=small.key[:, :, keep],
        value=small.values[:, :, keep],
        bias=torch.full((N - 2, N - 2), -1e30, dtype=torch.float64).triu(1),
        causal=True,
        group="decoder",
    )
    torch.testing.assert_close(method(text).apply(cut), method(text).apply(few))


@pytest.mark.parametrize("text", EVERY)
def test_f11_one_bad_head_leaves_the_others(text: str) -> None:
    given = attention(N)
    query = given.query.clone()
    query[0, 1, 3] = torch.nan
    found, good = method(text).apply(replace(given, query=query)), method(text).apply(given)
    bad = torch.isnan(found).any(dim=-1)
    assert bad.sum() == 1
    assert bool(bad[0, 1, 3])
    torch.testing.assert_close(found[~bad], good[~bad])


class Largest(TorchDispatchMode):
    """Number of entries of the largest tensor that any operation returns."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, torch.Tensor):
                self.entries = max(self.entries, one.numel())
        return found


@pytest.mark.parametrize(
    "text",
    [
        *EVERY,
        "performer:features=64,estimator=trigonometric",
        "nystrom",
        "nystrom:pinv=exact",
        "lsh:entries=64",
        "lsh:entries=64,mode=shared",
    ],
)
def test_apply_forms_nothing_of_n_by_n(text: str) -> None:
    n = 2048
    given = attention(n, batch=1, heads=1, dtype=torch.float32)
    with Largest() as seen:
        method(text).apply(given)
    assert 0 < seen.entries <= 64 * n
    with Largest() as seen:
        method(text).matrix(given)
    assert seen.entries >= n * n


def test_cost_counts_every_product() -> None:
    # projections of queries and keys, φ(K)ᵀ[V 1], φ(Q)(…)
    assert method("performer:features=32").cost(100, 50, 8, 6).multiply_adds == 150 * 32 * (8 + 7)
    half = method("performer:features=32,estimator=trigonometric").cost(100, 50, 8, 6)
    assert half.multiply_adds == 150 * 32 * (4 + 7)
    assert method("linear").cost(100, 100, 8, 6).multiply_adds == 200 * 8 * 7
    assert method("cosformer").cost(100, 100, 8, 6).multiply_adds == 200 * 16 * 7
    assert method("performer:features=32").cost(100, 50, 8, 6).bytes == 4 * 100 * 32


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="seed -1"):
        Performer(features=8, seed=-1)
