"""What a decomposition gives back, at once or later."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a batch of matrices.

    Attributes
    ----------
    singular_values : (*batch, r) float64
        In descending order, r = min(n, m); NaN for a matrix without a usable result.
    status : (*batch) int8
        A :class:`~rankscope.status.Status` for every matrix.
    """

    singular_values: NDArray[np.float64]
    status: NDArray[np.int8]


@dataclass(frozen=True)
class Decomposition:
    """Spectra of the matrices of one layer, and what was measured of them on the way.

    Attributes
    ----------
    spectra : tuple of Spectrum
        One for each entry of `centred` that was asked for, in its order.
    measured : (count, columns) float64, or None
        What `measure` gave for every matrix; None where nothing was to be measured.
    """

    spectra: tuple[Spectrum, ...]
    measured: NDArray[np.float64] | None


class Pending:
    """A decomposition that is under way; on the CPU it is already done."""

    def __init__(self, future: Future[Decomposition]) -> None:
        self._future = future

    @classmethod
    def of(cls, result: Decomposition) -> Pending:
        """One that is done.

        Parameters
        ----------
        result : Decomposition
        """
        future: Future[Decomposition] = Future()
        future.set_result(result)
        return cls(future)

    def done(self) -> bool:
        """Whether :meth:`result` would return without waiting."""
        return self._future.done()

    def result(self) -> Decomposition:
        """Wait for it; what went wrong on the way is raised here.

        Returns
        -------
        Decomposition
            On the host.
        """
        return self._future.result()
