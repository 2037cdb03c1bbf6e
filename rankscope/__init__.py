"""rankscope: spectral analysis of attention.

The flow, and its nouns::

    text ──windows──▶ capture ──Attention (one layer at a time)──▶ Spectrum ──▶ xarray.Dataset
                                                                                  │
                                             plots ◀── summary ◀── store, export ◀┘

- A **Corpus** (:func:`load_corpus`) is numbered texts with a checksum; a **Window**
  (:func:`windows`) is a run of n of its tokens.
- A **LoadedModel** (:func:`load_model`) is a network, its tokenizer and where they come from.
- ``rankscope.capture.capture`` streams windows through a model and hands out one **Attention**
  after the other: query, key and value of one layer; P and P·V when asked.
- :func:`singular_values` turns matrices into a **Spectrum**: float64 values and a status for each.
- :func:`cumulative_ratio` (of σ) and :func:`energy_ratio` (of σ²), :func:`rank_at`,
  :func:`effective_rank`, :func:`stable_rank`, :func:`numerical_rank` are functions of a spectrum.
- A **Recipe** says what is measured; :func:`spectra` does it in memory, :func:`run` into a file
  that survives being stopped. The result is a **Dataset** with the dimensions model, corpus,
  sample, layer, head, index.
- :func:`summarise` averages it over windows; :func:`export` and :func:`load` write and read
  NetCDF, Zarr, CSV and Parquet.

Five lines that make the low-rank plot of a model::

    import rankscope as rs
    from rankscope import plots

    run = rs.spectra(rs.load_model("builtin"), rs.load_corpus("builtin"))
    plots.save(plots.figure1(rs.summarise(run)), "figure1.png")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name: (module, name there); loaded on first use, so that `import rankscope` is quick
_PUBLIC = {
    "Attention": ("capture", "Attention"),
    "Corpus": ("text", "Corpus"),
    "LoadedModel": ("models", "LoadedModel"),
    "RankscopeError": ("exceptions", "RankscopeError"),
    "Recipe": ("engine", "Recipe"),
    "Spectrum": ("linalg", "Spectrum"),
    "Status": ("status", "Status"),
    "TextOptions": ("text", "TextOptions"),
    "Window": ("text", "Window"),
    "cumulative_ratio": ("rank", "cumulative_ratio"),
    "effective_rank": ("rank", "effective_rank"),
    "energy_ratio": ("rank", "energy_ratio"),
    "export": ("store.files", "export"),
    "load": ("store.files", "load"),
    "load_corpus": ("text", "load_corpus"),
    "load_model": ("models", "load"),
    "numerical_rank": ("rank", "numerical_rank"),
    "rank_at": ("rank", "rank_at"),
    "run": ("engine", "run"),
    "singular_values": ("linalg", "singular_values"),
    "spectra": ("engine", "spectra"),
    "stable_rank": ("rank", "stable_rank"),
    "summarise": ("summary", "summarise"),
    "windows": ("text", "windows"),
}

__all__ = [
    "Attention",
    "Corpus",
    "LoadedModel",
    "RankscopeError",
    "Recipe",
    "Spectrum",
    "Status",
    "TextOptions",
    "Window",
    "__version__",
    "cumulative_ratio",
    "effective_rank",
    "energy_ratio",
    "export",
    "load",
    "load_corpus",
    "load_model",
    "numerical_rank",
    "rank_at",
    "run",
    "singular_values",
    "spectra",
    "stable_rank",
    "summarise",
    "windows",
]

if TYPE_CHECKING:
    from rankscope.capture import Attention
    from rankscope.engine import Recipe, run, spectra
    from rankscope.exceptions import RankscopeError
    from rankscope.linalg import Spectrum, singular_values
    from rankscope.models import LoadedModel
    from rankscope.models import load as load_model
    from rankscope.rank import (
        cumulative_ratio,
        effective_rank,
        energy_ratio,
        numerical_rank,
        rank_at,
        stable_rank,
    )
    from rankscope.status import Status
    from rankscope.store.files import export, load
    from rankscope.summary import summarise
    from rankscope.text import Corpus, TextOptions, Window, load_corpus, windows


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return __all__
