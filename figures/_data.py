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


def pictures(name: str) -> list[Path]:
    """The two files that a figure is saved to."""
    return [FOLDER / f"{name}.png", FOLDER / f"{name}.svg"]
