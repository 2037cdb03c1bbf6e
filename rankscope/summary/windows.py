"""Windows on their way into a mean: what they bring, and which texts are through."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
