"""How far do Linformer's projections stay from P_low, drawn at random, pooled, or learned?

Projections are fitted on one text and scored on windows of another. Beside their errors by layer:
P·RᵀR over k against √(n/k), and how much of P's energy the best *fixed* subspace of a layer, and of
a head, keeps on unseen windows, against the subspace of each P itself. Writes what the figures
``projections_MODEL`` read, and the projections themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from analyses.low_rank import OUT, small
from rankscope import terminal
from rankscope.approximations import method
from rankscope.approximations.fitted import read_projections
from rankscope.approximations.subspaces import kept_energy
from rankscope.engine import ComparisonPlan, Resources, Sampling, execute
from rankscope.engine.fit import Fit, fit
from rankscope.engine.machine import usable_cores
from rankscope.linalg import one_blas_thread
from rankscope.models import LoadedModel, load
from rankscope.store.files import export
from rankscope.store.files import load as read
from rankscope.summary.methods import errors_by_layer, summarise_methods
from rankscope.text import Corpus, load_corpus

NAMES = {
    "linformer:projection=gaussian": "Gaussian",
    "linformer": "mean pooling",
    "truncated": "P_low",
}


def main(argv: Sequence[str]) -> None:
    """Fit, score on training and test text, and measure subspaces."""
    parser = argparse.ArgumentParser(prog="python -m analyses projections", description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", default="builtin", help="text to fit to")
    parser.add_argument("--test", default="builtin", help="another text")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--k", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--subspace-k", type=int, nargs="+", help="the middle one of --k")
    parser.add_argument("--fit-windows", type=int, default=192)
    parser.add_argument("--held-out", type=int, default=24, help="to stop by")
    parser.add_argument("--windows", type=int, default=12, help="to score on")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    model = load(options.model)
    train, test = load_corpus(options.train), load_corpus(options.test)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"projections--{model.info.name}"
    sampling = Sampling(length=options.length, windows=options.fit_windows)
    files = {}
    for k in options.k:
        path = stem.with_name(f"{stem.name}--k{k}.safetensors")
        with terminal.progress(f"k = {k}", "layers") as progress:
            settings = Fit(k=k, held_out=options.held_out)
            fit(model, train, sampling, settings, path, progress=progress, told=terminal.note)
        files[k] = path
    scored = Sampling(length=options.length, windows=options.windows)
    texts = _methods(files, options.length)
    # on the training text only what stands beside the learned ones
    few = [text for text in texts if _k(text) in files and "projected" not in text]
    splits = {
        "training": _compare(model, train, scored, few, f"{stem}--training-run.nc"),
        "test": _compare(model, test, scored, texts, f"{stem}--test-run.nc"),
    }
    names = NAMES | {_label(texts, path): "learned" for path in files.values()}
    every = errors_by_layer(splits, names=names)
    layers = every.sel(rank=sorted(files)).to_dataset(name="output_error")
    layers.attrs = {"model": model.info.name, "training": train.name, "test": test.name}
    export(layers, f"{stem}--layers.nc", overwrite=True)
    export(small(splits["test"]), f"{stem}--test.nc", overwrite=True)
    # a sum over windows, which settles sooner than what is learned
    summed = Sampling(length=options.length, windows=min(32, options.fit_windows))
    ks = options.subspace_k or [sorted(options.k)[len(options.k) // 2]]
    spaces = _subspaces(model, train, test, summed, scored, ks, stem)
    export(spaces, f"{stem}--subspaces.nc", overwrite=True)
    _print(layers["output_error"], splits["test"], spaces, options.length)


def _methods(files: dict[int, Path], n: int) -> list[str]:
    texts = [f"linformer:k={k},projection=learned,file={path}" for k, path in files.items()]
    for k in sorted({*files, *(2**i for i in range(4, n.bit_length()) if 2**i <= n)}):
        texts += [
            f"truncated:k={k}",
            f"best-output:k={k}",
            f"linformer:k={k}",
            f"linformer:k={k},projection=gaussian",
            f"linformer:k={k},projection=gaussian,sharing=key-value",
            f"projected:k={k}",
        ]
    return [*texts, "mean-row", "uniform"]


def _k(text: str) -> int:
    from rankscope.engine.measure_methods import budget_of

    return budget_of(method(text))


def _label(texts: Sequence[str], path: Path) -> str:
    from rankscope.engine.measure_methods import label_of

    (found,) = (text for text in texts if str(path) in text)
    return label_of(method(found))


def _compare(
    model: LoadedModel, corpus: Corpus, sampling: Sampling, texts: Sequence[str], target: str
) -> xr.Dataset:
    plan = ComparisonPlan(model, corpus, sampling, [method(text) for text in texts], spectral=False)
    with terminal.progress(f"errors on {corpus.name}") as progress:
        execute(plan, model, target, Resources(threads=usable_cores()), progress=progress)
    with read(target, lazy=True) as dataset:
        return summarise_methods(dataset)


def _subspaces(
    model: LoadedModel,
    train: Corpus,
    test: Corpus,
    fitted: Sampling,
    scored: Sampling,
    ks: Sequence[int],
    stem: Path,
) -> xr.Dataset:
    """Energy that the best fixed subspace keeps on unseen windows, and that of P's own."""
    from rankscope.engine.frame import Frame

    frame = Frame.of(model, test, scored)
    by_layer: dict[int, list[object]] = {layer: [] for layer in frame.layers}
    for _, attention in frame.attentions(model, range(len(frame.windows)), values=False):
        by_layer[attention.layer].append(attention)
    shape = (len(ks), 3, len(frame.layers), frame.n_heads)
    kept = np.full(shape, np.nan)
    for place, k in enumerate(ks):
        for row, sharing in enumerate(("headwise", "none")):
            path = stem.with_name(f"{stem.name}--svd-{sharing}-k{k}.safetensors")
            settings = Fit(k=k, projection="svd", sharing=sharing, held_out=0)  # type: ignore[arg-type]
            fit(model, train, fitted, settings, path)
            basis = read_projections(path).e
            with one_blas_thread():
                for number, layer in enumerate(frame.layers):
                    fixed, own = kept_energy(by_layer[layer], basis[layer])  # type: ignore[arg-type]
                    kept[place, row, number] = fixed.mean(dim=0)
                    kept[place, 2, number] = torch.nanmean(own, dim=0)
            terminal.note(f"fixed subspaces, k = {k}, sharing {sharing}: done")
    coords = {
        "rank": list(ks),
        "subspace": ["one a layer", "one a head", "P's own"],
        "layer": list(frame.layers),
        "head": list(range(frame.n_heads)),
    }
    dims = ("rank", "subspace", "layer", "head")
    return xr.Dataset({"kept_energy": (dims, kept)}, coords)


def _print(errors: xr.DataArray, summary: xr.Dataset, spaces: xr.Dataset, n: int) -> None:
    for k in errors["rank"].to_numpy():
        for split in errors["split"].to_numpy():
            print(f"k = {k}, relative output error by layer, {split} windows")
            for name in errors["method"].to_numpy():
                row = errors.sel({"rank": k, "split": split, "method": name}).to_numpy()
                print(f"  {name:14}" + " ".join(f"{value:7.3f}" for value in row))
    part = summary.isel(model=0, corpus=0)
    print("mean of the heads on test windows: relative output error")
    for place, name in enumerate(part["method"].to_numpy()):
        mean, k = float(part["output_mean"][place]), int(part["budget"][place])
        extra = ""
        if part["family"].to_numpy()[place] == "projected":
            matrix = float(part["frobenius_mean"][place])
            extra = f"   matrix error {matrix:.3f}, √(n/k) = {np.sqrt(n / k):.3f}"
        print(f"  {str(name).split('file=')[0]:58} {mean:7.3f}{extra}")
    print("energy of P on test windows that lies in k dimensions, mean over heads and layers")
    for k in spaces["rank"].to_numpy():
        kept = spaces["kept_energy"].sel(rank=k).mean(("layer", "head"))
        names = kept["subspace"].to_numpy()
        words = [f"{name} {float(kept.sel(subspace=name)):.3f}" for name in names]
        print(f"  k = {k}: {', '.join(words)}")
