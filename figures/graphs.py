"""Sparse patterns as graphs: mean path length over n, and clustering beside path length."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.plots.graphs import path_lengths
from rankscope.store.files import load

NAMES = {
    "dilated": "dilated band",
    "longformer": "Longformer, 1 global token",
    "random": "random keys",
    "random-band": "random keys + band",
    "bigbird itc": "Big Bird ITC",
    "bigbird etc": "Big Bird ETC",
    "complete": "complete (full attention)",
}


def draw() -> list[Path]:
    """Draw from `analyses/graphs.py`: 64 keys a query, 128 to 16,384 tokens."""
    found = load(DATA / "graphs.nc").sel(degree=64)
    title = "64 keys a query; dilated band: of the half of all pairs that a path joins"
    return plots.save(path_lengths(found, names=NAMES, title=title), pictures("graphs"))
