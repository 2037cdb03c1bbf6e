"""Which family wins where, at equal cost: low rank, sparse, hashing, kernel, Nyström?

Every method at the same budget (score entries, projected rows, features or landmarks a query), its
errors in the matrix and the output by layer and head, and the loss of the model with its attention
replaced (hidden states where it has no head). Nothing is trained. Oracles that look at P bound the
families. Methods that a model refuses are listed with the reason. One file a model and text, which
the figure ``families`` and the table in ``figures/families.md`` read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from analyses.low_rank import OUT, small
from rankscope import terminal
from rankscope.approximations import Approximation, method
from rankscope.capture import capture
from rankscope.engine import ComparisonPlan, InterventionPlan, Plan, Resources, Sampling, execute
from rankscope.engine.machine import usable_cores
from rankscope.exceptions import MethodError
from rankscope.models import LoadedModel, load
from rankscope.store.files import export
from rankscope.store.files import load as read
from rankscope.summary.losses import summarise_losses
from rankscope.summary.methods import errors_by_layer, summarise_methods
from rankscope.text import Corpus, load_corpus, windows

FAMILIES: dict[str, tuple[str, ...]] = {
    "low rank": ("linformer:{b}", "projected:{b}"),
    "sparse": (
        "band:{b}",
        "dilated:{b}",
        "longformer:{b}",
        "random:{b}",
        "random-band:{b}",
        "bigbird:{b}",
        "bigbird:{b},mode=etc",
    ),
    "hashing": ("lsh:{b}", "lsh:{b},mode=shared"),
    "kernel": ("performer:{b}", "linear", "cosformer"),
    "Nyström": ("nystrom:{b}",),
    "sparse + low rank": ("scatterbrain:{b}",),
    "oracle": ("truncated:{b}", "best-output:{b}", "top:{b}", "band-plus-low-rank:{b}"),
    "yardstick": ("mean-row", "uniform"),
}
"""Methods by family; {b} stands for the budget. Oracles need P, and are no way to save anything."""


def main(argv: Sequence[str]) -> None:
    """Measure errors and losses of every model on every text."""
    parser = argparse.ArgumentParser(prog="python -m analyses families", description=__doc__)
    parser.add_argument("--model", action="append", help="repeatable; the built-in model")
    parser.add_argument("--corpus", action="append", help="repeatable; the built-in text")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--budget", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--windows", type=int, default=4, help="for errors")
    parser.add_argument("--loss-windows", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    corpora = [load_corpus(spec) for spec in options.corpus or ["builtin"]]
    for spec in options.model or ["builtin"]:
        model = load(spec, head=True)
        for corpus in corpora:
            _one(model, corpus, options)


def _one(model: LoadedModel, corpus: Corpus, options: argparse.Namespace) -> None:
    name = f"families--{model.info.name}--{corpus.name}".replace(":", "-")
    methods, refused = _usable(model, corpus, options.length, options.budget)
    for text, reason in refused.items():
        terminal.note(f"{model.info.name} refuses {text}: {reason}")
    sampling = Sampling(length=options.length, windows=options.windows)
    errors = _run(
        ComparisonPlan(model, corpus, sampling, methods, spectral=False),
        model,
        options.out / f"{name}--errors.nc",
    )
    summary = summarise_methods(errors)
    labels = {str(label): str(label) for label in summary["label"].to_numpy()}
    budgeted = {
        label: label
        for label in labels
        if int(summary["budget"].to_numpy()[summary["label"].to_numpy() == label][0]) > 0
    }
    layers = errors_by_layer({corpus.name: summary}, names=budgeted)
    sampling = Sampling(length=options.length, windows=options.loss_windows)
    losses = summarise_losses(
        _run(
            InterventionPlan(model, corpus, sampling, methods),
            model,
            options.out / f"{name}--losses.nc",
        )
    )
    found = _joined(small(summary), losses, layers)
    found.attrs |= {"model": model.info.name, "corpus": corpus.name, "n": options.length}
    found.attrs["refused"] = refused
    export(found, options.out / f"{name}.nc", overwrite=True)
    _print(found)


def _usable(
    model: LoadedModel, corpus: Corpus, length: int, budgets: Sequence[int]
) -> tuple[list[Approximation], dict[str, str]]:
    """Every method at every budget that the model's attention takes, and why not the others."""
    window = windows(corpus, model.tokenizer, length=length, count=1)
    (attention,) = capture(model, window, layers=[0])
    found: list[Approximation] = []
    refused: dict[str, str] = {}
    for family in FAMILIES.values():
        for text in family:
            for one in methods_at(text, budgets):
                try:
                    one.apply(attention)
                except MethodError as error:
                    refused[str(one)] = error.cause
                else:
                    found.append(one)
    return found, refused


def methods_at(text: str, budgets: Sequence[int]) -> list[Approximation]:
    """A method at every budget, or once if it has none; relative positions are projected too."""
    from rankscope.approximations import METHODS

    name = text.partition(":")[0]
    budget = METHODS[name].budget
    if budget is None:
        return [method(text)]
    extra = ",bias=project" if name == "linformer" else ""
    return [method(text.format(b=f"{budget}={b}") + extra) for b in budgets]


def family_of(text: str) -> str:
    """Family of a method's text."""
    name, _, rest = text.partition(":")
    for family, members in FAMILIES.items():
        if any(member.partition(":")[0] == name for member in members):
            return family
    raise KeyError(f"{name}:{rest} is of no family here")


def _run(plan: Plan, model: LoadedModel, target: Path) -> xr.Dataset:
    with terminal.progress(f"{target.stem}") as progress:
        execute(
            plan,
            model,
            target,
            Resources(threads=usable_cores()),
            progress=progress,
            overwrite=True,
        )
    return read(target)


def _joined(summary: xr.Dataset, losses: xr.Dataset, layers: xr.DataArray) -> xr.Dataset:
    """One dataset a model and text: errors, losses of the same methods, and errors by layer."""
    kept = [
        f"{name}_{part}"
        for name in ("output", "frobenius", "cosine")
        for part in ("mean", "low", "high", "median", "q10", "q90", "min", "max")
    ]
    found = summary[kept].isel(model=0, corpus=0, drop=True)
    names = [str(name) for name in found["method"].to_numpy()]
    part = losses.isel(model=0, corpus=0, drop=True)
    for name in ("loss", "loss_difference", "kl", "top1_agreement", "hidden_error"):
        for end in ("", "_low", "_high"):
            if f"{name}{end}" in part:
                found[f"{name}{end}"] = (
                    part[f"{name}{end}"]
                    .sel({"method": names})
                    .drop_vars(("family", "label", "budget"))
                )
    found["full_loss"] = part["loss"].isel({"method": 0}, drop=True)
    by_layer = layers.isel(split=0, drop=True).rename({"method": "series", "rank": "at"})
    found["output_by_layer"] = by_layer
    return found.drop_attrs(deep=False)


def _print(found: xr.Dataset) -> None:
    print(f"{found.attrs['model']} on {found.attrs['corpus']}, n = {found.attrs['n']}")
    print(f"  {'method':44} {'matrix':>7} {'output':>7} {'q10':>6} {'q90':>6} {'loss':>7}")
    for place, name in enumerate(found["method"].to_numpy()):
        row = found.isel({"method": place})
        lost = row["loss_difference"] if float(row["loss"]) > 0 else row["hidden_error"]
        numbers = (row["frobenius_mean"], row["output_mean"], row["output_q10"], row["output_q90"])
        print(
            f"  {name!s:44} {float(numbers[0]):7.3f} {float(numbers[1]):7.3f} "
            f"{float(numbers[2]):6.3f} {float(numbers[3]):6.3f} {float(lost):+7.3f}"
        )
