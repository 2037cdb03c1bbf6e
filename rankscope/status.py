"""What became of each matrix, and of each window: the codes that stand beside every result."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Status(IntEnum):
    """Outcome of the decomposition of one attention matrix.

    Attributes
    ----------
    ok
        The requested solver gave the singular values.
    fallback
        The first solver failed; a second one gave the values.
    refined
        The squared problem could not resolve the small values; LAPACK's SVD computed them again.
    empty
        No token was left in the window, so there is no matrix.
    zero
        The all-zero matrix: its singular values are 0, its ratios are undefined.
    non_finite
        NaN or infinity in the matrix, which is never handed to a solver.
    failed
        No solver converged.
    absent
        Not computed yet.

    Examples
    --------
    >>> Status(1).name
    'fallback'
    """

    ok = 0
    fallback = 1
    refined = 2
    empty = 3
    zero = 4
    non_finite = 5
    failed = 6
    absent = -1


class State(IntEnum):
    """What became of one window, all its matrices taken together.

    Attributes
    ----------
    ok
        Every matrix was decomposed, is the zero matrix, or is empty while others are not.
    fallback
        As ``ok``, but a second solver had to give the values of at least one matrix.
    empty
        No matrix at all: no token was left in the window.
    bad
        At least one matrix held NaN or infinity, or no solver converged on it. The window is done
        nevertheless: computing it again would give the same.
    absent
        Not computed yet.

    Examples
    --------
    >>> State(3).name
    'bad'
    """

    ok = 0
    fallback = 1
    empty = 2
    bad = 3
    absent = -1


def state_of(status: NDArray[np.integer]) -> State:
    """State of a window from the status of its matrices.

    The first of these that holds decides: ``absent`` if any matrix is absent, for a window is done
    as a whole or not at all; ``empty`` if all are empty; ``bad`` if any is non-finite or failed,
    whatever the others are; ``fallback`` if any came from a second solver; and ``ok`` otherwise.
    ``refined`` and ``zero`` are exact results and count as ``ok``; so do windows of which only some
    matrices are empty.

    Parameters
    ----------
    status : array of int
        Codes of :class:`Status`, of any shape.

    Returns
    -------
    State

    Raises
    ------
    ValueError
        If a number is no code of :class:`Status`.

    Examples
    --------
    >>> state_of(np.array([[0, 2], [4, 3]])).name
    'ok'
    >>> state_of(np.array([0, 1, 5])).name
    'bad'
    """
    # a set, since a window has hundreds of matrices and few outcomes
    there = {Status(code) for code in np.unique(status).tolist()}
    if Status.absent in there:
        return State.absent
    if there <= {Status.empty}:
        return State.empty
    if there & {Status.non_finite, Status.failed}:
        return State.bad
    return State.fallback if Status.fallback in there else State.ok
