"""NetCDF and Zarr: formats that hold arrays, written piece by piece so that memory stays small."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.store.attributes import LAYOUT_KEY, SCHEMA_KEY, decode_attrs, encode_attrs
from rankscope.store.chunks import ZSTD_LEVEL, among_strangers, chunk_file
from rankscope.store.layout import Layout, as_text, piece_step, pieces

if TYPE_CHECKING:
    import zarr
    from _typeshed import ReadableBuffer as Buffer

# raised when a file has a meaning that only a newer rankscope knows
SCHEMA = 1

_OWN_ATTRS = frozenset({SCHEMA_KEY, LAYOUT_KEY, "coordinates", "dtype"})


def write_netcdf(dataset: xr.Dataset, layout: Layout, path: Path) -> None:
    """Write a NetCDF 4 file.

    Parameters
    ----------
    dataset : xarray.Dataset
        May be lazy; a few MiB of it are in memory at a time.
    layout : Layout
        Its description.
    path : Path
        New file.
    """
    # in a thread of its own, where no interrupt falls into the middle of HDF5
    to_a_pause(lambda stopped: _write_netcdf(dataset, layout, path, stopped))


def _write_netcdf(
    dataset: xr.Dataset, layout: Layout, path: Path, stopped: Callable[[], bool]
) -> None:
    import h5netcdf
    import h5py

    with HeldBack(path, "w+") as held, h5netcdf.File(held, "w") as file:
        file.dimensions = dict(layout.dims)
        for name, one in layout.variables.items():
            shape = layout.shape(name)
            options: dict[str, Any] = {}
            if shape and min(shape) > 0 and not one.is_text:
                axis, step = piece_step(layout, name)
                options["chunks"] = tuple(step if i == axis else n for i, n in enumerate(shape))
                options["fletcher32"] = True
            # NetCDF has no boolean; xarray's convention is a byte with an attribute
            number = "int8" if one.dtype == "bool" else one.dtype
            stored = h5py.string_dtype() if one.is_text else number
            variable = file.create_variable(name, one.dims, dtype=stored, **options)
            if one.dtype == "bool":
                variable.attrs["dtype"] = "bool"
            for key, value in _variable_attrs(layout, name).items():
                variable.attrs[key] = value
            for region in pieces(layout, name):
                held.check()
                if stopped():
                    return
                values = _values(dataset, layout, name, region)
                variable[region] = values.astype("int8") if one.dtype == "bool" else values
        for key, value in _dataset_attrs(layout).items():
            file.attrs[key] = value


class HeldBack(io.FileIO):
    """A file that tells of a full disk when it is asked, or when it is closed, and not before.

    HDF5 does not survive a write that fails while it closes a file: it crashes the process then or
    later. So it is told that all went well, and `check` raises between two pieces.
    """

    failure: BaseException | None = None

    def write(self, data: Buffer, /) -> int:
        """Write all of it, or keep the reason."""
        left = memoryview(data).cast("B")
        whole = len(left)
        try:
            while left and self.failure is None:
                left = left[super().write(left) :]
        except BaseException as error:
            self.failure = error
        return whole

    def truncate(self, size: int | None = None, /) -> int:
        """Change the size, or keep the reason."""
        try:
            return super().truncate(size)
        except BaseException as error:
            self.failure = self.failure or error
            return size or 0

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self.failure is not None:
            raise self.failure

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        # HDF5 may stumble over what it misses; the cause is what the system said first
        self.check()


def write_zarr(dataset: xr.Dataset, layout: Layout, path: Path) -> None:
    """Write a Zarr folder (version 3), every chunk present and with a checksum.

    Parameters
    ----------
    dataset : xarray.Dataset
        May be lazy; a few MiB of it are in memory at a time.
    layout : Layout
        Its description.
    path : Path
        New folder.
    """

    def chunks(name: str) -> tuple[int, ...]:
        shape = layout.shape(name)
        if not shape:
            return ()
        axis, step = piece_step(layout, name)
        return tuple(step if i == axis else max(n, 1) for i, n in enumerate(shape))

    def write(stopped: Callable[[], bool]) -> None:
        arrays = create_zarr(layout, path, chunks)
        for name, array in arrays.items():
            for region in pieces(layout, name):
                if stopped():
                    return
                array[region] = _values(dataset, layout, name, region)

    to_a_pause(write)


def to_a_pause(write: Callable[[Callable[[], bool]], None]) -> None:
    """Run a writer of Zarr in a thread of its own, and on an interrupt wait until it pauses.

    Zarr writes in the background: were the interrupt to end the call at once, chunks would still
    be written after the folder was cleaned away, and make it anew.

    Parameters
    ----------
    write : callable
        Is given a function that tells whether it should stop.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        # the pool waits only for threads that have started: let it start before there is work
        pool.submit(int).result()
        try:
            pool.submit(write, stop.is_set).result()
        finally:
            stop.set()


def create_zarr(
    layout: Layout,
    path: Path,
    chunks: Callable[[str], tuple[int, ...]],
    fill: Callable[[str], Any] = lambda name: None,
) -> dict[str, zarr.Array[Any]]:
    """Make the arrays of a Zarr folder, without their values.

    Parameters
    ----------
    layout : Layout
        What it will hold.
    path : Path
        New folder.
    chunks : callable
        Shape of the chunks of the variable with this name.
    fill : callable
        Value of its chunks that are not written yet; None for 0, false or the empty text.

    Returns
    -------
    dict of str to zarr.Array
        The arrays, to be filled.
    """
    import zarr
    from zarr.codecs import ZstdCodec

    arrays = {}
    # a chunk that is missing must mean damage, never a chunk that happened to hold the fill value
    with zarr.config.set({"array.write_empty_chunks": True}):
        group = zarr.create_group(
            str(path), zarr_format=3, attributes=_listed(_dataset_attrs(layout))
        )
        for name, one in layout.variables.items():
            options: dict[str, Any] = {} if fill(name) is None else {"fill_value": fill(name)}
            arrays[name] = group.create_array(
                name,
                shape=layout.shape(name),
                dtype=one.cast([]).dtype if not one.is_text else np.dtypes.StringDType(),
                chunks=chunks(name),
                compressors=[ZstdCodec(level=ZSTD_LEVEL, checksum=True)],
                # one folder a variable: a chunk in folders of its own takes twice as long
                chunk_key_encoding={"name": "default", "separator": "."},
                dimension_names=one.dims,
                attributes=_listed(_variable_attrs(layout, name)),
                **options,
            )
    return arrays


def open_zarr_arrays(path: Path) -> dict[str, zarr.Array[Any]]:
    """Arrays of a Zarr folder, to be written to."""
    import zarr

    with zarr.config.set({"array.write_empty_chunks": True}), among_strangers():
        return dict(zarr.open_group(str(path), mode="r+", zarr_format=3).arrays())


def read_container(path: Path, engine: str) -> xr.Dataset:
    """Open a file that `write_netcdf` or `write_zarr` wrote; numbers are read when used.

    Parameters
    ----------
    path : Path
        File or folder.
    engine : {"h5netcdf", "zarr"}
        xarray's engine.

    Returns
    -------
    xarray.Dataset
        Lazy; to be closed by the caller. One-dimensional coordinates and text are in memory.

    Raises
    ------
    StoreError
        If rankscope did not write it, or a part of it is missing.
    """
    options: dict[str, Any] = {"consolidated": False, "zarr_format": 3} if engine == "zarr" else {}
    with among_strangers():
        raw = xr.open_dataset(
            path,
            engine=engine,
            cache=False,
            mask_and_scale=False,
            decode_times=False,
            decode_timedelta=False,
            decode_coords=False,
            concat_characters=False,
            **options,
        )
    try:
        return _restore(raw, _read_layout(raw))
    except BaseException:
        raw.close()
        raise


def _read_layout(raw: xr.Dataset) -> Layout:
    schema = raw.attrs.get(SCHEMA_KEY)
    if schema is None or LAYOUT_KEY not in raw.attrs:
        raise StoreError(
            f"it has no attribute {SCHEMA_KEY}: rankscope did not write it",
            "open it with xarray itself",
        )
    if schema != SCHEMA:
        raise StoreError(
            f"it has schema {schema}, this version of rankscope reads {SCHEMA}", "update rankscope"
        )
    return Layout.from_json(raw.attrs[LAYOUT_KEY])


def _restore(raw: xr.Dataset, layout: Layout) -> xr.Dataset:
    variables = {}
    for name, one in layout.variables.items():
        if name not in raw.variables:
            raise StoreError(f"variable {name!r} is missing from it", "write it again")
        variable = raw.variables[name]
        if variable.dims != one.dims or variable.shape != layout.shape(name):
            raise StoreError(
                f"variable {name!r} is {dict(variable.sizes)} in it, not the "
                f"{dict(zip(one.dims, layout.shape(name), strict=True))} that it names",
                "write it again",
            )
        if one.is_text:
            variable = xr.Variable(one.dims, one.cast(as_text(variable.values)))
        elif one.coord and variable.ndim <= 1:
            variable = xr.Variable(one.dims, variable.values, raw.variables[name].attrs)
        if not one.is_text and variable.dtype != one.dtype:
            raise StoreError(
                f"variable {name!r} is {variable.dtype} in it, not {one.dtype}", "write it again"
            )
        found = raw.variables[name].attrs
        # these two are instructions of ours to other readers
        variable.attrs = decode_attrs({k: found[k] for k in found if k not in _OWN_ATTRS})
        variable.encoding = {}
        variables[name] = variable
    attrs = decode_attrs({k: v for k, v in raw.attrs.items() if k not in _OWN_ATTRS})
    coords = {name: variables.pop(name) for name, one in layout.variables.items() if one.coord}
    dataset = xr.Dataset(variables, coords, attrs)
    dataset.set_close(raw.close)
    return dataset


def missing_chunks(path: Path, samples: int | None = None) -> dict[str, int]:
    """Number of chunks that a Zarr folder lacks, by variable; a whole folder gives none.

    Parameters
    ----------
    path : Path
        The folder.
    samples : int, optional
        Look only at the chunks of the first that many samples.

    Returns
    -------
    dict of str to int
        Only variables that lack some.
    """
    import zarr

    missing: dict[str, int] = {}
    with among_strangers():
        arrays = dict(zarr.open_group(str(path), mode="r", zarr_format=3).arrays())
    for name, array in arrays.items():
        grid = [*array.cdata_shape]
        dims = array.metadata.dimension_names or ()  # type: ignore[union-attr]
        if samples is not None and "sample" in dims:
            axis = dims.index("sample")
            grid[axis] = min(grid[axis], -(-samples // array.chunks[axis]))
        count = sum(not chunk_file(path, array, place).is_file() for place in np.ndindex(*grid))
        if count:
            missing[name] = count
    return missing


def replace_attrs(path: Path, layout: Layout) -> None:
    """Write the attributes of a Zarr folder's dataset anew, in one step."""
    import zarr

    group = zarr.open_group(str(path), mode="r+", zarr_format=3)
    group.attrs.put(_listed(_dataset_attrs(layout)))


def _values(
    dataset: xr.Dataset, layout: Layout, name: str, region: tuple[slice, ...]
) -> np.ndarray:
    one = layout.variables[name]
    variable = dataset.variables[name]
    values = variable[region].values if region else variable.values
    if one.is_text:
        return as_text(values)
    return np.asarray(values, dtype=one.dtype)


def _dataset_attrs(layout: Layout) -> dict[str, Any]:
    attrs = encode_attrs(layout.attrs)
    covered = {name for one in layout.variables for name in _companions(layout, one)}
    alone = [
        name
        for name, one in layout.variables.items()
        if one.coord and one.dims != (name,) and name not in covered and " " not in name
    ]
    # the CF way to say which variables are coordinates, for readers other than ours
    if alone:
        attrs["coordinates"] = " ".join(alone)
    return attrs | {SCHEMA_KEY: SCHEMA, LAYOUT_KEY: layout.to_json(attrs=False)}


def _variable_attrs(layout: Layout, name: str) -> dict[str, Any]:
    attrs = encode_attrs(layout.variables[name].attrs)
    companions = _companions(layout, name)
    if companions:
        attrs["coordinates"] = " ".join(companions)
    return attrs


def _companions(layout: Layout, name: str) -> list[str]:
    one = layout.variables[name]
    if one.coord:
        return []
    return [
        other
        for other, coord in layout.variables.items()
        if coord.coord and coord.dims != (other,) and {*coord.dims} <= {*one.dims}
        if " " not in other
    ]


def _listed(attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
