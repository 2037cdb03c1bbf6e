"""Numbers with intervals, and the rules by which they become verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.summary.averages import Measure

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Verdict(StrEnum):
    """What is said of a claim; nothing else is."""

    supported = "supported"
    not_supported = "not supported"
    depends = "depends"
    mathematics = "settled by mathematics"


@dataclass(frozen=True)
class Estimate:
    """A mean over units with its 95 % interval.

    Attributes
    ----------
    value, low, high : float
        The ends are NaN with one unit.
    units : int
    unit : str
        What the units are, such as "texts".
    """

    value: float
    low: float
    high: float
    units: int
    unit: str

    def __str__(self) -> str:
        """Value and interval, to the digit that the interval's width makes worth writing."""
        if math.isnan(self.value):
            return "–"
        digits = 3
        width = self.high - self.low
        # below 1e-9 it is rounding: all units agree
        if math.isfinite(width) and 1e-9 < width < 0.002:
            digits = min(6, max(4, math.ceil(-math.log10(width))))
        value, low, high = (_written(x, digits) for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]" if math.isfinite(width) else f"{value} [no interval]"


def percent(share: float) -> str:
    """A share in whole percent.

    Examples
    --------
    >>> percent(0.257)
    '26 %'
    """
    return f"{100 * share:.0f} %"


def _written(number: float, digits: int) -> str:
    """With a minus sign that is no hyphen, and none before a zero."""
    text = f"{number:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


Cells = dict[str, "str | Estimate"]
"""What the table of a section shows beside the number, by column."""


@dataclass(frozen=True)
class Rule:
    """Where an interval must lie for a claim, and where it must lie against it.

    Attributes
    ----------
    within : (float, float)
        Supported if the whole interval lies strictly between.
    against : (float, float), optional
        Not supported if the whole interval lies at or below the first, or at or above the second;
        `within` itself when not given.
    digits : int
        Of the limits, in words.
    """

    within: tuple[float, float]
    against: tuple[float, float] | None = None
    digits: int = 2

    @property
    def outside(self) -> tuple[float, float]:
        """Limits beyond which the claim is not supported."""
        return self.within if self.against is None else self.against

    def judge(self, found: Estimate, between: str) -> tuple[Verdict, str]:
        """Verdict on a number, and on what it depends.

        Parameters
        ----------
        found : Estimate
        between : str
            On what a claim depends whose interval lies between the limits for and against.

        Returns
        -------
        Verdict, str
            The second is empty unless the verdict is "depends".
        """
        if math.isinf(found.value):
            return Verdict.depends, "on what has an infinite error"
        if not math.isfinite(found.low) or not math.isfinite(found.high):
            return Verdict.depends, "on more windows: one gives no interval"
        (a, b), (c, d) = self.within, self.outside
        if a < found.low and found.high < b:
            return Verdict.supported, ""
        if found.high <= c or found.low >= d:
            return Verdict.not_supported, ""
        if (c < found.low and found.high <= a) or (b <= found.low and found.high < d):
            return Verdict.depends, between
        held = [x for x in dict.fromkeys((a, b, c, d)) if found.low <= x <= found.high]
        limits = " and ".join(_written(x, self.digits) for x in held)
        return Verdict.depends, f"on more windows: the interval holds the limit {limits}"

    def __str__(self) -> str:
        (a, b), (c, d) = self.within, self.outside
        return (
            f"supported if the 95 % interval lies {self._range(a, b)}; not supported if it lies "
            f"wholly {self._beyond(c, d)}; otherwise it depends"
        )

    def _range(self, low: float, high: float) -> str:
        if math.isinf(high):
            return f"above {_written(low, self.digits)}"
        if math.isinf(low):
            return f"below {_written(high, self.digits)}"
        return f"between {_written(low, self.digits)} and {_written(high, self.digits)}"

    def _beyond(self, low: float, high: float) -> str:
        parts = [f"at or below {_written(low, self.digits)}"] * math.isfinite(low)
        parts += [f"at or above {_written(high, self.digits)}"] * math.isfinite(high)
        return " or ".join(parts)


@dataclass(frozen=True)
class Finding:
    """A claim on one model and text, or by mathematics.

    Attributes
    ----------
    number : Estimate or str
    verdict : Verdict
    on : str
        On what it depends, or what mathematics says.
    cells : dict of str to str or Estimate
        What else the section's table shows, by column.
    """

    number: Estimate | str
    verdict: Verdict
    on: str = ""
    cells: Cells = field(default_factory=dict)

    @property
    def units(self) -> str:
        """Units of the number's interval, such as "8 windows"."""
        if isinstance(self.number, str):
            return ""
        count, unit = self.number.units, self.number.unit
        return f"{count} {unit.removesuffix('s') if count == 1 else unit}"

    def said(self) -> str:
        """The verdict in words."""
        return f"{self.verdict} ({self.on})" if self.on else str(self.verdict)


def together(
    parts: Sequence[tuple[Verdict, str]], otherwise: str, against: Verdict = Verdict.not_supported
) -> tuple[Verdict, str]:
    """One verdict out of several: that of all if they agree, else "depends".

    What is for a claim and what is against it make it depend on `otherwise`; where one is not
    decided, it depends on what that one does.

    Parameters
    ----------
    parts : sequence of (Verdict, str)
    otherwise : str
        On what it depends where they say the contrary of each other.
    against : Verdict
        What all of them must say for the claim not to be supported.
    """
    verdicts = {one for one, _ in parts}
    if verdicts == {Verdict.supported}:
        return Verdict.supported, ""
    if verdicts == {against}:
        return Verdict.not_supported, ""
    if {Verdict.supported, against} <= verdicts or Verdict.depends not in verdicts:
        return Verdict.depends, otherwise
    return Verdict.depends, next(on for verdict, on in parts if verdict == Verdict.depends)


def of_the_model(judged: tuple[Verdict, str]) -> tuple[Verdict, str]:
    """A verdict beside that on the number, with words that say so."""
    verdict, on = judged
    return verdict, f"{on}, in the model" if on else ""


def estimate(values: npt.ArrayLike, texts: npt.ArrayLike) -> Estimate:
    """Mean over texts of a number a window, with its 95 % interval.

    As in :func:`rankscope.summary.summarise`: windows of a text are averaged first; where there is
    a single text its windows are the units, from 64 on in batches. Heads have equal weight.

    Parameters
    ----------
    values : (window,) or (window, layer, head) array
        NaN is left out.
    texts : (window,) array of int
        The text of each window.

    Returns
    -------
    Estimate

    Examples
    --------
    >>> print(estimate([1.0, 3.0, 5.0], [0, 0, 1]))
    3.500 [−15.559, 22.559]
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers.reshape(*numbers.shape, 1, 1) if numbers.ndim == 1 else numbers
    ids = np.asarray(texts)
    there = ~np.isnan(numbers).all(axis=(1, 2))
    if not there.any():
        return Estimate(math.nan, math.nan, math.nan, 0, "windows")
    single = len(np.unique(ids[there])) == 1
    found = _measured(numbers, ids).result("window" if single else "text")
    mean, low, high = (float(found[name]) for name in ("_mean", "_low", "_high"))
    count = int(found["_units"])
    whole = count == int(there.sum())
    unit = "texts" if not single else "windows" if whole else "batches of windows"
    return Estimate(mean, low, high, count, unit)


def head_means(values: npt.ArrayLike, texts: npt.ArrayLike) -> Floats:
    """Mean of every head: over the windows of each text first, then over texts, without NaN.

    Parameters
    ----------
    values : (window, layer, head, ...) array
    texts : (window,) array of int

    Returns
    -------
    (layer, head, ...) float64
        NaN for a head without a number.

    Examples
    --------
    >>> head_means(np.array([1.0, 3.0, 5.0]).reshape(3, 1, 1), [0, 0, 1]).tolist()
    [[3.5]]
    """
    numbers = np.asarray(values, dtype=np.float64)
    return np.asarray(_measured(numbers, np.asarray(texts)).result("text")[""])


def _measured(numbers: Floats, texts: npt.NDArray[Any]) -> Measure:
    """(window, layer, head, ...) as the summaries of the package take it in."""
    measure = Measure(numbers.shape[1:])
    for text in dict.fromkeys(texts.tolist()):
        for window in numbers[texts == text]:
            measure.add(window, ~np.isnan(window))
        measure.close_text()
    return measure


def halves(texts: npt.ArrayLike) -> tuple[Flags, Flags]:
    """Windows by which something is chosen, and those by which the choice is judged.

    A mean over the windows by which a head or a method was chosen is biased, and an interval
    from them, or from leaving out one window at a time, too narrow. The first half of the units
    (rounded down) chooses; number and interval come from the others alone. Units are texts, or
    windows where there is a single text.

    Parameters
    ----------
    texts : (window,) array of int

    Returns
    -------
    (window,), (window,) arrays of bool
        The first holds nothing where there is one unit.

    Examples
    --------
    >>> [half.tolist() for half in halves([7, 7, 8])]
    [[True, True, False], [False, False, True]]
    >>> [half.tolist() for half in halves([7, 7, 7])]
    [[True, False, False], [False, True, True]]
    """
    ids = np.asarray(texts)
    if len(np.unique(ids)) == 1:
        ids = np.arange(len(ids))
    units = list(dict.fromkeys(ids.tolist()))
    first = np.isin(ids, units[: len(units) // 2])
    return first, ~first


def paired(first: npt.ArrayLike, second: npt.ArrayLike, texts: npt.ArrayLike) -> Estimate:
    """First less second, window by window and head by head; arguments as for :func:`estimate`."""
    return estimate(np.asarray(first) - np.asarray(second), texts)


def slopes(x: npt.ArrayLike, y: Any) -> Floats:
    """Slope of the least squares line of every column of y over x.

    Parameters
    ----------
    x : (points,) array
    y : (points, columns) array

    Returns
    -------
    (columns,) float64

    Examples
    --------
    >>> slopes([0, 1, 2], np.array([[1.0], [3.0], [5.0]])).tolist()
    [2.0]
    """
    centred = np.asarray(x, dtype=np.float64) - np.mean(np.asarray(x, dtype=np.float64))
    return np.asarray(centred @ np.asarray(y, dtype=np.float64) / (centred @ centred))
