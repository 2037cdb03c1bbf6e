"""Full attention and the bounds of the low-rank family."""

from __future__ import annotations

import gc
from typing import ClassVar

import pytest
import torch

from attentions import attention
from conformance import Conformance
from rankscope.approximations import method, truncated


class TestTruncated(Conformance):
    methods = (
        "full",
        "uniform",
        "mean-row",
        "truncated:k=4",
        "truncated:k=24",
        "truncated:k=600",
        "truncated:k=6,rows=clipped",
        "best-output:k=3",
        "best-output:k=8",
    )
    exact = ("full", "truncated:k=24", "truncated:k=600", "best-output:k=8")
    accurate: ClassVar = {"truncated:k=12": 0.3}


def test_one_decomposition_serves_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = truncated.decompose
    monkeypatch.setattr(truncated, "decompose", lambda given: calls.append(1) or real(given))
    given = attention(12)
    for k in (1, 3, 12):
        one = method(f"truncated:k={k}")
        torch.testing.assert_close(one.matrix(given) @ given.values, one.apply(given))
    assert len(calls) == given.n_heads
    # what is kept goes with the attention
    before = len(truncated._known)
    del given
    gc.collect()
    assert len(truncated._known) == before - 1
