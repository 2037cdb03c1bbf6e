"""What a graph is made of: edges, degrees, triangles, and the spectral gap of its random walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from rankscope.exceptions import UsageError

# as for singular values: a cumulative sum carries rounding, which must not cost another entry
_SLACK = 1e-12

_DENSE = 256
"""Up to so many nodes, all eigenvalues at once are cheaper than one by iteration."""

_RESTARTS = 20_000
"""Of the iteration for the spectral gap."""

_ENTRIES = 2**24
"""Numbers in one piece of a product that is dense in the worst case."""


@dataclass(frozen=True)
class Degrees:
    """Edges of a node, its own key not counted.

    Attributes
    ----------
    mean : float
        Keys of a query, and as well queries of a key.
    out_min, out_max : int
        Fewest and most keys that a query has.
    in_min, in_max : int
        Fewest and most queries that a key has.
    """

    mean: float
    out_min: int
    out_max: int
    in_min: int
    in_max: int


def edges_of(graph: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """The graph without its diagonal and without entries that are stored but zero.

    Parameters
    ----------
    graph : (n, n) sparse array
        Not zero where there is an edge.

    Returns
    -------
    (n, n) csr_array of bool
        With sorted column indices.

    Raises
    ------
    UsageError
        If it is not sparse, not square, or has fewer than 2 nodes.
    """
    if not scipy.sparse.issparse(graph):
        raise UsageError(
            f"a graph is a sparse array, not {type(graph).__name__}",
            "make one by a method's pattern(n) or by thresholded(weights)",
        )
    n, columns = graph.shape
    if n != columns or n < 2:
        raise UsageError(
            f"a matrix of {n} × {columns} is no graph of an attention pattern",
            "use a square one of 2 tokens or more",
        )
    entries = graph.tocoo()
    kept = (entries.row != entries.col) & (entries.data != 0)
    return csr_of(entries.row[kept], entries.col[kept], n)


def csr_of(rows: NDArray[np.int64], columns: NDArray[np.int64], n: int) -> scipy.sparse.csr_array:
    """A graph from the two ends of its edges; an edge that is named twice is there once.

    Returns
    -------
    (n, n) csr_array of bool
        With sorted column indices.
    """
    # in int32 an edge that is named twice counts 2, and is True all the same
    ones = np.ones(len(rows), dtype=np.int32)
    found = scipy.sparse.coo_array((ones, (rows, columns)), shape=(n, n)).tocsr()
    return found.astype(bool)


def undirected(graph: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """The graph in which tokens are neighbours if either attends to the other.

    Parameters
    ----------
    graph : (n, n) sparse array

    Returns
    -------
    (n, n) csr_array of bool
        Symmetric, without diagonal.

    Raises
    ------
    UsageError
        As :func:`degrees` does.
    """
    entries = edges_of(graph).tocoo()
    rows, columns = entries.row, entries.col
    return csr_of(
        np.concatenate([rows, columns]), np.concatenate([columns, rows]), entries.shape[0]
    )


def union(graphs: Sequence[scipy.sparse.csr_array]) -> scipy.sparse.csr_array:
    """All edges of several graphs, as the heads of one layer together have them.

    Parameters
    ----------
    graphs : sequence of (n, n) sparse array

    Returns
    -------
    (n, n) csr_array of bool
        Without diagonal.

    Raises
    ------
    UsageError
        If there is none, or they differ in size.
    """
    parts = [edges_of(graph).tocoo() for graph in graphs]
    sizes = {part.shape[0] for part in parts}
    if len(sizes) != 1:
        raise UsageError(
            f"graphs of {sorted(sizes)} tokens have no union", "give graphs of one text"
        )
    rows = np.concatenate([part.row for part in parts])
    columns = np.concatenate([part.col for part in parts])
    return csr_of(rows, columns, sizes.pop())


def thresholded(weights: ArrayLike, mass: float = 0.9) -> scipy.sparse.csr_array:
    """The largest entries of every row of P, as few as hold a given share of the row.

    Parameters
    ----------
    weights : (n, n) array or CPU tensor
        P; not negative. Rows need not sum to 1: the share is one of the row's own sum.
    mass : float
        In (0, 1]. At 1, entries below 1e-12 of a row's sum may be left out.

    Returns
    -------
    (n, n) csr_array of bool
        Every row has an entry at least. Of equal entries the one further left comes first.

    Raises
    ------
    UsageError
        If `mass` is out of its range, or P is not square, not finite, negative, or has a row of
        zeros.

    Examples
    --------
    >>> thresholded([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]], mass=0.75).nnz
    5
    """
    if not 0 < mass <= 1:
        raise UsageError(f"no entries hold a mass of {mass}", "use one above 0, up to 1")
    p = np.asarray(weights, dtype=np.float64)
    if p.ndim != 2 or p.shape[0] != p.shape[1]:
        raise UsageError(f"P of shape {p.shape} is no graph", "give one square matrix")
    total = p.sum(axis=1)
    if not np.isfinite(p).all() or (p < 0).any() or (total <= 0).any():
        raise UsageError(
            "a row of P is no distribution: it has an entry that is negative or not finite, or "
            "none that is positive",
            "give attention weights after the softmax",
        )
    order = np.argsort(-p, axis=1, kind="stable")
    held = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)
    # an entry stays while those before it do not yet hold the mass
    before = np.concatenate([np.zeros((len(p), 1)), held[:, :-1]], axis=1)
    rows, places = np.nonzero(before < (mass - _SLACK) * total[:, None])
    return csr_of(rows, order[rows, places], len(p))


def degrees(graph: scipy.sparse.csr_array) -> Degrees:
    """Keys of a query and queries of a key: mean, fewest, most.

    Parameters
    ----------
    graph : (n, n) sparse array

    Returns
    -------
    Degrees

    Raises
    ------
    UsageError
        If it is not sparse, not square, or has fewer than 2 nodes.
    """
    edges = edges_of(graph)
    out, into = np.diff(edges.indptr), np.bincount(edges.indices, minlength=edges.shape[0])
    return Degrees(
        float(out.mean()), int(out.min()), int(out.max()), int(into.min()), int(into.max())
    )


def local_clustering(graph: scipy.sparse.csr_array) -> NDArray[np.float64]:
    """Clustering coefficient of every token: the share of pairs of its neighbours that are linked.

    C_i = 2 t_i / (k_i (k_i − 1)) for t_i triangles and k_i neighbours in the undirected graph.

    Parameters
    ----------
    graph : (n, n) sparse array

    Returns
    -------
    (n,) float64
        In [0, 1]; 0 for a token with fewer than 2 neighbours, as in networkx.

    Raises
    ------
    UsageError
        As :func:`degrees` does.

    References
    ----------
    Watts & Strogatz 1998, Nature 393, 440–442.
    """
    # the number of common neighbours stays below 2²⁴, where float32 is exact
    edges = undirected(graph).astype(np.float32)
    n = edges.shape[0]
    closed = np.zeros(n)
    step = max(1, _ENTRIES // n)
    for start in range(0, n, step):
        rows = edges[start : start + step]
        closed[start : start + step] = (rows @ edges).multiply(rows).sum(axis=1, dtype=np.float64)
    k = np.diff(edges.indptr).astype(np.float64)
    found: NDArray[np.float64] = np.divide(closed, k * (k - 1), out=np.zeros(n), where=k > 1)
    return found


def clustering(graph: scipy.sparse.csr_array) -> float:
    """Mean clustering coefficient of the undirected graph.

    Parameters
    ----------
    graph : (n, n) sparse array

    Returns
    -------
    float
        In [0, 1]: 1 for the complete graph, 3(k − 2) / (4(k − 1)) for a long ring lattice of k
        neighbours, about k/n for a random graph.

    Raises
    ------
    UsageError
        As :func:`degrees` does.

    References
    ----------
    Watts & Strogatz 1998, Nature 393, 440–442; Barrat & Weigt 2000, Eur. Phys. J. B 13, 547–560.

    Examples
    --------
    >>> from rankscope.graphs import complete, ring_lattice
    >>> clustering(complete(8)), clustering(ring_lattice(40, 6)), 3 * (6 - 2) / (4 * (6 - 1))
    (1.0, 0.6, 0.6)
    """
    return float(local_clustering(graph).mean())


def spectral_gap(graph: scipy.sparse.csr_array, seed: int = 0) -> float:
    """Spectral gap of the random walk on the undirected graph, 1 − λ₂.

    λ₂ is the second largest eigenvalue of D^(−1/2) A D^(−1/2), for the adjacency matrix A without
    diagonal and the diagonal matrix D of its degrees; it is that of the walk D⁻¹A as well. The gap
    is thus the second smallest eigenvalue of the normalised Laplacian. The smallest eigenvalue,
    near −1 in a bipartite graph, does not count here.

    Parameters
    ----------
    graph : (n, n) sparse array
    seed : int
        Of the vector that the iteration starts from; it shows in the last digits only.

    Returns
    -------
    float
        0 if and only if the graph is not connected; n/(n − 1), the largest, for the complete graph.

    Raises
    ------
    UsageError
        As :func:`degrees` does, or if the gap is too small for the iteration to find.

    References
    ----------
    Chung 1997, Spectral Graph Theory, section 1.2 and lemma 1.7.

    Examples
    --------
    >>> from rankscope.graphs import complete
    >>> round(spectral_gap(complete(5)), 12)
    1.25
    """
    edges = undirected(graph)
    n = edges.shape[0]
    # eigenvalues of equal size are what the iteration may miss: λ₂ = 1 is found by the components
    if csgraph.connected_components(edges, directed=False, return_labels=False) > 1:
        return 0.0
    root = np.sqrt(np.diff(edges.indptr))
    inverse = scipy.sparse.diags_array(1 / root)
    walk = (inverse @ edges.astype(np.float64) @ inverse).tocsr()
    if n <= _DENSE:
        return float(1 - np.linalg.eigvalsh(walk.toarray())[-2])
    # the eigenvector of λ₁ = 1 is known; with it moved to −1, λ₂ is the largest
    known = root / np.linalg.norm(root)

    def deflated(x: NDArray[np.float64]) -> NDArray[np.float64]:
        flat = x.ravel()
        return np.asarray(walk @ flat - 2 * known * (known @ flat))

    operator = LinearOperator((n, n), matvec=deflated, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(n)
    # eigenvalues of a long band lie so close that a small basis would need many restarts
    try:
        largest = eigsh(
            operator,
            k=1,
            which="LA",
            v0=start,
            ncv=min(n - 1, 64),
            maxiter=_RESTARTS,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence as error:
        raise UsageError(
            f"the spectral gap of {n} tokens was not found in {_RESTARTS} restarts: "
            "it is too small",
            "ask for the gap of fewer tokens or of more neighbours",
        ) from error
    return float(1 - largest[0])
