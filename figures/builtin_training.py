"""Held-out loss of the built-in RoBERTa while it was trained."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from figures._data import FOLDER, pictures
from rankscope import plots

ASSETS = FOLDER.parent / "rankscope" / "assets"
# training.json of the same folder: loss of a model that knows only how frequent each piece is
UNIGRAM = 6.0502


def draw() -> list[Path]:
    """Draw from the log that the training wrote."""
    log = pd.read_csv(ASSETS / "training_log.csv")
    millions = log["tokens"] / 1e6
    with plots.house_style():
        figure = plots.new_figure(plots.COLUMN_WIDTH, 2.6)
        axes = figure.subplots()
        axes.axhline(UNIGRAM, color="0.5", linestyle=":", linewidth=1)
        axes.text(0.1, UNIGRAM + 0.06, "unigram", color="0.35", fontsize=8)
        axes.plot(millions, log["valid_128"], color="#0072B2", linestyle="--", label="128 tokens")
        axes.plot(millions, log["valid_512"], color="#D55E00", label="512 tokens")
        axes.set_xlabel("pieces seen, millions")
        axes.set_ylabel("held-out masked-LM loss, nats")
        axes.set_xlim(0, None)
        axes.set_ylim(2, 6.5)
        axes.legend(title="windows of", frameon=False, loc="upper right", bbox_to_anchor=(1, 0.9))
    return plots.save(figure, pictures("builtin_training"))
