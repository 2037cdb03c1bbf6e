"""Nyström attention, its pseudo-inverse and what it says of its condition."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
import transformers as tf

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import Shape, method
from rankscope.approximations.nystrom import (
    Nystrom,
    conditioning,
    iterative_inverse,
    segment_means,
)
from rankscope.attention import Attention
from rankscope.errors import matrix_errors, output_errors
from rankscope.exceptions import MethodError, UsageError


def smooth(n: int = N, seed: int = 0) -> Attention:
    """Attention whose vectors change slowly along the text, so that segments have a meaning."""
    given = attention(n, seed=seed)
    angle = torch.arange(n, dtype=torch.float64)[:, None] / n * torch.pi
    waves = torch.cat([torch.cos(angle), torch.sin(angle), torch.cos(2 * angle)], dim=-1)
    draw = torch.Generator().manual_seed(seed)

    def along() -> torch.Tensor:
        turn = torch.randn(2, 3, 3, 8, generator=draw, dtype=torch.float64)
        return waves @ turn

    return replace(given, query=2 * along(), key=along())


class TestNystrom(Conformance):
    methods = (
        "nystrom",
        "nystrom:landmarks=6",
        "nystrom:landmarks=5,pinv=exact",
        "nystrom:landmarks=6,iterations=12",
        "nystrom:landmarks=24,pinv=exact",
        "nystrom:landmarks=600,pinv=exact",
    )
    exact = ("nystrom:landmarks=24,pinv=exact", "nystrom:landmarks=600,pinv=exact")
    # the exact pseudo-inverse is no better: A has a condition of 1e5 here, and six steps of the
    # iteration leave out what it would magnify
    accurate: ClassVar = {"nystrom:landmarks=8": 0.2}

    def easy(self) -> Attention:
        return smooth()


def test_all_tokens_as_landmarks_are_full_attention_where_well_conditioned() -> None:
    for seed in range(5):
        given = attention(40, d=32, seed=seed)
        assert float(conditioning(given, 40).condition.max()) < 1e4
        found = Nystrom(landmarks=40, pinv="exact").matrix(given)
        torch.testing.assert_close(found, given.weights, rtol=0, atol=1e-9)
        # the iteration gets there too, with enough steps
        found = Nystrom(landmarks=40, iterations=25).matrix(given)
        torch.testing.assert_close(found, given.weights, rtol=0, atol=1e-9)


def test_the_three_factors_by_their_definition() -> None:
    given = attention(11, m=14, batch=1, heads=1)
    q, k, v = given.query[0, 0], given.key[0, 0], given.values[0, 0]
    q_marks = torch.stack([q[:3].mean(0), q[3:6].mean(0), q[6:9].mean(0), q[9:].mean(0)])
    k_marks = torch.stack([k[:4].mean(0), k[4:8].mean(0), k[8:11].mean(0), k[11:].mean(0)])
    f, a, b = (
        torch.softmax(given.scale * x @ y.T, dim=-1)
        for x, y in ((q, k_marks), (q_marks, k_marks), (q_marks, k))
    )
    expected = f @ torch.linalg.inv(a) @ b
    made = Nystrom(landmarks=4, pinv="exact")
    torch.testing.assert_close(made.matrix(given)[0, 0], expected)
    torch.testing.assert_close(made.apply(given)[0, 0], expected @ v)


@pytest.mark.parametrize(("n", "segments"), [(24, 6), (37, 8), (5, 5), (7, 1), (64, 63)])
def test_segments_are_of_nearly_equal_length(n: int, segments: int) -> None:
    x = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    lengths = [n // segments + (one < n % segments) for one in range(segments)]
    expected = torch.stack([part.mean(dim=1) for part in x.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(segment_means(x, segments), expected)


def test_iteration_converges_to_the_pseudo_inverse() -> None:
    draw = torch.Generator().manual_seed(0)
    matrices = torch.softmax(2 * torch.randn(3, 7, 7, generator=draw, dtype=torch.float64), dim=-1)
    exact = torch.linalg.pinv(matrices)
    errors = [
        float((iterative_inverse(matrices, steps) - exact).norm() / exact.norm())
        for steps in (1, 3, 6, 20)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9
    assert errors[0] > 0.5
    # a singular matrix has a pseudo-inverse, and the iteration finds it
    low = matrices[:, :, :3] @ matrices[:, :3, :]
    inverse = iterative_inverse(low, 40)
    torch.testing.assert_close(low @ inverse @ low, low, rtol=0, atol=1e-9)
    torch.testing.assert_close(inverse @ low, (inverse @ low).mT, rtol=0, atol=1e-6)


def transformers_layer(heads: int, landmarks: int, n: int) -> torch.nn.Module:
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = tf.NystromformerConfig(
        hidden_size=8 * heads,
        num_attention_heads=heads,
        num_landmarks=landmarks,
        segment_means_seq_len=n,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = NystromformerSelfAttention(config)
        for part in (layer.query, layer.key, layer.value):
            torch.nn.init.normal_(part.weight, std=0.6)
    # the convolution over the values is no part of the approximation
    layer.conv_kernel_size = None
    return layer.double().eval()


def layer_attention(layer: torch.nn.Module, hidden: torch.Tensor, heads: int) -> Attention:
    def split(part: torch.nn.Module) -> torch.Tensor:
        return part(hidden).detach().unflatten(-1, (heads, 8)).transpose(1, 2)

    return replace(
        attention(hidden.shape[1], batch=len(hidden), heads=heads),
        query=split(layer.query),
        key=split(layer.key),
        value=split(layer.value),
    )


def test_same_as_transformers_for_one_head() -> None:
    layer = transformers_layer(1, 6, 24)
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(1, 24, 8, generator=draw, dtype=torch.float64)
    given = layer_attention(layer, hidden, 1)
    theirs = layer(hidden)[0].detach()
    ours = Nystrom(landmarks=6).apply(given)[:, 0]
    # transformers keeps its identity matrices in float32, which hold 7, 13 and 15 exactly
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert float((Nystrom(landmarks=6, iterations=5).apply(given)[:, 0] - theirs).norm()) > 1e-3


def test_a_window_s_inverse_depends_on_no_other_window() -> None:
    """Theirs starts from the largest norm of all heads and windows; ours from each one's own."""
    layer = transformers_layer(2, 6, 24)
    draw = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 24, 16, generator=draw, dtype=torch.float64)
    hidden[1] *= 3
    theirs_apart = layer(hidden[:1])[0].detach()
    assert float((layer(hidden)[0][:1].detach() - theirs_apart).abs().max()) > 1e-4
    both = Nystrom(landmarks=6).apply(layer_attention(layer, hidden, 2))
    alone = Nystrom(landmarks=6).apply(layer_attention(layer, hidden[:1], 2))
    torch.testing.assert_close(both[:1], alone, rtol=1e-11, atol=1e-11)


def test_conditioning_is_that_of_the_landmark_matrix() -> None:
    given = attention(N)
    found = conditioning(given, 6)
    q, k = segment_means(given.query, 6), segment_means(given.key, 6)
    a = torch.softmax(given.scale * q @ k.mT, dim=-1)
    torch.testing.assert_close(found.condition, torch.linalg.cond(a))
    z = iterative_inverse(a)
    expected = (a @ z @ a - a).flatten(2).norm(dim=-1) / a.flatten(2).norm(dim=-1)
    torch.testing.assert_close(found.residual, expected)
    assert float(conditioning(given, 6, iterations=30).residual.max()) < 1e-9
    assert float(found.residual.max()) > 1e-4


def test_ill_conditioning_is_reported() -> None:
    """Landmarks that are all alike: A is singular, F A⁺ B the mean row, and both are said."""
    given = attention(N)
    same = replace(given, query=given.query[:, :, :1].expand(-1, -1, N, -1))
    found = conditioning(same, 6)
    assert float(found.condition.min()) > 1e12
    assert bool((found.residual < 1e-9).all())
    # smoother attention has the smaller landmark spectrum, and the exact inverse magnifies it
    calm, sharp = (conditioning(attention(64, sharpness=s), 16) for s in (0.1, 4.0))
    assert float(calm.condition.median()) > 10 * float(sharp.condition.median())
    bad = given.query.clone()
    bad[0, 0, 0, 0] = torch.nan
    found = conditioning(replace(given, query=bad), 6)
    assert bool(torch.isnan(found.condition[0, 0]))
    assert bool(torch.isnan(found.residual[0, 0]))
    assert int(torch.isnan(found.condition).sum()) == 1


def test_a_poor_inverse_is_not_hidden() -> None:
    """The exact pseudo-inverse of a badly conditioned A gives rows far from any distribution."""
    given = attention(37)
    worst = conditioning(given, 24).condition.max()
    matrix = Nystrom(landmarks=24, pinv="exact").matrix(given)
    found = matrix_errors(given.weights, matrix, spectral=False)
    assert float(worst) > 1e3
    assert float(found["negative_mass"].max()) > 1
    error = output_errors(given.output, Nystrom(landmarks=24, pinv="exact").apply(given))["output"]
    assert float(error.max()) > 1


@pytest.mark.parametrize("pinv", ["iterative", "exact"])
def test_f11_one_bad_head_leaves_the_others(pinv: str) -> None:
    made = method(f"nystrom:landmarks=6,pinv={pinv}")
    given = attention(N)
    query = given.query.clone()
    query[1, 2, 5] = torch.nan
    found = made.apply(replace(given, query=query))
    bad = torch.isnan(found).flatten(2).any(dim=-1)
    assert bad.sum() == 1
    assert bool(bad[1, 2])
    torch.testing.assert_close(found[~bad], made.apply(given)[~bad])


def test_what_it_cannot_do_is_refused() -> None:
    made, given = Nystrom(landmarks=6), attention(N)
    local = torch.full((N, N), -1e9, dtype=torch.float64).triu(3)
    with pytest.raises(MethodError, match="causal"):
        made.apply(attention(N, causal=True))
    with pytest.raises(MethodError, match="causal"):
        made.check(Shape("one", None, (0,), 3, N, causal=True))
    made.check(Shape("one", None, (0,), 3, N))
    with pytest.raises(MethodError, match="mask"):
        made.matrix(replace(given, bias=local))
    with pytest.raises(MethodError, match="mask"):
        made.matrix(replace(given, local=3))
    with pytest.raises(MethodError, match="relative positions"):
        conditioning(replace(given, bias=torch.ones(N, N)), 6)
    made.apply(replace(given, bias=torch.zeros(N, N)))
    for text in ("nystrom:landmarks=0", "nystrom:iterations=0"):
        with pytest.raises(UsageError):
            method(text)


def test_cost_counts_every_product() -> None:
    n, k, d = 100, 10, 8
    # F, B and A; four products a step; B V, Z (B V) and F (…)
    expected = 2 * n * k * d + k * k * d + 6 * 4 * k**3 + 2 * n * k * d + k * k * d
    assert Nystrom(landmarks=k).cost(n, n, d, d).multiply_adds == expected
    assert Nystrom(landmarks=k).cost(n, n, d, d).bytes == 4 * n * k
    assert Nystrom(landmarks=500).cost(n, n, d, d).bytes == 4 * n * n
