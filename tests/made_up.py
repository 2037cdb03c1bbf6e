"""Made-up runs and summaries, and what the tests of pictures look for in a figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from rankscope import plots
from rankscope.summary import summarise
from rankscope.summary.accumulate import CODES


def run_of(
    spectra: np.ndarray,
    *,
    text_id: list[int] | None = None,
    n_tokens: list[int] | None = None,
    status: np.ndarray | None = None,
    model: str = "m",
    corpus: str = "c",
) -> xr.Dataset:
    """A run out of singular values (sample, layer, head, index)."""
    samples, layers, heads, length = spectra.shape
    sizes = np.array(n_tokens or [length] * samples)
    codes = np.zeros((samples, layers, heads), np.int8) if status is None else status
    bad = ~np.isin(codes, [0, 1, 2])
    real = np.arange(length) < sizes[:, None, None, None]
    sigma = np.where(real, spectra, 0.0)
    with np.errstate(invalid="ignore"):
        ratio = sigma.cumsum(-1) / sigma.sum(-1, keepdims=True)
        energy = (sigma**2).cumsum(-1) / (sigma**2).sum(-1, keepdims=True)
    rank_90 = 1.0 + (ratio < 0.9 - 1e-12).sum(-1)
    ratio[bad], energy[bad], rank_90[bad] = np.nan, np.nan, np.nan
    dims = ("model", "corpus", "sample", "layer", "head", "index")
    return xr.Dataset(
        {
            "singular_value": (dims, np.where(real & ~bad[..., None], sigma, np.nan)[None, None]),
            "cumulative_ratio": (dims, ratio[None, None]),
            "energy_ratio": (dims, energy[None, None]),
            "rank_90": (dims[:-1], rank_90[None, None]),
            "status": (dims[:-1], codes.astype(np.int8)[None, None]),
            "n_tokens": (dims[:3], sizes.astype(np.int32)[None, None]),
        },
        {
            "model": [model],
            "corpus": [corpus],
            "sample": np.arange(samples),
            "layer": np.arange(layers),
            "head": np.arange(heads),
            "index": np.arange(1, length + 1),
            "text_id": ("sample", np.array(text_id if text_id else range(samples))),
        },
        {"recipe_json": "{}"},
    )


def summary_of(
    model: str = "model",
    corpus: str = "corpus",
    *,
    layers: int = 3,
    heads: int = 4,
    n: int = 16,
    windows: int = 3,
    bad: tuple[tuple[int, int], ...] = (),
    sizes: list[int] | None = None,
    flat: bool = False,
) -> xr.Dataset:
    """A summary of made-up spectra whose decay differs by head and window."""
    rng = np.random.default_rng(layers * heads + n)
    decay = rng.uniform(0.1, 3, (windows, layers, heads, 1)) * (not flat)
    sigma = np.exp(-decay * np.arange(n) / 4)
    tokens = np.array(sizes or [n] * windows)
    status = np.zeros((windows, layers, heads), np.int8)
    for layer, head in bad:
        status[:, layer, head] = CODES["non_finite"]
        sigma[:, layer, head] = np.nan
    run = run_of(sigma, n_tokens=tokens.tolist(), status=status, model=model, corpus=corpus)
    return summarise(run)


def axes() -> Any:
    with plots.house_style():
        return plots.new_figure(plots.COLUMN_WIDTH, 2.6).add_subplot()


def meshes(figure: Any) -> list[Any]:
    """The heat maps of a figure, colour bars left out."""
    from matplotlib.collections import QuadMesh

    found = [ax.collections[0] for ax in figure.axes if ax.get_ylabel() == "layer"]
    assert all(isinstance(mesh, QuadMesh) for mesh in found)
    return found


def texts_of(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
