"""What a crash, a full disk or a hand may have done to the folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankscope.atomic import writing
from rankscope.callbacks import Progress
from rankscope.exceptions import StoreError
from rankscope.status import State, Status, state_of
from rankscope.store.chunks import check_chunk, chunk_file, count_chunks, put_windows

if TYPE_CHECKING:
    import zarr


def read_states(path: Path, array: zarr.Array[Any], start: int, stop: int) -> NDArray[np.int8]:
    """States of consecutive windows.

    Parameters
    ----------
    path : Path
        Folder of the run.
    array : zarr.Array
        Its variable ``state``.
    start, stop : int
        The windows; both at the border of a chunk, or at the end.

    Returns
    -------
    (stop - start,) int8
        Codes of :class:`rankscope.status.State`.

    Raises
    ------
    StoreError
        If a chunk is cut or damaged; it is named, and left as it is.
    """
    step = array.chunks[2]
    parts = []
    for first in range(start, stop, step):
        last = min(first + step, stop)
        try:
            parts.append(np.asarray(array[0, 0, first:last], np.int8))
        # the codecs raise whatever they like over damaged bytes
        except Exception as error:
            file = chunk_file(path, array, (0, 0, first // step))
            raise StoreError(
                f"{file} is damaged, which says which of the windows {first} to {last - 1} are "
                f"done: {error}",
                "delete this file and start the same command again: these windows are computed "
                "anew, all others stay",
            ) from error
    return np.concatenate(parts) if parts else np.empty(0, np.int8)


def mend_states(
    path: Path, arrays: Mapping[str, zarr.Array[Any]], told: Callable[[str], None]
) -> None:
    """States that are lost or damaged, as the windows themselves tell them.

    A window whose other variables are not whole is among them; :func:`damaged_windows` finds it.

    Parameters
    ----------
    path : Path
        Folder of the run.
    arrays : mapping of str to zarr.Array
        Its variables, ``state`` and ``status`` among them.
    told : callable
        Called with a line for every chunk of states that was written anew.
    """
    state, status = arrays["state"], arrays["status"]
    step, n_samples = state.chunks[2], state.shape[2]
    for start in range(0, n_samples, step):
        stop = min(start + step, n_samples)
        with suppress(StoreError):
            if (read_states(path, state, start, stop) != State.absent).any():
                continue
            # nothing, or no more than the block that a kill has cut off
            if count_chunks(path, status, start, stop) < 2:
                continue
        found = _states_of_windows(path, status, start, stop)
        with writing(path):
            put_windows(path, state, start, found[None, None], int(State.absent))
        told(
            f"{path}: which windows are done was lost; {int((found != State.absent).sum())} of the "
            f"windows {start} to {stop - 1} are there"
        )


def _states_of_windows(
    path: Path, status: zarr.Array[Any], start: int, stop: int
) -> NDArray[np.int8]:
    found = np.full(stop - start, State.absent, np.int8)
    block = status.chunks[2]
    for first in range(start, stop, block):
        if not _is_whole(path, status, first, block):
            continue
        last = min(first + block, stop)
        for sample, codes in enumerate(np.asarray(status[0, 0, first:last]), first):
            if not (codes == Status.absent).any():
                found[sample - start] = state_of(codes)
    return found


def damaged_windows(
    path: Path,
    arrays: Mapping[str, zarr.Array[Any]],
    block: int,
    done: NDArray[np.bool_],
    progress: Progress | None = None,
) -> list[int]:
    """Windows that count as done, and of which some chunk is missing or cannot be read.

    Every chunk is read, and with it its checksum checked.

    Parameters
    ----------
    path : Path
        Folder of the run.
    arrays : mapping of str to zarr.Array
        Its variables but ``state``, each with ``block`` windows a chunk.
    block : int
        Windows a chunk.
    done : (n_samples,) bool
        Which windows count as done.
    progress : callable, optional
        Called with windows checked and windows to check.

    Returns
    -------
    list of int
        Ascending.

    Raises
    ------
    OSError
        If a file is there and the system does not let it be read: that is no damage.
    """
    total, checked = int(done.sum()), 0
    found: list[int] = []
    for first in range(0, len(done), block):
        here = np.flatnonzero(done[first : first + block]) + first
        if not here.size:
            continue
        if not all(_is_whole(path, one, first, block) for one in arrays.values()):
            found.extend(here.tolist())
        checked += here.size
        if progress is not None:
            progress(checked, total)
    return found


def _is_whole(path: Path, array: zarr.Array[Any], first: int, block: int) -> bool:
    place = (0, 0, first // block, *(0 for _ in array.shape[3:]))
    file = chunk_file(path, array, place)
    # zarr reads a chunk that is not there as fill values
    if not file.is_file():
        return False
    try:
        check_chunk(file, array)
    except OSError:
        raise
    # the codecs raise whatever they like over damaged bytes
    except Exception:
        return False
    return True
