"""Whole chunks of a run's Zarr folder, written at once.

Zarr hands every chunk through an event loop and two threads, which takes longer than the chunk of
a few short windows takes to be computed. What is written here is what Zarr would write, to the byte
(tests/test_short_texts.py holds the two against each other).
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import zarr

ZSTD_LEVEL = 1
"""Of all chunks; higher ones take longer and save little on numbers like these."""


@contextmanager
def among_strangers() -> Iterator[None]:
    """While it is open, Zarr does not warn of files that are none of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Object at .* is not recognized")
        yield


def chunk_file(path: Path, array: zarr.Array[Any], place: tuple[int, ...]) -> Path:
    """File of one chunk of an array in a Zarr folder; whether it is there is another matter."""
    return path / array.basename / array.metadata.encode_chunk_key(place)


def count_chunks(path: Path, array: zarr.Array[Any], start: int, stop: int) -> int:
    """Number of the chunks of consecutive windows whose files are there."""
    rest = tuple(0 for _ in array.shape[3:])
    numbers = range(start // array.chunks[2], -(-stop // array.chunks[2]))
    return sum(chunk_file(path, array, (0, 0, one, *rest)).is_file() for one in numbers)


def check_chunk(file: Path, array: zarr.Array[Any]) -> None:
    """Read one chunk and its checksum, without Zarr's detours, and give none of it back.

    Raises
    ------
    OSError
        If the file cannot be read.
    RuntimeError, ValueError
        If it is cut, spoilt, or of another size than the chunk.
    """
    from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

    found = len(Zstd(level=ZSTD_LEVEL, checksum=True).decode(file.read_bytes()))
    wanted = prod(array.chunks) * array.dtype.itemsize
    if found != wanted:
        raise ValueError(f"{file} holds {found} bytes instead of {wanted}")


def put_windows(
    path: Path, array: zarr.Array[Any], first: int, values: np.ndarray, fill: Any
) -> None:
    """Write a variable of consecutive windows: chunk by chunk where these are whole.

    Parameters
    ----------
    path : Path
        Folder of the run.
    array : zarr.Array
        Its dimensions start with model, corpus and sample, one model and one corpus.
    first : int
        The first window.
    values : (1, 1, windows, …) array
    fill : number
        What stands beyond the last window of the run.
    """
    step, n_samples = array.chunks[2], array.shape[2]
    count = values.shape[2]
    stop = first + count
    if first % step or (stop % step and stop != n_samples):
        # Zarr reads what else is in these chunks
        array[:, :, first:stop] = values
        return
    for start in range(0, count, step):
        place = (0, 0, (first + start) // step, *(0 for _ in array.shape[3:]))
        part = values[:, :, start : start + step]
        put_chunk(chunk_file(path, array, place), array, part, 2, fill)


def put_chunk(
    file: Path, array: zarr.Array[Any], values: np.ndarray, axis: int, fill: Any = 0
) -> None:
    """Write one chunk in one step: it is the old one or the new one, whole.

    Parameters
    ----------
    file : Path
        File of the chunk, in the folder of its array.
    array : zarr.Array
        Made by :func:`rankscope.store.containers.create_zarr`.
    values : array
        All of the chunk that lies within the array.
    axis : int
        Along which the last chunk may reach beyond the array.
    fill : number
        What stands there beyond the array.

    Raises
    ------
    OSError
        If it cannot be written; what was there stays.
    """
    from numcodecs.zstd import Zstd

    lacking = array.chunks[axis] - values.shape[axis]
    if lacking:
        around = [(0, lacking if place == axis else 0) for place in range(values.ndim)]
        values = np.pad(values, around, constant_values=fill)
    little = np.ascontiguousarray(values, dtype=array.dtype.newbyteorder("<"))
    packed = Zstd(level=ZSTD_LEVEL, checksum=True).encode(little)
    # the name that Zarr's own unfinished chunks have: whoever clears them away clears these
    unfinished = file.with_name(f"{file.name}.{secrets.token_hex(8)}.partial")
    try:
        unfinished.write_bytes(packed)
        os.replace(unfinished, file)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
