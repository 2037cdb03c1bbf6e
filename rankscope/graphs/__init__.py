"""An attention pattern as a directed graph: paths, clustering, spectral gap, reach over layers.

The tokens of a text are the nodes, and there is an edge i → j where query i may attend to key j.
One layer carries what stands at j to i along one edge, so distances count layers. A graph is an
(n, n) `csr_array`; the sparse methods give theirs by ``pattern(n, head, layer)``, and
:func:`thresholded` makes one of a model's own P.

A token's own key is no edge: degrees, distances and triangles leave the diagonal out, and
:func:`reach` takes it in always, because of the residual connection. Distances, degrees and reach
follow the direction of the edges; clustering, spectral gap and small-world coefficients are those
of :func:`undirected`, in which two tokens are neighbours if either attends to the other.

==================== ===========================================================================
:func:`degrees`      keys of a query, queries of a key
:func:`path_lengths` mean distance, diameter, pairs that never reach each other
:func:`clustering`   how many of a token's neighbours are neighbours
:func:`spectral_gap` of the random walk
:func:`reach`        how far, and to how many tokens, a token sees after 1, 2, … layers
:func:`small_world`  σ and ω against Erdős–Rényi graphs and the ring lattice
==================== ===========================================================================
"""

from __future__ import annotations

from rankscope.graphs.layers import Reach, layers_to_reach_all, reach, reach_matrix
from rankscope.graphs.paths import PathLengths, path_lengths
from rankscope.graphs.references import complete, erdos_renyi, ring_lattice, watts_strogatz
from rankscope.graphs.smallworld import SmallWorld, small_world
from rankscope.graphs.structure import (
    Degrees,
    clustering,
    degrees,
    local_clustering,
    spectral_gap,
    thresholded,
    undirected,
    union,
)

__all__ = [
    "Degrees",
    "PathLengths",
    "Reach",
    "SmallWorld",
    "clustering",
    "complete",
    "degrees",
    "erdos_renyi",
    "layers_to_reach_all",
    "local_clustering",
    "path_lengths",
    "reach",
    "reach_matrix",
    "ring_lattice",
    "small_world",
    "spectral_gap",
    "thresholded",
    "undirected",
    "union",
    "watts_strogatz",
]
