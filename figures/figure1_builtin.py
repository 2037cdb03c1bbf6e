"""The same for the built-in RoBERTa, beside its controls."""

from __future__ import annotations

from pathlib import Path

from figures._data import pictures, with_controls
from rankscope import plots


def draw() -> list[Path]:
    """Draw from the averages over 32 packed windows of the WikiText-103 test text."""
    figure = plots.figure1(*with_controls("builtin", "wikitext103-test"))
    return plots.save(figure, pictures("figure1_builtin"))
