"""rankscope: spectral analysis of attention.

The flow, and its nouns::

    text ──windows──▶ capture ──Attention (one layer at a time)──▶ Spectrum, truncation, methods
                                                                                  │
       plots, tables, report ◀── summary, selection ◀── xarray.Dataset ◀── store ◀─┘

- A **Corpus** (:func:`load_corpus`) is numbered texts with a checksum; a **Window**
  (:func:`windows`) is a run of n of its tokens.
- A **LoadedModel** (:func:`load_model`) is a network, its tokenizer and where they come from.
- ``rankscope.capture.capture`` streams windows through a model and hands out one **Attention**
  after the other: query, key and value of one layer; P and P·V when asked.
- :func:`singular_values` turns matrices into a **Spectrum**: float64 values and a status for each.
- :func:`cumulative_ratio` (of σ) and :func:`energy_ratio` (of σ²), :func:`rank_at`,
  :func:`effective_rank`, :func:`stable_rank`, :func:`numerical_rank` are functions of a spectrum.
- :func:`decompose` and :func:`error_curves` give P_low and its error for every rank.
- An **Approximation** is a value that stands for a way to approximate attention:
  ``method("linformer:k=128")`` has a ``matrix`` and an ``apply``.
- A **Sampling** says which windows and layers, a **Recipe** also how spectra are measured.
  :func:`spectra`, :func:`truncation_errors`, :func:`method_errors` and :func:`losses` measure in
  memory, :func:`run` into a file that survives being stopped; **Resources** says with how many
  worker processes, or on which cluster. The result is a **Dataset** with the dimensions model,
  corpus, sample, layer, head, and index or method.
- A recipe with a `control` measures what chance alone gives on the same windows;
  :func:`difference` sets the two against each other, window by window.
- :func:`choose_ranks` makes of truncation errors a **Choice**: a rank for every layer and head.
- :func:`summarise` averages spectra over windows; :func:`export` and :func:`load` write and read
  NetCDF, Zarr, CSV and Parquet; :func:`write_report` makes an explorer for the browser.

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
    "Approximation": ("approximations", "Approximation"),
    "Attention": ("capture", "Attention"),
    "Choice": ("selection", "Choice"),
    "Corpus": ("text", "Corpus"),
    "LoadedModel": ("models", "LoadedModel"),
    "Resources": ("engine", "Resources"),
    "RankscopeError": ("exceptions", "RankscopeError"),
    "Recipe": ("engine", "Recipe"),
    "Sampling": ("engine", "Sampling"),
    "Spectrum": ("linalg", "Spectrum"),
    "Status": ("status", "Status"),
    "TextOptions": ("text", "TextOptions"),
    "Window": ("text", "Window"),
    "choose_ranks": ("selection", "from_dataset"),
    "cumulative_ratio": ("rank", "cumulative_ratio"),
    "decompose": ("truncation", "decompose"),
    "difference": ("summary.differences", "difference"),
    "effective_rank": ("rank", "effective_rank"),
    "energy_ratio": ("rank", "energy_ratio"),
    "error_curves": ("truncation", "error_curves"),
    "export": ("store.files", "export"),
    "load": ("store.files", "load"),
    "load_corpus": ("text", "load_corpus"),
    "load_model": ("models", "load"),
    "losses": ("engine", "losses"),
    "method": ("approximations", "method"),
    "method_errors": ("engine", "method_errors"),
    "numerical_rank": ("rank", "numerical_rank"),
    "rank_at": ("rank", "rank_at"),
    "run": ("engine", "run"),
    "singular_values": ("linalg", "singular_values"),
    "spectra": ("engine", "spectra"),
    "stable_rank": ("rank", "stable_rank"),
    "summarise": ("summary", "summarise"),
    "truncation_errors": ("engine", "truncation_errors"),
    "windows": ("text", "windows"),
    "write_report": ("report", "write_report"),
}

__all__ = [
    "Approximation",
    "Attention",
    "Choice",
    "Corpus",
    "LoadedModel",
    "RankscopeError",
    "Recipe",
    "Resources",
    "Sampling",
    "Spectrum",
    "Status",
    "TextOptions",
    "Window",
    "__version__",
    "choose_ranks",
    "cumulative_ratio",
    "decompose",
    "difference",
    "effective_rank",
    "energy_ratio",
    "error_curves",
    "export",
    "load",
    "load_corpus",
    "load_model",
    "losses",
    "method",
    "method_errors",
    "numerical_rank",
    "rank_at",
    "run",
    "singular_values",
    "spectra",
    "stable_rank",
    "summarise",
    "truncation_errors",
    "windows",
    "write_report",
]

if TYPE_CHECKING:
    from rankscope.approximations import Approximation, method
    from rankscope.capture import Attention
    from rankscope.engine import (
        Recipe,
        Resources,
        Sampling,
        losses,
        method_errors,
        run,
        spectra,
        truncation_errors,
    )
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
    from rankscope.report import write_report
    from rankscope.selection import Choice
    from rankscope.selection import from_dataset as choose_ranks
    from rankscope.status import Status
    from rankscope.store.files import export, load
    from rankscope.summary import summarise
    from rankscope.summary.differences import difference
    from rankscope.text import Corpus, TextOptions, Window, load_corpus, windows
    from rankscope.truncation import decompose, error_curves


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return __all__
