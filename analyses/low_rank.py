"""How much of the spectrum do the first k singular values hold, by layer and head?

The averaged data behind the low-rank figures: mean cumulative ratios with their intervals, small
enough to commit. Every model is set beside its control, the same architecture with random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from rankscope import terminal

OUT = Path(__file__).with_name("out")


def main(argv: Sequence[str]) -> None:
    """Run every model on every corpus and write one summary for each pair."""
    parser = argparse.ArgumentParser(prog="python -m analyses low_rank", description=__doc__)
    parser.add_argument(
        "--model", action="append", help="repeatable; the built-in model and its control"
    )
    parser.add_argument("--corpus", action="append", help="repeatable; the built-in text")
    parser.add_argument("--tokenizer", help="for random:roberta-*, to see the same tokens")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)

    from rankscope import engine
    from rankscope.engine.machine import usable_cores
    from rankscope.models import load
    from rankscope.store.files import export
    from rankscope.summary import combine, table
    from rankscope.text import load_corpus

    corpora = [load_corpus(spec) for spec in options.corpus or ["builtin"]]
    options.out.mkdir(parents=True, exist_ok=True)
    summaries = []
    for spec in options.model or ["builtin", "random:builtin"]:
        drawn = spec.startswith("random:roberta-")
        model = load(spec, tokenizer=options.tokenizer if drawn else None)
        for corpus in corpora:
            recipe = engine.Recipe(length=options.length, windows=options.windows)
            label = f"{model.info.name} on {corpus.name}"
            with terminal.progress(label) as progress:
                run = engine.spectra(
                    model, corpus, recipe, threads=usable_cores(), progress=progress
                )
            summary = small(combine([run])[0])
            name = f"low_rank--{model.info.name}--{corpus.name}.nc".replace(":", "-")
            export(summary, options.out / name, overwrite=True)
            summaries.append(summary)
    terminal.summary_table(table(summaries))


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
