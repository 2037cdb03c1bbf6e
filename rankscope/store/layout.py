"""What a data file holds: the dimensions, variables, types and attributes of a dataset.

Every format stores this description beside the numbers, so that reading gives back exactly the
dataset that was written, whatever the format itself can express.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.store.attributes import (
    encode_attrs,
    from_jsonable,
    is_portable_text,
    to_jsonable,
)

# the oldest and newest layout that this version reads
FORMAT = 1

_NUMBERS = frozenset(
    {"bool", "float32", "float64"}
    | {f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)}
)
_TEXT = re.compile(r"<U\d+|object|StringDType")

# bytes of one variable held in memory while copying
_PIECE_BYTES = 2**22


@dataclass(frozen=True)
class VariableLayout:
    """One variable or coordinate.

    Parameters
    ----------
    dims : tuple of str
        Its dimensions, in order.
    dtype : str
        NumPy's name of a number type, ``bool``, or for text ``<U`` and a width, ``object`` or
        ``StringDType``.
    coord : bool
        Whether it is a coordinate.
    attrs : dict
        Its attributes.
    """

    dims: tuple[str, ...]
    dtype: str
    coord: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        """Whether it holds text."""
        return bool(_TEXT.fullmatch(self.dtype))

    def cast(self, values: Any) -> np.ndarray:
        """Values as an array of this variable's type."""
        if self.dtype == "StringDType":
            return np.asarray(values, dtype=np.dtypes.StringDType())
        return np.asarray(values, dtype=self.dtype)


@dataclass(frozen=True)
class Layout:
    """The description of a dataset, without its numbers.

    Parameters
    ----------
    dims : dict of str to int
        Sizes; the dimensions of the variable with most dimensions come first, in its order.
    variables : dict of str to VariableLayout
        Coordinates and data variables.
    attrs : dict
        Attributes of the dataset.
    """

    dims: Mapping[str, int]
    variables: Mapping[str, VariableLayout]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one variable."""
        return tuple(self.dims[dim] for dim in self.variables[name].dims)

    def to_json(self, *, attrs: bool) -> str:
        """JSON text, with the attributes or without."""
        variables = {}
        for name, one in self.variables.items():
            row: dict[str, Any] = {"dims": list(one.dims), "dtype": one.dtype, "coord": one.coord}
            if attrs:
                row["attrs"] = to_jsonable(dict(one.attrs), name)
            variables[name] = row
        tree: dict[str, Any] = {
            "format": FORMAT,
            "dims": dict(self.dims),
            "variables": variables,
        }
        if attrs:
            tree["attrs"] = to_jsonable(dict(self.attrs), "dataset")
        return json.dumps(tree, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what `to_json` wrote.

        Raises
        ------
        StoreError
            If a newer version of rankscope wrote it.
        """
        tree = json.loads(text)
        if tree["format"] != FORMAT:
            raise StoreError(
                f"the file has layout {tree['format']!r}, this version of rankscope reads {FORMAT}",
                "update rankscope",
            )
        variables = {
            name: VariableLayout(
                tuple(row["dims"]),
                row["dtype"],
                row["coord"],
                from_jsonable(row.get("attrs", {})),
            )
            for name, row in tree["variables"].items()
        }
        return cls(tree["dims"], variables, from_jsonable(tree.get("attrs", {})))


def describe(dataset: xr.Dataset) -> Layout:
    """Describe a dataset, and refuse what the formats could not give back.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables of text, bool, integers, float32 or float64, after `normalise`.

    Returns
    -------
    Layout
        Types in the machine's byte order.

    Raises
    ------
    StoreError
        For a type that some format has no place for (half precision, dates, complex numbers,
        objects), for text with a NUL character, for a name that is no name in a file, or for an
        attribute that no file can keep.
    """
    for name in [*dataset.variables, *dataset.sizes]:
        _check_name(name)
    for name, variable in dataset.variables.items():
        if name in variable.dims and variable.dims != (name,):
            raise StoreError(
                f"variable {name!r} has the name of one of its own dimensions {variable.dims}",
                "rename it",
            )
        encode_attrs(variable.attrs)
    encode_attrs(dataset.attrs)
    longest = max(dataset.variables.values(), key=lambda one: one.ndim, default=None)
    order = [*(longest.dims if longest is not None else ()), *dataset.sizes]
    variables = {
        str(name): VariableLayout(
            tuple(str(dim) for dim in variable.dims),
            _dtype_name(str(name), variable),
            name in dataset.coords,
            dict(variable.attrs),
        )
        for name, variable in dataset.variables.items()
    }
    sizes = {str(dim): int(dataset.sizes[dim]) for dim in dict.fromkeys(order)}
    return Layout(sizes, variables, dict(dataset.attrs))


def normalise(dataset: xr.Dataset) -> xr.Dataset:
    """Replace pandas' own text types by ``object``, which every format and NumPy knows."""
    text = {
        name: (variable.dims, as_text(variable.data), variable.attrs)
        for name, variable in dataset.variables.items()
        if not isinstance(variable.dtype, np.dtype) and variable.dtype == "string"
    }
    return dataset.assign(text) if text else dataset


def as_text(values: Any) -> np.ndarray:
    """Text of any NumPy or pandas type as an array of Python's `str`."""
    return np.asarray(values, dtype=object)


def pieces(layout: Layout, name: str) -> Iterator[tuple[slice, ...]]:
    """Slices of a variable, along samples (or its first dimension), of a few MiB each.

    Whole samples are copied one after the other so that no file needs more memory than a window.
    """
    shape = layout.shape(name)
    if not shape:
        yield ()
        return
    axis, step = piece_step(layout, name)
    for start in range(0, shape[axis], step):
        region = [slice(None)] * len(shape)
        region[axis] = slice(start, min(start + step, shape[axis]))
        yield tuple(region)


def piece_step(layout: Layout, name: str) -> tuple[int, int]:
    """Axis along which `pieces` cuts a variable with dimensions, and the length of a piece."""
    one = layout.variables[name]
    shape = layout.shape(name)
    axis = one.dims.index("sample") if "sample" in one.dims else 0
    width = 64 if one.is_text else np.dtype(one.dtype).itemsize
    slab = width * prod(size for i, size in enumerate(shape) if i != axis)
    return axis, max(1, min(shape[axis], _PIECE_BYTES // max(slab, 1)))


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or "/" in name or not is_portable_text(name):
        raise StoreError(
            f"{name!r} cannot be the name of a variable or dimension in a file",
            "rename it: text, not empty, without '/'",
        )
    # Zarr keeps such names for itself; NetCDF allows no blank at the ends
    if name.startswith("__") or not name.strip(".") or name == "zarr.json" or name != name.strip():
        raise StoreError(
            f"{name!r} cannot be the name of a variable or dimension in a file", "rename it"
        )


def _dtype_name(name: str, variable: xr.Variable) -> str:
    dtype = variable.dtype
    if isinstance(dtype, np.dtype):
        if dtype.name in _NUMBERS:
            return dtype.name
        if dtype.name in ("float16", "bfloat16"):
            raise StoreError(
                f"variable {name!r} holds {dtype.name} numbers, which NetCDF cannot keep",
                "convert it to float32 or float64 before writing",
            )
        if dtype.kind in "UTO":
            _check_text(name, variable)
            return {"U": f"<U{dtype.itemsize // 4}", "T": "StringDType"}.get(dtype.kind, "object")
    raise StoreError(
        f"variable {name!r} holds {dtype}, which not every format can keep",
        "convert it to text, bool, integers, float32 or float64",
    )


def _check_text(name: str, variable: xr.Variable) -> None:
    for item in as_text(variable.values).flat:
        if not isinstance(item, str):
            raise StoreError(
                f"variable {name!r} holds {item!r} ({type(item).__name__}) among its texts",
                "make every value text",
            )
        if not is_portable_text(item):
            raise StoreError(
                f"variable {name!r} holds the text {item!r}: a NUL or half a surrogate pair, "
                "which no format keeps",
                "replace these characters",
            )
