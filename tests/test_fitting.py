"""Fitting: singular vectors against LAPACK's, and what learning gains on windows never seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attentions import attention
from rankscope.approximations.fitting import (
    Learned,
    _Adam,
    kept_energy,
    learn,
    svd_projections,
)
from rankscope.approximations.linformer import Linformer, linformer_attention
from rankscope.approximations.projections import pooling, strided
from rankscope.attention import Attention
from rankscope.errors import output_errors
from rankscope.exceptions import MethodError, UsageError

LENGTHS = (1, 1, 2, 2, 4, 6, 8, 8)
"""Runs of tokens that are alike, the same in every window: what a fixed projection can learn."""


def placed(count: int, seed: int, layer: int = 0) -> list[Attention]:
    """Windows of 32 tokens whose keys and values belong to their places' runs, and some noise."""
    generator = torch.Generator().manual_seed(seed)
    runs = torch.repeat_interleave(torch.tensor(LENGTHS))
    windows = []
    for sample in range(count):
        query = torch.randn(1, 2, 32, 4, generator=generator)
        shared = torch.randn(2, 1, 2, len(LENGTHS), 4, generator=generator)[:, :, :, runs]
        key, value = shared + 0.2 * torch.randn(2, 1, 2, 32, 4, generator=generator)
        tokens = torch.zeros(1, 32, dtype=torch.int64)
        windows.append(Attention(query, key, value, 0.5, None, layer, tokens, samples=(sample,)))
    return windows


TRAIN, HELD_OUT, TEST = placed(24, 1), placed(8, 2), placed(24, 3)
FAST: dict[str, Any] = dict(learning_rate=5e-3, epochs=8, patience=8)


def error(e: torch.Tensor, f: torch.Tensor | None = None, windows: Any = None) -> float:
    """Mean relative output error on the test windows, computed apart from the fit."""
    f = e if f is None else f
    found = [
        output_errors(
            one.output, linformer_attention(one.query, one.key, one.values, e, f, one.scale)
        )["output"]
        for one in windows or TEST
    ]
    return float(torch.stack(found).mean())


@pytest.fixture(scope="module")
def learned() -> Learned:
    return learn(TRAIN, HELD_OUT, 8, **FAST)


def gaussian_error() -> float:
    made = Linformer(k=8, projection="gaussian")
    return error(*(one.float() for one in made.projections(TEST[0])))


def test_learned_beats_mean_pooling_beats_gaussian_on_unseen_windows(learned: Learned) -> None:
    pool = error(pooling(32, 8).float())
    assert learned.f is not None
    assert error(learned.e, learned.f) < 0.9 * pool
    assert pool < 0.8 * gaussian_error()
    # the errors that it reports are those of its weights
    assert learned.held_out_error[0] == pytest.approx(
        error(learned.e, learned.f, HELD_OUT), rel=1e-4
    )
    assert learned.training_error[0] == pytest.approx(error(learned.e, learned.f, TRAIN), rel=1e-4)
    assert learned.held_out[0] == pytest.approx(error(pooling(32, 8).float(), None, HELD_OUT))
    assert learned.e.shape == learned.f.shape == (1, 8, 32)


def test_noise_teaches_nothing_about_unseen_windows() -> None:
    """Without structure in the places the held-out error stays, however far training falls."""
    noise = [attention(32, batch=1, heads=2, d=4, seed=seed) for seed in range(6)]
    found = learn(noise[:3], noise[3:], 8, learning_rate=5e-3, epochs=10, patience=10)
    assert found.training[-1] < 0.9 * found.training[0]
    assert found.held_out_error[0] > 0.95 * found.held_out[0]


def test_early_stopping_keeps_the_best_weights() -> None:
    noise = [attention(32, batch=1, heads=2, d=4, seed=seed) for seed in range(6)]
    found = learn(noise[:3], noise[3:], 8, learning_rate=0.05, epochs=50, patience=2)
    assert len(found.held_out) == len(found.training) == found.best + 3 < 50
    assert found.held_out[found.best] == min(found.held_out)
    assert found.held_out_error[0] == found.held_out[found.best]
    # ruined from the first step on, and mean pooling is what is left
    ruined = learn(noise[:3], noise[3:], 8, learning_rate=5.0, epochs=50, patience=1)
    assert ruined.best == 0
    assert torch.equal(ruined.e, pooling(32, 8).float()[None])


def test_the_seed_decides_the_order_and_nothing_else_does(learned: Learned) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = learn(TRAIN, HELD_OUT, 8, **FAST)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.e, learned.e)
    assert (again.training, again.held_out) == (learned.training, learned.held_out)
    other = learn(TRAIN, HELD_OUT, 8, seed=1, **FAST)
    assert not torch.equal(other.e, learned.e)
    assert error(other.e, other.f) == pytest.approx(error(learned.e, learned.f), rel=0.1)


def test_shapes_of_every_sharing() -> None:
    few: dict[str, Any] = dict(learning_rate=5e-3, epochs=2)
    alone = learn(TRAIN, HELD_OUT, 8, sharing="none", **few)
    assert alone.f is not None
    assert alone.e.shape == alone.f.shape == (2, 8, 32)
    assert not torch.equal(alone.e[0], alone.e[1])
    tied = learn(TRAIN, HELD_OUT, 8, sharing="key-value", **few)
    assert (tuple(tied.e.shape), tied.f) == ((1, 8, 32), None)
    assert error(tied.e) < error(pooling(32, 8).float())


def test_layerwise_takes_all_layers_together() -> None:
    both = [*TRAIN[:12], *placed(12, 4, layer=1)]
    held_out = [*HELD_OUT[:4], *placed(4, 5, layer=1)]
    found = learn(both, held_out, 8, sharing="layerwise", **FAST)
    assert found.f is None
    assert set(found.training_error) == set(found.held_out_error) == {0, 1}
    for layer, seed in ((0, 6), (1, 7)):
        unseen = placed(6, seed, layer)
        assert error(found.e, None, unseen) < error(pooling(32, 8).float(), None, unseen)
    with pytest.raises(MethodError, match="layer 1"):
        learn(both, held_out, 8)
    with pytest.raises(MethodError, match="layer 1"):
        svd_projections(both, 8)
    assert svd_projections(both, 8, "layerwise").basis.shape == (1, 8, 32)


def test_kernels_are_learned_from_mean_pooling_on() -> None:
    """Values that alternate in sign within a stride cancel in the mean, and not in a kernel."""
    sign = torch.tensor([1.0, -1.0]).repeat(16)[:, None]

    def alternating(seed: int) -> list[Attention]:
        runs = torch.arange(32) // 2
        return [
            replace(one, value=one.values[:, :, runs * 2] * (sign + 0.5))
            for one in placed(16, seed)
        ]

    found = learn(alternating(1), alternating(2), 16, kind="conv", learning_rate=2e-2, epochs=8)
    assert found.f is not None
    assert found.e.shape == found.f.shape == (1, 2)
    unseen = alternating(3)
    learned = error(strided(found.e, 32), strided(found.f, 32), unseen)
    assert learned < error(pooling(32, 16).float(), None, unseen)
    start = learn(TRAIN, HELD_OUT, 8, kind="conv", learning_rate=5.0, epochs=1)
    assert start.best == 0
    assert start.e.tolist() == [[0.25] * 4]


def test_matrices_start_from_kernels_or_from_an_earlier_fit(learned: Learned) -> None:
    kernels = learn(TRAIN, HELD_OUT, 8, kind="conv", epochs=4)
    assert kernels.held_out_error[0] < kernels.held_out[0]
    found = learn(TRAIN, HELD_OUT, 8, start=kernels, **FAST)
    assert found.held_out[0] == pytest.approx(kernels.held_out_error[0], rel=1e-5)
    assert found.held_out_error[0] < found.held_out[0]
    again = learn(TRAIN, HELD_OUT, 8, start=learned, epochs=1)
    assert again.held_out[0] == pytest.approx(learned.held_out_error[0], rel=1e-6)
    assert again.held_out_error[0] <= learned.held_out_error[0]
    refused: tuple[dict[str, Any], ...] = (
        dict(k=4),
        dict(k=8, sharing="key-value"),
        dict(k=8, sharing="none"),
        dict(k=8, kind="conv", start=learned),
        # ⌈32/10⌉ = 4, and eight rows are not ten
        dict(k=10),
    )
    for changes in refused:
        with pytest.raises(UsageError, match="no start"):
            learn(TRAIN, HELD_OUT, **(dict(start=kernels) | changes))


def test_position_terms_are_learned_with() -> None:
    bias = torch.randn(1, 2, 32, 32, generator=torch.Generator().manual_seed(0))
    with_bias = [replace(one, bias=bias) for one in TRAIN[:4]]
    with pytest.raises(MethodError, match="bias=project"):
        learn(with_bias, with_bias, 8)
    found = learn(with_bias, with_bias, 8, bias="project", epochs=1)
    made = Linformer(k=8, bias="project")
    start = torch.stack(
        [output_errors(one.output, made.apply(one))["output"] for one in with_bias]
    ).mean()
    assert found.held_out[0] == pytest.approx(float(start), rel=1e-4)


def test_adam_is_torch_s() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)]
    theirs = [one.clone().requires_grad_() for one in ours]
    reference = torch.optim.Adam(theirs, lr=0.01)
    adam = _Adam(ours)
    for step in range(20):
        slopes = [torch.randn(one.shape, generator=generator) for one in ours]
        adam.step(slopes, 0.01 / (1 + step))
        reference.param_groups[0]["lr"] = 0.01 / (1 + step)
        for parameter, slope in zip(theirs, slopes, strict=True):
            parameter.grad = slope
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-5, atol=1e-7)


def test_an_interrupt_passes() -> None:
    calls = []

    def stop(epoch: int, training: float, held_out: float) -> None:
        calls.append((epoch, training, held_out))
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(TRAIN[:4], HELD_OUT, 8, progress=stop)
    assert [call[0] for call in calls] == [1, 2]
    assert all(math.isfinite(value) for call in calls for value in call)


def test_learning_works_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        found = learn(TRAIN, HELD_OUT, 8, epochs=1, learning_rate=5e-3)
    assert found.best == 1
    assert not found.e.requires_grad


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        learn([], HELD_OUT, 8)
    with pytest.raises(UsageError, match="too few"):
        learn(TRAIN, [], 8)
    with pytest.raises(UsageError, match="give one"):
        svd_projections([], 8)
    for wrong in (dict(epochs=0), dict(patience=0), dict(learning_rate=-1.0), dict(decay=-1.0)):
        with pytest.raises(UsageError, match="cannot fit"):
            learn(TRAIN, HELD_OUT, 8, **wrong)  # type: ignore[arg-type]
    with pytest.raises(MethodError, match=r"k = 33 .* n = 32"):
        learn(TRAIN, HELD_OUT, 33)
    with pytest.raises(MethodError, match=r"k = 33 .* n = 32"):
        svd_projections(TRAIN, 33)
    with pytest.raises(MethodError, match="causal"):
        learn([attention(causal=True)], [attention(causal=True)], 8)
    with pytest.raises(MethodError, match="24 tokens"):
        learn([*TRAIN, attention(24, heads=2)], HELD_OUT, 8)
    bad = replace(TRAIN[0], value=torch.full_like(TRAIN[0].values, float("nan")))
    with pytest.raises(MethodError, match="not finite"):
        learn([bad], HELD_OUT, 8)
    with pytest.raises(MethodError, match="not finite"):
        svd_projections([replace(bad, query=bad.values)], 8)


def stacked(windows: list[Attention], head: int | None) -> torch.Tensor:
    """All P on each other, of one head or of all."""
    chosen = [one.weights[:, slice(None) if head is None else head] for one in windows]
    return torch.cat([one.reshape(-1, one.shape[-1]) for one in chosen]).double()


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value"])
def test_singular_vectors_against_lapack_s(sharing: Any) -> None:
    found = svd_projections(TRAIN[:6], 5, sharing)
    heads = (0, 1) if sharing == "none" else (None,)
    assert found.basis.shape == (len(heads), 5, 32)
    for place, head in enumerate(heads):
        rows = torch.linalg.svd(stacked(TRAIN[:6], head), full_matrices=False).Vh[:5]
        ours = found.basis[place]
        torch.testing.assert_close(ours.mT @ ours, rows.mT @ rows, rtol=0, atol=1e-8)
    for head in (0, 1):
        whole = stacked(TRAIN[:6], head)
        part = whole @ found.basis[min(head, len(heads) - 1)].mT
        share = part.square().sum() / whole.square().sum()
        assert float(found.kept[head]) == pytest.approx(float(share), rel=1e-9)


def test_a_fixed_subspace_keeps_less_than_every_window_s_own() -> None:
    basis = svd_projections(TRAIN, 5, "none").basis
    fixed, own = kept_energy(TEST, basis)
    assert fixed.shape == own.shape == (24, 2)
    for window, attention_ in enumerate(TEST):
        for head in range(2):
            sigma = torch.linalg.svdvals(attention_.weights[0, head].double()).square()
            share = float(sigma[:5].sum() / sigma.sum())
            assert float(own[window, head]) == pytest.approx(share, rel=1e-7)
    assert bool((fixed < own).all())
    # the best subspace of one window is its own
    alone = svd_projections(TEST[:1], 5, "none").basis
    torch.testing.assert_close(*(one[:1] for one in kept_energy(TEST, alone)), rtol=1e-8, atol=0)
    assert float(kept_energy(TEST[1:], alone)[0].mean()) < float(fixed[1:].mean())
    everything = kept_energy(TEST[:1], torch.eye(32)[None])
    torch.testing.assert_close(everything[0], torch.ones(1, 2).double(), rtol=1e-9, atol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_fits_the_same(learned: Learned) -> None:
    def there(windows: list[Attention]) -> list[Attention]:
        return [
            replace(one, query=one.query.cuda(), key=one.key.cuda(), value=one.values.cuda())
            for one in windows
        ]

    found = learn(there(TRAIN), there(HELD_OUT), 8, **FAST)
    assert found.e.is_cuda
    assert found.held_out_error[0] == pytest.approx(learned.held_out_error[0], rel=1e-2)
    basis = svd_projections(there(TRAIN), 5).basis.cpu()
    ours = svd_projections(TRAIN, 5).basis
    torch.testing.assert_close(basis.mT @ basis, ours.mT @ ours, rtol=0, atol=1e-6)
