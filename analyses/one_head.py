"""What does a head of high rank look like: its matrix, its spectrum, both ratios?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

OUT = Path(__file__).with_name("out")


def main(argv: Sequence[str]) -> None:
    """Keep the matrix of one head; by default the one with the lowest ratio at n/4."""
    parser = argparse.ArgumentParser(prog="python -m analyses one_head", description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layer", type=int)
    parser.add_argument("--head", type=int)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)

    from rankscope import engine
    from rankscope.models import load
    from rankscope.revisit import head_of
    from rankscope.store.files import export
    from rankscope.text import load_corpus

    recipe = engine.Recipe(length=options.length, windows=1)
    run = engine.spectra(load(options.model), load_corpus(options.corpus), recipe)
    ratio = run["cumulative_ratio"].isel(model=0, corpus=0, sample=0, index=options.length // 4 - 1)
    lowest = ratio.argmin(("layer", "head"))
    layer = options.layer if options.layer is not None else int(lowest["layer"])
    head = options.head if options.head is not None else int(lowest["head"])
    found = head_of(run, sample=0, layer=layer, head=head)
    kept = xr.Dataset(
        {
            "weight": (("query", "key"), found.matrix.astype(np.float32)),
            "singular_value": ("index", found.singular_values),
        },
        attrs={"title": found.title, "recipe_json": run.attrs["recipe_json"]},
    )
    options.out.mkdir(parents=True, exist_ok=True)
    path = export(kept, options.out / "one_head.nc", overwrite=True)
    print(f"{found.title}: ratio at n/4 {float(ratio.sel(layer=layer, head=head)):.3f}, {path}")
