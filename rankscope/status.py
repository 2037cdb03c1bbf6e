"""What became of each matrix: the status codes that stand beside every spectrum."""

from __future__ import annotations

from enum import IntEnum


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
