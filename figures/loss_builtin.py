"""Loss of the built-in model over k, its attention replaced in all layers and heads."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.store.files import load

NAMES = {
    "truncated": "P_low",
    "linformer": "Linformer, mean pooling",
    "uniform": "uniform attention",
    "mean-row": "mean row",
}


def draw() -> list[Path]:
    """Draw from 16 windows of WikiText-103 test, n = 512, 15 % of the tokens hidden."""
    summary = load(DATA / "loss--builtin--over-k.nc")
    learned = {
        str(label): "Linformer, learned"
        for label in summary["label"].to_numpy()
        if "projection=learned" in str(label)
    }
    figure = plots.loss_over_rank(summary, names=NAMES | learned)
    return plots.save(figure, pictures("loss_builtin"))
