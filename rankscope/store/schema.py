"""What a run's dataset holds, and the hash that tells one set of settings from another.

The dimensions are ``model, corpus, sample, layer, head, index``; a sample is one window of tokens,
and ``index`` is k, the number of singular values that are kept: ``cumulative_ratio.sel(index=128)``
is the sum of the first 128 over that of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankscope.status import Status
from rankscope.store.layout import Layout, VariableLayout

MATRIX = ("model", "corpus", "sample", "layer", "head")
CURVE = (*MATRIX, "index")

# name: dimensions, type, what it is
VARIABLES: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "singular_value": (CURVE, "float64", "singular value of the attention matrix"),
    "cumulative_ratio": (CURVE, "float64", "sum of the first k singular values over all"),
    "energy_ratio": (CURVE, "float64", "sum of the first k squared singular values over all"),
    "row_entropy": (MATRIX, "float64", "mean entropy of the rows, in nats"),
    "effective_rank": (MATRIX, "float64", "exponential of the entropy of the singular values"),
    "stable_rank": (MATRIX, "float64", "squared Frobenius norm over squared spectral norm"),
    "spectral_gap": (MATRIX, "float64", "first minus second singular value, over the first"),
    "numerical_rank": (MATRIX, "float64", "number of singular values above the tolerance"),
    "rank_90": (MATRIX, "float64", "smallest k whose cumulative ratio reaches 0.9"),
    "n_tokens": (MATRIX[:3], "int32", "size n of the window's matrices"),
    "status": (MATRIX, "int8", "what became of the matrix"),
}
CENTRED = ("centred_singular_value", "singular value of the matrix less its mean row")


@dataclass(frozen=True)
class RunSchema:
    """Everything about a run's dataset that is known before it starts.

    Parameters
    ----------
    model, corpus : str
        Their names.
    n_samples : int
        Number of windows, at least 1.
    layers : tuple of int
        Numbers of the layers.
    n_heads : int
        Heads of each layer.
    n_index : int
        Largest size n of a matrix; ``index`` runs from 1 to it.
    text_id, window, token_start, token_end : (n_samples,) int64
        Where each window comes from.
    layer_attention : sequence of str
        ``"global"`` or ``"local"`` for each layer.
    centred : bool
        Whether the spectra of the centred matrices are kept too.
    attrs : mapping
        Attributes of the dataset; ``settings_hash`` is required, and ``recipe_json`` lets a
        refused resume say which settings differ.
    """

    model: str
    corpus: str
    n_samples: int
    layers: tuple[int, ...]
    n_heads: int
    n_index: int
    text_id: np.ndarray
    window: np.ndarray
    token_start: np.ndarray
    token_end: np.ndarray
    layer_attention: tuple[str, ...]
    centred: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.n_samples, len(self.layers), self.n_heads, self.n_index) < 1:
            raise ValueError("a run has at least one sample, layer, head and index")
        if len(self.layer_attention) != len(self.layers):
            raise ValueError("layer_attention needs one label a layer")
        for name in ("text_id", "window", "token_start", "token_end"):
            if np.shape(getattr(self, name)) != (self.n_samples,):
                raise ValueError(f"{name} needs one number a sample")
        if "settings_hash" not in self.attrs:
            raise ValueError("attrs needs settings_hash")

    def coords(self) -> dict[str, tuple[str, np.ndarray]]:
        """Dimension and values of each coordinate."""
        return {
            "model": ("model", np.array([self.model])),
            "corpus": ("corpus", np.array([self.corpus])),
            "sample": ("sample", np.arange(self.n_samples, dtype=np.int64)),
            "layer": ("layer", np.array(self.layers, dtype=np.int64)),
            "head": ("head", np.arange(self.n_heads, dtype=np.int64)),
            "index": ("index", np.arange(1, self.n_index + 1, dtype=np.int64)),
            "text_id": ("sample", np.asarray(self.text_id, dtype=np.int64)),
            "window": ("sample", np.asarray(self.window, dtype=np.int64)),
            "token_start": ("sample", np.asarray(self.token_start, dtype=np.int64)),
            "token_end": ("sample", np.asarray(self.token_end, dtype=np.int64)),
            "attention": ("layer", np.array(self.layer_attention, dtype=str)),
        }

    def layout(self) -> Layout:
        """Description of the dataset; every type and width is fixed by it."""
        sizes = (1, 1, self.n_samples, len(self.layers), self.n_heads, self.n_index)
        coords = {
            name: VariableLayout((dim,), _dtype_name(values), coord=True)
            for name, (dim, values) in self.coords().items()
        }
        names = dict(VARIABLES)
        if self.centred:
            names[CENTRED[0]] = (CURVE, "float64", CENTRED[1])
        variables = {
            name: VariableLayout(dims, dtype, attrs={"long_name": what, **_flags(name)})
            for name, (dims, dtype, what) in names.items()
        }
        return Layout(dict(zip(CURVE, sizes, strict=True)), coords | variables, dict(self.attrs))


def canonical_json(settings: Mapping[str, Any]) -> str:
    """Settings as JSON text that does not depend on the order of keys or on NumPy's types.

    Parameters
    ----------
    settings : mapping
        Text, numbers, bools, None, and lists, tuples and mappings of them.

    Returns
    -------
    str
        Sorted JSON; tuples are written as lists.

    Examples
    --------
    >>> canonical_json({"b": (1, 2), "a": None})
    '{"a":null,"b":[1,2]}'
    """

    def plain(value: Any) -> Any:
        if isinstance(value, (np.generic, np.ndarray)):
            return value.tolist()
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"a setting of type {type(value).__name__} has no place in a recipe")

    return json.dumps(
        dict(settings), default=plain, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of `canonical_json`, in hexadecimal: equal for equal settings only.

    Examples
    --------
    >>> settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Which settings differ between two recipes, one text each.

    Examples
    --------
    >>> differences({"text": {"length": 512}}, {"text": {"length": 256}})
    ['text.length is 512 there and 256 here']
    """
    here, there = _flat(json.loads(canonical_json(wanted))), _flat(stored)
    absent = object()
    lines = []
    for key in sorted({*here, *there}):
        old, new = there.get(key, absent), here.get(key, absent)
        if old is absent or new is absent:
            lines.append(f"{key} is only {'here' if old is absent else 'there'}")
        elif json.dumps(old) != json.dumps(new):
            lines.append(f"{key} is {json.dumps(old)} there and {json.dumps(new)} here")
    return lines


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _dtype_name(values: np.ndarray) -> str:
    return values.dtype.str if values.dtype.kind == "U" else values.dtype.name


def _flags(name: str) -> dict[str, Any]:
    """The CF conventions' way to name codes."""
    if name != "status":
        return {}
    return {
        "flag_values": np.array([int(one) for one in Status], dtype=np.int8),
        "flag_meanings": " ".join(one.name for one in Status),
    }
