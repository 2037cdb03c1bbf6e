"""The store that a run writes window by window, and goes on from when it was stopped.

While a run computes, a Zarr folder beside its target takes each window as it comes;
a run that was stopped goes on from there, and `RunStore.finish` turns the folder into the target.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from rankscope.atomic import describe_size, install, reading, remove, write_whole, writing
from rankscope.exceptions import StoreError
from rankscope.status import Status
from rankscope.store.containers import (
    create_zarr,
    missing_chunks,
    open_zarr_arrays,
    read_container,
    to_a_pause,
)
from rankscope.store.files import check_target, export, file_format
from rankscope.store.layout import Layout, describe
from rankscope.store.schema import RunSchema, canonical_json, differences, settings_hash

__all__ = ["RunSchema", "RunStore", "canonical_json", "settings_hash", "working_path"]


class RunStore:
    """The windows of a run that are done, in a Zarr folder.

    Every window is one chunk of each variable, written whole; its status comes last, so that a
    window counts as done only when all of it is there. Memory does not grow with the number of
    windows. Make one with `create` or `open`.

    Attributes
    ----------
    path : Path
        The folder.
    layout : Layout
        Description of the dataset.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self._arrays = open_zarr_arrays(path)

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
            sizes = zip(one.dims, layout.shape(name), strict=True)
            return tuple(1 if dim == "sample" and not one.coord else size for dim, size in sizes)

        def fill(name: str) -> Any:
            if name == "status":
                return int(Status.absent)
            return np.nan if layout.variables[name].dtype == "float64" else None

        def write(folder: Path) -> None:
            arrays = create_zarr(layout, folder, chunks, fill)
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

        Raises
        ------
        StoreError
            If a field is missing, unknown, of another shape, or loses something in its type; if the
            disk is full.
        """
        if not 0 <= sample < self.n_samples:
            raise StoreError(f"the run has no sample {sample}", f"0 to {self.n_samples - 1}")
        own = [name for name, one in self.layout.variables.items() if not one.coord]
        if {*fields} != {*own}:
            missing, unknown = sorted({*own} - {*fields}), sorted({*fields} - {*own})
            raise StoreError(
                f"sample {sample} lacks the fields {missing} and has {unknown} too many",
                "write exactly the variables of the run",
            )
        ready = {name: self._checked(name, fields[name]) for name in own}
        if (ready["status"] == Status.absent).any():
            raise StoreError(f"sample {sample} has matrices with the status absent", "compute them")
        region = (slice(None), slice(None), slice(sample, sample + 1))
        status = self._arrays["status"]
        with writing(self.path):
            # a window that is being replaced is not done until it is whole again
            if (np.asarray(status[region]) != Status.absent).any():
                status[region] = int(Status.absent)
            for name, values in ready.items():
                if name != "status":
                    self._arrays[name][region] = values
            status[region] = ready["status"]

    def done(self) -> np.ndarray:
        """Which windows are complete.

        Returns
        -------
        (n_samples,) bool
            True where every matrix of the window has its status.
        """
        with reading(self.path):
            status = np.asarray(self._arrays["status"][...])
        done = status != Status.absent
        return np.asarray(done.all(axis=tuple(i for i in range(done.ndim) if i != 2)))

    def dataset(self) -> xr.Dataset:
        """The run as it stands, lazy; windows that are not done have the status absent."""
        with reading(self.path):
            return read_container(self.path, "zarr")

    def finish(
        self,
        target: str | os.PathLike[str],
        format: str | None = None,
        *,
        overwrite: bool = False,
    ) -> Path:
        """Make the final file of a complete run, and remove the store.

        Parameters
        ----------
        target : path
            ``.nc``, ``.zarr``, ``.csv`` or ``.parquet``. Zarr takes over the folder itself, the
            others are copied window by window.
        format : str, optional
            Overrides the suffix.
        overwrite : bool
            Whether an existing target may be replaced.

        Returns
        -------
        Path
            The target.

        Raises
        ------
        StoreError
            If windows are missing, the store is damaged, or the target cannot be written; the
            store stays in all these cases.
        """
        target = Path(target)
        left = int((~self.done()).sum())
        if left:
            raise StoreError(
                f"{left} of {self.n_samples} samples are not computed yet", "resume the run"
            )
        with reading(self.path):
            lacking = missing_chunks(self.path)
        if lacking:
            raise StoreError(
                f"the run store {self.path} has lost parts of {', '.join(lacking)}",
                "delete the folder and start again",
            )
        if file_format(target, format) != "zarr" or not self._move(target, overwrite):
            with self.dataset() as dataset:
                self._copy(dataset, target, format, overwrite)
            self.remove()
        return target

    def remove(self) -> None:
        """Delete the folder."""
        remove(self.path)

    def _copy(self, dataset: xr.Dataset, target: Path, format: str | None, overwrite: bool) -> None:
        try:
            export(dataset, target, format=format, overwrite=overwrite)
        except StoreError:
            raise
        # what the target cannot take is a StoreError already; what is left comes from a chunk
        except (RuntimeError, ValueError) as error:
            raise StoreError(
                f"the run store {self.path} is damaged: {error}",
                "delete the folder and start again",
            ) from error

    def _move(self, target: Path, overwrite: bool) -> bool:
        check_target(target, attrs=self.layout.attrs, overwrite=overwrite, format="zarr")
        # what a killed run left of a chunk that it was writing
        for leftover in self.path.rglob("*.partial"):
            leftover.unlink()
        place = Path(os.path.realpath(target))
        with writing(target):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                install(self.path, place)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    return False
                raise
        return True

    def _checked(self, name: str, values: Any) -> np.ndarray:
        one, shape = self.layout.variables[name], self.layout.shape(name)
        array = np.asarray(values)
        if array.shape != shape[3:]:
            raise StoreError(
                f"{name} has the shape {array.shape}, not {shape[3:]}",
                f"give it the dimensions {one.dims[3:]}",
            )
        if array.dtype == np.dtype(one.dtype):
            return array.reshape((1, 1, 1, *shape[3:]))
        is_float = array.dtype.kind == "f"
        with np.errstate(all="ignore"):
            cast = array.astype(one.dtype) if array.dtype.kind in "biuf" else None
            back = None if cast is None else cast.astype(array.dtype)
        if cast is None or back is None or not np.array_equal(back, array, equal_nan=is_float):
            raise StoreError(
                f"{name} is {array.dtype} and loses something as {one.dtype}",
                f"give it as {one.dtype}",
            )
        return cast.reshape((1, 1, 1, *shape[3:]))


def working_path(target: str | os.PathLike[str]) -> Path:
    """Folder in which a run with this target keeps its windows until it is finished.

    Examples
    --------
    >>> working_path("run.nc").name
    'run.nc.partial'
    """
    target = Path(target)
    return target.with_name(f"{target.name}.partial")
