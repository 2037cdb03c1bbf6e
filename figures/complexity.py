"""Time and peak memory of every family over the number of tokens."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.plots.complexity import cost_over_length
from rankscope.store.files import load

NAMES = {
    "full": "full attention",
    "fused": "fused kernel",
    "bigbird:entries=128": "bigbird, ITC",
    "bigbird:entries=128,mode=etc": "bigbird, ETC",
    "linformer:k=128": "linformer, pooled",
    "linformer:k=128,projection=learned": "linformer, dense",
    "linformer:k=256,projection=learned": "linformer, dense, k = 256",
    "performer:features=128,estimator=trigonometric": "performer, sin/cos",
}
"""What needs another name than its method's; the budget is the same for all but one."""


def draw() -> list[Path]:
    """Draw from the measurements of ``analyses/complexity.py``."""
    measured = load(DATA / "complexity.nc")
    plain = {
        text: text.partition(":")[0] for text in map(str, measured["method"].to_numpy())
    } | NAMES
    figure = cost_over_length(measured, names=plain)
    return plots.save(figure, pictures("complexity"))
