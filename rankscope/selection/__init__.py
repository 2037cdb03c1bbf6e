"""Which k: a rank for every head, from the error curves of truncation.

Two questions. *How small can k be?* :func:`smallest_rank` gives every head the smallest k that
loses no more than a tolerance. *Where does rank help most?* :func:`allocate` shares a total Σk out
over the heads so that the summed error is least, and :func:`total_error` says which error is
summed. :func:`from_dataset` answers both from a run of ``rankscope truncate``. The answer is a
:class:`Choice`; :meth:`Choice.to_ranks` makes of it the file that ``truncated:ranks=FILE`` reads.

All of it is about the windows that were measured. A choice is to be tested on others.
"""

from __future__ import annotations

from rankscope.selection.allocation import lower_hull
from rankscope.selection.choice import (
    BY,
    SOLVERS,
    Choice,
    RankRow,
    allocate,
    check_range,
    ranks_table,
)
from rankscope.selection.curves import (
    CURVES,
    KINDS,
    OBJECTIVES,
    errors_at,
    lost,
    smallest_rank,
    total_error,
)
from rankscope.selection.runs import from_dataset

__all__ = [
    "BY",
    "CURVES",
    "KINDS",
    "OBJECTIVES",
    "SOLVERS",
    "Choice",
    "RankRow",
    "allocate",
    "check_range",
    "errors_at",
    "from_dataset",
    "lost",
    "lower_hull",
    "ranks_table",
    "smallest_rank",
    "total_error",
]
