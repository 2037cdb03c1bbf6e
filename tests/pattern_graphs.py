"""Graphs that several tests look at."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from rankscope.approximations import method
from rankscope.approximations.sparse import Sparse


def pattern_of(text: str, n: int, **place: int) -> scipy.sparse.csr_array:
    found = method(text)
    assert isinstance(found, Sparse)
    return found.pattern(n, **place)


def some_graph(n: int, density: float, seed: int) -> scipy.sparse.csr_array:
    drawn = np.random.default_rng(seed).random((n, n)) < density
    return scipy.sparse.csr_array(drawn)


SOME = {
    "sparse": some_graph(40, 0.04, 0),
    "dense": some_graph(30, 0.3, 1),
    "previous token": scipy.sparse.csr_array(np.eye(12, k=-1, dtype=bool)),
    "band": pattern_of("band:w=6", 33),
    "global": pattern_of("longformer:w=4,g=2", 33),
    "Big Bird": pattern_of("bigbird:entries=10", 50),
    "with stored zeros": scipy.sparse.csr_array(
        (np.array([0, 1, 1, 1]), (np.array([0, 0, 1, 2]), np.array([1, 2, 0, 1]))), shape=(3, 3)
    ),
}
