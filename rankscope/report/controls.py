"""Controls beside what was measured: whose heads are theirs, and the difference of the two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import control_of, group_size
from rankscope.summary.differences import Difference, difference
from rankscope.summary.units import batch_length
from rankscope.summary.windows import place_named

if TYPE_CHECKING:
    from rankscope.report.collect import Pair


def has_same_heads(name: str, control: str, model: str) -> bool:
    """Whether head h of a control is head h of the model, so that the two can be subtracted.

    Parameters
    ----------
    name : str
        Name of the control, such as ``rows``.
    control : str
        Name of the model of its run, such as ``rows:minilm``.
    model : str
        Name of the model that was measured.

    Examples
    --------
    >>> has_same_heads("rows", "rows:minilm", "minilm"), has_same_heads("rows", "m", "m")
    (True, True)
    >>> has_same_heads("random", "random:m", "m"), has_same_heads("other", "other", "m")
    (False, False)
    """
    kind, bare = control_of(control)
    if not kind:
        kind, bare = name, control
    return kind != "random" and bare == model


def gap_of(pair: Pair, control: Pair) -> dict[str, Any]:
    """What was measured less the control over all heads, as the page shows it.

    Returns
    -------
    dict
        "place" (k in words), "measured", "control", "mean", "low", "high" and "units" (in words);
        None for what is not known. Where there is no difference, only "why".
    """
    if pair.run is not None and control.run is not None:
        try:
            found = difference(pair.run, control.run)
        except (StoreError, UsageError) as error:
            return {"why": error.cause}
        return _of_runs(found, int(control.summary["n_windows"].item()))
    if "difference" in control.summary.attrs:
        return _of_summaries(pair.summary, control.summary)
    return {"why": "means over windows are known, and no window of which both could be read"}


def _of_runs(found: Difference, windows: int) -> dict[str, Any]:
    one, several = f"1 {found.unit}", f"{found.units} {found.unit}s"
    if group_size(found.control) is not None:
        one, several = "1 group", f"{found.units} groups"
    elif found.unit == "window" and batch_length(windows) > 1:
        several = f"{found.units} batches of windows"
    low, high = found.interval
    return {
        "place": found.place,
        "measured": _number(found.measured),
        "control": _number(found.control_mean),
        "mean": _number(found.mean),
        "low": _number(low),
        "high": _number(high),
        "units": one if found.units == 1 else several,
    }


def _of_summaries(measured: xr.Dataset, control: xr.Dataset) -> dict[str, Any]:
    """What the control's summary carries, as :meth:`Difference.attrs` has put it there."""
    attrs = control.attrs
    index = int(attrs["difference_index"])
    means = [_mean(summary, index) for summary in (measured, control)]
    ends = (_number(attrs[f"difference{end}"]) for end in ("", "_low", "_high"))
    return {
        **dict(zip(("measured", "control"), means, strict=True)),
        **dict(zip(("mean", "low", "high"), ends, strict=True)),
        "place": place_named(index),
        "units": "",
    }


def _mean(summary: xr.Dataset, index: int) -> float | None:
    if index == 0:
        return _number(summary["quarter_mean"].item()) if "quarter_mean" in summary else None
    if index not in summary["index"]:
        return None
    return _number(summary["mean_ratio_curve"].sel(index=index).item())


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
