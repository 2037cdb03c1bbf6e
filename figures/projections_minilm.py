"""Learned projections by layer, on the text of the fit and on another, beside P_low."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.store.files import load


def draw() -> list[Path]:
    """Draw mean errors of the heads: fitted on WikiText-103 validation, scored on test."""
    errors = load(DATA / "projections--minilm--layers.nc")["output_error"]
    return plots.save(plots.learned_over_layers(errors), pictures("projections_minilm"))
