"""CSV and Parquet: one tidy table, one row per combination of the dimensions.

The columns are the dimensions, the coordinates and the variables; a variable with fewer dimensions
is repeated. Where two variables share no row (dimensions ``rank`` and ``index``, say), the table
has a block of rows for each, and the columns that do not belong to a block are left blank. Rows are
written and read one sample at a time.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import xarray as xr

from rankscope.exceptions import StoreError
from rankscope.store.layout import Layout, VariableLayout, as_text

CSV_MARK = "# rankscope-csv 1 "
PARQUET_KEY = b"rankscope"
PARQUET_SUM = b"rankscope-sha256"

# rows that are held in memory together, where one sample has fewer
_PIECE_ROWS = 2**16
# Python's csv module reads no longer cell
_LONGEST_CELL = 131_072


@dataclass(frozen=True)
class _Piece:
    """Some consecutive rows: a slice along each dimension, and the columns with values in them."""

    index: Mapping[str, slice]
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each dimension."""
        return tuple(one.stop - one.start for one in self.index.values())

    def fit(self, dims: tuple[str, ...]) -> tuple[int, ...]:
        """Shape of a variable's part: 1 along the dimensions that it lacks."""
        return tuple(n if dim in dims else 1 for dim, n in zip(self.index, self.shape, strict=True))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """One value for each row."""
        return np.broadcast_to(values, self.shape).ravel()


def write_csv(dataset: xr.Dataset, layout: Layout, path: Path) -> None:
    """Write a CSV file; ``pandas.read_csv(path, skiprows=1, keep_default_na=False)`` reads it too.

    Text is quoted (pandas takes ``NA`` and the like for missing unless it is told not to); floats
    have all digits that make them exact; missing numbers are ``NaN``.

    Parameters
    ----------
    dataset : xarray.Dataset
        May be lazy; one sample of it is in memory at a time.
    layout : Layout
        Its description, written as JSON in the first line.
    path : Path
        New file.
    """
    columns = _columns(layout)
    with path.open("x", encoding="utf-8", newline="") as file:
        # pandas counts quotes even in lines that it skips: an odd number would swallow the table
        header = re.sub(r"\\(.)", _quote_escape, layout.to_json(attrs=True))
        file.write(f"{CSV_MARK}{header}\n")
        file.write(",".join(_quoted(name) for name in columns) + "\n")
        for piece in _pieces(layout):
            cells = [
                itertools.repeat("") if values is None else piece.spread(_cells(values))
                for values in _parts(dataset, layout, piece, columns)
            ]
            for _, *row in zip(range(prod(piece.shape)), *cells, strict=False):
                file.write(",".join(row) + "\n")


def read_csv(path: Path) -> xr.Dataset:
    """Read what `write_csv` wrote, exactly.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    xarray.Dataset
        In memory.

    Raises
    ------
    StoreError
        If the file is cut, was sorted or edited, or is not rankscope's.
    """
    with path.open("rb") as raw:
        # a number that lost its last digits is still a number: only the end of the line tells
        raw.seek(-1, os.SEEK_END)
        if raw.read(1) != b"\n":
            raise StoreError("it ends before its last row", "write it again")
    with path.open(encoding="utf-8", newline="") as file:
        layout = _csv_layout(file)
        columns = _columns(layout)
        rows = csv.reader(file, strict=True)
        if next(rows, []) != columns:
            raise StoreError("its second line does not name the columns", "write it again")
        arrays = _empty(layout)
        for piece in _pieces(layout):
            n_rows = prod(piece.shape)
            block = [*itertools.islice(rows, n_rows)]
            if len(block) < n_rows or any(len(row) != len(columns) for row in block):
                raise StoreError("it ends before its last row", "write it again")
            for name, cells in zip(columns, zip(*block, strict=True), strict=True):
                if name in piece.index or name in piece.names:
                    _put(arrays, layout, piece, name, np.array(cells, dtype=object))
        if next(rows, None) is not None:
            raise StoreError("it has more rows than were written", "write it again")
    return _dataset(layout, arrays)


def write_parquet(dataset: xr.Dataset, layout: Layout, path: Path) -> None:
    """Write a Parquet file, one row group a sample; pandas reads it too.

    Parameters
    ----------
    dataset : xarray.Dataset
        May be lazy; one sample of it is in memory at a time.
    layout : Layout
        Its description, written as JSON in the metadata.
    path : Path
        New file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _columns(layout)
    types = {name: pa.int64() for name in layout.dims} | {
        name: pa.string() if one.is_text else pa.from_numpy_dtype(np.dtype(one.dtype))
        for name, one in layout.variables.items()
    }
    described = layout.to_json(attrs=True).encode()
    schema = pa.schema(
        [(name, types[name]) for name in columns],
        metadata={PARQUET_KEY: described, PARQUET_SUM: hashlib.sha256(described).hexdigest()},
    )
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for piece in _pieces(layout):
            n_rows = prod(piece.shape)
            arrays = [
                pa.nulls(n_rows, types[name])
                if values is None
                # NaN is a number that was computed, not a missing one
                else pa.array(piece.spread(values), types[name], from_pandas=False)
                for name, values in zip(
                    columns, _parts(dataset, layout, piece, columns), strict=True
                )
            ]
            writer.write_table(pa.table(arrays, schema=schema), row_group_size=n_rows)


def read_parquet(path: Path) -> xr.Dataset:
    """Read what `write_parquet` wrote, exactly.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    xarray.Dataset
        In memory.

    Raises
    ------
    StoreError
        If the file was sorted or edited, or is not rankscope's.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = file.schema_arrow.metadata or {}
        if PARQUET_KEY not in metadata:
            raise StoreError(
                "it has no rankscope metadata: rankscope did not write it", "open it with pandas"
            )
        described = metadata[PARQUET_KEY]
        if metadata.get(PARQUET_SUM, b"").decode() != hashlib.sha256(described).hexdigest():
            raise StoreError("its description does not fit its checksum", "write it again")
        layout = Layout.from_json(described.decode())
        arrays = _empty(layout)
        todo = [*_pieces(layout)]
        if len(todo) != file.num_row_groups:
            raise StoreError(
                f"it has {file.num_row_groups} row groups, not {len(todo)}", "write it again"
            )
        for group, piece in enumerate(todo):
            table = file.read_row_group(group)
            for name in dict.fromkeys([*piece.index, *piece.names]):
                column = table.column(name)
                if len(column) != prod(piece.shape) or column.null_count:
                    raise StoreError(f"its column {name!r} lacks values", "write it again")
                is_text = name in layout.variables and layout.variables[name].is_text
                values = as_text(column.to_pylist()) if is_text else column.to_numpy()
                _put(arrays, layout, piece, name, values)
    return _dataset(layout, arrays)


def _columns(layout: Layout) -> list[str]:
    coords = [name for name, one in layout.variables.items() if one.coord]
    return [*dict.fromkeys([*layout.dims, *coords, *layout.variables])]


def _pieces(layout: Layout) -> Iterator[_Piece]:
    """All rows, block by block and in each block sample by sample."""
    # a variable without values needs no rows: its shape is in the layout
    filled = {
        name: frozenset(one.dims)
        for name, one in layout.variables.items()
        if prod(layout.shape(name)) > 0
    }
    placed: set[str] = set()
    for block in dict.fromkeys(sorted(filled.values(), key=len, reverse=True)):
        if any(block < other for other in filled.values()):
            continue
        names = tuple(
            name
            for name, own in filled.items()
            if own <= block and (layout.variables[name].coord or name not in placed)
        )
        placed.update(names)
        sizes = {dim: size for dim, size in layout.dims.items() if dim in block}
        for index in _slices(sizes):
            yield _Piece(index, names)


def _slices(sizes: dict[str, int]) -> Iterator[dict[str, slice]]:
    """Cut a block along samples, or along the first dimension that gives pieces of fair size."""
    dims, shape = [*sizes], [*sizes.values()]
    axis = (
        dims.index("sample")
        if "sample" in dims
        else next((i for i in range(len(shape)) if prod(shape[i + 1 :]) <= _PIECE_ROWS), 0)
    )
    step = max(1, _PIECE_ROWS // prod(shape[axis + 1 :]))
    starts = [range(n) for n in shape[:axis]] + [range(0, n, step) for n in shape[axis : axis + 1]]
    for corner in itertools.product(*starts):
        index = {dim: slice(0, size) for dim, size in sizes.items()}
        for i, start in enumerate(corner):
            length = step if i == axis else 1
            index[dims[i]] = slice(start, min(start + length, shape[i]))
        yield index


def _parts(
    dataset: xr.Dataset, layout: Layout, piece: _Piece, columns: list[str]
) -> Iterator[np.ndarray | None]:
    """Each column's values in one piece, 1 long along the dimensions that repeat it."""
    for name in columns:
        if name in piece.names:
            variable = dataset.variables[name]
            own = layout.variables[name].dims
            variable = variable.isel({dim: piece.index[dim] for dim in own})
            values = variable.transpose(*(dim for dim in piece.index if dim in own)).values
            values = as_text(values) if layout.variables[name].is_text else np.asarray(values)
            yield values.reshape(piece.fit(own))
        elif name in piece.index:
            yield _positions(piece, name)
        else:
            yield None


def _positions(piece: _Piece, dim: str) -> np.ndarray:
    """Column of a dimension without coordinate."""
    values = np.arange(piece.index[dim].start, piece.index[dim].stop)
    return values.reshape(piece.fit((dim,)))


def _cells(values: np.ndarray) -> np.ndarray:
    """Values as the text of CSV cells."""
    flat: list[Any] = values.ravel().tolist()
    if values.dtype == np.float32:
        texts = ["NaN" if x != x else f"{x:.9g}" for x in flat]
    elif values.dtype == np.float64:
        texts = ["NaN" if x != x else repr(x) for x in flat]
    elif values.dtype == object:
        texts = [_quoted(x) for x in flat]
    else:
        texts = [str(x) for x in flat]
    return np.array(texts, dtype=object).reshape(values.shape)


def _quoted(text: str) -> str:
    if len(text) > _LONGEST_CELL:
        raise StoreError(
            f"a text of {len(text)} characters is too long for CSV", "write .nc, .zarr or .parquet"
        )
    return '"' + text.replace('"', '""') + '"'


def _quote_escape(match: re.Match[str]) -> str:
    return r"\u0022" if match[1] == '"' else match[0]


def _csv_layout(file: IO[str]) -> Layout:
    mark = file.read(len(CSV_MARK))
    if mark != CSV_MARK:
        raise StoreError(
            f"its first line does not start with {CSV_MARK!r}: rankscope did not write it",
            "open it with pandas",
        )
    try:
        return Layout.from_json(file.readline())
    except json.JSONDecodeError as error:
        raise StoreError(f"its first line is damaged: {error}", "write it again") from error


def _empty(layout: Layout) -> dict[str, np.ndarray]:
    return {
        name: np.empty(layout.shape(name), dtype=object if one.is_text else one.dtype)
        for name, one in layout.variables.items()
    }


def _put(
    arrays: dict[str, np.ndarray], layout: Layout, piece: _Piece, name: str, column: np.ndarray
) -> None:
    """Put the distinct part of a column in its place, if it repeats as it was written."""
    one = layout.variables.get(name, VariableLayout((name,), "int64"))
    full = column.reshape(piece.shape)
    kept = full[tuple(slice(0, size) for size in piece.fit(one.dims))]
    same = ((full == kept) | ((full != full) & (kept != kept))).all()
    if column.dtype == object and not one.is_text:
        kept = _parse(kept, one)
    if not same or (name not in layout.variables and (kept != _positions(piece, name)).any()):
        raise StoreError(
            f"its column {name!r} is not in the order in which it was written",
            "write it again; read sorted or edited tables with pandas",
        )
    if name in layout.variables:
        present = [dim for dim in piece.index if dim in one.dims]
        part = kept.reshape([piece.index[dim].stop - piece.index[dim].start for dim in present])
        target = tuple(piece.index[dim] for dim in one.dims)
        arrays[name][target] = part.transpose([present.index(dim) for dim in one.dims])


def _parse(cells: np.ndarray, one: VariableLayout) -> np.ndarray:
    convert: Any = float if one.dtype.startswith("float") else int
    if one.dtype == "bool":
        convert = {"True": True, "False": False}.__getitem__
    flat = [convert(cell) for cell in cells.ravel()]
    return np.array(flat, dtype=one.dtype).reshape(cells.shape)


def _dataset(layout: Layout, arrays: dict[str, np.ndarray]) -> xr.Dataset:
    variables = {
        name: xr.Variable(one.dims, one.cast(arrays[name]), dict(one.attrs))
        for name, one in layout.variables.items()
    }
    coords = {name: variables.pop(name) for name, one in layout.variables.items() if one.coord}
    return xr.Dataset(variables, coords, dict(layout.attrs))
