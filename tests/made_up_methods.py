"""Made-up runs of compare, truncate and intervene, with values that a test sets or a seed draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from rankscope import plots
from rankscope.summary.losses import summarise_losses
from rankscope.summary.methods import summarise_methods, summarise_truncation

MATRIX = ("model", "corpus", "sample", "layer", "head")
METHODS = (
    "full",
    "uniform",
    "mean-row",
    *(f"truncated:k={k}" for k in (32, 64, 128, 256)),
    *(f"best-output:k={k}" for k in (32, 64)),
    *(f"projected:k={k}" for k in (32, 64, 128, 256)),
    *(f"linformer:k={k},projection=gaussian" for k in (64, 128, 256)),
    *(f"linformer:k={k},projection=mean" for k in (64, 128, 256)),
    *(f"linformer:k={k},projection=learned,file=runs/a/learned.safetensors" for k in (64, 128)),
)


def method_coords(methods: Sequence[str]) -> dict[str, Any]:
    """The coordinates along method, from the texts of the methods."""
    families, labels, budgets = [], [], []
    for text in methods:
        family, _, rest = text.partition(":")
        parts = rest.split(",") if rest else []
        spent = [part for part in parts if part.startswith("k=")]
        kept = [part for part in parts if not part.startswith("k=")]
        families.append(family)
        labels.append(family + (":" + ",".join(kept) if kept else ""))
        budgets.append(int(spent[0][2:]) if spent else 0)
    return {
        "method": list(methods),
        "family": ("method", families),
        "label": ("method", labels),
        "budget": ("method", np.array(budgets, dtype=np.int64)),
    }


def windows(
    samples: int, text_id: Sequence[int] | None, sizes: Sequence[int], model: str, corpus: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all runs have: sizes of the windows, and where they come from."""
    tokens = np.array(sizes, dtype=np.int32)[None, None]
    return {"n_tokens": (MATRIX[:3], tokens)}, {
        "model": [model],
        "corpus": [corpus],
        "sample": np.arange(samples),
        "text_id": ("sample", np.array(text_id if text_id is not None else range(samples))),
    }


def compare_run(
    measures: dict[str, np.ndarray],
    methods: Sequence[str],
    *,
    text_id: Sequence[int] | None = None,
    status: np.ndarray | None = None,
    n: int = 512,
    model: str = "m",
    corpus: str = "c",
) -> xr.Dataset:
    """A run out of arrays (sample, layer, head, method)."""
    samples, layers, heads, _ = next(iter(measures.values())).shape
    variables, coords = windows(samples, text_id, [n] * samples, model, corpus)
    codes = np.zeros((samples, layers, heads)) if status is None else status
    variables["status"] = (MATRIX, codes.astype(np.int8)[None, None])
    for name, values in measures.items():
        variables[name] = ((*MATRIX, "method"), values[None, None].astype(np.float64))
    coords |= {"layer": np.arange(layers), "head": np.arange(heads)} | method_coords(methods)
    return xr.Dataset(variables, coords, {"recipe_json": "{}"})


def truncate_run(
    curves: dict[str, np.ndarray],
    *,
    fixed: dict[str, np.ndarray] | None = None,
    chosen: dict[str, np.ndarray] | None = None,
    ranks: Sequence[int] = (),
    text_id: Sequence[int] | None = None,
    status: np.ndarray | None = None,
    sizes: Sequence[int] | None = None,
    model: str = "m",
    corpus: str = "c",
) -> xr.Dataset:
    """A run out of arrays (sample, layer, head, index), (…) and (…, rank)."""
    samples, layers, heads, length = next(iter(curves.values())).shape
    variables, coords = windows(samples, text_id, sizes or [length] * samples, model, corpus)
    codes = np.zeros((samples, layers, heads)) if status is None else status
    variables["status"] = (MATRIX, codes.astype(np.int8)[None, None])
    for extra, arrays in (((), fixed or {}), (("index",), curves), (("rank",), chosen or {})):
        for name, values in arrays.items():
            variables[name] = ((*MATRIX, *extra), values[None, None].astype(np.float64))
    coords |= {"layer": np.arange(layers), "head": np.arange(heads)}
    coords |= {"index": np.arange(1, length + 1)}
    coords |= {"rank": np.array(ranks, dtype=np.int64)} if chosen else {}
    return xr.Dataset(variables, coords, {"recipe_json": "{}"})


def intervene_run(
    measures: dict[str, np.ndarray],
    methods: Sequence[str],
    *,
    masked: Sequence[int] | None = None,
    text_id: Sequence[int] | None = None,
    status: Sequence[int] | None = None,
    model: str = "m",
    corpus: str = "c",
) -> xr.Dataset:
    """A run out of arrays (sample, method)."""
    samples = len(next(iter(measures.values())))
    variables, coords = windows(samples, text_id, [512] * samples, model, corpus)
    per_window = {
        "masked_tokens": np.array(masked or [10] * samples, dtype=np.int32),
        "status": np.array(status or [0] * samples, dtype=np.int8),
    }
    for name, values in per_window.items():
        variables[name] = (MATRIX[:3], values[None, None])
    for name, values in measures.items():
        variables[name] = ((*MATRIX[:3], "method"), values[None, None].astype(np.float64))
    return xr.Dataset(variables, coords | method_coords(methods), {"recipe_json": "{}"})


def drawn_methods(
    methods: Sequence[str] = METHODS, *, layers: int = 4, heads: int = 4, n: int = 512
) -> xr.Dataset:
    """A summary of output errors of about the size that real heads have."""
    coords = method_coords(methods)
    rng = np.random.default_rng(0)
    k = np.maximum(coords["budget"][1], 1)
    sizes = {
        "full": 0.0 * k,
        "uniform": 0.8 + 0.0 * k,
        "mean-row": 0.7 + 0.0 * k,
        "truncated": 0.4 * np.exp(-k / 90),
        "best-output": 0.2 * np.exp(-k / 60),
        "projected": np.sqrt(n / k),
        "linformer:projection=gaussian": 5 * (128 / k) ** 0.25,
        "linformer:projection=mean": 0.5 * (128 / k) ** 0.5,
    }
    learned = 0.4 * (128 / k) ** 0.4
    middle = np.array(
        [sizes.get(label, learned)[place] for place, label in enumerate(coords["label"][1])]
    )
    heads_differ = np.exp(rng.normal(0, 0.35, (1, layers, heads, 1)))
    windows_differ = np.exp(rng.normal(0, 0.05, (4, layers, heads, len(middle))))
    run = compare_run({"output": middle * heads_differ * windows_differ}, methods, n=n)
    return summarise_methods(run)


def drawn_truncation(*, layers: int = 4, heads: int = 4, n: int = 512) -> xr.Dataset:
    """A summary of truncation whose errors fall to 0 at k = n."""
    rng = np.random.default_rng(1)
    k = np.arange(1, n + 1)
    scale = rng.uniform(0.8, 1.25, (4, layers, heads, 1))
    curve = 0.7 * np.exp(-k / (n / 5) / scale) * (k < n)
    whole = np.full((4, layers, heads), 0.7)
    run = truncate_run(
        {"output_error": curve, "output_bound": curve**2 * (k <= 64)},
        fixed={"mean_row_output_error": whole},
    )
    return summarise_truncation(run)


LOSSES = (
    "full",
    "uniform",
    *(f"truncated:k={2**e}" for e in range(10)),
    *(f"linformer:k={2**e},projection=mean" for e in range(2, 10)),
    *(f"linformer:k={2**e},projection=learned" for e in range(4, 9)),
)


def drawn_losses(methods: Sequence[str] = LOSSES) -> xr.Dataset:
    """A summary of losses between that of full attention, 2.8, and of uniform, 6.2."""
    coords = method_coords(methods)
    rng = np.random.default_rng(2)
    k = np.maximum(coords["budget"][1], 1)
    steps = {"full": 0 * k, "uniform": 3.4 + 0 * k, "truncated": 3.2 * np.exp(-k / 12)}
    pooled = 3.0 * np.exp(-np.sqrt(k / 60))
    cost = np.array(
        [steps.get(label, pooled)[place] for place, label in enumerate(coords["label"][1])]
    )
    texts = rng.normal(2.8, 0.3, (12, 1))
    loss = texts + cost * rng.uniform(0.9, 1.1, (12, len(cost)))
    return summarise_losses(intervene_run({"loss": loss, "kl": loss - texts}, methods))


def errors_of_layers(learned: float = 0.4) -> xr.DataArray:
    """Errors of four methods on two splits, six layers, three ranks."""
    base = np.array([5.0, 0.5, learned, 0.1])[None, :, None, None]
    scale = np.array([1.3, 1.0, 0.7])[:, None, None, None]
    split = np.array([0.8, 1.0])[None, None, :, None]
    values = base * scale * split * np.linspace(1, 1.5, 6)
    return xr.DataArray(
        values,
        {
            "rank": [64, 128, 256],
            "method": ["gaussian", "mean", "learned", "truncated"],
            "split": ["training", "held-out"],
            "layer": np.arange(6),
        },
        ("rank", "method", "split", "layer"),
    )


BUDGETS = [
    plots.BudgetRow(64 * k, how, loss + cost, loss + cost - 0.1, loss + cost + 0.1)
    for how, cost in (("uniform", 0.5), ("layer", 0.3), ("head", 0.2))
    for k, loss in ((16, 4.0), (32, 3.5), (64, 3.0), (128, 2.8))
]
RANKS = np.exp2(np.random.default_rng(0).uniform(1, 8.5, (6, 12))).round()

FIGURES: dict[str, Callable[[float], Any]] = {
    "error": lambda width: plots.error_over_rank(drawn_methods(), drawn_truncation(), width=width),
    "loss": lambda width: plots.loss_over_rank(drawn_losses(), unigram=6.95, width=width),
    "map": lambda width: plots.rank_map(RANKS, title="ranks", width=width),
    "budget": lambda width: plots.budget_curves(BUDGETS, full=2.7, width=width),
    "learned": lambda width: plots.learned_over_layers(errors_of_layers(), width=width),
}


def labels_of(figure: Any) -> list[str]:
    """What the legend of a figure says."""
    return [text.get_text() for text in figure.legends[0].get_texts()]
