"""Is a graph a small world: clustered like a lattice, with the short paths of a random graph?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from rankscope.exceptions import UsageError
from rankscope.graphs.paths import path_lengths
from rankscope.graphs.references import erdos_renyi, ring_lattice
from rankscope.graphs.structure import clustering, degrees, undirected


@dataclass(frozen=True)
class SmallWorld:
    """Clustering C and mean path length L of an undirected graph and of its references.

    Attributes
    ----------
    clustering, path_length : float
        Of the graph.
    random_clustering, random_path_length : float
        Means over the Erdős–Rényi graphs.
    lattice_clustering, lattice_path_length : float
        Of the ring lattice.
    unreachable, random_unreachable : float
        Share of the pairs without a path, which path lengths leave out; of the graph, and the mean
        of the Erdős–Rényi graphs.
    sigma : float
        (C/C_rand) / (L/L_rand): above 1 in a small world. NaN if the graph is not connected.
    omega : float
        L_rand/L − C/C_lattice: near 0 in a small world, near −1 for a lattice, near 1 for a random
        graph. NaN if the graph is not connected.
    """

    clustering: float
    path_length: float
    random_clustering: float
    random_path_length: float
    lattice_clustering: float
    lattice_path_length: float
    unreachable: float
    random_unreachable: float
    sigma: float
    omega: float


def small_world(
    graph: scipy.sparse.csr_array, *, draws: int = 5, sources: int | None = None, seed: int = 0
) -> SmallWorld:
    """Small-world coefficients σ and ω of the undirected graph.

    The references have as many nodes and links as the graph: the random ones are Erdős–Rényi
    graphs, the lattice is a ring. (networkx's functions ``sigma`` and ``omega`` have the same
    formulas and rewire the graph itself, which keeps the degree of every node as well, and with
    global tokens that changes what the references are.)

    Parameters
    ----------
    graph : (n, n) sparse array
    draws : int
        Erdős–Rényi graphs, of the seeds `seed`, `seed` + 1, ….
    sources : int, optional
        As for :func:`rankscope.graphs.paths.path_lengths`, for all of the graphs.
    seed : int

    Returns
    -------
    SmallWorld

    Raises
    ------
    UsageError
        If `draws` is below 1, the graph has no edge, or as
        :func:`rankscope.graphs.paths.path_lengths` does.

    References
    ----------
    Humphries & Gurney 2008, PLoS ONE 3(4), e0002051, σ; Telesford et al. 2011, Brain Connectivity
    1(5), 367–375, ω.

    Examples
    --------
    >>> from rankscope.graphs import watts_strogatz
    >>> found = small_world(watts_strogatz(200, 8, p=0.1), draws=2)
    >>> found.sigma > 5, abs(found.omega) < 0.3
    (True, True)
    """
    if draws < 1:
        raise UsageError(f"no mean over {draws} random graphs", "use 1 draw or more")
    links = undirected(graph)
    n, k = links.shape[0], degrees(links).mean
    if k == 0:
        raise UsageError("a graph without edges is no small world", "use a pattern that has some")
    c, found = clustering(links), path_lengths(links, sources, seed)
    lattice = ring_lattice(n, k)
    lattice_c, lattice_l = clustering(lattice), path_lengths(lattice, sources, seed).mean
    random_c, random_l, missing = [], [], []
    for draw in range(draws):
        reference = erdos_renyi(n, k, seed + draw)
        random_c.append(clustering(reference))
        paths = path_lengths(reference, sources, seed)
        random_l.append(paths.mean)
        missing.append(paths.unreachable_share)
    mean_c, mean_l = float(np.mean(random_c)), float(np.mean(random_l))
    connected = found.unreachable == 0
    sigma = _ratio(_ratio(c, mean_c), _ratio(found.mean, mean_l)) if connected else math.nan
    omega = _ratio(mean_l, found.mean) - _ratio(c, lattice_c) if connected else math.nan
    return SmallWorld(
        c,
        found.mean,
        mean_c,
        mean_l,
        lattice_c,
        lattice_l,
        found.unreachable_share,
        float(np.mean(missing)),
        sigma,
        omega,
    )


def _ratio(above: float, below: float) -> float:
    """NaN where it is not defined: a sparse random graph may have no triangle."""
    return above / below if below else math.nan
