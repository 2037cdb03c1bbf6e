"""The sparse family: masked softmaxes in strips, never with an n × n tensor, and their bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
import torch

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import METHODS, Approximation, Shape, method
from rankscope.approximations.bigbird import BigBird
from rankscope.approximations.sparse import Sparse
from rankscope.attention import Attention
from rankscope.errors import matrix_errors, output_errors
from rankscope.exceptions import MethodError, UsageError

SPARSE = (
    "band:w=6",
    "band:w=2/8/4",
    "dilated:w=6",
    "dilated:w=4,dilation=1/2/3",
    "longformer:w=6",
    "longformer:w=4,dilation=1/2,g=2,place=even",
    "longformer:w=4,g=0,ids=7/9",
    "global:entries=6",
    "global:entries=0,ids=5",
    "random:r=5",
    "random-band:entries=8",
    "bigbird:entries=10",
    "bigbird:entries=14,r=0",
    "bigbird:entries=20,mode=etc,r=1",
)


def near(n: int = N) -> Attention:
    """Attention that falls off with the distance, as positions alone would give it."""
    place = torch.arange(n, dtype=torch.float64)[:, None] * torch.tensor([0.1, 0.2, 0.4, 0.8])
    waves = torch.cat([place.cos(), place.sin()], dim=1).expand(2, 3, n, 8)
    return replace(attention(n), query=6.0 * waves, key=waves)


class TestBand(Conformance):
    methods = ("band:w=6", *SPARSE[2:4], "band:w=46", "dilated:w=46,dilation=1")
    exact = ("band:w=46", "dilated:w=46,dilation=1")
    accurate: ClassVar[dict[str, float]] = {"band:w=12": 0.3}

    def easy(self) -> Attention:
        return near()


class TestGlobal(Conformance):
    methods = (*SPARSE[4:8], "longformer:w=46", "global:entries=46")
    exact = ("longformer:w=46", "global:entries=46")
    accurate: ClassVar[dict[str, float]] = {"longformer:w=12": 0.3}

    def easy(self) -> Attention:
        return near()


class TestBigBird(Conformance):
    methods = (
        *SPARSE[9:12],
        SPARSE[13],
        "random:r=23",
        "random-band:entries=46",
        "bigbird:entries=60",
    )
    exact = ("random:r=23", "random-band:entries=46", "bigbird:entries=60")
    accurate: ClassVar[dict[str, float]] = {"bigbird:entries=30": 0.3}

    def easy(self) -> Attention:
        return near()


class TestWithoutOneBudget(Conformance):
    methods = ("band:w=2/8/4", "longformer:w=2/4/4", "global:entries=0,ids=5")

    def test_budget_is_a_parameter(self, made: Approximation) -> None:
        with pytest.raises(UsageError, match="budget"):
            made.at_budget(8)


class TestBigBirdWithoutRandomBlocks(Conformance):
    methods = (SPARSE[12], "bigbird:entries=9,mode=etc", "bigbird:entries=84,r=0")
    exact = ("bigbird:entries=84,r=0",)

    def test_another_seed_gives_another_result(self, seeded: str) -> None:
        made = method(seeded)
        assert isinstance(made, BigBird)
        other = replace(made, seed=1)
        assert torch.equal(other.apply(attention(N)), made.apply(attention(N)))


class TestTop(Conformance):
    methods = ("top:w=1", "top:w=6", "top:w=24", "top:w=600")
    exact = ("top:w=24", "top:w=600")
    accurate: ClassVar[dict[str, float]] = {"top:w=12": 0.15}


def naive(given: Attention, made: Sparse) -> torch.Tensor:
    """The output row by row, each a softmax over the keys that the pattern lists."""
    batch, heads, n, _ = given.query.shape
    bias = torch.zeros(batch, heads, n, n, dtype=torch.float64)
    if given.bias is not None:
        bias += given.bias
    output = torch.empty_like(given.values)
    for row in range(batch):
        for head in range(heads):
            found = made.pattern(n, head, given.layer, given.tokens[row])
            for i in range(n):
                keys = found.indices[found.indptr[i] : found.indptr[i + 1]]
                scores = given.key[row, head, keys] @ given.query[row, head, i] * given.scale
                scores += bias[row, head, i, keys]
                output[row, head, i] = scores.softmax(0) @ given.values[row, head, keys]
    return output


@pytest.mark.parametrize("text", SPARSE)
@pytest.mark.parametrize("n", [23, 150])
def test_output_is_the_softmax_over_the_pattern(text: str, n: int) -> None:
    made = method(text)
    assert isinstance(made, Sparse)
    given = attention(n, heads=4, d_v=3)
    torch.testing.assert_close(made.apply(given), naive(given, made), rtol=1e-10, atol=1e-10)
    # and not over all keys
    assert float(output_errors(given.output, made.apply(given))["output"].max()) > 0.1


@pytest.mark.parametrize("text", SPARSE)
@pytest.mark.parametrize("shape", [(1, 1, N, N), (1, 3, N, N), (2, 1, N, N), (2, 3, N, N), (N, N),
                                   (1, 1, 1, N)])  # fmt: skip
def test_position_terms_are_added_to_the_entries(text: str, shape: tuple[int, ...]) -> None:
    """MPNet adds a finite bias that depends on the distance."""
    made = method(text)
    assert isinstance(made, Sparse)
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    given = replace(attention(N), bias=3.0 * bias)
    output = made.apply(given)
    torch.testing.assert_close(output, naive(given, made), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(output, made.matrix(given) @ given.values, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(output, made.apply(attention(N)), atol=1e-3)


@pytest.mark.parametrize("text", SPARSE)
def test_rows_are_distributions_over_the_pattern(text: str) -> None:
    made = method(text)
    assert isinstance(made, Sparse)
    given = replace(attention(37), layer=2)
    matrix = made.matrix(given)
    torch.testing.assert_close(matrix.sum(dim=-1), torch.ones_like(matrix[..., 0]))
    for head in range(3):
        found = made.pattern(37, head, 2, given.tokens[0]).toarray()
        assert np.array_equal((matrix[0, head] > 0).numpy(), found)


@pytest.mark.parametrize("text", SPARSE)
def test_entries_hidden_by_a_mask_stay_hidden(text: str) -> None:
    """Global tokens and random keys too; a query always has itself."""
    made = method(text)
    assert isinstance(made, Sparse)
    n = 37
    place = torch.arange(n)
    lowest = torch.finfo(torch.float64).min
    for hidden in (place[:, None] < place, (place[:, None] - place).abs() > 3):
        for value in (lowest, -torch.inf):
            bias = torch.zeros(n, n, dtype=torch.float64).masked_fill(hidden, value)
            given = replace(attention(n), bias=bias[None, None])
            matrix = made.matrix(given)
            assert bool((matrix[..., hidden] == 0).all())
            torch.testing.assert_close(matrix.sum(dim=-1), torch.ones_like(matrix[..., 0]))
            output = made.apply(given)
            torch.testing.assert_close(output, matrix @ given.values, rtol=1e-9, atol=1e-9)
            wild = given.values.clone()
            wild[:, :, -1] += 1e6
            after = made.apply(replace(given, value=wild))
            alone = hidden[:, -1]
            torch.testing.assert_close(after[:, :, alone], output[:, :, alone], rtol=0, atol=1e-9)


def test_layers_have_their_own_width_and_their_own_draw() -> None:
    second = replace(attention(N), layer=1)
    torch.testing.assert_close(
        method("band:w=2/8/4").apply(second), method("band:w=8").apply(second), rtol=0, atol=0
    )
    with pytest.raises(MethodError, match="layer 3"):
        method("band:w=2/8/4").apply(replace(second, layer=3))
    for text in ("random:r=5", "random-band:entries=8", "bigbird:entries=10"):
        made = method(text)
        assert not torch.equal(made.apply(second), made.apply(attention(N)))


def test_global_tokens_by_id_may_differ_within_a_batch() -> None:
    tokens = torch.arange(N).repeat(2, 1)
    tokens[1] = tokens[1].flip(0)
    given = replace(attention(N), tokens=tokens)
    made = method("longformer:w=2,g=0,ids=3/20")
    assert isinstance(made, Sparse)
    torch.testing.assert_close(made.apply(given), naive(given, made), rtol=1e-10, atol=1e-10)
    whole = (made.matrix(given)[:, 0] > 0).all(dim=-1)
    assert [one.nonzero().flatten().tolist() for one in whole] == [[3, 20], [3, 20]]
    tokens[1, 0] = 20
    whole = (made.matrix(given)[1, 0] > 0).all(dim=-1)
    assert whole.nonzero().flatten().tolist() == [0, 3, 20]


@pytest.mark.parametrize("text", [*SPARSE, "top:w=5"])
def test_special_tokens_are_taken_out_first(text: str) -> None:
    keep = torch.ones(N, dtype=torch.bool)
    keep[[0, 11, N - 1]] = False
    whole = replace(attention(N), keep_rows=keep, keep_columns=keep, special="renormalise")
    made = method(text)
    torch.testing.assert_close(made.apply(whole), made.apply(whole.reduced()), rtol=0, atol=0)
    assert made.matrix(whole).shape[-2:] == (N - 3, N - 3)
    with pytest.raises(MethodError):
        made.apply(replace(whole, special="drop"))


@pytest.mark.parametrize("text", SPARSE)
def test_cross_attention_is_refused(text: str) -> None:
    made = method(text)
    for given in (attention(N, m=30), replace(attention(N), group="cross")):
        for call in (made.apply, made.matrix):
            with pytest.raises(MethodError, match="cross-attention"):
                call(given)


def test_cost_by_layer_and_head_is_a_mean() -> None:
    alone = [method(f"band:w={w}").cost(512, 512, 8, 8).multiply_adds for w in (8, 32)]
    both = method("band:w=8/32").cost(512, 512, 8, 8).multiply_adds
    assert both == sum(alone) // 2
    some = method("longformer:w=8,g=0,ids=3/4").cost(512, 512, 8, 8)
    assert some == method("longformer:w=8,g=2").cost(512, 512, 8, 8)


def test_what_a_model_cannot_have_is_refused_before_the_work() -> None:
    shape = Shape("m", None, (0, 1, 2), 4, 512)
    for text in ("band:w=8", "band:w=8/4/8", "dilated:w=4,dilation=1/2", "bigbird:entries=64"):
        method(text).check(shape)
    with pytest.raises(MethodError, match="layer 2"):
        method("band:w=8/4").check(shape)
    with pytest.raises(MethodError, match="4"):
        method("dilated:w=4,dilation=1/2/3/4/5").check(shape)


@pytest.mark.parametrize(
    "text",
    ["band:w=5", "band:w=0", "band:w=4/3", "dilated:w=4,dilation=0", "dilated:w=4,dilation=2/0",
     "longformer:w=4,g=-1", "global", "global:entries=-2", "global:entries=-2,ids=3", "random:r=0",
     "random:r=3,seed=-1", "random-band:entries=0", "bigbird:entries=0", "bigbird:entries=9,r=-1",
     "bigbird:entries=9,mode=abc", "bigbird:entries=9,seed=-2", "top:w=0"],
)  # fmt: skip
def test_impossible_parameters_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        method(text)


def test_several_values_have_no_single_budget() -> None:
    for text in ("band:w=4/8", "longformer:w=4/8", "global:ids=0"):
        with pytest.raises(UsageError, match="budget"):
            method(text).at_budget(8)
    with pytest.raises(UsageError, match="several"):
        METHODS["band"](w=(4,))  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="mode"):
        METHODS["bigbird"](entries=9, mode="abc")  # type: ignore[call-arg]


def test_top_is_the_closest_of_all_supports_in_total_variation() -> None:
    """Every support of 3 of 7 keys, by brute force; in closed form it leaves 1 - Σ of the kept."""
    given = attention(7, heads=2, batch=1)
    weights = given.weights
    distances = []
    for chosen in combinations(range(7), 3):
        some = torch.zeros_like(weights)
        some[..., chosen] = weights[..., chosen]
        some /= some.sum(dim=-1, keepdim=True)
        distances.append((weights - some).abs().sum(dim=-1) / 2)
    best = torch.stack(distances).amin(dim=0)
    found = (weights - method("top:w=3").matrix(given)).abs().sum(dim=-1) / 2
    torch.testing.assert_close(found, best, rtol=1e-12, atol=1e-12)
    left = 1.0 - weights.sort(dim=-1, descending=True).values[..., :3].sum(dim=-1)
    torch.testing.assert_close(found, left, rtol=1e-12, atol=1e-12)
    # the test can fail: another support is far worse
    assert float((torch.stack(distances).amax(dim=0) - found).min()) > 0.3


@pytest.mark.parametrize("text", SPARSE)
def test_no_pattern_is_closer_than_the_bound_with_its_entries(text: str) -> None:
    given = attention(37)
    made = method(text)
    assert isinstance(made, Sparse)
    most = max(int(np.diff(made.pattern(37, h, 0, given.tokens[0]).indptr)[10]) for h in range(3))
    row = slice(10, 11)
    ours = matrix_errors(given.weights[:, :, row], made.matrix(given)[:, :, row], spectral=False)
    bound = matrix_errors(
        given.weights[:, :, row], method(f"top:w={most}").matrix(given)[:, :, row], spectral=False
    )
    assert bool((bound["total_variation"] <= ours["total_variation"] + 1e-12).all())


def test_f29_a_causal_band_gives_the_first_token_its_own_value() -> None:
    """FIELD F29: V = (1, 0); whatever the second value becomes, position 0 stays at 1."""
    zero = torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    bias = torch.tensor([[0.0, torch.finfo(torch.float64).min], [0.0, 0.0]], dtype=torch.float64)
    given = replace(
        attention(2, d=1, heads=1, batch=1, causal=True), query=zero, key=zero, bias=bias
    )
    for text in ("band:w=2", "longformer:w=2", "random:r=1", "bigbird:entries=9", "top:w=2"):
        for second in (0.0, 2.0):
            value = torch.tensor([1.0, second], dtype=torch.float64).view(1, 1, 2, 1)
            output = method(text).apply(replace(given, value=value)).flatten().tolist()
            assert output == [1.0, (1.0 + second) / 2]
