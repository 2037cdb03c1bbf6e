"""The same for a pretrained 12 × 12 encoder, and RoBERTa-base's shape with random weights."""

from __future__ import annotations

from pathlib import Path

from figures._data import pictures, summaries, with_controls
from rankscope import plots


def draw() -> list[Path]:
    """Draw from the averages over 16 packed windows of the WikiText-103 test text."""
    measured, controls = with_controls("mpnet", "wikitext103-test")
    controls += summaries("random-roberta-base--wikitext103-test")
    return plots.save(plots.figure1(measured, controls), pictures("figure1_mpnet"))
