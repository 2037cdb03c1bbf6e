"""Datasets to files and back: NetCDF, Zarr, CSV and Parquet, each whole or not at all."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from rankscope.atomic import aside_copy, beside, reading, remove, write_whole, writing
from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import check_name
from rankscope.store.attributes import dump_json
from rankscope.store.containers import missing_chunks, read_container, write_netcdf, write_zarr
from rankscope.store.layout import Layout, describe, normalise
from rankscope.store.tables import CSV_MARK, read_csv, read_parquet, write_csv, write_parquet

Writer = Callable[[xr.Dataset, Layout, Path], None]

FORMATS: Mapping[str, str] = {
    "nc": "NetCDF 4",
    "zarr": "Zarr 3",
    "csv": "comma-separated values",
    "parquet": "Apache Parquet",
}
_WRITERS: Mapping[str, Writer] = {
    "nc": write_netcdf,
    "zarr": write_zarr,
    "csv": write_csv,
    "parquet": write_parquet,
}
_ENGINES: Mapping[str, tuple[str, ...]] = {
    "nc": ("h5py", "h5netcdf"),
    "zarr": ("zarr",),
    "csv": (),
    "parquet": ("pyarrow",),
}


def file_format(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Format of a file from its suffix, unless it is given.

    Parameters
    ----------
    path : path
        Name of the file.
    format : {"nc", "zarr", "csv", "parquet"}, optional
        Overrides the suffix.

    Returns
    -------
    str
        A key of `FORMATS`.

    Raises
    ------
    UsageError
        If neither names a known format.

    Examples
    --------
    >>> file_format("run.nc")
    'nc'
    """
    chosen = format if format is not None else Path(path).suffix.removeprefix(".").lower()
    if chosen not in FORMATS:
        what = f"format {chosen!r}" if format is not None else f"the suffix of {os.fspath(path)!r}"
        raise UsageError(
            f"{what} names no known file format", "use " + ", ".join(f".{name}" for name in FORMATS)
        )
    return chosen


def check_target(
    path: str | os.PathLike[str],
    *,
    attrs: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    format: str | None = None,
) -> str:
    """Make sure that a result can be written, before anything is computed.

    A tiny dataset with the given attributes is written beside the target, read back and removed.

    Parameters
    ----------
    path : path
        Where the result will go.
    attrs : mapping, optional
        Attributes that it will have.
    overwrite : bool
        Whether an existing target may be replaced.
    format : str, optional
        Overrides the suffix.

    Returns
    -------
    str
        The format.

    Raises
    ------
    UsageError
        If the suffix is unknown, or the path is not UTF-8.
    StoreError
        If a library is missing, the target exists, its folder cannot be written, or the attributes
        cannot be kept.
    """
    chosen = file_format(path, format)
    _check_place(Path(path), chosen, overwrite)
    tiny = xr.Dataset(
        {"value": ("text", np.array([np.nan]))}, {"text": np.array(["NA"])}, dict(attrs or {})
    )
    layout = describe(tiny)
    place = Path(os.path.realpath(path))
    folder = place.parent
    while not folder.exists():
        folder = folder.parent
    # the target's own name: if this process is killed, the next run with this target removes it
    trial = beside(folder / place.name, f"{secrets.token_hex(8)}.new")
    try:
        with writing(Path(path)):
            _WRITERS[chosen](tiny, layout, trial)
        back = load(trial)
    finally:
        remove(trial)
    if dump_json(back.attrs) != dump_json(tiny.attrs):
        raise StoreError(
            f"the attributes of {path} do not come back from {FORMATS[chosen]} as they are",
            "use text, numbers, None, and lists or dicts of them",
        )
    return chosen


def export(
    dataset: xr.Dataset,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a dataset so that `load` gives back the identical one.

    The file is written beside the target and renamed: on any failure or interrupt the target is
    what it was before. Lazy datasets are copied a sample at a time.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables of text, bool, integers, float32 or float64.
    path : path
        ``.nc``, ``.zarr``, ``.csv`` or ``.parquet``; its folder is made if it is missing.
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
    UsageError
        If the suffix is unknown.
    StoreError
        If the target exists, cannot be written, or the dataset holds what files cannot keep.
    """
    chosen = file_format(path, format)
    _check_place(Path(path), chosen, overwrite)
    dataset = normalise(dataset)
    layout = describe(dataset)
    with writing(Path(path)):
        write_whole(Path(path), lambda temporary: _WRITERS[chosen](dataset, layout, temporary))
    return Path(path)


def load(path: str | os.PathLike[str], *, lazy: bool = False) -> xr.Dataset:
    """Read a file that `export` or a run wrote, of any of the formats.

    Values, names, dimensions, attributes and types are those of the dataset that was written (in
    the machine's byte order; pandas' text types come back as ``object``).

    Parameters
    ----------
    path : path
        The file or Zarr folder; its content decides what it is, not its suffix.
    lazy : bool
        Leave the numbers of NetCDF and Zarr in the file until they are used, and the file open
        until the dataset's ``close()``. The default reads all and closes.

    Returns
    -------
    xarray.Dataset
        The dataset.

    Raises
    ------
    StoreError
        If there is no such file, or it is cut, damaged, or not one of rankscope's.
    """
    path = Path(path)
    if not path.exists():
        aside = aside_copy(path)
        if aside.exists():
            raise StoreError(
                f"{path} is gone: its replacement was interrupted, and its old content is {aside}",
                f"rename {aside.name} to {path.name}",
            )
        raise StoreError(f"there is no file {path}", "check the name and the folder")
    with reading(path):
        kind = _sniff(path)
        if kind == "csv":
            return read_csv(path)
        if kind == "parquet":
            return read_parquet(path)
        if kind == "zarr":
            missing = missing_chunks(path)
            if missing:
                raise StoreError(
                    "parts of it are missing: "
                    + ", ".join(f"{count} of {name}" for name, count in missing.items()),
                    "if it is a run that was stopped, start the same command again to finish it",
                )
        dataset = read_container(path, "zarr" if kind == "zarr" else "h5netcdf")
        if lazy:
            return dataset
        with dataset:
            return dataset.load().drop_encoding()


def _sniff(path: Path) -> str:
    if path.is_dir():
        if (path / "zarr.json").is_file():
            return "zarr"
        raise StoreError("it is a folder without zarr.json, so no Zarr dataset", "check the name")
    with path.open("rb") as file:
        start = file.read(len(CSV_MARK))
    if not start:
        raise StoreError("it is empty", "write it again")
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return "nc"
    if start.startswith(b"PAR1"):
        return "parquet"
    if start == CSV_MARK.encode():
        return "csv"
    raise StoreError(
        f"it starts with {start[:12]!r}, as none of the files that rankscope writes do",
        "it was not written by rankscope, or it is damaged: write it again",
    )


def _check_place(path: Path, chosen: str, overwrite: bool) -> None:
    check_name(path.name, "result")
    for name in _ENGINES[chosen]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise StoreError(
                f"{FORMATS[chosen]} needs the library {name}: {error}", f"pip install {name}"
            ) from error
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):
        is_store = (target / "zarr.json").is_file() or not any(target.glob("*"))
        # an overwrite must never delete a folder of someone's own files
        if target.is_dir() != (chosen == "zarr") or (target.is_dir() and not is_store):
            kind = "a folder" if target.is_dir() else "a file"
            raise StoreError(
                f"{path} is {kind} that is no {FORMATS[chosen]} dataset", "choose another name"
            )
        if not overwrite:
            raise StoreError(f"{path} exists", "choose another name, or allow to overwrite it")
    elif aside_copy(target).exists() and not overwrite:
        raise StoreError(
            f"an interrupted overwrite of {path} left its old content in {aside_copy(target)}",
            "rename it back, or allow to overwrite it",
        )
    folder = target.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder", "choose another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"the folder {folder} cannot be written", "choose another folder")
