"""Where figures find their data and leave their pictures."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from rankscope.store.files import load

FOLDER = Path(__file__).parent
DATA = FOLDER / "data"


def summaries(*names: str) -> list[xr.Dataset]:
    """Committed averages, each ``MODEL--CORPUS`` of ``analyses/low_rank.py``."""
    return [load(DATA / f"low_rank--{name}.nc") for name in names]


def with_controls(model: str, corpus: str) -> tuple[list[xr.Dataset], list[xr.Dataset]]:
    """A model's averages on a corpus; and those of its rows shuffled and of random weights."""
    controls = (f"{control}-{model}--{corpus}" for control in ("rows", "random"))
    return summaries(f"{model}--{corpus}"), summaries(*controls)


def pictures(name: str) -> list[Path]:
    """The two files that a figure is saved to."""
    return [FOLDER / f"{name}.png", FOLDER / f"{name}.svg"]
