"""One head of high rank: its matrix, its spectrum and both ratios."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.store.files import load


def draw() -> list[Path]:
    """Draw from the matrix that ``analyses/one_head.py`` kept."""
    data = load(DATA / "one_head.nc")
    figure = plots.head_figure(
        data["weight"].to_numpy(), data["singular_value"].to_numpy(), title=data.attrs["title"]
    )
    return plots.save(figure, pictures("one_head"))
