"""Which tokens can influence which after l layers: closed forms, and the boolean product."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_graphs import SOME, pattern_of, some_graph
from rankscope import graphs


@pytest.mark.parametrize(("w", "layers", "n"), [(2, 5, 40), (8, 4, 40), (16, 6, 50), (64, 3, 100)])
def test_band_reaches_l_times_half_w_to_each_side(w: int, layers: int, n: int) -> None:
    seen = graphs.reach([pattern_of(f"band:w={w}", n)] * layers)
    place = np.arange(n)
    for layer in range(layers):
        side = (layer + 1) * w // 2
        np.testing.assert_array_equal(seen.left[layer], np.minimum(side, place))
        np.testing.assert_array_equal(seen.right[layer], np.minimum(side, n - 1 - place))
        np.testing.assert_array_equal(seen.counts[layer], seen.left[layer] + seen.right[layer] + 1)


@pytest.mark.parametrize(("w", "d", "layers", "n"), [(2, 3, 5, 40), (8, 2, 3, 61), (4, 7, 4, 90)])
def test_dilated_band_reaches_l_times_d_times_half_w(w: int, d: int, layers: int, n: int) -> None:
    seen = graphs.reach([pattern_of(f"dilated:w={w},dilation={d}", n)] * layers)
    place = np.arange(n)
    for layer in range(layers):
        steps = (layer + 1) * w // 2
        # as far as the text goes, in steps of the dilation: the tokens in between are never seen
        left, right = np.minimum(steps, place // d), np.minimum(steps, (n - 1 - place) // d)
        np.testing.assert_array_equal(seen.left[layer], d * left)
        np.testing.assert_array_equal(seen.right[layer], d * right)
        np.testing.assert_array_equal(seen.counts[layer], left + right + 1)
        inner = (place >= d * steps) & (place < n - d * steps)
        assert (seen.left[layer][inner] == (layer + 1) * d * w // 2).all()


def test_widths_of_layers_add_up() -> None:
    text = "band:w=2/8/4"
    seen = graphs.reach([pattern_of(text, 41, layer=layer) for layer in range(3)])
    assert seen.left[:, 20].tolist() == seen.right[:, 20].tolist() == [1, 5, 7]


def test_a_band_beside_a_dilated_one_fills_gaps() -> None:
    layer = graphs.union([pattern_of("dilated:w=4,dilation=1/2", 60, head=head) for head in (0, 1)])
    seen = graphs.reach([layer, layer])
    # sums of two out of 0, ±1, ±2, ±4: all up to 8 but 7
    assert (seen.left[1, 30], seen.right[1, 30], seen.counts[1, 30]) == (8, 8, 15)


def test_order_of_layers_counts() -> None:
    previous = scipy.sparse.csr_array(np.eye(6, k=-1))
    far = scipy.sparse.csr_array(([1.0], ([5], [2])), shape=(6, 6))
    # the last token looks at token 2, which may have looked at token 1 in the layer before
    assert np.flatnonzero(graphs.reach_matrix([previous, far])[5]).tolist() == [1, 2, 4, 5]
    assert np.flatnonzero(graphs.reach_matrix([far, previous])[5]).tolist() == [2, 4, 5]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 14), st.integers(1, 4), st.integers(0, 10**6))
def test_reach_is_the_boolean_product(n: int, layers: int, seed: int) -> None:
    patterns = [some_graph(n, 0.15, seed + layer) for layer in range(layers)]
    seen = graphs.reach(patterns)
    product = np.eye(n, dtype=bool)
    for layer, pattern in enumerate(patterns):
        product = (pattern.toarray() | np.eye(n, dtype=bool)).astype(int) @ product > 0
        np.testing.assert_array_equal(seen.counts[layer], product.sum(axis=1))
        ends = [np.flatnonzero(row)[[0, -1]] for row in product]
        np.testing.assert_array_equal(seen.left[layer], [i - e[0] for i, e in enumerate(ends)])
        np.testing.assert_array_equal(seen.right[layer], [e[1] - i for i, e in enumerate(ends)])
    np.testing.assert_array_equal(graphs.reach_matrix(patterns), product)


def test_reach_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.graphs import layers

    patterns = [pattern_of("bigbird:entries=10", 45), pattern_of("band:w=4", 45)]
    whole = graphs.reach(patterns), graphs.layers_to_reach_all([patterns[1]] * 2)
    monkeypatch.setattr(layers, "_ENTRIES", 7 * 45)
    parts = graphs.reach(patterns), graphs.layers_to_reach_all([patterns[1]] * 2)
    for name in ("counts", "left", "right"):
        np.testing.assert_array_equal(getattr(whole[0], name), getattr(parts[0], name))
    assert whole[1] == parts[1] == 22


@pytest.mark.parametrize("name", ["dense", "band", "global", "Big Bird"])
def test_mean_path_length_is_the_sum_of_what_layers_do_not_reach(name: str) -> None:
    graph = SOME[name]
    n = graph.shape[0]
    layers = int(graphs.layers_to_reach_all([graph]))
    counts = graphs.reach([graph] * layers).counts
    # a pair at distance d is missing after 0, 1, …, d − 1 layers
    missing = n * (n - 1) + (n - counts).sum()
    assert graphs.path_lengths(graph).mean == pytest.approx(missing / (n * (n - 1)), rel=1e-12)
    assert counts[-1].min() == n > counts[-2].min()


def test_layers_to_reach_all() -> None:
    band, wide = pattern_of("band:w=4", 33), pattern_of("band:w=12", 33)
    assert graphs.layers_to_reach_all([band]) == 16
    # 2, 8, 10, 16, … to each side
    assert graphs.layers_to_reach_all([band, wide]) == 8
    assert graphs.layers_to_reach_all([band, band]) == 16
    dilated = [pattern_of(f"dilated:w=4,dilation={d}", 33) for d in (2, 4)]
    assert graphs.layers_to_reach_all(dilated) == math.inf
    causal = scipy.sparse.csr_array(np.tril(np.ones((5, 5))))
    assert graphs.layers_to_reach_all([causal]) == math.inf
