"""Singular values against closed forms and LAPACK, and one bad matrix among good ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from matrices import closed_forms, stochastic, with_spectrum
from rankscope import linalg, rank
from rankscope.exceptions import UsageError
from rankscope.linalg import Spectrum, Workers, decompose_batched, singular_values, solvers
from rankscope.status import Status
from tolerances import ATOL, GRAM_RATIO

ATOL64 = ATOL["float64"]
DRIVERS = ("gram", "svd")


def reference(matrices: Any) -> np.ndarray:
    return np.linalg.svd(np.asarray(matrices, dtype=np.float64), compute_uv=False)


def batched(matrices: torch.Tensor, **options: Any) -> Spectrum:
    """The road of a GPU, run on the CPU."""
    count, n, m = matrices.shape
    values = np.full((count, min(n, m)), np.nan)
    status = np.full(count, Status.empty, dtype=np.int8)
    decompose_batched(matrices.__getitem__, values, status, **options)
    return Spectrum(values, status)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 64, 65])
def test_closed_forms(driver: Any, n: int) -> None:
    for name, (matrix, expected) in closed_forms(n).items():
        found = singular_values(matrix, driver=driver)
        np.testing.assert_allclose(
            found.singular_values, expected, atol=1e-9 if driver == "gram" else ATOL64, err_msg=name
        )
        assert found.status in (Status.ok, Status.refined)


def test_f12_uniform_512_is_of_rank_one() -> None:
    for dtype in (torch.float32, torch.float64):
        found = singular_values(torch.full((512, 512), 1 / 512, dtype=dtype)).singular_values
        assert found[0] == pytest.approx(1, abs=ATOL64)
        assert rank.cumulative_ratio(found)[0] == pytest.approx(1, abs=1e-9)
        assert rank.numerical_rank(found) == 1


def test_f32_long_tail_of_a_float64_matrix_is_exact_by_default() -> None:
    expected = np.logspace(0, -9, 64)
    found = singular_values(with_spectrum(expected, seed=0))
    assert found.status == Status.refined
    np.testing.assert_allclose(found.singular_values, expected, rtol=1e-6)


def test_f32_value_of_the_seeded_softmax() -> None:
    logits = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    found = singular_values(torch.softmax(logits.double(), dim=-1)).singular_values
    assert found[15] == pytest.approx(0.209892, abs=1e-6)
    assert rank.cumulative_ratio(found)[15] == pytest.approx(0.533496, abs=1e-6)


def test_f07_singular_values_not_eigenvalues_and_spectra_not_means() -> None:
    found = singular_values([[1, 0], [0.5, 0.5]]).singular_values
    np.testing.assert_allclose(found, [1.144123, 0.437016], atol=1e-6)
    pair = singular_values([[[1.0, 0], [0, 1]], [[0, 1.0], [1, 0]]]).singular_values
    assert rank.cumulative_ratio(pair)[:, 0].mean() == pytest.approx(0.5)
    np.testing.assert_allclose(
        singular_values(np.full((8, 8), 1 / 8), centred=True).singular_values, 0, atol=1e-12
    )


def test_centred_removes_the_mean_row() -> None:
    matrix = stochastic(40, seed=1)
    for driver in DRIVERS:
        found = singular_values(matrix, driver=driver, centred=True).singular_values
        np.testing.assert_allclose(found, reference(matrix - matrix.mean(axis=0)), atol=1e-8)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (1, 5), (5, 1)])
def test_rectangular(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(3).random(shape)
    for driver in DRIVERS:
        found = singular_values(matrix, driver=driver).singular_values
        np.testing.assert_allclose(found, reference(matrix), atol=1e-9)


def test_empty_matrices_are_named_so() -> None:
    found = singular_values(np.empty((2, 0, 0)))
    assert found.singular_values.shape == (2, 0)
    assert (found.status == Status.empty).all()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_f11_one_bad_matrix_never_spoils_its_neighbours(driver: Any, bad: float) -> None:
    batch = np.stack([np.eye(4)] * 3)
    batch[1, 2, 1] = bad
    for found in (
        singular_values(batch, driver=driver),
        batched(torch.from_numpy(batch), driver=driver),
    ):
        np.testing.assert_allclose(found.singular_values[[0, 2]], 1, atol=ATOL64)
        assert np.isnan(found.singular_values[1]).all()
        assert found.status.tolist() == [Status.ok, Status.non_finite, Status.ok]


def test_f11_nothing_non_finite_reaches_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a solver was called")

    for name in ("_gesdd", "_gesvd", "_reduce"):
        monkeypatch.setattr(solvers, name, never)
    assert singular_values([[np.nan, 0], [0, 1]]).status == Status.non_finite
    zero = singular_values(np.zeros((3, 3)))
    assert zero.status == Status.zero
    assert (zero.singular_values == 0).all()


def test_f12_a_failing_first_solver_is_caught_matrix_by_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = torch.from_numpy(np.stack([stochastic(12, seed) for seed in range(5)]))
    expected = reference(batch)
    real = solvers._gesdd

    def fails_on_the_fourth(matrix: torch.Tensor) -> np.ndarray:
        if torch.equal(matrix, batch[3]):
            raise torch.linalg.LinAlgError("did not converge")
        return real(matrix)

    monkeypatch.setattr(solvers, "_gesdd", fails_on_the_fourth)
    found = singular_values(batch, driver="svd")
    np.testing.assert_allclose(found.singular_values, expected, atol=ATOL64)
    assert found.status.tolist() == [0, 0, 0, Status.fallback, 0]


def test_f12_only_when_every_solver_fails_is_a_matrix_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: torch.Tensor) -> np.ndarray:
        raise np.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(solvers, "_gesdd", fails)
    monkeypatch.setattr(solvers, "_gesvd", fails)
    found = singular_values(np.eye(3), driver="svd")
    assert found.status == Status.failed
    assert np.isnan(found.singular_values).all()


def test_gram_that_does_not_converge_goes_to_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_converges(_d: Any, _e: Any, converged: np.ndarray) -> None:
        converged[:] = False

    monkeypatch.setattr(solvers.kernels, "ql_eigenvalues", never_converges)
    found = singular_values(np.diag([4.0, 3.0]))
    np.testing.assert_allclose(found.singular_values, [4, 3], atol=ATOL64)
    assert found.status == Status.fallback


@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    sharpness=st.floats(0.0, 30.0),
    single=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_gram_agrees_with_lapack(n: int, seed: int, sharpness: float, single: bool) -> None:
    matrix = stochastic(n, seed, sharpness)
    given_matrix = matrix.astype(np.float32) if single else matrix
    found = singular_values(given_matrix)
    expected = reference(given_matrix)
    difference = rank.cumulative_ratio(found.singular_values) - rank.cumulative_ratio(expected)
    assert np.abs(difference).max() <= GRAM_RATIO
    assert np.abs(found.singular_values - expected).max() <= 1e-7 * expected[0]


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_order_of_tokens_does_not_matter(seed: int) -> None:
    matrix = stochastic(17, seed, 3.0)
    rng = np.random.default_rng(seed)
    shuffled = matrix[rng.permutation(17)][:, rng.permutation(17)]
    np.testing.assert_allclose(
        singular_values(matrix).singular_values,
        singular_values(shuffled).singular_values,
        atol=1e-9,
    )


@given(seed=st.integers(0, 1000), sharpness=st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_bounds_of_a_stochastic_matrix(seed: int, sharpness: float) -> None:
    n = 20
    matrix = stochastic(n, seed, sharpness)
    first = singular_values(matrix).singular_values[0]
    lower = max(1.0, np.sqrt(n) * np.linalg.norm(matrix.mean(axis=0)))
    upper = np.sqrt(matrix.sum(axis=0).max())
    assert lower - 1e-9 <= first <= upper + 1e-9 <= np.sqrt(n) + 1e-8


def test_accuracy_check_rejects_uniform_and_rank_one() -> None:
    """The comparison used above is seen to fail for the matrices that hide errors."""
    matrix = stochastic(40, 0, 3.0)
    expected = rank.cumulative_ratio(reference(matrix))
    for wrong in (np.full((40, 40), 1 / 40), np.tile(matrix.mean(axis=0), (40, 1))):
        found = rank.cumulative_ratio(singular_values(wrong).singular_values)
        assert np.abs(found - expected).max() > 0.1


@pytest.mark.parametrize("driver", DRIVERS)
def test_batch_equals_loop_and_workers_do_not_matter(driver: Any) -> None:
    batch = torch.from_numpy(np.stack([stochastic(33, seed) for seed in range(21)]))
    whole = singular_values(batch.reshape(3, 7, 33, 33), driver=driver)
    assert whole.singular_values.shape == (3, 7, 33)
    assert whole.status.shape == (3, 7)
    single = np.stack([singular_values(one, driver=driver).singular_values for one in batch])
    np.testing.assert_array_equal(whole.singular_values.reshape(21, 33), single)
    shared = singular_values(batch, driver=driver, workers=3)
    np.testing.assert_array_equal(shared.singular_values, single)


@pytest.mark.parametrize("scale", [1e-180, 1e180, 3e307])
def test_squares_stay_in_range(scale: float) -> None:
    found = singular_values(np.diag([4.0, 3.0]) * scale).singular_values
    np.testing.assert_allclose(found / scale, [4, 3], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_f04_every_real_type_is_raised_to_float64(dtype: torch.dtype) -> None:
    matrix = torch.tensor([[1, 0], [0, 1]]).to(dtype)
    assert singular_values(matrix).singular_values.tolist() == [1.0, 1.0]


def test_f25_spectra_never_compute_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("vectors were computed")

    for name in ("svd", "eigh", "eig"):
        monkeypatch.setattr(torch.linalg, name, never)
    for driver in DRIVERS:
        assert singular_values(np.diag([2.0, 1.0]), driver=driver).singular_values[0] == 2


def test_workers_use_one_blas_thread_and_give_the_rest_back() -> None:
    before = torch.get_num_threads()
    seen: set[int] = set()
    names: set[str] = set()

    def load(i: int) -> torch.Tensor:
        names.add(threading.current_thread().name)
        seen.update(pool["num_threads"] for pool in threadpool_info())
        seen.add(torch.get_num_threads())
        return torch.eye(40, dtype=torch.float64) * (i + 1)

    with Workers(2) as workers:
        found = workers.decompose(load, 20, (40, 40))
    assert seen == {1}
    assert threading.current_thread().name not in names
    assert torch.get_num_threads() == before
    np.testing.assert_allclose(found.singular_values[:, 0], np.arange(1, 21))


def test_an_error_of_one_worker_is_raised() -> None:
    def load(i: int) -> torch.Tensor:
        raise RuntimeError(f"matrix {i} cannot be had")

    with Workers(2) as workers, pytest.raises(RuntimeError, match="cannot be had"):
        workers.decompose(load, 4, (4, 4))


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (lambda: singular_values([1.0, 2.0]), "shape"),
        (lambda: singular_values(np.eye(2) * 1j), "real matrices"),
        (lambda: singular_values(np.eye(2), driver="qr"), "unknown driver"),  # type: ignore[arg-type]
        (lambda: singular_values(np.eye(2), workers=0), "0 workers"),
    ],
)
def test_wrong_arguments_are_named(call: Any, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        call()


def test_read_only_and_byte_swapped_arrays() -> None:
    frozen = np.eye(3)
    frozen.flags.writeable = False
    assert (singular_values(frozen).singular_values == 1).all()
    assert (singular_values(np.eye(3).astype(">f8")).singular_values == 1).all()


def test_warm_up_compiles() -> None:
    linalg.warm_up()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_f25_cuda_agrees_with_the_cpu() -> None:
    batch = torch.from_numpy(np.stack([stochastic(128, seed) for seed in range(80)])).float()
    for driver in DRIVERS:
        there = singular_values(batch.cuda(), driver=driver)
        here = singular_values(batch, driver=driver)
        np.testing.assert_allclose(
            there.singular_values, here.singular_values, atol=1e-5 * here.singular_values.max()
        )
        np.testing.assert_array_equal(there.status, here.status)


def test_results_do_not_depend_on_the_cache_of_compiled_kernels(tmp_path: Path) -> None:
    code = (
        "import torch; from rankscope.linalg import singular_values\n"
        "logits = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))\n"
        "print(singular_values(torch.softmax(logits, 1)).singular_values.tobytes().hex())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    cold, warm = (
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    )
    assert cold == warm
    assert len(cold) > 100
