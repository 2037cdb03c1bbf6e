"""Runs with made-up numbers, for tests of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import rankscope.store as store_of_runs
from rankscope.store import RunSchema, RunStore, canonical_json, settings_hash
from rankscope.store.schema import CENTRED, CURVE, MATRIX, SPECTRA

RECIPE = {"model": "m", "text": {"length": 512, "mode": "packed"}, "layers": [0, 1]}
HASH = settings_hash(RECIPE)


def schema(
    n_samples: int = 3, n_index: int = 8, centred: bool = False, **changes: Any
) -> RunSchema:
    """A run of two layers and three heads."""
    span = np.arange(n_samples)
    options: dict[str, Any] = {
        "model": "a model whose name is far longer than that of any other",
        "corpus": "NA",
        "text_id": span // 2,
        "window": span,
        "token_start": span * 6,
        "token_end": span * 6 + 6,
        "axes": {
            "layer": np.array([0, 5]),
            "head": np.arange(3),
            "index": np.arange(1, n_index + 1),
        },
        "variables": SPECTRA | CENTRED if centred else SPECTRA,
        "labels": {"attention": ("layer", np.array(["global", "local"]))},
        "attrs": {
            "settings_hash": HASH,
            "recipe_json": canonical_json(RECIPE),
            "seed": 3,
            "centred": False,
        },
    }
    return RunSchema(**options | changes)


def window(run: RunSchema, sample: int) -> dict[str, np.ndarray]:
    """The same arrays for the same sample, with what may occur in them."""
    rng = np.random.default_rng(sample)
    shape = tuple(map(len, run.axes.values()))
    fields = {
        name: rng.random(shape if dims == CURVE else shape[:2])
        for name, (dims, *_) in SPECTRA.items()
        if dims in (CURVE, MATRIX)
    }
    fields["singular_value"][..., -2:] = np.nan
    fields["cumulative_ratio"][0, 0] = np.nan
    fields["energy_ratio"][1, 1, :3] = [5e-324, 1 / 3, np.inf]
    fields["status"] = rng.integers(0, 7, shape[:2])
    fields["n_tokens"] = np.array(shape[-1] - 2)
    if {*CENTRED} <= {*run.variables}:
        fields["centred_singular_value"] = rng.random(shape)
    return fields


def complete(path: Path, run: RunSchema, order: list[int] | None = None) -> RunStore:
    """A store with all its windows."""
    store = RunStore.create(path, run)
    for sample in order or range(run.n_samples):
        store.write(sample, window(run, sample))
    return store


def full_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on the disk is full when a variable is written."""
    real = store_of_runs.put_windows

    def put_windows(path: Path, array: Any, *rest: Any) -> None:
        if array.basename == name:
            raise OSError(28, "No space left on device")
        real(path, array, *rest)

    monkeypatch.setattr(store_of_runs, "put_windows", put_windows)


def assert_bits_equal(one: xr.Dataset, other: xr.Dataset) -> None:
    """Identical, of the same types, and bit for bit."""
    xr.testing.assert_identical(one, other)
    for name in one.variables:
        assert one[name].dtype == other[name].dtype
        assert one[name].values.tobytes() == other[name].values.tobytes()
