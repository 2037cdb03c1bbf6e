"""Which patterns are small worlds: path length, clustering and gap over n, and those of P itself?

Every pattern at an equal number of keys a query, beside ring lattice, Erdős–Rényi, Watts–Strogatz
and complete graph; what mean path lengths grow like; layers until every token reaches every other,
and the score entries that those take together. Then the same of P, thresholded at a mass, by layer.
Writes what the figure ``graphs`` reads, and one file for each model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.stats
import xarray as xr

from analyses.low_rank import OUT
from rankscope import graphs, terminal
from rankscope.approximations import method
from rankscope.approximations.sparse import Sparse
from rankscope.store.files import export

Make = Callable[[int, int, int], scipy.sparse.csr_array]

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COMPLETE = "complete"
ALL_SOURCES = 1024
"""Longest text in which the paths of a pattern start from every token, and not from a sample."""

LIMITS: Mapping[str, int] = {"spectral_gap": 1024, "small_world": 1024, "clustering": 4096}
"""Longest text that a measure is taken of."""

MEASURES = (
    "path_length",
    "path_length_error",
    "efficiency",
    "longest",
    "diameter",
    "unreachable",
    "clustering",
    "spectral_gap",
    "mean_degree",
    "in_max",
    "out_max",
    "sigma",
    "omega",
)
FITS = ("exponent", "slope_log", "slope_n")


def _pattern(text: str) -> Make:
    def make(n: int, k: int, draw: int) -> scipy.sparse.csr_array:
        found = method(text.format(k=k, less=k - 2, draw=draw))
        assert isinstance(found, Sparse)
        return found.pattern(n)

    return make


# drawn at random or not, and how a graph of n tokens with k keys a query is made
SIDES: Mapping[str, tuple[bool, Make]] = {
    "ring lattice": (False, lambda n, k, draw: graphs.ring_lattice(n, k)),
    "band": (False, _pattern("band:w={k}")),
    "dilated": (False, _pattern("dilated:w={k},dilation=2")),
    "longformer": (False, _pattern("longformer:w={less},g=1")),
    "random": (True, _pattern("random:r={k},seed={draw}")),
    "random-band": (True, _pattern("random-band:entries={k},seed={draw}")),
    "bigbird itc": (True, _pattern("bigbird:entries={k},seed={draw}")),
    "bigbird etc": (False, _pattern("bigbird:entries={k},mode=etc")),
    "Erdős–Rényi": (True, lambda n, k, draw: graphs.erdos_renyi(n, k, draw)),
    "Watts–Strogatz": (True, lambda n, k, draw: graphs.watts_strogatz(n, k, 0.1, draw)),
    COMPLETE: (False, lambda n, k, draw: graphs.complete(n)),
}


def main(argv: Sequence[str]) -> None:
    """Measure patterns over n, then P of every model."""
    parser = argparse.ArgumentParser(prog="python -m analyses graphs", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--degree", type=int, nargs="+", default=[8, 64], help="keys a query, even")
    parser.add_argument("--draws", type=int, default=2, help="of each random graph")
    parser.add_argument("--sources", type=int, default=512, help="for paths, in long texts")
    parser.add_argument("--fit-from", type=int, default=512, help="smallest n of the fits")
    parser.add_argument("--model", nargs="*", default=["builtin", "minilm"])
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--length", type=int, default=512, help="of the models' windows")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--mass", type=float, default=0.9)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    found = with_fits(
        over_lengths(
            sorted(set(options.lengths)),
            sorted(set(options.degree)),
            draws=options.draws,
            sources=options.sources,
        ),
        options.fit_from,
    )
    export(found, options.out / "graphs.nc", overwrite=True)
    _print(found)
    for spec in options.model:
        of_p = of_model(spec, options)
        name = f"graphs--{of_p.attrs['model']}--{of_p.attrs['corpus']}.nc".replace(":", "-")
        export(of_p, options.out / name, overwrite=True)
        _print_model(of_p)


def over_lengths(
    lengths: Sequence[int], ks: Sequence[int], *, draws: int, sources: int
) -> xr.Dataset:
    """Measures of every graph, (degree, graph, n, draw); NaN where there is none to take."""
    shape = (len(ks), len(SIDES), len(lengths), draws)
    values = {name: np.full(shape, np.nan) for name in MEASURES}
    with terminal.progress("graphs", "graphs") as progress:
        places = list(np.ndindex(shape[:-1]))
        for done, place in enumerate(places):
            progress(done, len(places))
            k, n = ks[place[0]], lengths[place[2]]
            random, make = list(SIDES.values())[place[1]]
            full = list(SIDES)[place[1]] == COMPLETE
            for draw in range(draws if random else 1):
                if k < n - 1:
                    # from all tokens of a random graph, others are about equally far away
                    some = max(1, sources // 8) if random else sources
                    first = None if n <= ALL_SOURCES else some
                    one = full_graph(n) if full else measures(make(n, k, draw), first, draw)
                    for name, value in one.items():
                        values[name][(*place, draw)] = value
        progress(len(places), len(places))
    dims = ("degree", "graph", "n", "draw")
    return xr.Dataset(
        {name: (dims, values[name]) for name in MEASURES},
        {"degree": list(ks), "graph": list(SIDES), "n": list(lengths), "draw": np.arange(draws)},
        {"sources": sources, "rewired": 0.1},
    )


def measures(
    graph: scipy.sparse.csr_array, sources: int | None, seed: int, *, draws: int = 1
) -> dict[str, float]:
    """Every measure of one graph that its size allows."""
    n = graph.shape[0]
    paths = graphs.path_lengths(graph, sources, seed)
    degree = graphs.degrees(graph)
    found: dict[str, float] = {
        "path_length": paths.mean,
        "path_length_error": paths.standard_error,
        "efficiency": paths.efficiency,
        "longest": paths.longest,
        "diameter": paths.diameter,
        "unreachable": paths.unreachable_share,
        "mean_degree": degree.mean,
        "in_max": degree.in_max,
        "out_max": degree.out_max,
    }
    if n <= LIMITS["clustering"]:
        found["clustering"] = graphs.clustering(graph)
    if n <= LIMITS["spectral_gap"]:
        found["spectral_gap"] = graphs.spectral_gap(graph)
    if n <= LIMITS["small_world"]:
        small = graphs.small_world(graph, draws=draws, sources=sources, seed=1000 + seed)
        found |= {"sigma": small.sigma, "omega": small.omega}
    return found


def full_graph(n: int) -> dict[str, float]:
    """Closed forms of the complete graph, too large to be measured here; tests measure it."""
    found = dict.fromkeys(("path_length", "efficiency", "longest", "diameter", "clustering"), 1.0)
    found |= dict.fromkeys(("path_length_error", "unreachable", "omega"), 0.0)
    found |= dict.fromkeys(("mean_degree", "in_max", "out_max"), float(n - 1))
    return found | {"spectral_gap": n / (n - 1), "sigma": 1.0}


def with_fits(found: xr.Dataset, least: int) -> xr.Dataset:
    """The measurements with what mean path lengths grow like, for n from `least` on.

    ``exponent`` is the slope of ln L over ln n, ``slope_log`` that of L over ln n and ``slope_n``
    that of L over n, each with its interval of 95 % and the R² of its line. The interval takes in
    that paths start from a sample of the tokens.
    """
    there = found["n"].to_numpy() >= least
    n = found["n"].to_numpy()[there].astype(np.float64)
    lengths = found["path_length"].mean("draw").to_numpy()[..., there]
    drawn = found["path_length_error"].notnull().sum("draw")
    errors = (found["path_length_error"] ** 2).sum("draw") ** 0.5 / drawn.where(drawn > 0)
    sampled = errors.to_numpy()[..., there]
    fitted = found.assign_attrs(fit_from=least)
    for name in FITS:
        x = n if name == "slope_n" else np.log(n)
        y, noise = lengths, sampled
        if name == "exponent":
            y, noise = np.log(lengths), sampled / lengths
        flat = math.prod(y.shape[:-1]), len(n)
        rows = [line(x, *pair) for pair in zip(y.reshape(flat), noise.reshape(flat), strict=True)]
        columns = zip(("", "_low", "_high", "_r2"), zip(*rows, strict=True), strict=True)
        for end, column in columns:
            fitted[name + end] = (("degree", "graph"), np.array(column).reshape(y.shape[:-1]))
    return fitted


def line(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Slope of a straight line, the ends of its interval of 95 %, and R²; NaN below 3 points.

    The interval is Student's with two degrees of freedom fewer than points, for how far the points
    are from a line, and beside it the standard error of each point, `noise`: both in quadrature.
    """
    good = np.isfinite(y)
    if good.sum() < 3:
        return math.nan, math.nan, math.nan, math.nan
    fit = scipy.stats.linregress(x[good], y[good])
    misfit = float(scipy.stats.t.ppf(0.975, good.sum() - 2) * fit.stderr)
    # the slope is a weighted sum of the points
    away = x[good] - x[good].mean()
    known = np.nan_to_num(noise[good], nan=0.0)
    measured = 1.96 * float(np.sqrt(((away * known) ** 2).sum()) / (away @ away))
    half, slope = math.hypot(misfit, measured), float(fit.slope)
    return slope, slope - half, slope + half, float(fit.rvalue**2)


def of_model(spec: str, options: argparse.Namespace) -> xr.Dataset:
    """Measures of a model's P, (sample, layer, head), and what its layers reach together."""
    from rankscope.engine import Sampling
    from rankscope.engine.frame import Frame
    from rankscope.models import load
    from rankscope.text import load_corpus

    model, corpus = load(spec), load_corpus(options.corpus)
    frame = Frame.of(model, corpus, Sampling(length=options.length, windows=options.windows))
    samples = len(frame.windows)
    shape = (samples, len(frame.layers), frame.n_heads)
    values = {name: np.full(shape, np.nan) for name in MEASURES}
    layers: list[list[scipy.sparse.csr_array]] = [[] for _ in range(samples)]
    with terminal.progress(f"P of {model.info.name}", "layers") as progress:
        total = samples * len(frame.layers)
        stream = frame.attentions(model, range(samples), values=False)
        for done, ((sample,), attention) in enumerate(stream):
            progress(done, total)
            place = frame.layers.index(attention.layer)
            heads = [
                graphs.thresholded(attention.matrix(0, head), options.mass)
                for head in range(frame.n_heads)
            ]
            for head, graph in enumerate(heads):
                one = measures(graph, options.sources // 8, sample)
                for name, value in one.items():
                    values[name][sample, place, head] = value
            layers[sample].append(graphs.union(heads))
        progress(total, total)
    dims = ("sample", "layer", "head")
    found = xr.Dataset(
        {name: (dims, values[name]) for name in MEASURES},
        {"layer": list(frame.layers)},
        {
            "model": model.info.name,
            "corpus": corpus.name,
            "length": options.length,
            "mass": options.mass,
        },
    )
    found["reached"] = (dims[:2], np.array([_reached(patterns) for patterns in layers]))
    found["layer_degree"] = (
        dims[:2],
        np.array([[graphs.degrees(one).mean for one in patterns] for patterns in layers]),
    )
    return found


def _reached(patterns: Sequence[scipy.sparse.csr_array]) -> npt.NDArray[np.float64]:
    """Mean share of the tokens that a token can have seen after 1, 2, … layers."""
    counts = graphs.reach(patterns).counts
    return np.asarray((counts - 1).mean(axis=1) / (counts.shape[1] - 1))


def _print(found: xr.Dataset) -> None:
    mean = found.mean("draw")
    largest = _largest(mean, "clustering")
    small = _largest(mean, "spectral_gap")
    for k in found["degree"].to_numpy():
        print(f"\n{k} keys a query: mean path length over n; C at {largest}; gap, σ, ω at {small}")
        print(f"  {'graph':15}" + "".join(f"{n:>9}" for n in found["n"].to_numpy()) + "  unreach")
        for name in found["graph"].to_numpy():
            row = mean.sel(degree=k, graph=name)
            missing = float(row["unreachable"].max())
            words = "".join(f"{value:9.3f}" for value in row["path_length"].to_numpy())
            end, mid = row.sel(n=largest), row.sel(n=small)
            print(
                f"  {name:15}{words}  {missing:7.3f}  C {float(end['clustering']):.4f}  "
                f"gap {float(mid['spectral_gap']):.3g}  σ {float(mid['sigma']):.2f}  "
                f"ω {float(mid['omega']):+.2f}"
            )
        print(
            f"  what it grows like, n from {found.attrs['fit_from']}; 1/ln k = {1 / np.log(k):.3f}"
        )
        for name in found["graph"].drop_sel(graph=COMPLETE).to_numpy():
            row = found.sel(degree=k, graph=name)
            words = "  ".join(
                f"{fit} {float(row[fit]):.3g} [{float(row[fit + '_low']):.3g}, "
                f"{float(row[fit + '_high']):.3g}] R² {float(row[fit + '_r2']):.3f}"
                for fit in FITS
            )
            print(f"  {name:15}{words}")
        _print_reach(found.sel(degree=k).max("draw"))


def _largest(found: xr.Dataset, name: str) -> int:
    """Longest text that a measured graph has a value for."""
    there = found[name].drop_sel(graph=COMPLETE).notnull().any(("degree", "graph"))
    return int(found["n"].where(there).max())


def _print_reach(found: xr.Dataset) -> None:
    """Layers until all tokens reach all others, and score entries of those layers over n²."""
    print("  layers until every token reaches every other (score entries of all of them / n²)")
    for name in found["graph"].to_numpy():
        row, words = found.sel(graph=name), ""
        for n in found["n"].to_numpy():
            at = row.sel(n=n)
            layers = float(at["diameter"])
            entries = layers * (float(at["mean_degree"]) + 1) / n
            words += f"{layers:7.0f} ({entries:5.2f})"
        print(f"  {name:15}{words}")


def _print_model(found: xr.Dataset) -> None:
    print(
        f"\nP of {found.attrs['model']} on {found.attrs['corpus']}, mass {found.attrs['mass']}, "
        f"n = {found.attrs['length']}, {found.sizes['sample']} windows, mean over heads"
    )
    names = ("mean_degree", "in_max", "path_length", "unreachable", "clustering", "spectral_gap")
    every = (*names, "sigma", "omega")
    print("  layer" + "".join(f"{name:>14}" for name in (*every, "layer_degree", "reached")))
    for layer in found["layer"].to_numpy():
        row = found.sel(layer=layer)
        values = [float(row[name].mean()) for name in (*every, "layer_degree", "reached")]
        print(f"  {layer:5}" + "".join(f"{value:14.3f}" for value in values))
