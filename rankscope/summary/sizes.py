"""What every row of a table says about the matrices that it is about."""

from __future__ import annotations

import xarray as xr

from rankscope.summary.accumulate import FAILED


class Sizes:
    """Sizes of the matrices, and those that could not be used; the fields are the row's own."""

    n_min: int
    n_max: int
    bad: dict[str, int]

    @property
    def n(self) -> str:
        """The size of the matrices, "512" or "40–512"."""
        return str(self.n_max) if self.n_min == self.n_max else f"{self.n_min}–{self.n_max}"

    @property
    def n_bad(self) -> int:
        """Number of matrices (windows, for a loss) that were computed and are not usable."""
        return sum(self.bad.values())

    @property
    def n_failed(self) -> int:
        """Those of them that something went wrong with; a window without tokens is none."""
        return sum(self.bad.get(name, 0) for name in FAILED)


def batch_windows(part: xr.Dataset) -> int:
    """Windows in a unit of the intervals of one model and corpus, 1 where texts are the units.

    Summaries written before there were batches had none.
    """
    return int(part["batch_windows"]) if "batch_windows" in part else 1
