"""The folder of a complete run becomes its target: moved into place, or copied into a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import xarray as xr

from rankscope.atomic import install, writing
from rankscope.exceptions import StoreError
from rankscope.store.containers import replace_attrs
from rankscope.store.files import check_target, export
from rankscope.store.layout import Layout

MEND = "start the same command again: what is damaged is found and computed anew"


def copy(
    path: Path, dataset: xr.Dataset, target: Path, *, format: str | None, overwrite: bool
) -> None:
    """Write a run's dataset into another file; the folder stays.

    Parameters
    ----------
    path : Path
        Folder of the run, for the message when a chunk of it cannot be read.
    dataset : xarray.Dataset
        What to write; lazy.
    target, format, overwrite
        As for :func:`rankscope.store.files.export`.

    Raises
    ------
    StoreError
        If the target cannot be written, or the folder is damaged.
    """
    try:
        export(dataset, target, format=format, overwrite=overwrite)
    except StoreError:
        raise
    # what the target cannot take is a StoreError already; what is left comes from a chunk
    except (RuntimeError, ValueError) as error:
        raise StoreError(f"the run store {path} is damaged: {error}", MEND) from error


def move(
    path: Path, layout: Layout, target: Path, *, overwrite: bool, attrs: Mapping[str, Any]
) -> bool:
    """Make the folder of a run its target, in one step.

    Parameters
    ----------
    path, layout : Path, Layout
        The folder, and the description of its dataset.
    target : Path
        A Zarr folder.
    overwrite : bool
        Whether an existing target may be replaced.
    attrs : mapping
        Attributes that the target has beyond those of the run.

    Returns
    -------
    bool
        False if the target lies on another file system, where only a copy can be made.

    Raises
    ------
    StoreError
        If the target cannot be written; the folder stays as it was.
    """
    whole = {**layout.attrs, **attrs}
    check_target(target, attrs=whole, overwrite=overwrite, format="zarr")
    place = Path(os.path.realpath(target))
    with writing(target):
        # what a killed run left of a chunk that it was writing
        for leftover in path.rglob("*.partial"):
            leftover.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if attrs:
                replace_attrs(path, replace(layout, attrs=whole))
            install(path, place)
        except BaseException as error:
            # the attributes tell of a finished run, which the folder is not
            if attrs and path.exists():
                with suppress(OSError):
                    replace_attrs(path, layout)
            if isinstance(error, OSError) and error.errno == errno.EXDEV:
                return False
            raise
    return True
