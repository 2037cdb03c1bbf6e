"""Attributes that every file format gives back as they were.

NetCDF knows neither booleans nor ``None`` nor nested values, and each engine fails or converts in
its own way. Plain text, integers and floats are therefore written as they are, and everything else
as JSON text under a key that ends in ``_json``; the attribute ``rankscope_attrs_json`` says which.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rankscope.exceptions import StoreError

MAP_KEY = "rankscope_attrs_json"
SCHEMA_KEY = "rankscope_schema"
LAYOUT_KEY = "rankscope_layout_json"

# names that xarray or the CF conventions read as instructions about the data
_INSTRUCTIONS = frozenset(
    {"missing_value", "scale_factor", "add_offset", "dtype", "coordinates"}
    | {"CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS"}
)
_PORTABLE_KEY = re.compile(r"[A-Za-z](?:[\w .+@:()-]*[\w.+@:()-])?", re.ASCII)
_TAGS = frozenset({"$tuple", "$array", "$float", "$dict"})
_INT64 = range(-(2**63), 2**63)


def to_jsonable(value: Any, where: str = "value") -> Any:
    """Turn a value into what JSON can hold, marked so that `from_jsonable` gives it back.

    Parameters
    ----------
    value : object
        None, bool, int, float, str, NumPy scalars and arrays of them, and lists, tuples and
        mappings of these. NumPy scalars become Python's.
    where : str
        Name used in the message of the error.

    Returns
    -------
    object
        Strict JSON: NaN, infinities, tuples, arrays and unusual mappings carry a tag.

    Raises
    ------
    StoreError
        For a value of any other type.

    Examples
    --------
    >>> to_jsonable({"a": (1, None)})
    {'a': {'$tuple': [1, None]}}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, list):
        return [to_jsonable(item, where) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [to_jsonable(item, where) for item in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        kind = value.dtype.str.lstrip("<>=|")
        return {
            "$array": to_jsonable(value.tolist(), where),
            "dtype": kind,
            "shape": [*value.shape],
        }
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and not _TAGS & value.keys():
            return {str(key): to_jsonable(item, where) for key, item in value.items()}
        pairs = [[to_jsonable(key, where), to_jsonable(item, where)] for key, item in value.items()]
        return {"$dict": pairs}
    raise StoreError(
        f"attribute {where!r} holds a {type(value).__name__}, which no data file can keep",
        "use text, numbers, None, and lists or dicts of them",
    )


def from_jsonable(value: Any) -> Any:
    """Undo `to_jsonable`.

    Parameters
    ----------
    value : object
        What `to_jsonable` returned, possibly after a way through JSON text.

    Returns
    -------
    object
        The value that was given to `to_jsonable`.

    Examples
    --------
    >>> from_jsonable({"$tuple": [1, {"$float": "inf"}]})
    (1, inf)
    """
    if isinstance(value, list):
        return [from_jsonable(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(from_jsonable(value["$tuple"]))
    if "$float" in value:
        return float(value["$float"])
    if "$array" in value:
        items = from_jsonable(value["$array"])
        return np.array(items, dtype=value["dtype"]).reshape(value["shape"])
    if "$dict" in value:
        return {from_jsonable(key): from_jsonable(item) for key, item in value["$dict"]}
    return {key: from_jsonable(item) for key, item in value.items()}


def dump_json(value: Any, where: str = "value") -> str:
    """JSON text of a value, with the tags of `to_jsonable`; ASCII only, on one line."""
    return json.dumps(to_jsonable(value, where), allow_nan=False)


def load_json(text: str) -> Any:
    """Value of a text that `dump_json` made."""
    return from_jsonable(json.loads(text))


def encode_attrs(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as text, integers, floats and numeric arrays, which every engine writes alike.

    Parameters
    ----------
    attrs : mapping
        Attributes of a dataset or variable; values as `to_jsonable` takes them.

    Returns
    -------
    dict
        Plain values under their own key; others as JSON text under ``KEY_json`` (or a key that is
        free), and the table of those keys under ``rankscope_attrs_json``.

    Raises
    ------
    StoreError
        For a key that is not text, or a value that cannot be kept.

    Examples
    --------
    >>> encode_attrs({"seed": 3, "flag": True})["flag_json"]
    'true'
    >>> decode_attrs(encode_attrs({"seed": 3, "flag": True}))
    {'seed': 3, 'flag': True}
    """
    encoded: dict[str, Any] = {}
    as_json: dict[str, str] = {}
    arrays: dict[str, str] = {}
    for key, value in attrs.items():
        if not isinstance(key, str):
            raise StoreError(f"attribute name {key!r} is not text", "use text for names")
        if _is_reserved(key):
            continue
        plain = _plain(key, value)
        if plain is None:
            continue
        encoded[key] = plain
        if isinstance(plain, np.ndarray):
            arrays[key] = plain.dtype.name
    for key, value in attrs.items():
        if key in encoded:
            continue
        stem = re.sub(r"[^0-9A-Za-z_]+", "_", key).strip("_") or "attribute"
        if not stem[0].isalpha():
            stem = f"attribute_{stem}"
        name = f"{stem}_json"
        while name in encoded or name in attrs or _is_reserved(name):
            name += "_json"
        encoded[name] = dump_json(value, key)
        as_json[name] = key
    if as_json or arrays:
        table = {"json": as_json, "arrays": arrays, "order": list(attrs)}
        encoded[MAP_KEY] = json.dumps(table)
    return encoded


def decode_attrs(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Undo `encode_attrs`, whatever the engine made of integers, floats and arrays.

    Parameters
    ----------
    attrs : mapping
        Attributes as an engine read them.

    Returns
    -------
    dict
        The attributes that were given to `encode_attrs`, scalars as Python's.
    """
    table = json.loads(attrs[MAP_KEY]) if MAP_KEY in attrs else {}
    as_json, arrays = table.get("json", {}), table.get("arrays", {})
    decoded: dict[str, Any] = {}
    for key, value in attrs.items():
        if key == MAP_KEY:
            continue
        if key in as_json:
            decoded[as_json[key]] = load_json(value)
        elif key in arrays:
            decoded[key] = np.asarray(value, dtype=arrays[key])
        else:
            decoded[key] = value.item() if isinstance(value, np.generic) else value
    return {key: decoded[key] for key in table.get("order", decoded)}


def _is_reserved(key: str) -> bool:
    return key in (MAP_KEY, SCHEMA_KEY, LAYOUT_KEY) or key in _INSTRUCTIONS


def _plain(key: str, value: Any) -> str | int | float | np.ndarray | None:
    """The value as every engine takes it, or None where it needs JSON."""
    if not _PORTABLE_KEY.fullmatch(key):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value) if value in _INT64 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        # xarray would take such units for an order to make dates of the data
        is_date = key in ("units", "calendar") and (key == "calendar" or " since " in value)
        return None if is_date or not is_portable_text(value) else str.__str__(value)
    # the CF conventions want flag_values and the like as an array of the variable's own type;
    # an array of one is left out because NetCDF gives it back as a scalar
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > 1:
        native = value.dtype.newbyteorder("=")
        numeric = native.kind in "iuf" and native.itemsize <= 8 and native != np.float16
        return value.astype(native) if numeric and np.isfinite(value).all() else None
    return None


def is_portable_text(text: str) -> bool:
    """Whether a text survives as UTF-8 in every format: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
