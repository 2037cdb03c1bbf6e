"""Attention patterns as graphs: known graphs, closed forms, networkx, and reach over layers."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

from pattern_graphs import SOME, pattern_of
from rankscope import graphs
from rankscope.exceptions import UsageError


def directed(graph: scipy.sparse.csr_array) -> networkx.DiGraph:
    return networkx.DiGraph(graph.toarray() * ~np.eye(graph.shape[0], dtype=bool))


# ---- against networkx


@pytest.mark.parametrize("name", SOME)
def test_path_lengths_are_those_of_networkx(name: str) -> None:
    graph = SOME[name]
    n = graph.shape[0]
    lengths = [
        length
        for source, found in networkx.all_pairs_shortest_path_length(directed(graph))
        for target, length in found.items()
        if source != target
    ]
    found = graphs.path_lengths(graph)
    assert found.mean == pytest.approx(np.mean(lengths), rel=1e-12)
    assert found.efficiency == pytest.approx(sum(1 / d for d in lengths) / (n * (n - 1)))
    assert found.longest == max(lengths)
    assert found.unreachable == n * (n - 1) - len(lengths)
    assert found.diameter == (math.inf if found.unreachable else max(lengths))
    assert (found.pairs, found.sources, found.standard_error) == (n * (n - 1), n, 0.0)


@pytest.mark.parametrize("name", SOME)
def test_clustering_and_gap_are_those_of_networkx(name: str) -> None:
    links = networkx.Graph(graphs.undirected(SOME[name]).toarray())
    assert graphs.clustering(SOME[name]) == pytest.approx(networkx.average_clustering(links))
    each = networkx.clustering(links)
    np.testing.assert_allclose(
        graphs.local_clustering(SOME[name]), [each[node] for node in sorted(each)], atol=1e-7
    )
    values = np.sort(networkx.normalized_laplacian_spectrum(links))
    assert graphs.spectral_gap(SOME[name]) == pytest.approx(float(values[1]), abs=1e-9)


def test_degrees_count_edges_both_ways_without_the_diagonal() -> None:
    graph = scipy.sparse.csr_array([[1, 1, 1], [0, 1, 1], [0, 0, 0]])
    assert graphs.degrees(graph) == graphs.Degrees(1.0, 0, 2, 0, 2)
    starred = graphs.degrees(pattern_of("longformer:w=2,g=1", 10))
    assert (starred.out_max, starred.in_max, starred.out_min) == (9, 9, 2)


# ---- closed forms


@pytest.mark.parametrize("n", [2, 3, 17, 300])
def test_complete_graph(n: int) -> None:
    full = graphs.complete(n)
    paths = graphs.path_lengths(full)
    assert full.nnz == n * (n - 1)
    assert (paths.mean, paths.diameter, paths.efficiency) == (1.0, 1.0, 1.0)
    assert graphs.clustering(full) == (1.0 if n > 2 else 0.0)
    assert graphs.spectral_gap(full) == pytest.approx(n / (n - 1), abs=1e-12)
    assert graphs.layers_to_reach_all([full]) == 1


@pytest.mark.parametrize(("n", "k"), [(30, 2), (40, 6), (41, 8), (400, 10)])
def test_ring_lattice(n: int, k: int) -> None:
    ring = graphs.ring_lattice(n, k)
    steps = np.arange(1, n)
    away = np.minimum(steps, n - steps)
    paths = graphs.path_lengths(ring)
    assert paths.mean == pytest.approx(np.ceil(away / (k / 2)).mean(), rel=1e-12)
    assert paths.diameter == math.ceil((n // 2) / (k / 2))
    assert paths.mean == pytest.approx(n / (2 * k), abs=1)
    assert graphs.clustering(ring) == pytest.approx(3 * (k - 2) / (4 * (k - 1)), abs=1e-7)
    # a circulant matrix: its eigenvalues are the Fourier transform of a row
    turns = np.cos(2 * np.pi * np.arange(1, k // 2 + 1) / n)
    assert graphs.spectral_gap(ring) == pytest.approx(1 - 2 / k * turns.sum(), abs=1e-11)
    same = networkx.circulant_graph(n, range(1, k // 2 + 1))
    assert (ring.toarray() == networkx.to_numpy_array(same)).all()


@pytest.mark.parametrize(("n", "w"), [(20, 2), (64, 8), (65, 16), (600, 64)])
def test_band_is_a_line_whose_paths_grow_like_n(n: int, w: int) -> None:
    paths = graphs.path_lengths(pattern_of(f"band:w={w}", n))
    steps = np.arange(1, n)
    expected = (2 * (n - steps) * np.ceil(steps / (w / 2))).sum() / (n * (n - 1))
    assert paths.mean == pytest.approx(expected, rel=1e-12)
    assert paths.diameter == math.ceil((n - 1) / (w / 2))


def test_gap_by_iteration_is_that_of_all_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.graphs import structure

    for name in ("band:w=8", "random:r=6", "bigbird:entries=20"):
        graph = pattern_of(name, 220)
        exact = graphs.spectral_gap(graph)
        with monkeypatch.context() as patch:
            patch.setattr(structure, "_DENSE", 0)
            assert graphs.spectral_gap(graph) == pytest.approx(exact, abs=1e-11)


def test_gap_of_a_bipartite_graph_does_not_count_minus_one() -> None:
    star = pattern_of("global:entries=2", 9)
    assert graphs.spectral_gap(star) == pytest.approx(1.0, abs=1e-12)


def test_two_parts_have_no_gap_and_no_path_between_them() -> None:
    parts = pattern_of("dilated:w=4,dilation=2", 40)
    assert graphs.spectral_gap(parts) == 0.0
    paths = graphs.path_lengths(parts)
    assert paths.unreachable == 2 * 20 * 20
    assert paths.unreachable_share == pytest.approx(20 / 39)
    assert (paths.diameter, paths.longest) == (math.inf, 10)
    # what can be reached is as far as in a band of half the tokens
    assert paths.mean == graphs.path_lengths(pattern_of("band:w=4", 20)).mean
    assert math.isnan(graphs.small_world(parts, draws=1).sigma)


@pytest.mark.parametrize("text", ["longformer:w=8,g=1", "bigbird:entries=20", "global:entries=4"])
def test_with_global_tokens_paths_stay_below_two(text: str) -> None:
    for n in (64, 300):
        graph = pattern_of(text, n)
        edges = graph.nnz - n
        paths = graphs.path_lengths(graph)
        # one step along an edge, two steps by way of a global token for all others
        assert paths.mean == pytest.approx(2 - edges / (n * (n - 1)), rel=1e-12)
        assert paths.diameter == 2


def test_paths_of_a_ring_grow_like_n_and_those_of_random_graphs_like_its_logarithm() -> None:
    ns = np.array([512, 1024, 2048])
    ring = [graphs.path_lengths(graphs.ring_lattice(n, 8), 8).mean for n in ns]
    random = [graphs.path_lengths(pattern_of("random:r=8", n), 64).mean for n in ns]
    both = [graphs.path_lengths(pattern_of("random-band:entries=8", n), 64).mean for n in ns]
    np.testing.assert_allclose(np.diff(ring), np.diff(ns) / 16, rtol=0.01)
    for found in (random, both):
        np.testing.assert_allclose(np.diff(found), math.log(2) / math.log(8), rtol=0.2)


# ---- samples of sources


def test_sample_of_sources_estimates_the_mean_within_its_error() -> None:
    graph = pattern_of("band:w=6", 300)
    exact = graphs.path_lengths(graph).mean
    deviations = []
    for seed in range(200):
        found = graphs.path_lengths(graph, sources=25, seed=seed)
        assert found.sources == 25
        assert math.isnan(found.diameter)
        deviations.append((found.mean - exact) / found.standard_error)
    assert abs(np.mean(deviations)) < 0.25
    assert 0.8 < np.std(deviations) < 1.2


def test_sample_is_fixed_by_its_seed_and_leaves_the_global_state_alone() -> None:
    graph = pattern_of("band:w=6", 100)
    before = np.random.get_state()[1].copy()  # noqa: NPY002 the state that must not change
    one, again, other = (graphs.path_lengths(graph, 10, seed=seed) for seed in (3, 3, 4))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert one.mean == again.mean != other.mean
    assert graphs.path_lengths(graph, 100).standard_error == 0.0


def test_a_sample_that_misses_a_path_knows_the_diameter() -> None:
    parts = pattern_of("dilated:w=4,dilation=2", 40)
    found = graphs.path_lengths(parts, sources=5)
    assert (found.unreachable, found.pairs, found.diameter) == (5 * 20, 5 * 39, math.inf)


def test_no_path_at_all() -> None:
    found = graphs.path_lengths(scipy.sparse.csr_array((4, 4), dtype=bool))
    assert math.isnan(found.mean)
    assert math.isnan(found.standard_error)
    assert (found.unreachable, found.efficiency, found.diameter) == (12, 0.0, math.inf)


# ---- P as a graph


def test_threshold_keeps_as_few_of_the_largest_entries_as_hold_the_mass() -> None:
    p = np.random.default_rng(0).dirichlet(np.full(30, 0.3), size=30)
    for mass in (0.3, 0.9, 0.99):
        kept = graphs.thresholded(p, mass).toarray()
        for row, chosen in zip(p, kept, strict=True):
            number = int(chosen.sum())
            descending = np.sort(row)[::-1]
            assert set(row[chosen]) == set(descending[:number])
            assert descending[:number].sum() >= mass - 1e-12
            assert descending[: number - 1].sum() < mass


@pytest.mark.parametrize("n", [10, 64, 500])
def test_threshold_of_uniform_and_of_single_entries(n: int) -> None:
    uniform = torch.full((n, n), 1 / n)
    kept = graphs.thresholded(uniform, 0.9)
    assert np.diff(kept.indptr).tolist() == [math.ceil(round(0.9 * n, 6))] * n
    assert graphs.thresholded(uniform, 1.0).nnz == n * n
    moved = torch.eye(n).roll(1, dims=0)
    assert (graphs.thresholded(moved, 1.0).toarray() == moved.numpy().astype(bool)).all()


def test_threshold_takes_a_share_of_what_a_row_holds() -> None:
    assert graphs.thresholded([[0.3, 0.1], [0.1, 0.2]], mass=0.7).toarray().tolist() == [
        [True, False],
        [True, True],
    ]


def test_sink_is_a_star_that_leads_nowhere() -> None:
    p = np.full((20, 20), 0.05 / 19)
    p[:, 0] = 0.95
    graph = graphs.thresholded(p)
    paths = graphs.path_lengths(graph)
    # all attend to the sink, and the sink to itself alone: nothing else is ever reached
    assert (paths.mean, paths.unreachable) == (1.0, 20 * 19 - 19)
    assert graphs.clustering(graph) == 0.0


@pytest.mark.parametrize(
    "p",
    [
        [[0.5, 0.5]],
        [0.5, 0.5],
        [[math.nan, 1.0], [0.5, 0.5]],
        [[1.5, -0.5], [0.5, 0.5]],
        [[0.0, 0.0], [0.5, 0.5]],
    ],
)
def test_what_is_no_p_is_refused(p: list[list[float]]) -> None:
    with pytest.raises(UsageError):
        graphs.thresholded(p)


# ---- small worlds


def test_watts_strogatz_is_a_small_world_and_its_references_are_none() -> None:
    n, k = 400, 12
    small = graphs.small_world(graphs.watts_strogatz(n, k, 0.1), draws=3)
    ring = graphs.small_world(graphs.ring_lattice(n, k), draws=3)
    random = graphs.small_world(graphs.erdos_renyi(n, k, seed=77), draws=3)
    assert small.sigma > 8
    assert abs(small.omega) < 0.3
    assert ring.omega < -0.7
    assert random.omega > 0.9
    assert random.sigma == pytest.approx(1, abs=0.15)
    assert small.lattice_clustering == pytest.approx(3 * (k - 2) / (4 * (k - 1)))
    assert small.random_clustering == pytest.approx(k / (n - 1), rel=0.15)


def test_small_world_of_the_complete_graph() -> None:
    found = graphs.small_world(graphs.complete(20), draws=1)
    assert (found.sigma, found.omega, found.path_length) == (1.0, 0.0, 1.0)


def test_small_world_is_made_of_its_parts() -> None:
    graph = pattern_of("bigbird:entries=10", 120)
    links = graphs.undirected(graph)
    k = graphs.degrees(links).mean
    found = graphs.small_world(graph, draws=2, seed=5)
    drawn = [graphs.erdos_renyi(120, k, seed) for seed in (5, 6)]
    c = np.mean([networkx.average_clustering(networkx.Graph(one.toarray())) for one in drawn])
    paths = [networkx.average_shortest_path_length(networkx.Graph(one.toarray())) for one in drawn]
    assert found.sigma == pytest.approx(
        (graphs.clustering(graph) / c) / (graphs.path_lengths(links).mean / np.mean(paths)),
        rel=1e-6,
    )
    lattice = networkx.average_clustering(networkx.Graph(graphs.ring_lattice(120, k).toarray()))
    omega = np.mean(paths) / found.path_length - found.clustering / lattice
    assert found.omega == pytest.approx(omega, rel=1e-6)


@pytest.mark.parametrize(("n", "k"), [(11, 3.5), (10, 9), (10, 8.6), (12, 0), (9, 2.9), (7, 6)])
def test_references_have_the_number_of_links_that_was_asked_for(n: int, k: float) -> None:
    for graph in (graphs.ring_lattice(n, k), graphs.erdos_renyi(n, k, seed=1)):
        assert graph.nnz == 2 * round(n * k / 2)
        assert (graph != graph.T).nnz == 0
        assert not graph.diagonal().any()
        assert graph.dtype == bool


def test_random_references_are_fixed_by_their_seed() -> None:
    for make in (graphs.erdos_renyi, graphs.watts_strogatz):
        one, again, other = (make(40, 4, seed=seed) for seed in (1, 1, 2))
        assert (one != again).nnz == 0
        assert (one != other).nnz > 0


# ---- refusals


@pytest.mark.parametrize(
    "call",
    [
        lambda: graphs.degrees(np.eye(3)),
        lambda: graphs.degrees(scipy.sparse.csr_array((3, 4), dtype=bool)),
        lambda: graphs.degrees(scipy.sparse.csr_array((1, 1), dtype=bool)),
        lambda: graphs.path_lengths(graphs.complete(3), sources=0),
        lambda: graphs.thresholded(np.eye(3), mass=0),
        lambda: graphs.thresholded(np.eye(3), mass=1.1),
        lambda: graphs.union([]),
        lambda: graphs.union([graphs.complete(3), graphs.complete(4)]),
        lambda: graphs.reach([]),
        lambda: graphs.reach([graphs.complete(3), graphs.complete(4)]),
        lambda: graphs.complete(1),
        lambda: graphs.ring_lattice(4, 4),
        lambda: graphs.erdos_renyi(4, -1),
        lambda: graphs.watts_strogatz(10, 3),
        lambda: graphs.watts_strogatz(10, 4, p=2),
        lambda: graphs.small_world(graphs.complete(3), draws=0),
        lambda: graphs.small_world(scipy.sparse.csr_array((3, 3), dtype=bool)),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError) as error:
        call()
    assert error.value.remedy


def test_graphs_given_are_not_changed() -> None:
    graph = pattern_of("bigbird:entries=10", 40)
    before = graph.copy()
    graphs.path_lengths(graph)
    graphs.clustering(graph)
    graphs.spectral_gap(graph)
    graphs.reach([graph])
    assert (graph != before).nnz == 0
    assert graph.dtype == bool
