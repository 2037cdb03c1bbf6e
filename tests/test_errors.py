"""The vocabulary of errors: closed forms, and what is undefined."""

from __future__ import annotations

import math

import pytest
import torch

from matrices import stochastic
from rankscope.errors import MATRIX_MEASURES, OUTPUT_MEASURES, matrix_errors, output_errors

EYE = torch.eye(4, dtype=torch.float64)
UNIFORM = torch.full((4, 4), 0.25, dtype=torch.float64)


def test_identity_against_uniform() -> None:
    found = {name: float(one) for name, one in matrix_errors(EYE, UNIFORM).items()}
    assert found.keys() == MATRIX_MEASURES.keys()
    # ‖I − U‖_F² = n − 1, ‖I‖_F² = n; I − U is a projector; one entry of a row keeps a quarter
    assert found["frobenius"] == pytest.approx(math.sqrt(3 / 4))
    assert found["spectral"] == pytest.approx(1.0)
    assert found["total_variation"] == pytest.approx(0.75)
    assert found["kl"] == pytest.approx(math.log(4))
    assert found["row_sum"] == pytest.approx(1.0)
    assert found["row_sum_drift"] == pytest.approx(0.0)
    assert found["negative_mass"] == 0.0


def test_lost_weight_costs_infinitely_many_nats() -> None:
    assert math.isinf(float(matrix_errors(UNIFORM, EYE)["kl"]))
    assert float(matrix_errors(UNIFORM, EYE)["total_variation"]) == pytest.approx(0.75)


def test_exact_is_zero_everywhere() -> None:
    matrix = torch.from_numpy(stochastic(6, 0, 2.0))
    found = matrix_errors(matrix, matrix)
    for name in ("frobenius", "spectral", "total_variation", "kl", "row_sum_drift"):
        assert float(found[name]) == 0.0, name
    output = output_errors(matrix, matrix)
    assert float(output["output"]) == 0.0
    assert float(output["cosine"]) == pytest.approx(1.0)


def test_rows_that_are_no_distributions_have_no_divergence() -> None:
    negative = UNIFORM.clone()
    negative[0, 0], negative[0, 1] = -0.25, 0.75
    found = matrix_errors(UNIFORM, negative)
    assert math.isnan(float(found["kl"]))
    assert math.isnan(float(found["total_variation"]))
    assert float(found["negative_mass"]) == pytest.approx(0.25 / 4)
    halved = matrix_errors(UNIFORM, UNIFORM / 2)
    assert math.isnan(float(halved["kl"]))
    assert float(halved["row_sum"]) == pytest.approx(0.5)
    assert float(halved["row_sum_drift"]) == pytest.approx(0.5)
    assert float(halved["frobenius"]) == pytest.approx(0.5)


def test_spectral_is_the_largest_singular_value_of_the_difference() -> None:
    exact = torch.from_numpy(stochastic(8, 0, 2.0))
    other = torch.from_numpy(stochastic(8, 1, 2.0))
    expected = torch.linalg.svdvals(exact - other)[0] / torch.linalg.svdvals(exact)[0]
    assert float(matrix_errors(exact, other)["spectral"]) == pytest.approx(float(expected))
    assert math.isnan(float(matrix_errors(exact, other, spectral=False)["spectral"]))


def test_output_rows_and_their_cosine() -> None:
    exact = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    turned = torch.tensor([[0.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    found = output_errors(exact, turned)
    assert found.keys() == OUTPUT_MEASURES.keys()
    # the row of zeros has no direction; the others have cosines 0 and 1
    assert float(found["cosine"]) == pytest.approx(0.5)
    assert float(found["output"]) == pytest.approx(math.sqrt((1 + 1 + 1 + 25) / 5))
    assert float(output_errors(exact, 0 * exact)["cosine"]) == 0.0
    assert math.isnan(float(output_errors(0 * exact, exact)["output"]))


def test_batches_keep_their_shape_and_bad_matrices_to_themselves() -> None:
    exact = EYE.expand(2, 3, 4, 4).clone()
    other = UNIFORM.expand(2, 3, 4, 4).clone()
    other[1, 2, 0, 0] = torch.nan
    found = matrix_errors(exact, other)
    for name, one in found.items():
        assert one.shape == (2, 3), name
        assert one.dtype == torch.float64
    assert math.isnan(float(found["frobenius"][1, 2]))
    assert bool(torch.isfinite(found["frobenius"].flatten()[:5]).all())
    assert output_errors(exact[..., :2], other[..., :2])["cosine"].shape == (2, 3)
