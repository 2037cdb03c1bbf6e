"""`Choice`: a rank for every layer and head, what it is expected to cost, and how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankscope.approximations import Ranks
from rankscope.exceptions import UsageError
from rankscope.selection.allocation import by_hull, exact
from rankscope.selection.curves import FloatArray, errors_at, usable

BY = ("head", "layer", "uniform")
"""Who gets a rank of its own."""

SOLVERS = ("exact", "greedy")
"""Dynamic programming, and steps along the lower hull, which state how far off they can be."""

_NAMED = 8


@dataclass(frozen=True, eq=False)
class Choice:
    """Ranks of a model's heads.

    Attributes
    ----------
    ranks : (layer, head) int64
        At least 1.
    errors : (layer, head) float64
        Expected error of each head at its rank, on the windows of the choice; `how` says which.
    how : mapping
        How it was made; JSON values, no NaN.
    """

    ranks: NDArray[np.int64]
    errors: FloatArray
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ranks.ndim != 2 or 0 in self.ranks.shape or self.errors.shape != self.ranks.shape:
            raise UsageError(
                f"a choice needs a rank and an error for every layer and head, not "
                f"{self.ranks.shape} and {self.errors.shape}"
            )

    @property
    def total(self) -> int:
        """Σk over all layers and heads."""
        return int(self.ranks.sum())

    @property
    def error(self) -> float:
        """Sum of the expected errors over all layers and heads."""
        return float(self.errors.sum())

    def to_ranks(
        self, model: str, weights_sha256: str | None, layers: Sequence[int], length: int
    ) -> Ranks:
        """The choice as ``truncated:ranks=FILE`` reads it, with what it must be used on.

        Parameters
        ----------
        model : str
        weights_sha256 : str or None
            Checksum of the model's weights; None for drawn ones.
        layers : sequence of int
            Numbers of the layers, one for each row of `ranks`.
        length : int
            Tokens of the windows that the choice was made on.

        Returns
        -------
        Ranks

        Raises
        ------
        UsageError
            If the number of layers is another one.
        """
        how = {**self.how, "predicted_error": self.error}
        rows = tuple(tuple(int(k) for k in row) for row in self.ranks)
        numbers = tuple(int(layer) for layer in layers)
        return Ranks(model, weights_sha256, numbers, rows, int(length), how)


def allocate(
    errors: ArrayLike,
    budget: int,
    by: str = "head",
    *,
    minimum: int = 1,
    solver: str = "exact",
) -> Choice:
    """Share a total rank out over heads so that the total error is least.

    min Σ_{l,h} e_{lh}(k_{lh}) over ranks with Σ k_{lh} ≤ B and `minimum` ≤ k ≤ n.

    Parameters
    ----------
    errors : (layer, head, k) array
        Error of every head at k = 1 … n, finite; of any shape, convex or not, such as
        :func:`total_error` gives.
    budget : int
        B, from heads × `minimum` to heads × n over all layers.
    by : {"head", "layer", "uniform"}
        A rank for every head; one for all heads of a layer, which costs heads × k; or one for all,
        B divided by their number and rounded down. What cannot be divided stays unspent.
    minimum : int
        Smallest rank of a head.
    solver : {"exact", "greedy"}
        ``exact`` finds the least total error. ``greedy`` follows the lower hulls and is quick at
        any size; how far it may be from the least, by the Lagrangian dual, is its "gap".

    Returns
    -------
    Choice
        `how` holds what was asked for, "left_over" (what of the budget is not spent: it cannot be
        divided, or helps nowhere) and, but for "uniform", "lower_bound" (no ranks within the budget
        have a smaller total error) and "gap" (largest possible distance from the least total
        error; 0 for ``exact``).

    Raises
    ------
    UsageError
        For a budget out of range, which is named; for errors that are not finite, with their layers
        and heads; for an unknown `by` or `solver`.

    Examples
    --------
    The first head gains nothing before its third rank, where a greedy step would not look:

    >>> errors = [[[3.0, 3.0, 0.0], [2.0, 1.0, 0.9]]]
    >>> allocate(errors, 4).ranks
    array([[3, 1]])
    >>> allocate(errors, 4, by="uniform").error
    4.0
    """
    table = np.asarray(errors, dtype=np.float64)
    if table.ndim != 3 or 0 in table.shape:
        raise UsageError(f"errors of shape {table.shape}", "give (layer, head, k), none empty")
    for given, known, what in ((by, BY, "by"), (solver, SOLVERS, "solver")):
        if given not in known:
            raise UsageError(f"unknown {what} {given!r}", f"one of {', '.join(known)}")
    refuse_unknown(~usable(table), range(len(table)))
    layers, heads, n = table.shape
    check_range(budget, layers * heads, n, minimum)
    how: dict[str, Any] = {"budget": int(budget), "by": by, "minimum": int(minimum)}
    if by == "uniform":
        ranks = np.full((layers, heads), budget // (layers * heads), np.int64)
    else:
        # one "head" for each layer, whose every rank is spent as many times as there are heads
        width = heads if by == "layer" else 1
        rows = table.sum(axis=1) if by == "layer" else table.reshape(-1, n)
        found, bound = _solve(rows[:, minimum - 1 :], budget // width, minimum, solver)
        ranks = np.repeat(found, width).reshape(layers, heads)
        how |= {"solver": solver, "lower_bound": bound}
    chosen = errors_at(table, ranks)
    if "lower_bound" in how:
        # the exact sum may pass its own bound by rounding
        how["lower_bound"] = min(how["lower_bound"], float(chosen.sum()))
        how["gap"] = float(chosen.sum()) - how["lower_bound"] if solver == "greedy" else 0.0
    return Choice(ranks, chosen, how | {"left_over": int(budget - ranks.sum())})


@dataclass(frozen=True)
class RankRow:
    """One line of a table of ranks: a layer, or all of them.

    Attributes
    ----------
    choice : str
        Name of the choice.
    layer : int or None
        None for all layers together.
    heads : int
        Number of heads that the line is about.
    mean, minimum, maximum : float, int, int
        Of their ranks.
    total : int
        Σk.
    error : float
        Sum of their expected errors, in the units of the choice.
    """

    choice: str
    layer: int | None
    heads: int
    mean: float
    minimum: int
    maximum: int
    total: int
    error: float


def ranks_table(
    choices: Choice | Mapping[str, Choice], layers: Sequence[int] | None = None
) -> list[RankRow]:
    """The numbers to print about choices: a row for each layer, then one for all.

    Parameters
    ----------
    choices : Choice or mapping of str to Choice
        With their names; a single one needs none.
    layers : sequence of int, optional
        Numbers of the layers; counted from 0 where not given.

    Returns
    -------
    list of RankRow

    Raises
    ------
    UsageError
        If a choice has another number of layers.
    """
    named = {"": choices} if isinstance(choices, Choice) else choices
    return [row for name, choice in named.items() for row in _rows(name, choice, layers)]


def refuse_unknown(unknown: NDArray[np.bool_], layers: Sequence[int]) -> None:
    """Refuse to choose ranks while a head has no error curve.

    Parameters
    ----------
    unknown : (layer, head) bool
    layers : sequence of int
        Their numbers.

    Raises
    ------
    UsageError
        Naming layers and heads.
    """
    places = np.argwhere(unknown)
    if not len(places):
        return
    named = ", ".join(f"layer {layers[layer]} head {head}" for layer, head in places[:_NAMED])
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    raise UsageError(
        f"no error curve, and so no rank, for {named}{more}",
        "leave their layers out, or measure windows on which they have a result",
    )


def check_range(budget: int, heads: int, n: int, minimum: int) -> None:
    """Refuse a total rank that `heads` heads of `minimum` … n cannot share.

    Raises
    ------
    UsageError
        Naming the range.
    """
    if not 1 <= minimum <= n:
        raise UsageError(f"a smallest rank of {minimum} is not in 1 … {n}")
    if not heads * minimum <= budget <= heads * n:
        raise UsageError(
            f"a total rank of {budget} cannot be shared out over {heads} heads",
            f"use {heads * minimum} … {heads * n}, that is {minimum} … {n} for each head",
        )


def _solve(
    errors: FloatArray, budget: int, minimum: int, solver: str
) -> tuple[NDArray[np.int64], float]:
    """Ranks and bound, for curves that begin at the smallest rank."""
    rows = np.ascontiguousarray(errors)
    budget -= len(rows) * (minimum - 1)
    ranks, bound, _ = by_hull(rows, budget)
    if solver == "exact":
        ranks = exact(rows, budget)
    return ranks + (minimum - 1), bound


def _rows(name: str, choice: Choice, layers: Sequence[int] | None) -> Iterator[RankRow]:
    numbers: Sequence[int] = range(len(choice.ranks)) if layers is None else layers
    if len(numbers) != len(choice.ranks):
        raise UsageError(f"{len(numbers)} layers for ranks of {len(choice.ranks)}")
    parts = [(int(layer), slice(i, i + 1)) for i, layer in enumerate(numbers)]
    for layer, rows in [*parts, (None, slice(None))]:
        ranks, errors = choice.ranks[rows], choice.errors[rows]
        yield RankRow(
            choice=name,
            layer=layer,
            heads=ranks.size,
            mean=float(ranks.mean()),
            minimum=int(ranks.min()),
            maximum=int(ranks.max()),
            total=int(ranks.sum()),
            error=float(errors.sum()),
        )
