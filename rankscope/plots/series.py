"""What pictures of several methods share: names, looks, axes over k, error axes, legends below.

Private to :mod:`rankscope.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankscope.exceptions import UsageError
from rankscope.plots.heads import check_floor, power_of_ten
from rankscope.plots.parts import wrapped
from rankscope.plots.style import COLOURS, CONTROL_GREYS, DASHES, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SERIES = 12
"""Most methods that can be told apart in one panel."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FULL = "full attention"

Floats = npt.NDArray[np.float64]

_SIGN = 0.068
_LINE = 0.165
_HANDLE = 0.55


def looks(labels: Sequence[str], first: str = "truncated") -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each method; the first look is kept for P_low, drawn or not.

    Raises
    ------
    UsageError
        Above 12 methods.
    """
    if len(labels) > MAX_SERIES:
        raise UsageError(
            f"{len(labels)} methods in one panel cannot be told apart",
            f"draw at most {MAX_SERIES}, the others in another figure",
        )
    lines = ("-", *DASHES)
    ordered = sorted(labels, key=lambda label: label != first)
    taken = 0 if first in ordered else 1
    return {
        label: {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": lines[place % len(lines)],
            "markersize": 4.0,
            "linewidth": 1.3,
        }
        for place, label in enumerate(ordered, taken)
    }


def level_looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Grey lines of methods without a rank."""
    return {
        label: {
            "color": CONTROL_GREYS[place % len(CONTROL_GREYS)],
            "linestyle": DASHES[(place + 2) % len(DASHES)],
            "linewidth": 1.1,
        }
        for place, label in enumerate(labels)
    }


def finite(values: npt.ArrayLike) -> Floats:
    """Infinity as missing, since no axis has a place for it."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def rank_axis(ax: Axes, ks: npt.ArrayLike) -> None:
    """k on a scale of doublings, from the least to the largest drawn, named at powers of two."""
    there = np.asarray(ks, dtype=np.float64)
    low, high = float(there.min()), float(there.max())
    ax.set_xscale("log", base=2)
    room = 2.0 ** max(0.04 * math.log2(high / low), 0.12)
    ax.set_xlim(low / room, high * room)
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    ticks = [2**power for power in range(first, last + 1)]
    # a span without a power of two is named at its ends
    ticks = ticks if ticks else sorted({int(low), int(high)})
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()


def error_axis(axes: Sequence[Axes], values: Iterable[npt.ArrayLike], floor: float) -> bool:
    """One log scale for all panels, over all that is drawn; True if something lies below the floor.

    Raises
    ------
    UsageError
        If there is nothing to draw.
    """
    check_floor(floor)
    flat = np.concatenate([np.ravel(np.asarray(one, dtype=np.float64)) for one in values])
    flat = flat[np.isfinite(flat)]
    if flat.size == 0:
        raise UsageError("nothing to draw: every value is missing", "run more windows")
    clipped = bool((flat < floor).any())
    low = floor * 0.85 if clipped else float(flat.min()) * 0.85
    high = max(float(flat.max()), floor) * 1.2
    for ax in axes:
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        ax.set_yticks(*_log_ticks(low, high))
        ax.minorticks_off()
    return clipped


def _log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    decades = math.log10(high / low)
    digits: tuple[int, ...] = (1,) if decades > 3 else (1, 2, 5)
    if decades < 0.6:
        digits = tuple(range(1, 10))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return ticks, [power_of_ten(tick) if decades > 3 else f"{tick:.6g}" for tick in ticks]


def floored(values: npt.ArrayLike, floor: float) -> Floats:
    """What is drawn: not below the floor; what is missing stays missing."""
    return np.asarray(np.maximum(finite(values), floor))


def with_floor(name: str, floor: float, clipped: bool) -> str:
    """Name of an axis, with its floor where something was drawn at it."""
    return f"{name} (floor {power_of_ten(floor)})" if clipped else name


def figure_with_legend(
    width: float, height: float, labels: Sequence[str], notes: Sequence[str] = ()
) -> tuple[Figure, dict[str, Any]]:
    """A figure `height` inches high plus its legend, and the options of that legend.

    The legend stands below everything, in as many columns as its labels leave room for.
    """
    signs = int((width - 0.3 - _HANDLE) / _SIGN)
    texts = [wrapped(label, signs) for label in labels]
    longest = max((len(line) for text in texts for line in text.split("\n")), default=1)
    columns = max(1, min(len(labels), int((width - 0.2) / (longest * _SIGN + _HANDLE + 0.15))))
    rows = math.ceil(len(labels) / columns)
    # no column that is nearly empty
    columns = math.ceil(len(labels) / rows)
    title = "\n".join(wrapped(note, int((width - 0.2) / _SIGN)) for note in notes if note)
    lines = sum(sorted((text.count("\n") + 1 for text in texts), reverse=True)[:rows])
    lines += title.count("\n") + bool(title)
    options = {
        "labels": texts,
        "loc": "outside lower center",
        "ncols": columns,
        "title": title or None,
        "alignment": "left",
        "frameon": False,
        "handlelength": 3.4,
        "columnspacing": 1.2,
        "labelspacing": 0.3,
        "borderpad": 0.1,
    }
    return new_figure(width, height + lines * _LINE + 0.1), options
