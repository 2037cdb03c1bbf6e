"""The road of a GPU when something is amiss: memory, solvers that fail, solvers that lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrices import stochastic, with_spectrum
from places import Made, batch_of, reference, solve
from rankscope.exceptions import MemoryLimit, SolverFault
from rankscope.linalg import solvers
from rankscope.linalg.batched import BatchedRoad
from rankscope.linalg.checks import SPOT_BOUND, SpotChecks, keeps_sums, resolved_by
from rankscope.linalg.devices import is_out_of_memory
from rankscope.linalg.solvers import is_resolved
from rankscope.status import Status


class Tight:
    """`load` that fits only so many matrices, as torch says it when memory runs out."""

    def __init__(self, batch: torch.Tensor, most: int) -> None:
        self.batch = batch
        self.most = most
        self.asked: list[int] = []

    def __call__(self, start: int, stop: int) -> torch.Tensor:
        self.asked.append(stop - start)
        if stop - start > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.batch[start:stop]


def test_out_of_memory_halves_the_chunk_and_is_remembered() -> None:
    batch = batch_of(11)
    place = Made()
    road = BatchedRoad(place)
    tight = Tight(batch, 2)
    found = road.decompose(tight, 11, (24, 24)).spectra[0]
    assert tight.asked == [11, 5, 2, 2, 2, 2, 2, 1]
    assert place.released == 2
    np.testing.assert_allclose(found.singular_values, reference(batch), atol=1e-9)
    again = Tight(batch, 2)
    road.decompose(again, 11, (24, 24))
    assert again.asked == [2, 2, 2, 2, 2, 1]
    # what is remembered is memory, so that smaller matrices come in larger chunks
    smaller = Tight(batch_of(11, n=12), 11)
    road.decompose(smaller, 11, (12, 12))
    assert smaller.asked[0] == 8


def test_out_of_memory_in_the_solver_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.linalg.eigvalsh

    def small(matrix: torch.Tensor) -> torch.Tensor:
        if len(matrix) > 3:
            raise RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling create")
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "eigvalsh", small)
    batch = batch_of(7)
    road = BatchedRoad(Made())
    found = solve(batch, road).spectra[0]
    assert road.chunks == [3, 3, 1]
    np.testing.assert_allclose(found.singular_values, reference(batch), atol=1e-9)


def test_not_even_one_matrix_fits() -> None:
    place = Made(3 * 2**20)
    with pytest.raises(MemoryLimit, match=r"one matrix of 24 × 24 .* 3 MiB are free"):
        BatchedRoad(place).decompose(Tight(batch_of(4), 0), 4, (24, 24))
    assert place.left == 1


def test_other_errors_are_no_lack_of_memory() -> None:
    def load(start: int, stop: int) -> torch.Tensor:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="do not fit"):
        BatchedRoad(Made()).decompose(load, 4, (24, 24))
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert not is_out_of_memory(RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED"))


def test_spot_check_is_made_and_catches_a_wrong_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(6)
    checks = SpotChecks(share=0.0)
    road = BatchedRoad(Made(), checks)
    solve(batch, road)
    assert checks.made == 1
    assert 0 < checks.largest < 1e-11
    solve(batch, road)
    assert checks.made == 1
    every = SpotChecks(share=1.0)
    solve(batch, BatchedRoad(Made(), every))
    assert every.made == 6
    real = torch.linalg.svdvals
    # a matrix that no longer is the one that was decomposed, by a little
    monkeypatch.setattr(
        torch.linalg, "svdvals", lambda m: real(m + 1e-5 * torch.eye(24, dtype=m.dtype))
    )
    with pytest.raises(SolverFault, match=r"differ by .* in a cumulative ratio"):
        solve(batch, BatchedRoad(Made(), SpotChecks(share=0.0)))


def test_a_spot_check_that_fails_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: torch.Tensor) -> torch.Tensor:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "svdvals", fails)
    with pytest.raises(SolverFault, match="differ by inf"):
        solve(batch_of(3))


def test_spot_checks_are_seeded_and_owed_until_one_was_made() -> None:
    first, again = ([SpotChecks(7).choose(5000), SpotChecks(8).choose(5000)] for _ in range(2))
    assert first == again
    assert first[0] != first[1]
    assert 8 <= len(first[0]) <= 35  # 19.5 expected
    checks = SpotChecks(share=0.0)
    assert len(checks.choose(3)) == 1
    checks.judge(np.array([np.nan, np.nan]))
    assert len(checks.choose(3)) == 1
    checks.judge(np.array([np.nan, SPOT_BOUND]))
    assert checks.choose(3) == frozenset()


def test_a_layer_of_bad_matrices_leaves_the_check_owed() -> None:
    checks = SpotChecks(share=0.0)
    road = BatchedRoad(Made(), checks)
    solve(torch.full((3, 4, 4), torch.nan), road)
    assert checks.made == 0
    solve(batch_of(2), road)
    assert checks.made == 1


def test_eigenvalues_of_another_matrix_are_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What known faults of batched solvers look like: a diagonal, or a neighbour's values."""
    real = torch.linalg.eigvalsh

    def wrong(matrix: torch.Tensor) -> torch.Tensor:
        found = real(matrix)
        found[1] = matrix[1].diagonal().sort().values
        found[3] = found[2]
        return found

    monkeypatch.setattr(torch.linalg, "eigvalsh", wrong)
    batch = batch_of(5)
    found = solve(batch).spectra[0]
    assert found.status.tolist() == [0, Status.fallback, 0, Status.fallback, 0]
    np.testing.assert_allclose(found.singular_values, reference(batch), atol=1e-9)


def test_a_call_that_does_not_converge_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: torch.Tensor) -> torch.Tensor:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigvalsh", fails)
    batch = batch_of(4)
    batch[2] = 0
    found = solve(batch).spectra[0]
    assert found.status.tolist() == [1, 1, Status.zero, 1]
    np.testing.assert_allclose(found.singular_values, reference(batch), atol=1e-12)
    monkeypatch.setattr(solvers, "_gesdd", fails)
    monkeypatch.setattr(solvers, "_gesvd", fails)
    assert solve(batch).spectra[0].status.tolist() == [6, 6, Status.zero, 6]


@given(
    n=st.integers(1, 30),
    seed=st.integers(0, 10_000),
    power=st.floats(0, 16),
    sharpness=st.floats(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_resolution_is_judged_as_on_the_cpu(
    n: int, seed: int, power: float, sharpness: float
) -> None:
    matrices = (
        with_spectrum(np.logspace(0, -power, n), seed),
        stochastic(n, seed, sharpness),
        np.full((n, n), 1 / n),
        np.zeros((n, n)),
    )
    gram = torch.from_numpy(np.stack([matrix.T @ matrix for matrix in matrices]))
    eigenvalues = torch.linalg.eigvalsh(gram).flip(-1)
    for eps in (2.0**-23, 2.0**-52):
        expected = [is_resolved(one.numpy(), eps) for one in eigenvalues]
        assert resolved_by(eigenvalues, eps).tolist() == expected
    assert bool(keeps_sums(eigenvalues, gram).all())


def test_sums_are_broken_by_what_they_should_see() -> None:
    gram = torch.stack([one.T @ one for one in batch_of(4)])
    right = torch.linalg.eigvalsh(gram).flip(-1)
    assert keeps_sums(right, gram).tolist() == [True] * 4
    wrong = right.clone()
    wrong[0, 3] *= 1 + 1e-8
    wrong[1] = torch.nan
    # the same trace and another norm
    wrong[2, 0] += 1e-6
    wrong[2, 1] -= 1e-6
    # the same norm and another trace
    wrong[3, -1] *= -1
    assert keeps_sums(wrong, gram).tolist() == [False] * 4
