"""A made-up model among the claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from analyses import _claims_methods as methods

FIRST = "band:w=8"
WHOLE = "longformer:w=4,g=0,ids=0/2"
TREND = methods.trends(64, 2)
TURN = methods.dilated(64)["by head"]


def made(**changes: Any) -> xr.Dataset:
    """All parts of a model of 2 layers × 2 heads on 3 windows of 64 tokens, by made-up numbers."""
    n, windows = 64, 3
    dims = ("spectra_window", "layer", "head")
    wobble = np.array([-0.001, 0.0, 0.001])[:, None, None]
    ratio = np.full((windows, 2, 2), 0.9) + np.array([[-0.005], [0.005]]) + wobble
    texts = [
        *(text for b in methods.budgets(n) for text in (methods.band(b), methods.random_keys(b))),
        *methods.trends(n, 2).values(),
        *methods.dilated(n).values(),
        WHOLE,
        "longformer:w=4,g=2,place=even",
        *(methods.low_rank(k) for k in methods.ranks(n)),
    ]
    names = list(dict.fromkeys(str(methods.method(text)) for text in texts))
    errors = changes.get("errors", {})
    losses = changes.get("losses", {})
    noise = np.array([-0.0001, 0.0, 0.0001])
    output = np.empty((len(names), 3, windows, 2, 2))
    for row, name in enumerate(names):
        for column, rows in enumerate(("all", "special", "other")):
            value = errors.get((name, rows), errors.get(name, 0.3))
            output[row, column] = value + noise[:, None, None]
    values = np.array([[losses.get(name, 0.2) for name in ("full", *names)]] * windows)
    values[:, 0] = 0.0
    values += 2.0 + noise[:, None] * np.arange(len(names) + 1)
    lengths = [8, 16, 32, 64]
    relative = np.array(changes.get("relative", [0.6, 0.5, 0.4, 0.3])) * np.array(lengths)
    ranks = np.broadcast_to(relative[:, None, None, None] + wobble, (4, windows, 2, 2))
    return xr.Dataset(
        {
            "spectra_ratio": (dims, changes.get("ratio", ratio)),
            "spectra_energy": (dims, ratio),
            "spectra_ratio_rows": (dims, ratio - 0.1),
            "spectra_ratio_random": (dims, ratio + 0.05),
            "spectra_rank_90": (dims, ranks[-1]),
            "spectra_numerical_rank": (dims, np.full((3, 2, 2), float(n))),
            "spectra_length_ratio": (("spectra_length", *dims), np.stack([ratio] * 4)),
            "spectra_length_rank_90": (("spectra_length", *dims), ranks),
            "near_mass": (
                ("near_order", "near_window", "layer", "head", "near_w"),
                np.full((2, 3, 2, 2, 2), changes.get("mass", 0.6)) + wobble[..., None],
            ),
            "near_top": (
                ("near_order", "near_window", "layer", "head", "near_w"),
                np.full((2, 3, 2, 2, 2), 0.7),
            ),
            "near_uniform": ("near_w", [0.05, 0.08]),
            "errors_output": (
                ("errors_method", "errors_rows", "errors_window", "layer", "head"),
                output,
            ),
            "losses_value": (("losses_window", "losses_method"), values),
        },
        {
            "spectra_text": ("spectra_window", [0, 0, 0]),
            "near_text": ("near_window", [0, 0, 0]),
            "errors_text": ("errors_window", [0, 0, 0]),
            "losses_text": ("losses_window", [0, 0, 0]),
            "layer": [0, 1],
            "head": [0, 1],
            "spectra_length": lengths,
            "near_order": ["text", "shuffled"],
            "near_w": [1, 2],
            "errors_method": names,
            "errors_rows": ["all", "special", "other"],
            "losses_method": ["full", *names],
        },
        {
            "model": "builtin",
            "corpus": "builtin",
            "losses_measure": changes.get("measure", "loss"),
            **{
                f"part_{name}": '{"n": 64, "windows": 3, "command": "c", "versions": {"x": 1}}'
                for name in ("spectra", "near", "errors", "losses")
            },
        },
    )
