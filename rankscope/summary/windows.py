"""Windows on their way into a mean: what they bring, and which texts are through."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.exceptions import StoreError
from rankscope.summary.units import Array, Floats


def at_fractions(ratio: Floats, n: int, fractions: Floats) -> Floats:
    """A ratio over k/n instead of over k, by linear interpolation; 0 at k = 0.

    Parameters
    ----------
    ratio : ndarray (..., m)
        Ratio at k = 1 … m, m ≥ n.
    n : int
        Size of the matrix, at least 1.
    fractions : ndarray (f,)
        Where to read, in [0, 1].

    Returns
    -------
    ndarray (..., f)

    Examples
    --------
    >>> at_fractions(np.array([0.5, 1.0]), 2, np.array([0.0, 0.25, 0.5, 1.0])).tolist()
    [0.0, 0.25, 0.5, 1.0]
    """
    position = fractions * n
    below = np.minimum(position.astype(np.int64), n - 1)
    weight = position - below
    padded = np.concatenate([np.zeros((*ratio.shape[:-1], 1)), ratio], axis=-1)
    return np.asarray((1.0 - weight) * padded[..., below] + weight * padded[..., below + 1])


def quarter_of(n: Array) -> Array:
    """The k at which windows of n tokens are compared: n/4 rounded down, at least 1.

    Parameters
    ----------
    n : ndarray of int

    Returns
    -------
    ndarray of int
        1 also for a window without a token.

    Examples
    --------
    >>> quarter_of(np.array([0, 1, 7, 8, 512])).tolist()
    [1, 1, 1, 2, 128]
    """
    return np.asarray(np.maximum(n // 4, 1))


def at_quarter(ratio: Floats, n: Array) -> Floats:
    """A ratio of every window at a quarter of its own size (:func:`quarter_of`).

    Parameters
    ----------
    ratio : ndarray (window, ..., index)
        Ratio at k = 1 … m, m ≥ n.
    n : ndarray (window,) of int
        Sizes of the windows' matrices.

    Returns
    -------
    ndarray (window, ..., 1)

    Examples
    --------
    >>> ratio = np.array([[0.5, 1.0, 1.0, 1.0], [0.4, 0.7, 0.9, 1.0]])
    >>> at_quarter(np.tile(ratio, 2), np.array([2, 8])).tolist()
    [[0.5], [0.7]]
    """
    place = (quarter_of(n) - 1).reshape(-1, *[1] * (ratio.ndim - 1))
    return np.asarray(np.take_along_axis(ratio, place, axis=-1))


def side_by_side(ratios: Floats, sizes: Array, good: Array, fractions: Floats) -> Floats:
    """What is averaged of the ratios of some windows: over k, at n/4 and over k/n.

    Parameters
    ----------
    ratios : ndarray (window, layer, head, 2, index)
        Of σ and of σ².
    sizes : ndarray (window,) of int
        Sizes n of the windows' matrices.
    good : ndarray (window, layer, head) of bool
        Whether the matrix is usable.
    fractions : ndarray (f,)
        k/n, in [0, 1].

    Returns
    -------
    ndarray (window, layer, head, 2 · (index + 1) + 2 · f)
        Of σ the ratio at every k, then at n/4; the same of σ²; both over k/n. 0 where there is no
        usable matrix.
    """
    *shape, n = ratios.shape
    if sizes.size and int(sizes.max()) > n:
        raise StoreError(
            f"the curves end at k = {n}, and a window has {int(sizes.max())} tokens",
            "give the run with its whole index; layers, heads and windows may be selected",
        )
    f = fractions.size
    values = np.empty((*shape[:-1], 2 * (n + 1 + f)))
    over_k = values[..., : 2 * (n + 1)].reshape(*shape, n + 1)
    over_k[..., :n] = ratios
    over_k[..., n:] = at_quarter(ratios, sizes)
    over_k[~good] = 0.0
    over_fraction = values[..., 2 * (n + 1) :].reshape(*shape, f)
    for size in np.unique(sizes):
        here = sizes == size
        over_fraction[here] = at_fractions(over_k[here, ..., :n], max(int(size), 1), fractions)
    return values


def place_named(index: int) -> str:
    """Where ratios were read, in words; 0 stands for a quarter of each window's own size.

    Examples
    --------
    >>> place_named(128), place_named(0)
    ('128', 'n/4 of each window')
    """
    return str(index) if index else "n/4 of each window"


class ClosedTexts:
    """Ids of the texts that are through: 0, 1, 2 … take no memory, whatever their number."""

    def __init__(self) -> None:
        self._below = 0
        self._others: set[int] = set()

    def add(self, text_id: int) -> None:
        """This text is through."""
        self._others.add(text_id)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1

    def __contains__(self, text_id: int) -> bool:
        return 0 <= text_id < self._below or text_id in self._others


class Windows(NamedTuple):
    """What some windows bring into the means, a row each.

    Parameters
    ----------
    values : ndarray (window, layer, head, width)
        Ratios over k and over k/n side by side.
    good : ndarray (window, layer, head) of bool
        Whether the matrix is usable.
    scalars : ndarray (window, layer, head, scalar)
    known : ndarray (window, layer, head, scalar) of bool
        Whether the scalar is there, of a usable matrix.
    """

    values: Floats
    good: Array
    scalars: Floats
    known: Array

    def part(self, start: int, end: int) -> Windows:
        """The windows from `start` up to `end`, as views."""
        return Windows(*(array[start:end] for array in self))
