"""How much of the spectrum do the first k singular values hold, by layer and head?

The averaged data behind the low-rank figures: mean cumulative ratios with their intervals, small
enough to commit. Every model is set beside what chance alone gives on the same windows: its rows of
P each shuffled, and the same architecture with random weights; the paired difference is kept with
the control.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from rankscope import terminal

if TYPE_CHECKING:
    from rankscope.engine import Recipe
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

OUT = Path(__file__).with_name("out")


def main(argv: Sequence[str]) -> None:
    """Run every model on every corpus, with its controls, and write one summary for each."""
    parser = argparse.ArgumentParser(prog="python -m analyses low_rank", description=__doc__)
    parser.add_argument("--model", action="append", help="repeatable; the built-in model")
    parser.add_argument("--corpus", action="append", help="repeatable; the built-in text")
    parser.add_argument("--controls", default="rows,random", help="empty for none")
    parser.add_argument("--tokenizer", help="for random:roberta-*, to see the same tokens")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)

    from rankscope.engine import Recipe
    from rankscope.models import load
    from rankscope.summary import combine, table
    from rankscope.summary.differences import Difference, difference
    from rankscope.text import load_corpus

    corpora = [load_corpus(spec) for spec in options.corpus or ["builtin"]]
    options.out.mkdir(parents=True, exist_ok=True)
    controls = [name for name in options.controls.split(",") if name]
    recipe = Recipe(length=options.length, windows=options.windows)
    summaries: list[xr.Dataset] = []
    differences: list[Difference] = []
    for spec in options.model or ["builtin"]:
        drawn = spec.startswith("random:")
        model = load(spec, tokenizer=options.tokenizer if drawn else None)
        chance = load(f"random:{spec}") if "random" in controls and not drawn else None
        for corpus in corpora:
            measured = _spectra(model, corpus, recipe)
            summaries.append(_kept(combine([measured])[0], options.out))
            for control in [] if drawn else controls:
                found = (
                    _spectra(chance, corpus, recipe)
                    if chance is not None and control == "random"
                    else _spectra(model, corpus, replace(recipe, control=control))
                )
                gap = difference(measured, found)
                summary = combine([found])[0].assign_attrs(gap.attrs())
                summaries.append(_kept(summary, options.out))
                differences.append(gap)
    terminal.summary_table(table(summaries))
    if differences:
        terminal.difference_table(differences)


def _spectra(model: LoadedModel, corpus: Corpus, recipe: Recipe) -> xr.Dataset:
    from rankscope import engine
    from rankscope.engine.machine import usable_cores

    label = f"{recipe.control or 'spectra'} of {model.info.name} on {corpus.name}"
    with terminal.progress(label) as progress:
        return engine.spectra(model, corpus, recipe, threads=usable_cores(), progress=progress)


def _kept(summary: xr.Dataset, folder: Path) -> xr.Dataset:
    """Write what is small enough to be committed."""
    from rankscope.labels import file_name
    from rankscope.store.files import export

    kept = small(summary)
    names = (str(summary["model"].item()), str(summary["corpus"].item()))
    name = f"low_rank--{'--'.join(map(file_name, names))}.nc"
    export(kept, folder / name, overwrite=True)
    return kept


def small(summary: xr.Dataset) -> xr.Dataset:
    """A summary without the curves of single heads, and without paths of this machine."""
    heavy = [
        name
        for name, variable in summary.data_vars.items()
        if {"layer", "head"} <= set(variable.dims) and len(variable.dims) > 4
    ]
    kept = summary.drop_vars(heavy)
    local = ("model_json", "corpus_source")
    kept.attrs = {key: value for key, value in kept.attrs.items() if key not in local}
    return kept
