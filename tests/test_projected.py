"""P·RᵀR: the closed form of its error, its draws, and dropped tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attentions import attention
from conformance import Conformance, N
from rankscope.approximations import method
from rankscope.approximations.linformer import Linformer
from rankscope.approximations.projected import Projected
from rankscope.errors import output_errors
from rankscope.exceptions import MethodError


class TestProjected(Conformance):
    methods = (
        "projected:k=6",
        "projected:k=24",
        "projected:k=6,sharing=headwise",
        "projected:k=6,sharing=layerwise",
    )

    def test_accuracy_and_that_the_test_can_fail(self) -> None:  # type: ignore[override]
        """None is claimed: a subspace drawn at random is worse than no attention at all."""
        given = self.easy()

        def error(name: str) -> float:
            return float(output_errors(given.output, method(name).apply(given))["output"].mean())

        assert error("projected:k=6") > error("uniform")
        assert error("projected:k=6") > 1 > error("truncated:k=6")


def projected_errors(k: int) -> tuple[float, float, float, float]:
    """Mean squared relative errors of matrix and output over 400 draws, and their expectations."""
    given = attention(48, heads=40, batch=1, d_v=5)
    exact, output = given.weights, given.output
    matrix_error = output_error = 0.0
    for seed in range(10):
        made = Projected(k=k, seed=seed)
        norms = exact.square().sum(dim=(-2, -1))
        matrix_error += float(((made.matrix(given) - exact).square().sum((-2, -1)) / norms).mean())
        found = output_errors(output, made.apply(given))["output"]
        output_error += float(found.square().mean())
    both = exact.square().sum((-2, -1)) * given.values.square().sum((-2, -1))
    expected = (1 + both / output.square().sum((-2, -1))).mean() / k
    return matrix_error / 10, 49 / k, output_error / 10, float(expected)


def test_error_of_theorem_1_follows_the_closed_form() -> None:
    """E‖P(RᵀR − I)‖² = ‖P‖²(m + 1)/k, and E‖P(RᵀR − I)V‖² = (‖P‖²‖V‖² + ‖PV‖²)/k.

    With S = RᵀR a Wishart matrix of k degrees and scale I/k, E S = I and E S² = (k + 1 + m)/k · I.
    """
    for k in (6, 12, 24, 48):
        matrix, expected, output, expected_output = projected_errors(k)
        assert matrix == pytest.approx(expected, rel=0.05)
        assert output == pytest.approx(expected_output, rel=0.05)
        # that is √(m/k), far from what another variance of the entries would give
        assert matrix**0.5 == pytest.approx((48 / k) ** 0.5, rel=0.05)


def test_every_head_has_a_draw_of_its_own() -> None:
    same = attention(heads=1)
    given = replace(
        same,
        query=same.query.expand(-1, 3, -1, -1),
        key=same.key.expand(-1, 3, -1, -1),
        value=same.values.expand(-1, 3, -1, -1),
    )
    for sharing, alike in (("none", False), ("headwise", True), ("key-value", True)):
        output = Projected(k=4, sharing=sharing).apply(given)  # type: ignore[arg-type]
        assert torch.equal(output[:, 0], output[:, 1]) == alike
        later = Projected(k=4, sharing=sharing).apply(replace(given, layer=1))  # type: ignore[arg-type]
        assert not torch.equal(output, later)


def test_theorem_1_works_on_what_is_left_of_dropped_tokens() -> None:
    keep = torch.ones(N, dtype=torch.bool)
    keep[[0, N - 1]] = False
    given = replace(attention(), keep_rows=keep, keep_columns=keep, special="drop")
    assert Projected(k=4).apply(given).shape == (2, 3, N - 2, 8)
    with pytest.raises(MethodError, match="special"):
        Linformer(k=4).apply(given)
    again = replace(given, special="renormalise")
    inner = replace(
        attention(),
        query=attention().query[:, :, 1:-1],
        key=attention().key[:, :, 1:-1],
        value=attention().values[:, :, 1:-1],
    )
    torch.testing.assert_close(
        Linformer(k=4).apply(again), Linformer(k=4).apply(inner), rtol=0, atol=0
    )
