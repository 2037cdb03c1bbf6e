"""Output error over k: P_low, pooled, random and learned projections, on one pretrained encoder."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.store.files import load

NAMES = {
    "truncated": "P_low",
    "best-output": "best output of rank k",
    "linformer": "Linformer, mean pooling",
    "linformer:projection=gaussian": "Linformer, Gaussian E, F",
    "linformer:projection=gaussian,sharing=key-value": "Linformer, Gaussian E = F",
    "projected": "P·RᵀR (theorem 1)",
    "mean-row": "mean row",
    "uniform": "uniform",
}


def draw() -> list[Path]:
    """Draw from 12 windows of WikiText-103 test, n = 512."""
    summary = load(DATA / "projections--minilm--test.nc")
    learned = {
        str(label): "Linformer, learned"
        for label in summary["label"].to_numpy()
        if "projection=learned" in str(label)
    }
    figure = plots.error_over_rank(summary, names=NAMES | learned, width=plots.FULL_WIDTH)
    return plots.save(figure, pictures("errors_minilm"))
