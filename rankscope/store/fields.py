"""What a run gives for its windows, checked before any of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.exceptions import StoreError
from rankscope.status import State, Status, state_of
from rankscope.store.layout import Layout


def stacked(
    layout: Layout, start: int, fields: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Fields of consecutive windows as arrays of the run's dimensions, with their states.

    Parameters
    ----------
    layout : Layout
        Of the run.
    start : int
        Number of the first window.
    fields : sequence of mappings of str to array
        One mapping a window: all variables of the run but ``state``, each without its dimensions
        model, corpus and sample.

    Returns
    -------
    dict of str to array
        Shape (1, 1, windows, …), of the run's types; ``state`` among them.

    Raises
    ------
    StoreError
        If the run has no such windows; if a field is missing, unknown, of another shape, or loses
        something in its type; if a matrix has no status or one that does not exist.
    """
    n_samples, stop = layout.dims["sample"], start + len(fields)
    if not 0 <= start < stop <= n_samples:
        what = f"sample {start}" if len(fields) == 1 else f"samples {start} to {stop - 1}"
        raise StoreError(f"the run has no {what}", f"0 to {n_samples - 1}")
    own = [name for name, one in layout.variables.items() if not one.coord and name != "state"]
    ready = {
        name: np.empty((1, 1, len(fields), *layout.shape(name)[3:]), layout.variables[name].dtype)
        for name in own
    }
    ready["state"] = np.empty((1, 1, len(fields)), np.int8)
    for place, one in enumerate(fields):
        sample = start + place
        if {*one} != {*own}:
            missing, unknown = sorted({*own} - {*one}), sorted({*one} - {*own})
            raise StoreError(
                f"sample {sample} lacks the fields {missing} and has {unknown} too many",
                "write exactly the variables of the run",
            )
        for name in own:
            ready[name][0, 0, place] = _checked(layout, name, one[name])
        ready["state"][0, 0, place] = _state(sample, ready["status"][0, 0, place])
    return ready


def whole_blocks(
    start: int, stop: int, block: int, states: NDArray[np.int8], offset: int
) -> tuple[int, int]:
    """Widen a range of windows to whole chunks where nobody else's results are in them.

    A chunk that is written whole is not read before: what a crash left of it does no harm.

    Parameters
    ----------
    start, stop : int
        The windows that are written.
    block : int
        Windows a chunk.
    states : (windows,) int8
        States of the windows from ``offset`` on.
    offset : int
        The first of them, at the border of a chunk.

    Returns
    -------
    tuple of int
        First window and end of the wider range.

    Examples
    --------
    >>> nobody = np.full(10, -1, np.int8)
    >>> whole_blocks(5, 6, 4, nobody, 0)
    (4, 8)
    >>> somebody = np.array([-1, -1, -1, -1, 0, -1, -1, -1, -1, -1], np.int8)
    >>> whole_blocks(5, 6, 4, somebody, 0)
    (5, 6)
    """
    first = start // block * block
    last = min(-(-stop // block) * block, offset + len(states))
    absent = states == State.absent
    before, after = absent[first - offset : start - offset], absent[stop - offset : last - offset]
    # a range within one chunk is widened on both sides or on none
    if stop - first <= block and not (before.all() and after.all()):
        return start, stop
    return (first if before.all() else start), (last if after.all() else stop)


def filler(layout: Layout, name: str) -> Any:
    """What stands where nothing is written yet; None for 0, false or the empty text."""
    special = {"status": int(Status.absent), "state": int(State.absent)}
    return special.get(name, np.nan if layout.variables[name].dtype == "float64" else None)


def padded(layout: Layout, name: str, values: np.ndarray, before: int, after: int) -> np.ndarray:
    """Values of some windows, with windows that are not computed around them."""
    if not before and not after:
        return values
    around = [(0, 0), (0, 0), (before, after), *[(0, 0)] * (values.ndim - 3)]
    return np.pad(values, around, constant_values=filler(layout, name) or 0)


def _state(sample: int, status: np.ndarray) -> State:
    try:
        state = state_of(status)
    except ValueError as error:
        raise StoreError(
            f"sample {sample} has a status that does not exist: {error}",
            f"0 to {max(Status)}",
        ) from error
    if state is State.absent:
        raise StoreError(f"sample {sample} has matrices with the status absent", "compute them")
    return state


def _checked(layout: Layout, name: str, values: Any) -> np.ndarray:
    one, shape = layout.variables[name], layout.shape(name)
    array = np.asarray(values)
    if array.shape != shape[3:]:
        raise StoreError(
            f"{name} has the shape {array.shape}, not {shape[3:]}",
            f"give it the dimensions {one.dims[3:]}",
        )
    if array.dtype == np.dtype(one.dtype):
        return array
    is_float = array.dtype.kind == "f"
    with np.errstate(all="ignore"):
        cast = array.astype(one.dtype) if array.dtype.kind in "biuf" else None
        back = None if cast is None else cast.astype(array.dtype)
    if cast is None or back is None or not np.array_equal(back, array, equal_nan=is_float):
        raise StoreError(
            f"{name} is {array.dtype} and loses something as {one.dtype}",
            f"give it as {one.dtype}",
        )
    return cast
