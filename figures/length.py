"""k for 90 % of Σσ over the number of tokens, absolute and relative; padding; random weights."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.plots.lengths import rank_over_length
from rankscope.store.files import load

NAMES = {"builtin": "built-in", "minilm": "MiniLM", "mpnet": "12 × 12 encoder"}


def draw() -> list[Path]:
    """Draw from what ``analyses/length.py`` measured on the WikiText-103 test text."""
    found = {
        label: load(path)
        for name, label in NAMES.items()
        if (path := DATA / f"length--{name}--wikitext103-test.nc").exists()
    }
    size = max(int(one.attrs["padded_to"]) for one in found.values())
    title = f"WikiText-103 test, mean of the heads; padding to {size} tokens"
    return plots.save(rank_over_length(found, title=title), pictures("length"))
