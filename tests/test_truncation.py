"""Truncation: closed-form curves against explicit P_k, for every k, on real and other matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrices import closed_forms, stochastic, with_spectrum
from rankscope import truncation
from rankscope.capture import capture
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel
from rankscope.status import Status
from rankscope.text import load_corpus, windows
from rankscope.truncation import clip_and_renormalise, decompose, error_curves

AGREEMENT = 1e-9
"""Closed form against explicit truncation, relative errors in float64 (issue 4)."""


def explicit(matrix: torch.Tensor, value: torch.Tensor) -> dict[str, np.ndarray]:
    """Errors of every P_k as the definitions read, by LAPACK's SVD."""
    matrix, value = matrix.double(), value.double()
    u, sigma, vh = torch.linalg.svd(matrix, full_matrices=False)
    errors: dict[str, list[float]] = {"frobenius": [], "output": [], "blur": []}
    for k in range(1, len(sigma) + 1):
        difference = matrix - (u[:, :k] * sigma[:k]) @ vh[:k]
        errors["frobenius"].append(float(difference.norm() / matrix.norm()))
        errors["output"].append(float((difference @ value).norm() / (matrix @ value).norm()))
        # between (almost) equal singular values P_k is not determined: vectors turn by ε‖P‖/gap
        gap = float(sigma[k - 1] - sigma[k]) if k < len(sigma) else float(sigma[k - 1])
        errors["blur"].append(1e-14 * float(sigma[k - 1]) / max(gap, 1e-300))
    return {name: np.array(curve) for name, curve in errors.items()}


def close(matrix: Any, value: Any, scale: float = 1.0) -> None:
    """Relative errors of the scaled matrix against the explicit ones of the matrix itself."""
    matrix, value = torch.as_tensor(matrix), torch.as_tensor(value)
    curves = error_curves(decompose(scale * matrix), value)
    expected = explicit(matrix, value)
    assert curves.output is not None
    np.testing.assert_allclose(curves.frobenius, expected["frobenius"], rtol=0, atol=AGREEMENT)
    difference = np.abs(curves.output.numpy() - expected["output"])
    assert (difference <= AGREEMENT + expected["blur"]).all(), difference.max()


@pytest.mark.parametrize("layer", range(6))
def test_every_rank_of_every_real_head(minilm: LoadedModel, layer: int) -> None:
    window = windows(load_corpus("builtin"), minilm.tokenizer, length=192, count=1)
    (found,) = capture(minilm, window, layers=[layer])
    for head in range(12):
        close(found.weights[0, head], found.values[0, head])


def test_every_rank_of_long_windows(minilm: LoadedModel) -> None:
    window = windows(load_corpus("builtin"), minilm.tokenizer, length=512, count=1)
    for found in capture(minilm, window, layers=[0, 5]):
        # the smoothest head of the last layer has singular values down to 1e-11
        for head in (0, 8):
            close(found.weights[0, head], found.values[0, head])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 24),
    m=st.integers(2, 24),
    seed=st.integers(0, 10**6),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0]),
)
def test_every_rank_of_stochastic_matrices(n: int, m: int, seed: int, sharpness: float) -> None:
    value = np.random.default_rng(seed).standard_normal((m, 3))
    close(stochastic(n, seed, sharpness, m), value)


@settings(max_examples=40, deadline=None)
@given(
    exponents=st.lists(st.floats(-16, 0), min_size=2, max_size=20),
    scale=st.sampled_from([1e-150, 1e-8, 1.0, 1e9, 1e150]),
    seed=st.integers(0, 10**6),
)
def test_every_rank_of_any_spectrum(exponents: list[float], scale: float, seed: int) -> None:
    """Long tails are where a plain Gram matrix loses half the digits."""
    values = np.sort(10.0 ** np.array(exponents))[::-1]
    matrix = with_spectrum(values, seed)
    value = np.random.default_rng(seed).standard_normal((len(values), 4))
    close(matrix, value, scale)


def test_deflation_is_what_makes_it_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.from_numpy(with_spectrum(np.logspace(0, -12, 24), 0))
    expected = np.logspace(0, -12, 24)
    np.testing.assert_allclose(decompose(matrix).singular_values, expected, rtol=1e-3, atol=1e-12)
    monkeypatch.setattr(truncation, "DEFLATION", 0.0)
    plain = decompose(matrix).singular_values.numpy()
    assert np.abs(plain - expected).max() > 1e-10


def test_closed_forms() -> None:
    n = 12
    for name, (matrix, sigma) in closed_forms(n).items():
        found = decompose(torch.from_numpy(matrix))
        np.testing.assert_allclose(found.singular_values, sigma, atol=1e-12, err_msg=name)
        curves = error_curves(found)
        tail = np.sqrt(np.clip((sigma**2).sum() - np.cumsum(sigma**2), 0, None))
        np.testing.assert_allclose(curves.frobenius, tail / np.sqrt((sigma**2).sum()), atol=1e-7)
        np.testing.assert_allclose(curves.spectral, np.r_[sigma[1:], 0] / sigma[0], atol=1e-12)
        np.testing.assert_allclose(curves.nuclear, 1 - np.cumsum(sigma) / sigma.sum(), atol=1e-12)
        assert curves.output is None


def test_f25_diagonal_example_and_any_sign_of_the_vectors() -> None:
    found = decompose(torch.diag(torch.tensor([2.0, 1.0])))
    torch.testing.assert_close(
        found.truncate(1), torch.diag(torch.tensor([2.0, 0.0], dtype=torch.float64))
    )
    turned = truncation.Decomposition(
        found.matrix, found.singular_values, -found.right, found.status
    )
    torch.testing.assert_close(turned.truncate(1), found.truncate(1))


def test_no_matrix_of_rank_k_is_closer() -> None:
    """Eckart–Young: rank-k matrices by other means, and the row mean, are never better."""
    matrix = torch.from_numpy(stochastic(16, 3, 2.0))
    curves = error_curves(decompose(matrix))
    rng = np.random.default_rng(0)
    for k in (1, 4, 9):
        columns, _ = np.linalg.qr(rng.standard_normal((16, k)))
        other = torch.from_numpy(columns @ columns.T) @ matrix
        assert float((matrix - other).norm() / matrix.norm()) > float(curves.frobenius[k - 1])
    assert float(curves.mean_row) > float(curves.frobenius[0])
    # and the test above is not blind: the truncation itself reaches the bound
    low = decompose(matrix).truncate(4)
    assert float((matrix - low).norm() / matrix.norm()) == pytest.approx(
        float(curves.frobenius[3]), abs=1e-12
    )


def test_bounds_of_the_output() -> None:
    matrix = torch.from_numpy(stochastic(20, 5, 2.0))
    value = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    curves = error_curves(decompose(matrix), value)
    assert curves.output is not None
    assert curves.output_bound is not None
    assert curves.mean_row_output is not None
    assert curves.output_norm is not None
    assert bool((curves.output_bound <= curves.output + 1e-12).all())
    # an output of width 6 has rank 6 at most
    assert float(curves.output_bound[5:].max()) == 0.0
    assert float(curves.output_bound[4]) > 1e-3
    product = matrix @ value
    left = torch.linalg.svd(product)[0][:, :3]
    best = float((product - left @ (left.T @ product)).norm() / product.norm())
    assert float(curves.output_bound[2]) == pytest.approx(best, abs=1e-12)
    row = matrix.mean(dim=0) @ value
    assert float(curves.mean_row_output) == pytest.approx(
        float((product - row).norm() / product.norm()), abs=1e-12
    )
    assert float(curves.output_norm) == pytest.approx(float(product.norm()), rel=1e-12)


def test_batch_equals_loop() -> None:
    batch = torch.stack([torch.from_numpy(stochastic(10, seed, 2.0)) for seed in range(6)])
    value = torch.randn(6, 10, 3, generator=torch.Generator().manual_seed(1))
    whole = error_curves(decompose(batch.reshape(2, 3, 10, 10)), value.reshape(2, 3, 10, 3))
    assert whole.output is not None
    assert whole.output.shape == (2, 3, 10)
    for i in range(6):
        one = error_curves(decompose(batch[i]), value[i])
        torch.testing.assert_close(whole.output.reshape(6, 10)[i], one.output)
        torch.testing.assert_close(whole.frobenius.reshape(6, 10)[i], one.frobenius)


def test_a_rank_for_every_matrix() -> None:
    batch = torch.stack([torch.from_numpy(stochastic(8, seed, 2.0)) for seed in range(3)])
    value = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(1)).double()
    found = decompose(batch)
    ranks = torch.tensor([1, 4, 99])
    low = found.truncate(ranks)
    for i, k in enumerate((1, 4, 8)):
        torch.testing.assert_close(low[i], decompose(batch[i]).truncate(k))
        assert int(torch.linalg.matrix_rank(low[i])) == k
    torch.testing.assert_close(found.output(ranks, value), low @ value)


def test_f11_bad_matrices_keep_to_themselves() -> None:
    good = torch.from_numpy(stochastic(6, 0, 2.0))
    bad, infinite = good.clone(), good.clone()
    bad[2, 3] = torch.nan
    infinite[0, 0] = torch.inf
    found = decompose(torch.stack([good, bad, infinite, torch.zeros(6, 6), good]))
    assert found.status.tolist() == [
        Status.ok,
        Status.non_finite,
        Status.non_finite,
        Status.zero,
        Status.ok,
    ]
    curves = error_curves(found, torch.ones(5, 6, 2))
    assert curves.output is not None
    for name in ("frobenius", "spectral", "nuclear", "output", "output_bound"):
        curve = getattr(curves, name)
        assert bool(torch.isfinite(curve[[0, 4]]).all()), name
        assert bool(torch.isnan(curve[1:4]).all()), name
    torch.testing.assert_close(curves.frobenius[0], error_curves(decompose(good)).frobenius)


def test_f12_a_solver_that_fails_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.from_numpy(stochastic(9, 1, 2.0))
    expected = decompose(matrix)

    def fails(_: torch.Tensor) -> Any:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    found = decompose(matrix)
    assert int(found.status) == Status.fallback
    torch.testing.assert_close(found.singular_values, expected.singular_values)
    torch.testing.assert_close(found.truncate(3), expected.truncate(3))


def test_f29_ranks_beyond_the_matrix_are_exact_and_below_one_refused() -> None:
    matrix = torch.from_numpy(stochastic(4, 0, 2.0))
    found = decompose(matrix)
    torch.testing.assert_close(found.truncate(8), matrix)
    assert float(error_curves(found).frobenius[-1]) == 0.0
    for k in (0, torch.tensor(0)):
        with pytest.raises(UsageError, match="rank"):
            found.truncate(k)
    for wrong in (torch.zeros(3), torch.zeros(0, 3), torch.zeros(2, 2, dtype=torch.complex64)):
        with pytest.raises(UsageError):
            decompose(wrong)


def test_clipped_rows_are_distributions() -> None:
    matrix = torch.from_numpy(stochastic(12, 0, 3.0))
    low = decompose(matrix).truncate(4)
    assert float(low.min()) < -1e-3
    clipped = clip_and_renormalise(low)
    assert float(clipped.min()) == 0.0
    torch.testing.assert_close(clipped.sum(dim=-1), torch.ones(12, dtype=torch.float64))
    assert int(torch.linalg.matrix_rank(clipped)) > 4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_curves() -> None:
    batch = torch.stack([torch.from_numpy(stochastic(64, seed, 3.0)) for seed in range(4)])
    value = torch.randn(4, 64, 8, generator=torch.Generator().manual_seed(0)).double()
    here = error_curves(decompose(batch), value)
    there = error_curves(decompose(batch.cuda()), value.cuda())
    for name in ("frobenius", "spectral", "nuclear", "output", "output_bound"):
        torch.testing.assert_close(
            getattr(there, name).cpu(), getattr(here, name), atol=1e-9, rtol=0
        )
