"""What a run needs of the machine, and what there is: memory and cores."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

from rankscope.engine.recipe import Recipe

if TYPE_CHECKING:
    from rankscope.models import LoadedModel


def estimate(model: LoadedModel, recipe: Recipe, threads: int) -> int:
    """Memory that a run needs beside the loaded model, in bytes; the number of windows is no part.

    Parameters
    ----------
    model : LoadedModel
    recipe : Recipe
    threads : int

    Returns
    -------
    int
        Estimate: what each thread holds of one matrix at a time, two layers of query and key, the
        hidden states of the forward pass, and the spectra of two windows.
    """
    n = recipe.length
    # P in float32, its Gram matrix in float64
    matrices = threads * n * n * (4 + 8)
    curves = model.info.n_layers * model.info.n_heads * n * 8 * (4 if recipe.centred else 3)
    return matrices + hidden_states(model, n) + 2 * curves


def hidden_states(model: LoadedModel, n: int) -> int:
    """Bytes of what a captured forward pass of one window of n tokens holds; an estimate."""
    config = model.model.config.get_text_config()
    hidden = int(getattr(config, "hidden_size", None) or config.d_model)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    width = torch.finfo(model.model.dtype).bits // 8
    # query and key of two layers, one layer's own three, what it passes on, its feed-forward part
    return n * width * ((2 * 2 + 3 + 4) * hidden + 2 * inner)


def weights_bytes(model: LoadedModel) -> int:
    """Bytes of a model's weights."""
    return sum(one.numel() * one.element_size() for one in model.model.parameters())


def free_memory() -> int:
    """Bytes that a run may take on this machine now: nine tenths of what is available."""
    import psutil

    return int(psutil.virtual_memory().available * 0.9)


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def return_freed_memory() -> None:
    """Let glibc give blocks above 256 KiB back as soon as they are freed.

    It would otherwise learn from the first large block to keep up to 32 MiB of them in every
    thread's heap, and the peak of a run would be what each thread once needed, all added up. This
    holds for the whole process, so that only the command does it; elsewhere it does nothing.
    """
    if sys.platform != "linux":
        return
    import ctypes

    mmap_threshold = -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 256 * 1024)
