"""The same for the built-in RoBERTa, beside its random-weight control."""

from __future__ import annotations

from pathlib import Path

from figures._data import pictures, summaries
from rankscope import plots


def draw() -> list[Path]:
    """Draw from the averages over 32 packed windows of the WikiText-103 test text."""
    figure = plots.figure1(
        summaries("builtin--wikitext103-test", "random-builtin--wikitext103-test")
    )
    return plots.save(figure, pictures("figure1_builtin"))
