"""What does the model itself lose: over k, and when ranks are shared out instead of equal?

Loss of a masked language model with its attention replaced, errors compounding, on windows of one
text: P_low, learned Linformer projections (fitted on another text), mean pooling, uniform
attention. Then truncation under a total budget: the same k for all heads, one a layer, one a head,
chosen on one text and checked on another. Writes what the figures ``loss_builtin`` and
``budget_builtin`` read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from analyses.low_rank import OUT
from rankscope import terminal
from rankscope.approximations import Approximation, method
from rankscope.engine import InterventionPlan, Plan, Resources, Sampling, TruncationPlan, execute
from rankscope.engine.fit import Fit, fit
from rankscope.engine.machine import usable_cores
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel, load
from rankscope.selection import Choice, from_dataset
from rankscope.store.files import export
from rankscope.store.files import load as read
from rankscope.summary.losses import summarise_losses
from rankscope.text import Corpus, load_corpus

WAYS = ("uniform", "layer", "head")


def main(argv: Sequence[str]) -> None:
    """Measure losses over k, then over budgets."""
    parser = argparse.ArgumentParser(prog="python -m analyses loss_over_rank", description=__doc__)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--train", default="builtin", help="text to fit to and to choose on")
    parser.add_argument("--test", default="builtin", help="another text")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--k", type=int, nargs="+", help="1, 2, 4 … n")
    parser.add_argument("--fit-windows", type=int, default=128)
    parser.add_argument("--choice-windows", type=int, default=16)
    parser.add_argument("--windows", type=int, default=16, help="to score on")
    parser.add_argument("--objective", default="absolute")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    model = load(options.model, head=True)
    if model.head is None:
        raise UsageError(f"{model.info.name} has no language-model head", "choose one that has")
    train, test = load_corpus(options.train), load_corpus(options.test)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"{options.out}/loss--{model.info.name}"
    n = options.length
    ks = options.k or [2**i for i in range(n.bit_length()) if 2**i <= n]
    scored = Sampling(length=n, windows=options.windows)
    fitted = Sampling(length=n, windows=options.fit_windows)
    methods = [method("uniform"), method("mean-row")]
    for k in ks:
        methods += [method(f"truncated:k={k}"), method(f"linformer:k={k}")]
        if k < n:
            path = Path(f"{stem}--k{k}.safetensors")
            with terminal.progress(f"fit, k = {k}", "layers") as progress:
                fit(model, train, fitted, Fit(k=k), path, progress=progress, told=terminal.note)
            methods.append(method(f"linformer:k={k},projection=learned,file={path}"))
    over_k = _losses(model, test, scored, methods, f"{stem}--run.nc")
    _print(over_k)
    export(_portable(over_k), f"{stem}--over-k.nc", overwrite=True)
    budgets = _budgets(model, train, test, options, stem)
    export(budgets, f"{stem}--budgets.nc", overwrite=True)


def _run(plan: Plan, model: LoadedModel, target: str, label: str) -> xr.Dataset:
    with terminal.progress(label) as progress:
        execute(plan, model, target, Resources(threads=usable_cores()), progress=progress)
    return read(target)


def _losses(
    model: LoadedModel,
    corpus: Corpus,
    sampling: Sampling,
    methods: Sequence[Approximation],
    target: str,
) -> xr.Dataset:
    plan = InterventionPlan(model, corpus, sampling, methods)
    return summarise_losses(_run(plan, model, target, f"losses on {corpus.name}"))


def _budgets(
    model: LoadedModel, train: Corpus, test: Corpus, options: argparse.Namespace, stem: str
) -> xr.Dataset:
    """Held-out loss of truncation at equal total rank, shared out in three ways."""
    chosen_on = Sampling(length=options.length, windows=options.choice_windows)
    plan = TruncationPlan(model, train, chosen_on)
    curves = _run(plan, model, f"{stem}--truncation.nc", f"curves on {train.name}")
    heads = len(plan.frame.layers) * plan.frame.n_heads
    choices: dict[tuple[int, str], Choice] = {}
    methods = []
    means = [k for k in (16, 32, 48, 64, 96, 128, 192, 256, 384) if k < options.length]
    for mean in means:
        for way in WAYS:
            choice = from_dataset(curves, budget=mean * heads, by=way, objective=options.objective)
            choices[mean, way] = choice
            path = Path(f"{stem}--ranks-{mean}-{way}.json")
            info = model.info
            choice.to_ranks(
                info.name, info.weights_sha256, plan.frame.layers, options.length
            ).write(path)
            methods.append(method(f"truncated:ranks={path}"))
    scored = Sampling(length=options.length, windows=options.windows)
    summary = _losses(model, test, scored, methods, f"{stem}--budget-run.nc")
    part = summary.isel(model=0, corpus=0)
    names = ("loss", "loss_difference", "loss_difference_low", "loss_difference_high")
    shape = (len(means), len(WAYS))
    values = {
        name: (("mean_rank", "way"), part[name].to_numpy()[1:].reshape(shape)) for name in names
    }
    ranks = np.stack([[choices[mean, way].ranks for way in WAYS] for mean in means])
    found = xr.Dataset(
        {
            **values,
            "rank": (("mean_rank", "way", "layer", "head"), ranks.astype(np.int64)),
            "full_loss": ((), float(part["loss"][0])),
        },
        {"mean_rank": means, "way": list(WAYS), "layer": list(plan.frame.layers)},
        {
            "model": model.info.name,
            "chosen_on": f"{options.choice_windows} windows of {train.name}",
            "scored_on": f"{options.windows} windows of {test.name}",
            "objective": options.objective,
        },
    )
    print(
        f"loss at equal total rank ({options.objective} error summed), {found.attrs['scored_on']}"
    )
    for mean in means:
        row = found.sel(mean_rank=mean)
        words = [f"{way} {float(row['loss'].sel(way=way)):.3f}" for way in WAYS]
        print(f"  mean k = {mean:3}: {', '.join(words)}; full {float(found['full_loss']):.3f}")
    return found


def _portable(summary: xr.Dataset) -> xr.Dataset:
    """The same without paths of this machine: a file of projections is named by its tail."""
    local = ("model_json", "corpus_source", "recipe_json")
    found = summary.copy()
    found.attrs = {key: value for key, value in summary.attrs.items() if key not in local}
    for name in ("method", "label"):
        texts = [
            ",".join(
                f"{part.partition('=')[0]}={part.rsplit('/', 1)[-1]}" if "/" in part else part
                for part in str(text).split(",")
            )
            for text in found[name].to_numpy()
        ]
        found = found.assign_coords({name: ("method", np.array(texts))})
    return found


def _print(summary: xr.Dataset) -> None:
    part = summary.isel(model=0, corpus=0)
    print(f"loss in nats a masked token, {int(part['n_windows'])} windows")
    for place, name in enumerate(part["method"].to_numpy()):
        low, high = (float(part[f"loss_difference_{end}"][place]) for end in ("low", "high"))
        print(
            f"  {str(name).split(',file=')[0]:42} {float(part['loss'][place]):6.3f}  difference "
            f"{float(part['loss_difference'][place]):+.3f} ({low:+.3f} … {high:+.3f})"
        )
