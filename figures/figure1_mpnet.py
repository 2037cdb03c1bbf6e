"""The same for a pretrained 12 × 12 encoder and RoBERTa-base's shape with random weights."""

from __future__ import annotations

from pathlib import Path

from figures._data import pictures, summaries
from rankscope import plots


def draw() -> list[Path]:
    """Draw from the averages over 16 packed windows of WikiText-103 test and IMDB."""
    corpora = ("wikitext103-test", "imdb-test")
    figure = plots.figure1(
        summaries(*(f"mpnet--{corpus}" for corpus in corpora)),
        summaries(*(f"random-roberta-base--{corpus}" for corpus in corpora)),
    )
    return plots.save(figure, pictures("figure1_mpnet"))
