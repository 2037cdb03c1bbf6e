"""What a run measures, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankscope.approximations.draws import check_seed
from rankscope.attention import check_special
from rankscope.exceptions import UsageError
from rankscope.labels import group_size
from rankscope.linalg import check_driver

CONTROLS = ("rows", "gaussian", "tokens", "padded-L", "mean-M")
"""Null models that a run can measure in place of the model's own attention."""


@dataclass(frozen=True)
class Sampling:
    """Which windows of a corpus, and which of a model's attention; stored with every result.

    Attributes
    ----------
    length : int
        Tokens of a window, special tokens included.
    windows : int or None
        How many; all that the corpus holds when None.
    skip : int
        Windows left out at the start, so that two runs on one corpus share none.
    mode : {"packed", "document", "overlap"}
    overlap : int
        Tokens that neighbouring windows share, in the mode of that name.
    special : {"keep", "drop", "renormalise"}
        Treatment of special tokens.
    group : {"encoder", "decoder", "cross"} or None
        Which attention of a model that has several; None means its first.
    layers : tuple of int or None
    """

    length: int = 512
    windows: int | None = 8
    skip: int = 0
    mode: str = "packed"
    overlap: int = 0
    special: str = "keep"
    group: str | None = None
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_special(self.special)
        if self.skip < 0:
            raise UsageError(f"{self.skip} windows cannot be skipped", "use 0 or more")


@dataclass(frozen=True)
class Recipe(Sampling):
    """How spectra are measured.

    P is taken after the softmax, its singular values (not eigenvalues) uncentred, one decomposition
    for every window, layer and head; curves are averaged afterwards, never the matrices (which is
    what the control ``mean-M`` does).

    Attributes
    ----------
    driver : {"gram", "svd"}
    centred : bool
        Also the spectrum of P less its mean row.
    precision : float or None
        Windows are added until the 95 % interval of the mean cumulative ratio at a quarter of the
        window, and that of every layer's mean, is narrower than this; `windows` is then the most.
    control : str or None
        A null model (:mod:`rankscope.controls`) in the place of what the model does: ``rows`` (the
        rows of P each shuffled), ``gaussian`` (softmax of Gaussian logits with the rows' entropy),
        ``tokens`` (the tokens of the window shuffled), ``padded-L`` (its first L tokens, padded to
        n, padding not cut off), ``mean-M`` (the mean P of every M windows that follow each other,
        which are one sample). Random weights are a model of their own, ``random:NAME``.
    control_seed : int
        Of what a control draws.
    """

    driver: str = "gram"
    centred: bool = False
    precision: float | None = None
    control: str | None = None
    control_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_driver(self.driver)
        if self.precision is not None and not 0.0 < self.precision < 1.0:
            raise UsageError(
                f"a precision of {self.precision} is no width of an interval of ratios",
                "use a number between 0 and 1, such as 0.005",
            )
        check_seed("the controls", self.control_seed)
        padded, mean = self.padded, self.mean
        known = self.control in (None, "rows", "gaussian", "tokens")
        if padded is None and mean is None and not known:
            raise UsageError(f"unknown control {self.control!r}", f"one of {', '.join(CONTROLS)}")
        if mean == 1:
            raise UsageError("the mean of a single matrix is the matrix", "use mean-2 or more")
        if mean is not None and self.windows is not None and self.windows < mean:
            raise UsageError(
                f"{self.windows} windows make no group of {mean}",
                f"ask for {mean} windows at least, or for means of fewer",
            )
        if padded is not None and not 1 <= padded < self.length:
            raise UsageError(
                f"{padded} tokens cannot be padded to {self.length}",
                "pad fewer, at least 1",
            )
        if padded is not None and self.special != "keep":
            raise UsageError("padding is a control with all special tokens", "use special=keep")

    @property
    def padded(self) -> int | None:
        """L of the control ``padded-L``; None for any other."""
        found = re.fullmatch(r"padded-(\d+)", self.control or "")
        return int(found[1]) if found else None

    @property
    def mean(self) -> int | None:
        """M of the control ``mean-M``; None for any other."""
        return group_size(self.control or "")
