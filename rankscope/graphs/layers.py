"""Which tokens can influence which after several layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from rankscope.exceptions import UsageError
from rankscope.graphs.paths import path_lengths
from rankscope.graphs.structure import edges_of

_ENTRIES = 2**22
"""Numbers in one piece of a product, whose columns are independent of each other."""


@dataclass(frozen=True, eq=False)
class Reach:
    """What each token can have seen of the text after 1, 2, … layers.

    Attributes
    ----------
    counts : (layers, n) int64
        Tokens that can have influenced it, itself included: 1 … n.
    left, right : (layers, n) int64
        Distance to the first and to the last of them, 0 … n − 1. There may be gaps in between.
    """

    counts: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]


def reach(patterns: Sequence[scipy.sparse.csr_array]) -> Reach:
    """How far and how many tokens each token sees after l layers, for every l.

    Token j can have influenced token i after l layers where the boolean product A_l A_{l−1} ⋯ A_1
    is not zero, A_l being the pattern of layer l and the diagonal. The diagonal stands for the
    residual connection, by which a token hands on its own state. The product is made by pieces of
    its columns and never kept: memory grows with n.

    Parameters
    ----------
    patterns : sequence of (n, n) sparse array
        One for each layer, from the first to the last; for several heads, their :func:`union`.

    Returns
    -------
    Reach

    Raises
    ------
    UsageError
        If there is no pattern, or one is no graph, or they differ in size.

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1: receptive fields of l·w and l·d·w.

    Examples
    --------
    >>> from rankscope.approximations import method
    >>> band = method("band:w=4").pattern(16)
    >>> seen = reach([band, band, band])
    >>> seen.left[:, 8].tolist(), seen.right[:, 8].tolist(), seen.counts[:, 8].tolist()
    ([2, 4, 6], [2, 4, 6], [5, 9, 13])
    >>> seen.left[:, 3].tolist()
    [2, 3, 3]
    """
    graphs = _with_themselves(patterns)
    n = graphs[0].shape[0]
    counts = np.zeros((len(graphs), n), dtype=np.int64)
    first = np.full_like(counts, n)
    last = np.full_like(counts, -1)
    for start, seen in _pieces(n):
        for layer, graph in enumerate(graphs):
            seen = (graph @ seen > 0).astype(np.float32)
            found = seen > 0
            counts[layer] += found.sum(axis=1)
            there = np.nonzero(found.any(axis=1))[0]
            low = start + found[there].argmax(axis=1)
            high = start + found.shape[1] - 1 - found[there, ::-1].argmax(axis=1)
            first[layer, there] = np.minimum(first[layer, there], low)
            last[layer, there] = np.maximum(last[layer, there], high)
    place = np.arange(n)
    return Reach(counts, place - first, last - place)


def reach_matrix(patterns: Sequence[scipy.sparse.csr_array]) -> NDArray[np.bool_]:
    """Which tokens can influence which after all of the layers.

    Parameters
    ----------
    patterns : sequence of (n, n) sparse array
        As for :func:`reach`.

    Returns
    -------
    (n, n) bool
        True at (i, j) where the input of token j can have influenced the output of token i.

    Raises
    ------
    UsageError
        As :func:`reach` does.

    Examples
    --------
    >>> import scipy.sparse
    >>> previous = scipy.sparse.csr_array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    >>> reach_matrix([previous]).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    graphs = _with_themselves(patterns)
    found = np.eye(graphs[0].shape[0], dtype=np.float32)
    for graph in graphs:
        found = (graph @ found > 0).astype(np.float32)
    return np.asarray(found > 0)


def layers_to_reach_all(patterns: Sequence[scipy.sparse.csr_array]) -> float:
    """Layers until every token can have influenced every other.

    For a single pattern it is the diameter of its graph: ⌈(n − 1)/(w/2)⌉ for a band, 2 with global
    tokens, 1 for full attention.

    Parameters
    ----------
    patterns : sequence of (n, n) sparse array
        Of the first layer, the second, …, and then from the beginning again.

    Returns
    -------
    float
        A whole number; infinite if it never happens.

    Raises
    ------
    UsageError
        As :func:`reach` does.

    Examples
    --------
    >>> from rankscope.approximations import method
    >>> layers_to_reach_all([method("band:w=4").pattern(17)])
    8.0
    >>> layers_to_reach_all([method("longformer:w=4,g=1").pattern(17)])
    2.0
    >>> layers_to_reach_all([method("dilated:w=4,dilation=2").pattern(17)])
    inf
    """
    graphs = _with_themselves(patterns)
    if len(graphs) == 1:
        return path_lengths(graphs[0]).diameter
    most = 0
    for _, seen in _pieces(graphs[0].shape[0]):
        layers, idle = 0, 0
        while not seen.all():
            before = int(seen.sum())
            seen = (graphs[layers % len(graphs)] @ seen > 0).astype(np.float32)
            layers += 1
            # what a whole round leaves as it was stays so
            idle = idle + 1 if int(seen.sum()) == before else 0
            if idle == len(graphs):
                return math.inf
        most = max(most, layers)
    return float(most)


def _with_themselves(
    patterns: Sequence[scipy.sparse.csr_array],
) -> list[scipy.sparse.csr_array]:
    """Patterns with their diagonals, as float32: products count paths, and none overflows to 0."""
    graphs = [edges_of(pattern) for pattern in patterns]
    sizes = {graph.shape[0] for graph in graphs}
    if len(sizes) != 1:
        raise UsageError(
            f"layers of {sorted(sizes)} tokens are no model", "give one pattern for each layer"
        )
    own = scipy.sparse.eye_array(sizes.pop(), dtype=np.float32, format="csr")
    return [(graph.astype(np.float32) + own).tocsr() for graph in graphs]


def _pieces(n: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Runs of columns of the identity matrix, and where each begins."""
    step = max(1, _ENTRIES // n)
    for start in range(0, n, step):
        width = min(step, n - start)
        piece = np.zeros((n, width), dtype=np.float32)
        piece[start + np.arange(width), np.arange(width)] = 1
        yield start, piece
