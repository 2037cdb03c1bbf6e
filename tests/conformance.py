"""What every approximation must do; each family's test class inherits all of it.

A subclass names its `methods` and, where the family can reach full attention, `full` ones with
their tolerance; what the family cannot do is said by the reasons it gives, and tested too.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from attentions import attention
from rankscope.approximations import METHODS, Approximation, method
from rankscope.attention import Attention
from rankscope.errors import output_errors
from rankscope.exceptions import MethodError, UsageError

N = 24


class Conformance:
    """Inherited by the tests of every family.

    Attributes
    ----------
    methods : tuple of str
        Methods as ``--method`` writes them, that work on encoder attention of n = 24, d = 8.
    exact : tuple of str
        Those that must equal full attention there, within `exact_tolerance`.
    accurate : dict of str to float
        Method → relative output error, averaged over heads, that it must stay below on
        `self.easy()`; the uniform and the mean-row matrix must both be above it.
    other_lengths : tuple of int
        Lengths that are no multiple of any block.
    """

    methods: ClassVar[tuple[str, ...]]
    exact: ClassVar[tuple[str, ...]] = ()
    exact_tolerance: ClassVar[float] = 1e-6
    accurate: ClassVar[dict[str, float]] = {}
    other_lengths: ClassVar[tuple[int, ...]] = (1, 2, 7, 23, 37)

    def easy(self) -> Attention:
        """Attention that a method of this family is good at."""
        return attention(N)

    @pytest.fixture
    def made(self, text: str) -> Approximation:
        return method(text)

    def test_apply_is_the_matrix_times_the_values(self, made: Approximation) -> None:
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            given = attention(N, d_v=5, dtype=dtype)
            output = made.apply(given)
            assert output.dtype == dtype
            assert output.shape == (2, 3, N, 5)
            if made.linear:
                product = made.matrix(given) @ given.values
                torch.testing.assert_close(output, product, rtol=tolerance, atol=tolerance)
            else:
                with pytest.raises(MethodError):
                    made.matrix(given)

    def test_half_precision_is_computed_in_float32(self, made: Approximation) -> None:
        half = attention(N, dtype=torch.float16)
        full = replace(
            half, query=half.query.float(), key=half.key.float(), value=half.values.float()
        )
        assert made.apply(half).dtype == torch.float32
        torch.testing.assert_close(made.apply(half), made.apply(full), rtol=1e-5, atol=1e-5)

    def test_full_budget_is_full_attention(self, made: Approximation, text: str) -> None:
        error = float(output_errors(attention(N).output, made.apply(attention(N)))["output"].max())
        if text in self.exact:
            assert error <= self.exact_tolerance
        else:
            # a method that always passed would show nothing
            assert error > 1e-3

    def test_the_same_call_gives_the_same_result(self, made: Approximation, text: str) -> None:
        torch.manual_seed(1)
        first = made.apply(attention(N))
        torch.manual_seed(2)
        torch.testing.assert_close(made.apply(attention(N)), first, rtol=0, atol=0)
        torch.testing.assert_close(method(text).apply(attention(N)), first, rtol=0, atol=0)

    def test_torch_s_random_state_is_left_alone(self, made: Approximation) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        made.apply(attention(N))
        assert torch.equal(torch.get_rng_state(), before)

    def test_another_seed_gives_another_result(self, seeded: str) -> None:
        made = method(seeded)
        other = replace(made, seed=made.settings()["seed"] + 1)  # type: ignore[call-arg]
        assert not torch.equal(other.apply(attention(N)), made.apply(attention(N)))

    def test_batch_is_the_same_as_one_by_one(self, made: Approximation) -> None:
        whole = attention(N)
        output = made.apply(whole)
        for row in range(2):
            one = replace(
                whole,
                query=whole.query[row : row + 1],
                key=whole.key[row : row + 1],
                value=whole.values[row : row + 1],
                tokens=whole.tokens[row : row + 1],
                samples=(row,),
            )
            torch.testing.assert_close(made.apply(one)[0], output[row], rtol=1e-9, atol=1e-9)

    def test_any_length(self, made: Approximation) -> None:
        for n in self.other_lengths:
            given = attention(n)
            try:
                output = made.apply(given)
            except MethodError as refusal:
                words = str(refusal)
                assert str(n) in words or str(N) in words
                continue
            assert output.shape == given.output.shape
            assert bool(torch.isfinite(output).all())
            if made.linear:
                product = made.matrix(given) @ given.values
                torch.testing.assert_close(output, product, rtol=1e-9, atol=1e-9)

    def test_causal_attention_keeps_the_future_out_or_is_refused(
        self, made: Approximation, text: str
    ) -> None:
        """FIELD F29: what looks ahead must never pass for causal."""
        given = attention(N, causal=True)
        try:
            output = made.apply(given)
        except MethodError as refusal:
            assert "causal" in str(refusal)  # noqa: PT017 refusing is one way
            assert not made.causal
            return
        place = N // 2
        key, value = given.key.clone(), given.values.clone()
        key[:, :, place:] = torch.randn(key[:, :, place:].shape, dtype=key.dtype)
        value[:, :, place:] += 1.0
        after = made.apply(replace(given, key=key, value=value))
        unchanged = torch.allclose(after[:, :, :place], output[:, :, :place], rtol=0, atol=1e-9)
        # at full budget a method that mixes all tokens is causal by accident
        assert unchanged == made.causal or text in self.exact

    def test_text_round_trip(self, made: Approximation, text: str) -> None:
        assert METHODS[made.name] is type(made)
        assert method(str(made)) == made
        assert method(text) == made
        assert hash(made) == hash(method(text))
        assert json.loads(json.dumps(made.settings()))["method"] == made.name

    def test_budget_is_a_parameter(self, made: Approximation) -> None:
        if made.budget is None:
            with pytest.raises(UsageError):
                made.at_budget(8)
            return
        assert made.at_budget(8).settings()[made.budget] == 8
        with pytest.raises(UsageError):
            made.at_budget(0)

    def test_cost_is_counted(self, made: Approximation) -> None:
        small, large = made.cost(64, 64, 8, 8), made.cost(4096, 4096, 8, 8)
        assert 0 < small.multiply_adds <= large.multiply_adds
        assert 0 < small.bytes <= large.bytes

    def test_accuracy_and_that_the_test_can_fail(self, claimed: str) -> None:
        given = self.easy()
        bound = self.accurate[claimed]

        def error(name: str) -> float:
            return float(output_errors(given.output, method(name).apply(given))["output"].mean())

        assert error(claimed) < bound
        assert error("uniform") > bound
        assert error("mean-row") > bound

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_a_gpu_gives_the_same(self, made: Approximation) -> None:
        given = attention(N)
        there = replace(
            given,
            query=given.query.cuda(),
            key=given.key.cuda(),
            value=given.values.cuda(),
            tokens=given.tokens.cuda(),
        )
        output = made.apply(there)
        assert output.is_cuda
        torch.testing.assert_close(output.cpu(), made.apply(given), rtol=1e-8, atol=1e-8)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for the methods of its class that it is about; imported by conftest."""
    suite = metafunc.cls
    if suite is None or not issubclass(suite, Conformance):
        return
    seeded = [
        text
        for text in suite.methods
        if "seed" in method(text).settings() and text not in suite.exact
    ]
    for fixture, texts in (
        ("text", suite.methods),
        ("seeded", seeded),
        ("claimed", tuple(suite.accurate)),
    ):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, texts)
