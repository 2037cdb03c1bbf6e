"""Linformer and P·RᵀR: what they compute, what they refuse, and how far random ones are off."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import Shape, method
from rankscope.approximations.linformer import Linformer, linformer_attention
from rankscope.approximations.projected import Projected
from rankscope.approximations.projections import gaussian, pooling
from rankscope.attention import Attention
from rankscope.capture import capture
from rankscope.exceptions import MethodError, UsageError
from tiny import tiny

IDS = torch.tensor([[3, 5, 6, 7, 8, 4], [3, 9, 10, 11, 12, 4]])
SHAPE = Shape("m", None, layers=(0, 1, 2), n_heads=4, length=24)
DRAWN = ("gaussian", "theorem2", "conv")
SHARINGS = ("none", "headwise", "key-value", "layerwise")


class TestLinformer(Conformance):
    methods = (
        "linformer:k=6",
        "linformer:k=7",
        "linformer:k=24",
        "linformer:k=24,projection=identity",
        "linformer:k=6,projection=max",
        "linformer:k=6,projection=gaussian",
        "linformer:k=6,projection=gaussian,sharing=none",
        "linformer:k=6,projection=gaussian,sharing=key-value",
        "linformer:k=6,projection=gaussian,sharing=layerwise",
        "linformer:k=6,projection=theorem2,delta=0.5",
        "linformer:k=7,projection=conv",
        "linformer:k=6,projection=conv,sharing=none",
        "linformer:k=6/4/2",
    )
    exact = ("linformer:k=24", "linformer:k=24,projection=identity")
    accurate: ClassVar = {"linformer:k=6": 1e-9}

    def easy(self) -> Attention:
        """Four tokens in a row are alike, which is all that mean pooling takes."""
        short = attention(6)
        return replace(
            attention(N),
            key=short.key.repeat_interleave(4, dim=2),
            value=short.values.repeat_interleave(4, dim=2),
        )


def explicit(given: Attention, e: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Equation 7, one head at a time, without any broadcasting."""
    out = torch.empty_like(given.values)
    for b in range(len(given.query)):
        for h in range(given.n_heads):
            side = [one[h if len(one) > 1 else 0] for one in (e, f)]
            keys, values = side[0] @ given.key[b, h], side[1] @ given.values[b, h]
            scores = given.query[b, h] @ keys.T * given.scale
            out[b, h] = torch.exp(scores) / torch.exp(scores).sum(1, keepdim=True) @ values
    return out


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection", DRAWN)
def test_equation_7_for_every_drawn_projection(projection: str, sharing: str) -> None:
    made = method(f"linformer:k=6,projection={projection},sharing={sharing},seed=3")
    assert isinstance(made, Linformer)
    e, f = made.projections(attention())
    assert e.shape == f.shape == ((3 if sharing == "none" else 1), 6, N)
    torch.testing.assert_close(
        made.apply(attention()), explicit(attention(), e, f), rtol=1e-10, atol=1e-10
    )
    one_side = projection != "theorem2" and sharing in ("key-value", "layerwise")
    assert torch.equal(e, f) == one_side


def drawn(sharing: str, layer: int = 0, **changes: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = Linformer(k=4, projection="gaussian", sharing=sharing, **changes)  # type: ignore[arg-type]
    return made.projections(replace(attention(), layer=layer))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_what_does_not_share_is_drawn_anew(sharing: str) -> None:
    e, f = drawn(sharing)
    sides = [*e, *f] if sharing in ("none", "headwise") else [*e]
    later = [*drawn(sharing, layer=1)[0], *drawn(sharing, seed=1)[0]]
    assert torch.equal(drawn(sharing, layer=1)[0], e) == (sharing == "layerwise")
    rows = torch.stack([*sides, *(later if sharing != "layerwise" else later[len(e) :])]).flatten(1)
    together = torch.corrcoef(rows) - torch.eye(len(rows), dtype=rows.dtype)
    # of 96 entries: 5 standard deviations
    assert float(together.abs().max()) < 5 / 96**0.5


def test_gaussian_entries_have_variance_one_over_k() -> None:
    for k in (4, 64):
        draw = gaussian(k, 2000, 0, 1)
        assert float(draw.var()) == pytest.approx(1 / k, rel=0.06)
        assert abs(float(draw.mean())) < 5 / (k * k * 2000) ** 0.5


def test_theorem_2_scales_one_matrix_twice() -> None:
    made = Linformer(k=6, projection="theorem2", delta=0.5)
    e, f = made.projections(attention())
    torch.testing.assert_close(f, e * float(torch.tensor(-0.5).exp()) / 0.5, rtol=1e-7, atol=0)
    assert float(e.var()) == pytest.approx(0.25 / 6, rel=0.3)


def test_mean_pooling_s_matrix() -> None:
    flat = replace(attention(4, batch=1, heads=1), query=torch.zeros(1, 1, 4, 8).double())
    # no query, so that each of two segments has half of the weight, a quarter a token
    torch.testing.assert_close(
        Linformer(k=2).matrix(flat)[0, 0], torch.full((4, 4), 0.25).double(), rtol=0, atol=1e-12
    )
    # three segments of 1, 1 and 2 tokens
    row = torch.tensor([1 / 3, 1 / 3, 1 / 6, 1 / 6]).double()
    torch.testing.assert_close(Linformer(k=3).matrix(flat)[0, 0, 0], row, rtol=0, atol=1e-7)


def test_max_pooling_takes_the_largest_of_keys_and_values() -> None:
    query = torch.tensor([[[[1.0], [0.0]]]])
    key = torch.tensor([[[[0.0], [1.0], [3.0], [-5.0]]]])
    value = torch.tensor([[[[7.0], [1.0], [2.0], [4.0]]]])
    made = Linformer(k=2, projection="max")
    given = Attention(query, key, value, 1.0, None, 0, torch.zeros(1, 2, dtype=torch.int64))
    # the pooled keys are 1 and 3, the pooled values 7 and 4
    weight = float(torch.sigmoid(torch.tensor(2.0)))
    expected = torch.tensor([7 * (1 - weight) + 4 * weight, 5.5])
    torch.testing.assert_close(made.apply(given)[0, 0, :, 0], expected, rtol=1e-6, atol=0)
    assert not made.linear
    assert Linformer(k=2).linear
    with pytest.raises(MethodError, match="not linear"):
        made.matrix(given)


def test_convolution_strides_by_its_own_length() -> None:
    e, _ = Linformer(k=7, projection="conv").projections(attention())
    # ⌈24/7⌉ = 4, so that six rows of four tokens remain
    assert e.shape == (1, 6, N)
    kernel = e[0, 0, :4]
    assert bool((kernel != 0).all())
    assert float(kernel.abs().max()) <= 0.5
    torch.testing.assert_close(e[0], torch.kron(torch.eye(6).double(), kernel), rtol=0, atol=0)


def test_f28_padding_is_zeroed_before_it_is_mixed_in() -> None:
    value = torch.tensor([1.0, 3.0, 100.0, 100.0]).reshape(1, 1, 4, 1)
    mask = torch.tensor([[1, 1, 0, 0]])
    f = torch.full((1, 4), 0.25)
    output = linformer_attention(value, value, value, f, f, 1.0, mask)
    assert output[0, 0, :2, 0].tolist() == [1.0, 1.0]
    leaking = linformer_attention(value, value, value, f, f, 1.0)
    assert leaking[0, 0, 0, 0] == 51.0


@settings(max_examples=40, deadline=None)
@given(
    valid=st.integers(4, 12),
    pads=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    fill=st.sampled_from([0.0, 1e3, float("inf"), float("nan")]),
    biased=st.booleans(),
)
def test_f28_pad_content_and_length_change_no_valid_row(
    valid: int, pads: tuple[int, int], fill: float, biased: bool
) -> None:
    whole = attention(18, heads=2)
    e, f = gaussian(4, 18, 0), gaussian(4, 18, 1)
    bias = torch.randn(2, 18, 18, generator=torch.Generator().manual_seed(0)).double()

    def outcome(padding: int, content: float) -> torch.Tensor:
        n = valid + padding
        key, value = whole.key[:, :, :n].clone(), whole.values[:, :, :n].clone()
        key[:, :, valid:], value[:, :, valid:] = content, content
        mask = (torch.arange(n) < valid).expand(2, n)
        terms = bias[:, :n, :n].clone()
        terms[:, :, valid:] = content
        given = terms if biased else None
        query = whole.query[:, :, :n]
        return linformer_attention(query, key, value, e, f, 0.3, mask, given)[:, :, :valid]

    torch.testing.assert_close(outcome(pads[0], fill), outcome(pads[1], 7.0), rtol=1e-9, atol=1e-9)


def test_f29_shorter_windows_use_the_first_columns() -> None:
    given = attention(3)
    e, f = torch.rand(2, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(
        linformer_attention(given.query, given.key, given.values, e, f, given.scale),
        explicit(given, e[None, :, :3], f[None, :, :3]),
        rtol=1e-12,
        atol=1e-12,
    )
    with pytest.raises(MethodError, match=r"6 columns .* n = 7"):
        linformer_attention(*[attention(7).query] * 3, e, f, 1.0)


def test_f29_drawn_projections_of_shorter_windows_are_the_first_columns() -> None:
    for sharing in SHARINGS:
        made = Linformer(k=2, projection="gaussian", sharing=sharing)  # type: ignore[arg-type]
        long, short = made.projections(attention(9)), made.projections(attention(3))
        assert torch.equal(long[0][..., :3], short[0])
        assert torch.equal(long[1][..., :3], short[1])


@pytest.mark.parametrize("name", ["linformer", "projected"])
def test_f29_more_rows_than_tokens_are_refused(name: str) -> None:
    made = method(f"{name}:k=8")
    with pytest.raises(MethodError, match=r"k = 8 .* n = 4"):
        made.apply(attention(4))
    with pytest.raises(MethodError, match=r"k = 8 .* n = 4"):
        made.check(replace(SHAPE, length=4))
    made.check(SHAPE)


def test_f29_the_future_leaks_and_causal_models_are_refused() -> None:
    half = torch.tensor([[0.5, 0.5]])
    one = torch.ones(1, 1, 2, 1)

    def first(later: float) -> float:
        value = torch.tensor([1.0, later]).reshape(1, 1, 2, 1)
        return float(linformer_attention(one, one, value, half, half, 1.0)[0, 0, 0])

    assert (first(0.0), first(2.0)) == (0.5, 1.5)
    causal = attention(causal=True)
    for made in (Linformer(k=1), Projected(k=1), Linformer(k=1, projection="max")):
        for refused in (lambda m=made: m.apply(causal), lambda m=made: m.check(CAUSAL)):
            with pytest.raises(MethodError, match="causal"):
                refused()


CAUSAL = replace(SHAPE, causal=True)


def with_biases(family: str) -> list[Attention]:
    """Captured layers of a tiny model whose key and value layers have biases."""
    model = tiny(family)
    generator = torch.Generator().manual_seed(0)
    found = 0
    for name, parameter in model.named_parameters():
        if name.endswith((".key.bias", ".value.bias", "k_lin.bias", "v_lin.bias")):
            parameter.data.normal_(generator=generator)
            found += 1
    assert found == 6
    return list(capture(model, IDS))


@pytest.mark.parametrize("family", ["roberta", "bert", "distilbert"])
def test_identity_is_full_attention_of_a_model_with_biases(family: str) -> None:
    for layer in with_biases(family):
        made = Linformer(k=6, projection="identity")
        torch.testing.assert_close(made.apply(layer), layer.output, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(made.matrix(layer), layer.weights, rtol=1e-6, atol=1e-6)
        # and the biases are there: a projection before the layer would have lost them
        assert float(layer.values.mean(dim=2).abs().max()) > 0.5


def test_identity_needs_k_equal_to_n() -> None:
    made = Linformer(k=6, projection="identity")
    with pytest.raises(MethodError, match=r"n = 24 .* k = 6"):
        made.apply(attention())
    with pytest.raises(MethodError, match=r"n = 24 .* k = 6"):
        made.check(SHAPE)


def test_position_terms_are_refused_or_projected() -> None:
    for captured in capture(tiny("mpnet"), IDS):
        assert captured.bias is not None
        with pytest.raises(MethodError, match="bias=project"):
            Linformer(k=3).apply(captured)
        full = Linformer(k=6, projection="identity", bias="project")
        torch.testing.assert_close(full.apply(captured), captured.output, rtol=1e-5, atol=1e-6)
        pooled = Linformer(k=3, bias="project")
        e = pooling(6, 3).float()
        scores = captured.query @ (e @ captured.key).mT * captured.scale
        scores = scores + (captured.bias.expand_as(captured.weights) @ e.mT)
        weights = scores.softmax(dim=-1)
        torch.testing.assert_close(
            pooled.apply(captured), weights @ (e @ captured.values), rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(pooled.matrix(captured), weights @ e, rtol=1e-5, atol=1e-6)
    assert pooled.cost(64, 64, 8, 8).multiply_adds == (
        Linformer(k=3).cost(64, 64, 8, 8).multiply_adds + 64 * 64 * 3
    )
    with pytest.raises(UsageError, match="max pooling"):
        Linformer(k=3, projection="max", bias="project")


def test_local_layers_are_refused() -> None:
    local = [one for one in capture(tiny("modernbert"), IDS) if one.local is not None]
    assert local
    with pytest.raises(MethodError, match="mask of layer 1"):
        Linformer(k=3).apply(local[0])


def test_one_k_for_every_layer() -> None:
    made = method("linformer:k=8/6/3")
    assert isinstance(made, Linformer)
    assert made.k == (8, 6, 3)
    assert str(made) == "linformer:k=8/6/3"
    for layer, k in enumerate((8, 6, 3)):
        given = replace(attention(), layer=layer)
        torch.testing.assert_close(made.apply(given), Linformer(k=k).apply(given), rtol=0, atol=0)
    made.check(SHAPE)
    for refused in (
        lambda: made.apply(replace(attention(), layer=3)),
        lambda: made.check(replace(SHAPE, layers=(0, 3))),
    ):
        with pytest.raises(MethodError, match=r"3 layers and none for layer 3"):
            refused()
    with pytest.raises(UsageError, match="one k"):
        Linformer(k=(8, 6), projection="gaussian", sharing="layerwise")


@pytest.mark.parametrize(
    "text",
    [
        "linformer:k=0",
        "linformer:k=4/0",
        "linformer:k=4,projection=learned",
        "linformer:k=4,file=x.safetensors",
        "linformer:k=4,projection=gaussian,seed=-1",
        "linformer:k=4,projection=theorem2,delta=0",
        "linformer:k=4,projection=theorem2,delta=nan",
        "linformer:k=4,projection=pooled",
        "projected:k=4,projection=svd",
        "projected:k=-3",
        "projected:k=4,projection=mean",
    ],
)
def test_parameters_out_of_their_range(text: str) -> None:
    with pytest.raises(UsageError):
        method(text)


def test_settings_hold_what_has_a_meaning() -> None:
    assert set(Linformer(k=4).settings()) == {"method", "k", "projection", "file", "bias"}
    drawn = Linformer(k=4, projection="gaussian").settings()
    assert (drawn["seed"], drawn["sharing"]) == (0, "headwise")
    assert Linformer(k=4, projection="theorem2").settings()["delta"] == 0.01


def test_cost_counts_every_product() -> None:
    n, m, d, d_v, k = 50, 40, 6, 4, 10
    dense = k * m * d + k * m * d_v + n * k * d + n * k * d_v
    assert Linformer(k=k, projection="gaussian").cost(n, m, d, d_v).multiply_adds == dense
    pooled = m * d + m * d_v + n * k * d + n * k * d_v
    assert Linformer(k=k).cost(n, m, d, d_v).multiply_adds == pooled
    assert Linformer(k=k).cost(n, m, d, d_v).bytes == 4 * n * k
    per_layer = Linformer(k=(5, 10, 15), projection="gaussian")
    assert per_layer.cost(n, m, d, d_v).multiply_adds == dense
    # linear in n at one k, where full attention is quadratic
    small, large = (Linformer(k=8).cost(n, n, 8, 8).multiply_adds for n in (64, 6400))
    assert large == 100 * small
