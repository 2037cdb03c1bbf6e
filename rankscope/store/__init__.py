"""The store that a run writes as its windows come, and goes on from when it was stopped.

While a run computes, a Zarr folder beside its target takes the windows, one or a block at a time;
a run that was stopped goes on from there, and `RunStore.finish` turns the folder into the target.
`locked` keeps a second process away meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from rankscope.atomic import describe_size, reading, remove, write_whole, writing
from rankscope.callbacks import Progress
from rankscope.exceptions import StoreError
from rankscope.status import State
from rankscope.store.chunks import put_windows
from rankscope.store.containers import (
    create_zarr,
    missing_chunks,
    open_zarr_arrays,
    read_container,
    replace_attrs,
    to_a_pause,
)
from rankscope.store.faults import damaged_windows, mend_states, read_states
from rankscope.store.fields import filler, padded, stacked, whole_blocks
from rankscope.store.files import file_format
from rankscope.store.finishing import MEND, copy, move
from rankscope.store.layout import Layout, describe
from rankscope.store.locking import locked
from rankscope.store.schema import RunSchema, canonical_json, differences, settings_hash

__all__ = ["RunSchema", "RunStore", "canonical_json", "locked", "settings_hash", "working_path"]

# windows a chunk of the states: one small file says of many windows what became of them
_STATES = 4096


class RunStore:
    """The windows of a run that are done, in a Zarr folder.

    A chunk of each variable holds `block` windows, and is written whole; the windows' states come
    last, so that a window counts as done only when all of it is there. Memory does not grow with
    the number of windows. Make one with `create` or `open`; only one process may write at a time,
    see `locked`.

    Attributes
    ----------
    path : Path
        The folder.
    layout : Layout
        Description of the dataset.
    block : int
        Windows a chunk.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self._arrays = open_zarr_arrays(path)
        self.block: int = self._arrays["status"].chunks[2]

    @property
    def n_samples(self) -> int:
        """Number of windows of the run."""
        return self.layout.dims["sample"]

    @classmethod
    def create(cls, path: str | os.PathLike[str], schema: RunSchema) -> RunStore:
        """Make a store without windows.

        Parameters
        ----------
        path : path
            New folder; `working_path` gives the usual one.
        schema : RunSchema
            What the run will write.

        Returns
        -------
        RunStore
            The store.

        Raises
        ------
        StoreError
            If the path exists or cannot be written.
        """
        path = Path(path)
        if os.path.lexists(path):
            raise StoreError(
                f"{path} exists ({describe_size(path)})", "resume that run, or delete the folder"
            )
        layout = schema.layout()

        def chunks(name: str) -> tuple[int, ...]:
            one = layout.variables[name]
            # a block's states share a file, so that they appear in one step
            step = _STATES // schema.block * schema.block if name == "state" else schema.block
            sizes = zip(one.dims, layout.shape(name), strict=True)
            return tuple(step if dim == "sample" and not one.coord else size for dim, size in sizes)

        def write(folder: Path) -> None:
            arrays = create_zarr(layout, folder, chunks, lambda name: filler(layout, name))
            for name, (_, values) in schema.coords().items():
                arrays[name][:] = values.astype(object) if values.dtype.kind == "U" else values

        with writing(path):
            write_whole(path, lambda folder: to_a_pause(lambda _: write(folder)))
        return cls(path, layout)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        settings_hash: str,
        recipe: Mapping[str, Any] | None = None,
        told: Callable[[str], None] | None = None,
    ) -> RunStore:
        """Open the store of a run that was stopped.

        Parameters
        ----------
        path : path
            Its folder.
        settings_hash : str
            `settings_hash` of the run that wants to go on.
        recipe : mapping, optional
            The settings themselves, to say which of them differ.
        told : callable, optional
            Damaged states are had from the windows themselves, and this is called with a line that
            says so; `verify` must follow. Without it they are an error.

        Returns
        -------
        RunStore
            The store.

        Raises
        ------
        StoreError
            If the store belongs to other settings, is damaged, or is not there.
        """
        path = Path(path)
        if not path.is_dir():
            raise StoreError(f"there is no run store {path}", "start the run without resuming")
        with reading(path), read_container(path, "zarr") as dataset:
            layout = describe(dataset)
        stored = layout.attrs.get("settings_hash")
        if "status" not in layout.variables or stored is None:
            raise StoreError(f"{path} is no run store", "choose another output")
        if "state" not in layout.variables:
            raise StoreError(
                f"{path} is an unfinished run of an earlier version of rankscope, which kept no "
                "state of the windows",
                "finish it with that version, or delete the folder and start again",
            )
        if stored != settings_hash:
            known = json.loads(layout.attrs.get("recipe_json", "null"))
            changed = differences(known, recipe) if known and recipe else []
            raise StoreError(
                f"{path} belongs to a run with other settings: "
                + ("; ".join(changed) or f"hash {stored:.12} there and {settings_hash:.12} here"),
                "use the same settings, another output, or delete the folder",
            )
        with reading(path):
            store = cls(path, layout)
            if told is not None:
                mend_states(path, store._arrays, told)
            store.done()
        return store

    def write(self, sample: int, fields: Mapping[str, Any]) -> None:
        """Write one window; writing it again replaces it.

        Parameters
        ----------
        sample : int
            Number of the window, from 0.
        fields : mapping of str to array
            All variables of the run, each without its dimensions model, corpus and sample: in a run
            of spectra curves (layer, head, index), numbers (layer, head), ``n_tokens`` a number.
            The window's ``state`` follows from its ``status``.

        Raises
        ------
        StoreError
            As `write_block`.
        """
        self.write_block(sample, [fields])

    def write_block(self, start: int, fields: Sequence[Mapping[str, Any]]) -> None:
        """Write consecutive windows in one go; writing them again replaces them.

        It is fastest for the windows of a whole chunk, from a multiple of `block` on.

        Parameters
        ----------
        start : int
            Number of the first window.
        fields : sequence of mappings of str to array
            As in `write`, one mapping a window.

        Raises
        ------
        StoreError
            If a field is missing, unknown, of another shape, or loses something in its type, and
            then nothing is written; if the disk is full, and then these windows are not done.
        """
        ready = stacked(self.layout, start, fields)
        stop = start + len(fields)
        first, states = self._states(start, stop)
        here = slice(start - first, stop - first)
        lower, upper = whole_blocks(start, stop, self.block, states, first)
        try:
            with writing(self.path):
                # a window that is being replaced is not done until it is whole again
                if (states[here] != State.absent).any():
                    states[here] = State.absent
                    self._put("state", first, states[None, None])
                for name in self._own:
                    whole = padded(self.layout, name, ready[name], start - lower, upper - stop)
                    self._put(name, lower, whole)
                states[here] = ready["state"][0, 0]
                self._put("state", first, states[None, None])
        # a chunk that other windows share was read before it was written
        except (RuntimeError, ValueError) as error:
            raise StoreError(f"the run store {self.path} is damaged: {error}", MEND) from error

    def done(self) -> np.ndarray:
        """Which windows are complete, whatever their result.

        Returns
        -------
        (n_samples,) bool
            True where the state is not ``absent``; nothing else is read.

        Raises
        ------
        StoreError
            If a file of the states is damaged.
        """
        return np.asarray(self._states(0, self.n_samples)[1] != State.absent)

    def verify(self, progress: Progress | None = None) -> list[int]:
        """Read every chunk of the windows that are done, and name those that are not whole.

        Parameters
        ----------
        progress : callable, optional
            Called with windows checked and windows to check.

        Returns
        -------
        list of int
            Windows with a chunk that is missing, cut, or does not fit its checksum, ascending.
            Windows that share a chunk are damaged together.

        Raises
        ------
        StoreError
            If the states are damaged, or the system does not let a chunk be read.
        """
        done = self.done()
        own = {name: self._arrays[name] for name in self._own}
        try:
            return damaged_windows(self.path, own, self.block, done, progress)
        except OSError as error:
            raise StoreError(
                f"cannot read {self.path}: {error.strerror or error}",
                "make its files readable and start the same command again",
            ) from error

    def forget(self, samples: Iterable[int]) -> None:
        """Mark windows as not computed, so that they are computed anew.

        Parameters
        ----------
        samples : iterable of int
            Numbers of windows, such as `verify` gives them.
        """
        wanted = np.unique(np.fromiter(samples, np.int64))
        if wanted.size and not 0 <= wanted[0] <= wanted[-1] < self.n_samples:
            raise StoreError(f"the run has no sample {wanted[-1]}", f"0 to {self.n_samples - 1}")
        while wanted.size:
            first, states = self._states(int(wanted[0]), int(wanted[0]) + 1)
            inside = wanted < first + len(states)
            states[wanted[inside] - first] = State.absent
            with writing(self.path):
                self._put("state", first, states[None, None])
            wanted = wanted[~inside]

    def record(self, attrs: Mapping[str, Any]) -> None:
        """Add attributes to the run, or change some, in one step.

        Parameters
        ----------
        attrs : mapping
            What only the computing tells, such as devices.
        """
        layout = replace(self.layout, attrs={**self.layout.attrs, **attrs})
        with writing(self.path):
            replace_attrs(self.path, layout)
        self.layout = layout

    def dataset(self) -> xr.Dataset:
        """The run as it stands, lazy; windows that are not done have the state absent."""
        with reading(self.path):
            return read_container(self.path, "zarr")

    def finish(
        self,
        target: str | os.PathLike[str],
        format: str | None = None,
        *,
        overwrite: bool = False,
        samples: int | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Path:
        """Make the final file of a complete run, and remove the store.

        Parameters
        ----------
        target : path
            ``.nc``, ``.zarr``, ``.csv`` or ``.parquet``. Zarr takes over the folder itself when all
            windows are wanted; everything else is copied piece by piece.
        format : str, optional
            Overrides the suffix.
        overwrite : bool
            Whether an existing target may be replaced.
        samples : int, optional
            Take only the first that many windows, of a run that stopped at its precision; only
            these need be done. All by default.
        attrs : mapping, optional
            Attributes of the target beyond those of the run.

        Returns
        -------
        Path
            The target.

        Raises
        ------
        StoreError
            If windows are missing, the store is damaged, or the target cannot be written; the
            store stays in all these cases, and the same call can finish it later.
        """
        target = Path(target)
        count = self.n_samples if samples is None else samples
        if not 1 <= count <= self.n_samples:
            raise StoreError(f"the run has no first {count} samples", f"1 to {self.n_samples}")
        left = int((~self.done()[:count]).sum())
        if left:
            raise StoreError(f"{left} of {count} samples are not computed yet", "resume the run")
        with reading(self.path):
            lacking = missing_chunks(self.path, count)
        if lacking:
            raise StoreError(
                f"the run store {self.path} has lost parts of {', '.join(lacking)}", MEND
            )
        more = dict(attrs or {})
        by_move = count == self.n_samples and file_format(target, format) == "zarr"
        if by_move and move(self.path, self.layout, target, overwrite=overwrite, attrs=more):
            return target
        with self.dataset() as dataset:
            part = dataset.isel(sample=slice(0, count)).assign_attrs(more)
            copy(self.path, part, target, format=format, overwrite=overwrite)
        try:
            self.remove()
        except OSError as error:
            raise StoreError(
                f"{target} is complete, but {self.path} cannot be removed: {error.strerror}",
                "delete that folder",
            ) from error
        return target

    def remove(self) -> None:
        """Delete the folder."""
        remove(self.path)

    @property
    def _own(self) -> list[str]:
        """Variables that a run gives for each window."""
        variables = self.layout.variables.items()
        return [name for name, one in variables if not one.coord and name != "state"]

    def _states(self, start: int, stop: int) -> tuple[int, np.ndarray]:
        """States of all windows in the files of these, and the first window."""
        array = self._arrays["state"]
        step = array.chunks[2]
        first, last = start // step * step, min(-(-stop // step) * step, self.n_samples)
        return first, read_states(self.path, array, first, last)

    def _put(self, name: str, first: int, values: np.ndarray) -> None:
        put_windows(self.path, self._arrays[name], first, values, filler(self.layout, name) or 0)


def working_path(target: str | os.PathLike[str]) -> Path:
    """Folder in which a run with this target keeps its windows until it is finished.

    Examples
    --------
    >>> working_path("run.nc").name
    'run.nc.partial'
    """
    target = Path(target)
    return target.with_name(f"{target.name}.partial")
