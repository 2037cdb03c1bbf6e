"""C7, C11 to C14 and C16: what graphs, counting and counterexamples say, whatever the model.

Everything is computed when the page is made; what takes longer is read from the committed
data of `analyses/graphs.py` and `analyses/complexity.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
import xarray as xr

from analyses._claims_rules import Estimate, Finding, Rule, Verdict, estimate, together
from rankscope import graphs, rank
from rankscope.approximations import method
from rankscope.approximations.sparse import Sparse
from rankscope.exceptions import UsageError
from rankscope.linalg import singular_values
from rankscope.store.files import load

Floats = npt.NDArray[np.float64]
INFINITY = float("inf")

RULES: Mapping[str, Rule] = {
    "C11": Rule((1.0, INFINITY), digits=0),
    "C14": Rule((-INFINITY, 1.5), digits=1),
    "C16": Rule((0.5, INFINITY), digits=1),
}
"""Limits: σ above 1; exponents nearer to n than to n²; half of full attention's entries."""

PATHS = 1.5
"""Mean path length of a small world over that of a random graph, at most."""


@dataclass(frozen=True)
class Proof:
    """A finding, and the curves or points that its figure shows.

    Attributes
    ----------
    finding : Finding
    rows : list of dict
        One for each line of the section's table.
    curves : dict of str to (x, y)
    points : dict of str to Estimate
    """

    finding: Finding
    rows: list[dict[str, str]]
    curves: Mapping[str, tuple[Floats, Floats]]
    points: Mapping[str, Estimate]


def receptive_field(data: Path, n: int = 257, layers: int = 6) -> Proof:
    """C7: a band of w reaches l·w/2 tokens to each side after l layers; dilated, l·d·w/2."""
    rows, curves, worst = [], {}, 0
    places = np.arange(1, layers + 1)
    for w, d in ((8, 1), (24, 1), (8, 2), (8, 4)):
        pattern = _pattern(f"dilated:w={w},dilation={d}" if d > 1 else f"band:w={w}", n)
        seen = graphs.reach([pattern] * layers)
        middle = n // 2
        left = seen.left[:, middle]
        said = np.minimum(places * d * w // 2, middle)
        worst = max(worst, int(np.abs(left - said).max()))
        name = f"w = {w}, dilation {d}"
        curves[name] = (places.astype(np.float64), left.astype(np.float64))
        last = int(np.flatnonzero(places * d * w // 2 <= middle)[-1])
        rows.append(
            {
                "pattern": name,
                "layers": str(places[last]),
                "reach to each side": str(left[last]),
                "l·d·w/2": str(places[last] * d * w // 2),
                "tokens that it has seen": str(seen.counts[last, middle]),
                "l·w + 1": str(places[last] * w + 1),
            }
        )
    if worst:
        raise AssertionError(f"the reach is off by {worst} tokens")
    says = "true as a distance; of the tokens there a dilated band has seen l·w + 1"
    return Proof(
        Finding("l·d·w/2 to each side, exactly", Verdict.mathematics, says), rows, curves, {}
    )


def small_world(data: Path, n: int = 512, draws: int = 5) -> Proof:
    """C11: σ of Big Bird's pattern against random graphs and lattice of equal degree."""
    degrees = (16, 64)
    rows, points, parts = [], {}, []
    for k in degrees:
        found = []
        for draw in range(draws):
            pattern = _pattern(f"bigbird:entries={k},seed={draw}", n)
            found.append(graphs.small_world(pattern, draws=2, seed=100 + draw))
        values = {
            name: estimate([getattr(one, name) for one in found], np.zeros(draws))
            for name in ("sigma", "omega", "clustering", "path_length", "random_path_length")
        }
        ratio = estimate(
            [one.path_length / one.random_path_length for one in found], np.zeros(draws)
        )
        points[f"Big Bird, {k} keys"] = values["sigma"]
        parts += [
            RULES["C11"].judge(values["sigma"], ""),
            Rule((-INFINITY, PATHS)).judge(ratio, ""),
        ]
        rows.append(
            {
                "graph": f"Big Bird ITC, {k} keys a query, n = {n}",
                "clustering": f"{values['clustering'].value:.3f}",
                "mean path length": f"{values['path_length'].value:.3f}",
                "over a random graph's": str(ratio),
                "σ": str(values["sigma"]),
                "ω": str(values["omega"]),
            }
        )
    others = {"random-band": "random keys + band", "band": "band", "longformer": "Longformer"}
    for graph, name in others.items() if (data / "graphs.nc").exists() else ():
        row = load(data / "graphs.nc").sel(degree=64, n=1024, graph=graph).mean("draw")
        points[f"{name}, 64 keys"] = Estimate(float(row["sigma"]), math.nan, math.nan, 1, "graph")
        rows.append(
            {
                "graph": f"{name}, 64 keys a query, n = 1024 (graphs.nc)",
                "clustering": f"{float(row['clustering']):.3f}",
                "mean path length": f"{float(row['path_length']):.3f}",
                "over a random graph's": "–",
                "σ": f"{float(row['sigma']):.2f}",
                "ω": f"{float(row['omega']):.2f}".replace("-", "−"),
            }
        )
    whole = graphs.complete(64)
    one = (
        graphs.clustering(whole),
        graphs.path_lengths(whole).mean,
        graphs.spectral_gap(whole) * 63 / 64,
    )
    if max(abs(value - 1) for value in one) > 1e-9:
        raise AssertionError("full attention is not the complete graph")
    rows.append(
        {
            "graph": "full attention, n = 64",
            "clustering": f"{one[0]:.3f}",
            "mean path length": f"{one[1]:.3f}",
            "over a random graph's": "–",
            "σ": "1",
            "ω": "0",
        }
    )
    number = points[f"Big Bird, {degrees[-1]} keys"]
    return Proof(Finding(number, *together(parts, "on the degree")), rows, {}, points)


def full_rank(data: Path, n: int = 8, weight: float = 0.5) -> Proof:
    """C12: (1 − ε)I + ε11ᵀ/n has full rank, and no two of its rows are orthogonal."""
    rows, curves = [], {}
    for epsilon in (0.1, weight, 0.9):
        p = (1 - epsilon) * np.eye(n) + epsilon / n
        sigma = _sigma(p)
        gram = p @ p.T
        off = gram[~np.eye(n, dtype=bool)]
        if np.linalg.matrix_rank(p) != n or not (off > 0).all():
            raise AssertionError("the counterexample is none")
        cosine = float((gram / np.sqrt(np.outer(np.diag(gram), np.diag(gram))))[0, 1])
        curves[f"ε = {epsilon:g}"] = (np.arange(1.0, n + 1), sigma)
        rows.append(
            {
                "ε": f"{epsilon:g}",
                "rank": f"{np.linalg.matrix_rank(p)} of {n}",
                "least singular value (1 − ε)": f"{sigma[-1]:.3f}",
                "cosine of two rows": f"{cosine:.3f}",
            }
        )
    number = f"rank {n} of {n}, cosine of any two rows {rows[-1]['cosine of two rows']}"
    says = "false: independent rows are enough, and rows of full rank can nearly agree"
    return Proof(Finding(number, Verdict.mathematics, says), rows, curves, {})


def sparse_and_full_rank(data: Path, n: int = 512) -> Proof:
    """C13: a head that looks at the previous token has one entry a row and rank n − 1."""
    previous = np.eye(n, k=-1)
    previous[0, 0] = 1.0
    matrices = {
        "previous-token head": previous,
        "identity": np.eye(n),
        "band of 64, equal weights": _rows(_pattern("band:w=64", n).toarray()),
        "uniform attention": np.full((n, n), 1 / n),
    }
    rows, curves = [], {}
    for name, p in matrices.items():
        sigma = _sigma(p)
        ratio, energy = rank.cumulative_ratio(sigma), rank.energy_ratio(sigma)
        if name != "identity":
            # it would hide the previous-token head, whose curve is the same
            curves[name] = (np.arange(1.0, n + 1), ratio)
        rows.append(
            {
                "matrix": name,
                "entries a row": f"{(p > 0).sum(axis=1).mean():.0f}",
                "rank": f"{int((sigma > 1e-9 * sigma[0]).sum())}",
                "σ in the first n/4": f"{ratio[n // 4 - 1]:.3f}",
                "σ² in the first n/4": f"{energy[n // 4 - 1]:.3f}",
            }
        )
    head = rows[0]
    if int(head["rank"]) < n - 1 or float(head["σ in the first n/4"]) > 0.26:
        raise AssertionError("the counterexample is none")
    number = (
        f"rank {head['rank']} of {n}, ratios at n/4 {head['σ in the first n/4']} (σ) and "
        f"{head['σ² in the first n/4']} (σ²)"
    )
    says = "false: a head with one entry a row has them all equal"
    return Proof(Finding(number, Verdict.mathematics, says), rows, curves, {})


FAMILIES = {
    "full attention": ("full", 2.0),
    "window, w = 128": ("band:w=128", 1.0),
    "LSH": ("lsh:entries=128", 1.0),
    "Linformer, k = 128": ("linformer:k=128", 1.0),
    "kernel, m = 128": ("performer:features=128", 1.0),
}
"""Methods of C14, their text in complexity.nc, and the exponent that the source says."""


def complexities(data: Path) -> Proof:
    """C14: exponents of time and memory over n, fitted, and of the operations, counted."""
    if not (data / "complexity.nc").exists():
        raise UsageError("no complexity.nc", "run python -m analyses complexity and keep its data")
    kept = load(data / "complexity.nc")
    rows, points, parts = [], {}, []
    n = np.array([4096, 8192, 16384, 32768])
    for name, (text, theory) in FAMILIES.items():
        place = [str(one) for one in kept["method"].to_numpy()].index(text)
        part = {kind: _exponent(kept, kind, place) for kind in ("time", "memory")}
        counted = np.log2([method(text).cost(int(m), int(m), 64, 64).multiply_adds for m in n])
        for kind, found in part.items():
            points[f"{name}: {kind}"] = found
            rule = RULES["C14"] if theory == 1.0 else Rule((1.5, INFINITY))
            parts.append(rule.judge(found, ""))
        rows.append(
            {
                "method": name,
                "the source": "n²" if theory == 2 else "n · log n" if name == "LSH" else "n",
                "time, fitted": str(part["time"]),
                "memory, fitted": str(part["memory"]),
                "multiply-adds, counted": f"{np.diff(counted).mean():.3f}",
            }
        )
    number = points["full attention: time"]
    return Proof(Finding(number, *together(parts, "on the method")), rows, {}, points)


def equal_reach(data: Path, n: int = 1024, w: int = 64) -> Proof:
    """C16: score entries of as many layers as every token needs to see every other, over n²."""
    rows, points, parts = [], {}, []
    patterns = {
        "band": f"band:w={w}",
        "dilation 1/2/4/8 by layer": "",
        "Longformer, 1 global token": f"longformer:w={w - 2},g=1",
        "random keys": f"random:r={w}",
        "Big Bird ITC": f"bigbird:entries={w}",
    }
    for name, text in patterns.items():
        parts_of = [f"dilated:w={w},dilation={d}" for d in (1, 2, 4, 8)] if not text else [text]
        graph = [_pattern(one, n) for one in parts_of]
        layers = graphs.layers_to_reach_all(graph)
        entries = float(np.mean([one.nnz for one in graph]))
        share = layers * entries / n**2
        found = Estimate(share, share, share, 1, "count")
        points[name] = found
        parts.append(RULES["C16"].judge(found, ""))
        rows.append(
            {
                "pattern": f"{name}, {w} keys a query, n = {n}",
                "layers until all see all": f"{layers:.0f}",
                "entries of one layer / n²": f"{entries / n**2:.3f}",
                "entries of all these layers / n²": f"{share:.3f}",
            }
        )
    low, high = min(one.value for one in points.values()), max(one.value for one in points.values())
    verdict, on = together(
        parts,
        "on the pattern: a band needs as many entries as full attention, one global token makes "
        "two layers enough",
    )
    return Proof(Finding(f"{low:.2f} … {high:.2f}", verdict, on), rows, {}, points)


def _pattern(text: str, n: int) -> scipy.sparse.csr_array:
    found = method(text)
    assert isinstance(found, Sparse)
    return found.pattern(n)


def _sigma(p: Floats) -> Floats:
    found = singular_values(torch.from_numpy(p)[None], driver="svd").singular_values
    return np.asarray(found[0], dtype=np.float64)


def _rows(pattern: npt.NDArray[np.bool_]) -> Floats:
    return np.asarray(pattern / pattern.sum(axis=1, keepdims=True))


def _exponent(kept: xr.Dataset, kind: str, place: int) -> Estimate:
    value, low, high = (
        float(kept[f"{kind}_exponent{end}"][place]) for end in ("", "_low", "_high")
    )
    return Estimate(value, low, high, 1, "fit")


FOUND: Mapping[str, Callable[[Path], Proof]] = {
    "C7": receptive_field,
    "C11": small_world,
    "C12": full_rank,
    "C13": sparse_and_full_rank,
    "C14": complexities,
    "C16": equal_reach,
}
"""What decides each claim."""
