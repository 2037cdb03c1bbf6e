"""A total rank shared out over heads: exactly, and along the lower hull with a bound.

With e_h(k) the error of head h at rank k, the task is min Σ_h e_h(k_h) over ranks with Σ_h k_h ≤ B:
a multiple-choice knapsack. Curves of real heads are not convex, so that spending every next rank
where it helps most is no longer optimal. Dynamic programming over heads is, whatever their shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankscope.exceptions import UsageError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., object])

# sums of a few hundred heads' errors agree to this, relative to their size
_ROUNDING = 1e-12


def lower_hull(errors: ArrayLike) -> FloatArray:
    """Largest convex function of k that no error lies below, for every head.

    Parameters
    ----------
    errors : (*batch, k) array
        Errors at k = 1 … n, finite.

    Returns
    -------
    (*batch, k) float64
        Equal to the errors at the corners of the hull, below them between.

    Raises
    ------
    UsageError
        If an error is not finite.

    References
    ----------
    Andrew 1979, Another efficient algorithm for convex hulls in two dimensions.

    Examples
    --------
    >>> lower_hull([3.0, 2.9, 1.0, 0.0])
    array([3., 2., 1., 0.])
    """
    table = np.atleast_1d(np.asarray(errors, dtype=np.float64))
    if not np.isfinite(table).all():
        raise UsageError("a hull needs finite errors", "leave heads without a result out")
    flat = np.ascontiguousarray(table.reshape(-1, table.shape[-1]))
    corners = _corners(flat)
    places = np.arange(flat.shape[-1])
    hull = [np.interp(places, places[at], row[at]) for row, at in zip(flat, corners, strict=True)]
    return np.array(hull).reshape(table.shape)


def by_hull(errors: FloatArray, budget: int) -> tuple[IntArray, float, float]:
    """Ranks along the lower hull, and how far from the optimum they can be at most.

    Every step takes the segment of a head's hull that lowers the error most for each rank. What is
    left when the next segment does not fit is filled up with the best steps that do.

    Parameters
    ----------
    errors : (head, k) float64
    budget : int
        Σk, at least one for each head.

    Returns
    -------
    ranks : (head,) int64
    bound : float
        No ranks within the budget have a smaller total error: the Lagrangian dual
        max_λ Σ_h min_k (e_h(k) + λk) − λB, reached at the slope of the segment that did not fit.
    price : float
        That λ, the error that one more rank is worth; 0 where the budget is more than is needed.

    References
    ----------
    Sinha & Zoltners 1979, The multiple-choice knapsack problem, section 2: the linear relaxation is
    solved along the hulls.
    """
    heads, n = errors.shape
    head, place = np.nonzero(_corners(errors))
    # the corners of one head follow each other
    same = head[1:] == head[:-1]
    owner, length = head[1:][same], np.diff(place)[same]
    fall = -np.diff(errors[head, place])[same]
    falling = fall > 0
    owner, length, fall = owner[falling], length[falling], fall[falling]
    slope = fall / length
    order = np.argsort(-slope, kind="stable")
    fits = int(np.searchsorted(np.cumsum(length[order]), budget - heads, side="right"))
    taken = order[:fits]
    ranks = np.ones(heads, np.int64)
    np.add.at(ranks, owner[taken], length[taken])
    price = float(slope[order[fits]]) if fits < len(order) else 0.0
    bound = float((errors + price * np.arange(1, n + 1)).min(axis=1).sum() - price * budget)
    _fill_up(errors, ranks, budget - int(ranks.sum()))
    return ranks, bound, price


def exact(errors: FloatArray, budget: int, *, narrow: bool = True) -> IntArray:
    """Ranks with the smallest total error within a budget, by dynamic programming.

    f_h(b) = min_k f_{h−1}(b − k) + e_h(k), the min-plus convolution of one curve after the other.
    Which k may be left out is known beforehand from the hull: with its λ, a head at rank k costs
    e_h(k) + λk − min_j (e_h(j) + λj) more than the bound, whatever the other heads do. Above the
    distance between the bound and the ranks along the hull, k is in no better solution.

    Parameters
    ----------
    errors : (head, k) float64
    budget : int
        Σk, at least one for each head.
    narrow : bool
        False looks at every k; the error is the same.

    Returns
    -------
    (head,) int64
        Of all ranks with that error, up to rounding, those of the smallest sum.

    References
    ----------
    Kellerer, Pferschy & Pisinger 2004, Knapsack Problems, sections 11.4 and 11.5.
    """
    heads, n = errors.shape
    allowed = np.ones(errors.shape, np.bool_)
    if narrow:
        ranks, bound, price = by_hull(errors, budget)
        rows = np.arange(heads)
        gap = max(float(errors[rows, ranks - 1].sum()) - bound, 0.0)
        costs = errors + price * np.arange(1, n + 1)
        least = costs.min(axis=1, keepdims=True)
        size = float(np.abs(costs).max()) * heads + price * budget
        allowed = costs - least <= gap + _ROUNDING * size
        allowed[rows, ranks - 1] = True
    owner, place = np.nonzero(allowed)
    starts = np.searchsorted(owner, np.arange(heads + 1))
    # counted from each head's smallest rank, so that no state is out of reach
    first = place[starts[:-1]]
    steps = place - first[owner]
    spare = budget - heads - int(first.sum())
    width = min(spare, int(steps[starts[1:] - 1].sum())) + 1
    kind = np.int16 if n <= np.iinfo(np.int16).max else np.int32
    chosen = np.zeros((heads, width), kind)
    best = _convolve(starts, steps, errors[owner, place], chosen)
    return first + 1 + _trace(chosen, int(np.argmin(best)))


def _compiled(function: F) -> F:
    return cast("F", numba.njit(nogil=True, cache=True, error_model="numpy")(function))


@_compiled
def _corners(errors: FloatArray) -> NDArray[np.bool_]:
    """Where the lower hull of each row has its corners, both ends among them."""
    found = np.zeros(errors.shape, np.bool_)
    n = errors.shape[1]
    stack = np.empty(n, np.int64)
    for row in range(errors.shape[0]):
        curve = errors[row]
        top = 0
        for i in range(n):
            while top > 1:
                a, b = stack[top - 2], stack[top - 1]
                if (curve[b] - curve[a]) * (i - b) < (curve[i] - curve[b]) * (b - a):
                    break
                top -= 1
            stack[top] = i
            top += 1
        for i in range(top):
            found[row, stack[i]] = True
    return found


@_compiled
def _fill_up(errors: FloatArray, ranks: IntArray, spare: int) -> None:
    """Raise ranks by the steps that lower the error most for each rank, while any still fits."""
    while spare > 0:
        best, head, step = 0.0, -1, 0
        for h in range(errors.shape[0]):
            place = ranks[h] - 1
            for more in range(1, min(spare, errors.shape[1] - ranks[h]) + 1):
                gain = (errors[h, place] - errors[h, place + more]) / more
                if gain > best:
                    best, head, step = gain, h, more
        if head < 0:
            return
        ranks[head] += step
        spare -= step


@_compiled
def _convolve(
    starts: IntArray, steps: IntArray, costs: FloatArray, chosen: NDArray[np.signedinteger]
) -> FloatArray:
    """Least total cost of every sum of steps; which step each head takes, into `chosen`."""
    heads, width = chosen.shape
    before = np.full(width, np.inf)
    before[0] = 0.0
    after = np.empty(width)
    reach = 1
    for head in range(heads):
        after[:] = np.inf
        row = chosen[head]
        for option in range(starts[head], starts[head + 1]):
            step, cost = steps[option], costs[option]
            count = min(reach, width - step)
            source = before[:count]
            target = after[step : step + count]
            mark = row[step : step + count]
            # both written every time, without a branch: the loop runs in vector registers
            for b in range(count):
                total = source[b] + cost
                better = total < target[b]
                target[b] = total if better else target[b]
                mark[b] = step if better else mark[b]
        reach = min(width, reach + steps[starts[head + 1] - 1])
        before, after = after, before
    return before


@_compiled
def _trace(chosen: NDArray[np.signedinteger], at: int) -> IntArray:
    """The step of each head on the way to a sum."""
    steps = np.empty(chosen.shape[0], np.int64)
    for head in range(chosen.shape[0] - 1, -1, -1):
        steps[head] = chosen[head, at]
        at -= steps[head]
    return steps
