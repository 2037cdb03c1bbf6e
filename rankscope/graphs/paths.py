"""Distances in a graph: how many layers a token is away from another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from rankscope.exceptions import UsageError
from rankscope.graphs.structure import edges_of

_ENTRIES = 2**22
"""Distances that are kept at a time."""


@dataclass(frozen=True)
class PathLengths:
    """Distances of ordered pairs of different tokens, from all tokens or from a sample of them.

    Attributes
    ----------
    mean : float
        Mean distance of the pairs that a path joins; NaN if there are none.
    standard_error : float
        Of the mean, for the sample of sources; 0 if all were taken, NaN for a single one.
    efficiency : float
        Mean of 1/distance over all pairs, 0 for those without a path: in [0, 1].
    longest : int
        Largest distance found; of a sample it is a lower bound of the diameter.
    diameter : float
        Largest distance of all pairs; infinite if a pair has no path, and NaN if only a sample of
        sources was taken and none is missing there.
    unreachable : int
        Pairs without a path, which `mean` leaves out.
    pairs : int
        Pairs looked at, (n − 1) for every source.
    sources : int
        Tokens that distances were measured from.
    """

    mean: float
    standard_error: float
    efficiency: float
    longest: int
    diameter: float
    unreachable: int
    pairs: int
    sources: int

    @property
    def unreachable_share(self) -> float:
        """Share of the pairs looked at that have no path, in [0, 1]."""
        return self.unreachable / self.pairs


def path_lengths(
    graph: scipy.sparse.csr_array, sources: int | None = None, seed: int = 0
) -> PathLengths:
    """Mean distance, efficiency and diameter of a directed graph.

    The mean over a sample is the ratio of two totals, of distances and of pairs with a path, and
    its standard error the usual one of a ratio, for sources drawn without repetition.

    Parameters
    ----------
    graph : (n, n) sparse array
    sources : int, optional
        Tokens to measure distances from, drawn at random; all where not given, or not fewer.
        Time grows with this number times the number of edges.
    seed : int
        Of the draw.

    Returns
    -------
    PathLengths

    Raises
    ------
    UsageError
        If the graph is not sparse, not square or has fewer than 2 nodes, or `sources` is below 1.

    References
    ----------
    Watts & Strogatz 1998, Nature 393, 440–442 (characteristic path length); Latora & Marchiori
    2001, Phys. Rev. Lett. 87, 198701 (efficiency); Cochran 1977, Sampling Techniques, section 2.11
    (ratios).

    Examples
    --------
    >>> from rankscope.graphs import complete, ring_lattice
    >>> path_lengths(complete(8)).mean
    1.0
    >>> ring = path_lengths(ring_lattice(240, 6))
    >>> ring.diameter, round(ring.mean, 1), 240 / (2 * 6)
    (40.0, 20.4, 20.0)
    """
    edges = edges_of(graph)
    n = edges.shape[0]
    if sources is not None and sources < 1:
        raise UsageError(f"no distances start from {sources} tokens", "use 1 or more")
    chosen = np.arange(n)
    if sources is not None and sources < n:
        chosen = np.sort(np.random.default_rng(seed).choice(n, sources, replace=False))
    number = len(chosen)
    totals, reached, inverse = np.zeros(number), np.zeros(number), 0.0
    longest = 0
    step = max(1, _ENTRIES // n)
    for start in range(0, number, step):
        piece = chosen[start : start + step]
        found = csgraph.dijkstra(edges, indices=piece, unweighted=True)
        there = np.isfinite(found)
        # the source itself is no pair
        found[np.arange(len(piece)), piece] = np.inf
        there &= np.isfinite(found)
        distances = np.where(there, found, 0.0)
        totals[start : start + step] = distances.sum(axis=1)
        reached[start : start + step] = there.sum(axis=1)
        inverse += float((1 / found).sum())
        longest = max(longest, int(distances.max()))
    pairs = number * (n - 1)
    missing = pairs - int(reached.sum())
    mean = float(totals.sum() / reached.sum()) if reached.any() else math.nan
    diameter = math.inf if missing else float(longest) if number == n else math.nan
    return PathLengths(
        mean,
        _standard_error(totals, reached, mean, n),
        inverse / pairs,
        longest,
        diameter,
        missing,
        pairs,
        number,
    )


def _standard_error(
    totals: np.ndarray[tuple[int], np.dtype[np.float64]],
    reached: np.ndarray[tuple[int], np.dtype[np.float64]],
    mean: float,
    n: int,
) -> float:
    """Of Σ totals / Σ reached, for a sample out of n without repetition."""
    number = len(totals)
    if number == n:
        return 0.0 if math.isfinite(mean) else math.nan
    if number < 2 or not math.isfinite(mean):
        return math.nan
    residual = totals - mean * reached
    variance = float(residual @ residual) / (number - 1)
    return math.sqrt((1 - number / n) * variance / number) / float(reached.mean())
