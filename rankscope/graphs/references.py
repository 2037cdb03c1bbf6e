"""Graphs that patterns are compared with: complete, ring lattice, Erdős–Rényi, Watts–Strogatz."""

from __future__ import annotations

import networkx
import numpy as np
import scipy.sparse

from rankscope.exceptions import UsageError
from rankscope.graphs.structure import csr_of


def complete(n: int) -> scipy.sparse.csr_array:
    """Full attention: every token attends to every other.

    Mean path length and clustering are 1, the spectral gap is n/(n − 1).

    Parameters
    ----------
    n : int
        2 or more.

    Returns
    -------
    (n, n) csr_array of bool
        Without diagonal, n(n − 1) entries.

    Raises
    ------
    UsageError
    """
    edges_for(n, n - 1)
    rows, columns = np.nonzero(~np.eye(n, dtype=bool))
    return csr_of(rows, columns, n)


def ring_lattice(n: int, k: float) -> scipy.sparse.csr_array:
    """A ring on which every token is linked with its k nearest ones, k/2 on each side.

    A band whose two ends are joined. For an even k < 2n/3 the clustering is 3(k − 2) / (4(k − 1));
    the mean path length is about n/(2k). Where k is not even, the links of length ⌊k/2⌋ + 1 that
    are needed for the mean are spread evenly.

    Parameters
    ----------
    n : int
        2 or more.
    k : float
        Mean degree, 0 … n − 1.

    Returns
    -------
    (n, n) csr_array of bool
        Symmetric, with nk/2 links, rounded.

    Raises
    ------
    UsageError

    References
    ----------
    Watts & Strogatz 1998, Nature 393, 440–442; Barrat & Weigt 2000, Eur. Phys. J. B 13, 547–560.

    Examples
    --------
    >>> ring_lattice(5, 2).toarray().astype(int)[0]
    array([0, 1, 0, 0, 1])
    """
    edges = edges_for(n, k)
    starts, ends = [], []
    length = 0
    while edges > 0:
        length += 1
        # links across the middle of an even ring are there once, not twice
        whole = n // 2 if 2 * length == n else n
        number = min(edges, whole)
        start = np.arange(number) * whole // number
        starts.append(start)
        ends.append((start + length) % n)
        edges -= number
    rows = np.concatenate([np.empty(0, dtype=np.int64), *starts, *ends])
    columns = np.concatenate([np.empty(0, dtype=np.int64), *ends, *starts])
    return csr_of(rows, columns, n)


def erdos_renyi(n: int, k: float, seed: int = 0) -> scipy.sparse.csr_array:
    """A random graph G(n, M): each set of M = nk/2 links equally likely.

    The clustering is about k/n, the mean path length about ln n / ln k.

    Parameters
    ----------
    n : int
        2 or more.
    k : float
        Mean degree, 0 … n − 1.
    seed : int

    Returns
    -------
    (n, n) csr_array of bool
        Symmetric, with nk/2 links, rounded.

    Raises
    ------
    UsageError

    References
    ----------
    Erdős & Rényi 1959, Publ. Math. Debrecen 6, 290–297.
    """
    return _of(networkx.gnm_random_graph(n, edges_for(n, k), seed=seed))


def watts_strogatz(n: int, k: int, p: float = 0.1, seed: int = 0) -> scipy.sparse.csr_array:
    """A ring lattice whose links are each rewired with probability p to a token at random.

    Parameters
    ----------
    n : int
        3 or more.
    k : int
        Even, 2 … n − 1.
    p : float
        In [0, 1].
    seed : int

    Returns
    -------
    (n, n) csr_array of bool
        Symmetric, with nk/2 links.

    Raises
    ------
    UsageError

    References
    ----------
    Watts & Strogatz 1998, Nature 393, 440–442.
    """
    edges_for(n, k)
    if k % 2 or k < 2 or not 0 <= p <= 1:
        raise UsageError(
            f"no Watts–Strogatz graph has k={k} and p={p}",
            "use an even k of 2 or more, p in [0, 1]",
        )
    return _of(networkx.watts_strogatz_graph(n, k, p, seed=seed))


def edges_for(n: int, k: float) -> int:
    """Links of an undirected graph of n nodes with mean degree k, rounded.

    Raises
    ------
    UsageError
        If there is no such graph.
    """
    if n < 2 or not 0 <= k <= n - 1:
        raise UsageError(
            f"no graph of {n} tokens has a mean degree of {k}",
            "use 2 tokens or more, 0 ≤ k ≤ n − 1",
        )
    return round(n * k / 2)


def _of(graph: networkx.Graph) -> scipy.sparse.csr_array:
    ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    rows, columns = np.concatenate([ends, ends[:, ::-1]]).T
    return csr_of(rows, columns, len(graph))
