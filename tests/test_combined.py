"""Sparse and low rank together."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from test_sparse import near

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import METHODS, method
from rankscope.approximations.combined import BandPlusLowRank, Scatterbrain
from rankscope.approximations.kernel import directions, positive_features
from rankscope.attention import Attention
from rankscope.errors import matrix_errors, output_errors
from rankscope.exceptions import MethodError, UsageError


def banded(n: int = N) -> Attention:
    """A sharp band and a few tokens that all look at: neither sparse nor of low rank alone."""
    given = attention(n)
    place = torch.arange(n, dtype=torch.float64)[:, None] * torch.tensor([0.4, 0.8, 1.6])
    waves = torch.cat([place.cos(), place.sin()], dim=1)
    liked = torch.zeros(n, 2, dtype=torch.float64)
    liked[[3, 17], 0] = 3.0
    query = torch.cat([4.0 * waves, torch.ones(n, 2, dtype=torch.float64)], dim=1)
    key = torch.cat([waves, 3.0 * liked], dim=1)
    return replace(given, query=query.expand(2, 3, n, 8), key=key.expand(2, 3, n, 8))


class TestBandPlusLowRank(Conformance):
    methods = (
        "band-plus-low-rank:entries=1",
        "band-plus-low-rank:entries=8",
        "band-plus-low-rank:entries=9,k=2",
        "band-plus-low-rank:entries=48",
        "band-plus-low-rank:entries=94",
    )
    exact = ("band-plus-low-rank:entries=48", "band-plus-low-rank:entries=94")
    accurate: ClassVar[dict[str, float]] = {"band-plus-low-rank:entries=8": 0.35}

    def easy(self) -> Attention:
        return banded()


class TestScatterbrain(Conformance):
    methods = (
        "scatterbrain:entries=1",
        "scatterbrain:entries=16",
        "scatterbrain:entries=17,features=5,seed=3",
        "scatterbrain:entries=50,features=4",
    )
    exact = ("scatterbrain:entries=50,features=4",)
    accurate: ClassVar[dict[str, float]] = {"scatterbrain:entries=16": 0.45}

    def easy(self) -> Attention:
        return replace(near(), query=near().query / 4)


@pytest.mark.parametrize("text", [*TestBandPlusLowRank.methods, *TestScatterbrain.methods])
def test_budget_is_split_between_band_and_rest(text: str) -> None:
    made = method(text)
    assert isinstance(made, BandPlusLowRank | Scatterbrain)
    rest = made.rank if isinstance(made, BandPlusLowRank) else made.width
    assert made.w % 2 == 0
    assert made.entries - 1 <= made.w + rest <= made.entries


def test_band_is_exact_and_the_rest_has_the_rank() -> None:
    given = banded()
    made = BandPlusLowRank(9, k=3)
    difference = given.weights - made.matrix(given)
    place = torch.arange(N)
    far = (place[:, None] - place).abs() > made.w // 2
    band = torch.where(far, 0.0, given.weights)
    low = made.matrix(given) - band
    assert int(torch.linalg.matrix_rank(low, rtol=1e-9).max()) == 3
    # by Eckart–Young the error is what the singular values of the rest leave
    sigma = torch.linalg.svdvals(given.weights - band)
    expected = sigma[..., 3:].square().sum(dim=-1).sqrt()
    torch.testing.assert_close(
        torch.linalg.matrix_norm(difference), expected, rtol=1e-9, atol=1e-12
    )


def test_both_together_are_better_than_either_alone() -> None:
    given = banded()

    def error(text: str) -> float:
        found = matrix_errors(given.weights, method(text).matrix(given), spectral=False)
        return float(found["frobenius"].mean())

    assert error("band-plus-low-rank:entries=8") < 0.7 * error("truncated:k=8")
    assert error("band-plus-low-rank:entries=8") < 0.7 * error("band:w=8")


def naive(given: Attention, made: Scatterbrain) -> torch.Tensor:
    """P̃ from plain exponentials and plain features, without any shift."""
    drawn = directions(
        made.width, given.query.shape[-1], heads=given.n_heads, seed=made.seed, layer=given.layer
    )
    far = positive_features(given.query * given.scale**0.5, drawn) @ (
        positive_features(given.key * given.scale**0.5, drawn).mT
    )
    place = torch.arange(given.query.shape[2])
    near = (place[:, None] - place).abs() <= made.w // 2
    weights = torch.where(near, (given.scale * given.query @ given.key.mT).exp(), far)
    return weights / weights.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("text", TestScatterbrain.methods)
@pytest.mark.parametrize("n", [5, 24, 150])
def test_scatterbrain_is_its_formula(text: str, n: int) -> None:
    given, made = attention(n), method(text)
    assert isinstance(made, Scatterbrain)
    expected = naive(given, made)
    torch.testing.assert_close(made.matrix(given), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(made.apply(given), expected @ given.values, rtol=1e-9, atol=1e-9)


def output_error(given: Attention, text: str) -> float:
    return float(output_errors(given.output, method(text).apply(given))["output"].mean())


def test_scatterbrain_nears_full_attention_with_many_features() -> None:
    given = attention(64, d=4, sharpness=0.3)
    errors = [
        output_error(given, f"scatterbrain:entries={f + 8},features={f}") for f in (16, 256, 8192)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1


def test_scatterbrain_is_better_than_its_parts() -> None:
    given = TestScatterbrain().easy()
    both = output_error(given, "scatterbrain:entries=40")
    assert both < 0.5 * output_error(given, "performer:features=40")
    assert both < 0.8 * output_error(given, "band:w=20")


def test_scatterbrain_of_large_scores_is_finite() -> None:
    """Exponentials of ±1000 would overflow; the maximum of a row cancels."""
    given = attention(N, sharpness=150.0)
    made = method("scatterbrain:entries=16")
    output = made.apply(given)
    assert bool(torch.isfinite(output).all())
    torch.testing.assert_close(output, made.matrix(given) @ given.values, rtol=1e-8, atol=1e-8)


def test_scatterbrain_needs_no_n_by_n() -> None:
    n = 8_192
    given = attention(n, heads=1, batch=1, dtype=torch.float32)
    output = method("scatterbrain:entries=64").apply(given)
    assert output.dtype == torch.float32
    assert bool(torch.isfinite(output).all())
    cost = method("scatterbrain:entries=64").cost
    assert cost(2 * n, 2 * n, 8, 8).multiply_adds == 2 * cost(n, n, 8, 8).multiply_adds
    assert cost(n, n, 8, 8).bytes < n * n


def test_what_a_kernel_cannot_do_is_refused() -> None:
    made = method("scatterbrain:entries=16")
    biased = replace(attention(N), bias=torch.ones(1, 1, N, N))
    cases = (
        (attention(N, causal=True), "causal"),
        (attention(N, m=30), "cross-attention"),
        (biased, "positions"),
    )
    for given, reason in cases:
        for call in (made.apply, made.matrix):
            with pytest.raises(MethodError, match=reason):
                call(given)
    # a bias of zeros changes nothing
    zeros = replace(attention(N), bias=torch.zeros(1, 1, N, N))
    torch.testing.assert_close(made.apply(zeros), made.apply(attention(N)), rtol=0, atol=0)
    with pytest.raises(MethodError, match="cross-attention"):
        method("band-plus-low-rank:entries=8").apply(attention(N, m=30))


@pytest.mark.parametrize(
    ("name", "given"),
    [("band-plus-low-rank", {"entries": 0}), ("band-plus-low-rank", {"entries": 4, "k": 5}),
     ("band-plus-low-rank", {"entries": 4, "k": 0}), ("scatterbrain", {"entries": 0}),
     ("scatterbrain", {"entries": 4, "features": 5}), ("scatterbrain", {"entries": 4, "seed": -1})],
)  # fmt: skip
def test_impossible_splits_are_refused(name: str, given: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        METHODS[name](**given)
