"""Full attention and the bounds of the low-rank family."""

from __future__ import annotations

from typing import ClassVar

from conformance import Conformance


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
