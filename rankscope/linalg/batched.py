"""Singular values in batches on the device where the matrices are, as a GPU wants it.

float64 Gram matrices and batched symmetric eigenvalues, in chunks that fit into the free memory.
Everything that is decided for a matrix (zero, not finite, resolved or not) is decided on the
device; the host waits once a layer, for one copy of all results. Then LAPACK does again, on the
host, what the device could not resolve.

The solver is not trusted. Every matrix must keep the two sums that its eigenvalues are known by,
Σλ = tr G and Σλ² = ‖G‖_F²; one that does not is done again (status ``fallback``). And a share of
1/256 of all matrices is solved a second time by a values-only SVD; a difference that rounding does
not explain ends the run.

One wait in each call of the solver is torch's own and cannot be avoided: ``eigvalsh`` and
``svdvals`` read on the host whether all matrices of the batch converged.

References
----------
Known silent errors of batched eigenvalues on a GPU: pytorch/pytorch #192483 (workspace of
cuSOLVER 11.7.1), cupy/cupy #4847, ROCm/rocm-libraries #9118.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.exceptions import MemoryLimit
from rankscope.linalg.checks import SpotChecks, keeps_sums, resolved_by, spot_difference
from rankscope.linalg.devices import Place, full_precision, is_out_of_memory, place_of
from rankscope.linalg.results import Decomposition, Spectrum
from rankscope.linalg.solvers import Driver, lapack, resolution_of
from rankscope.status import Status

LoadMany = Callable[[int, int], torch.Tensor]
Measure = Callable[[torch.Tensor], torch.Tensor]

FREE_SHARE = 0.5
"""Share of the free memory that a chunk may take; the rest is the forward pass's."""


def working_set(shape: tuple[int, int], driver: Driver = "gram") -> int:
    """Bytes that the device needs for one matrix of a chunk; a model, not a measurement.

    The matrix as it was given and what computes it (P and one temporary of its size, 8 bytes an
    entry at most), its float64 copy and the centred one, and for ``gram`` the Gram matrix, the
    solver's copy of it and its workspace of twice that size; for ``svd`` the solver's copy and
    workspace.

    Parameters
    ----------
    shape : (n, m)
    driver : {"gram", "svd"}

    Returns
    -------
    int

    Examples
    --------
    >>> working_set((512, 512)) / 2**20
    16.0
    """
    n, m = shape
    solver = 4 * min(n, m) ** 2 if driver == "gram" else 3 * n * m
    return 8 * (4 * n * m + solver)


@dataclass(frozen=True)
class _Layer:
    """What is asked of one layer."""

    load: LoadMany
    count: int
    shape: tuple[int, int]
    driver: Driver
    centred: tuple[bool, ...]
    measure: Measure | None


class BatchedRoad:
    """The batched road of one run on one device; it learns what fits into its memory.

    Parameters
    ----------
    place : Place
    checks : SpotChecks, optional
    largest : int, optional
        Matrices of a chunk at most, whatever the memory.

    Attributes
    ----------
    chunks : list of int
        Sizes of the chunks of the last layer, as they were solved.
    """

    def __init__(
        self, place: Place, checks: SpotChecks | None = None, largest: int | None = None
    ) -> None:
        self.place = place
        self._largest = largest
        self.checks = checks or SpotChecks()
        self.chunks: list[int] = []
        self._budget: int | None = None

    def decompose(
        self,
        load: LoadMany,
        count: int,
        shape: tuple[int, int],
        *,
        driver: Driver = "gram",
        centred: Sequence[bool] = (False,),
        measure: Measure | None = None,
        mark: object = None,
    ) -> Decomposition:
        """Decompose the `count` matrices of a layer.

        Parameters
        ----------
        load : callable
            ``load(start, stop)`` gives these matrices as a (stop − start, n, m) tensor on the
            device. Called again for a chunk that did not fit, and for matrices to be done again.
        count : int
        shape : (n, m)
        driver : {"gram", "svd"}
        centred : sequence of bool
            Which spectra are wanted: of P (False), of P − 1p̄ᵀ (True), or both from one P.
        measure : callable, optional
            Gives a (k, columns) tensor for k matrices as they were loaded; comes back in the same
            copy.
        mark : object, optional
            From :meth:`Place.mark`, after the work that made the inputs.

        Returns
        -------
        Decomposition

        Raises
        ------
        MemoryLimit
            If not even one matrix fits.
        SolverFault
            If a spot check fails.
        """
        layer = _Layer(load, count, shape, driver, tuple(centred), measure)
        with self.place.working(mark), torch.no_grad(), full_precision():
            return self._unpack(layer, self.place.fetch(self._results(layer)))

    def _results(self, layer: _Layer) -> torch.Tensor:
        """All results of a layer as one tensor on the device; nothing here waits for it."""
        chosen = self.checks.choose(layer.count) if layer.driver == "gram" else frozenset()
        step = self._step(layer)
        rows: list[torch.Tensor] = []
        self.chunks = []
        start = 0
        while start < layer.count:
            stop = min(start + step, layer.count)
            found = self._attempt(layer, start, stop, chosen)
            if found is not None:
                rows.append(found)
                self.chunks.append(stop - start)
                start = stop
                continue
            # only here, where the frames of the failed attempt are gone, is its memory free
            self.place.release()
            if stop - start == 1:
                needed = working_set(layer.shape, layer.driver)
                raise MemoryLimit(
                    f"one matrix of {layer.shape[0]} × {layer.shape[1]} needs about "
                    f"{needed / 2**20:.0f} MiB on {self.place.device}, "
                    f"{self.place.free() / 2**20:.0f} MiB are free",
                    "use shorter windows, a smaller batch, or --device cpu",
                )
            step = (stop - start) // 2
            self._budget = step * working_set(layer.shape, layer.driver)
        return torch.cat(rows)

    def _step(self, layer: _Layer) -> int:
        budget = int(FREE_SHARE * self.place.free())
        if self._budget is not None:
            budget = min(budget, self._budget)
        fits = max(1, budget // working_set(layer.shape, layer.driver))
        return min(layer.count, fits, self._largest or layer.count)

    def _attempt(
        self, layer: _Layer, start: int, stop: int, chosen: frozenset[int]
    ) -> torch.Tensor | None:
        """One chunk; None where the device ran out of memory."""
        try:
            return _chunk(layer, start, stop, chosen)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _unpack(self, layer: _Layer, packed: NDArray[np.float64]) -> Decomposition:
        """Spectra from the copy of all results, and LAPACK for what has to be done again."""
        rank = min(layer.shape)
        self.checks.judge(packed[:, 0])
        spectra = []
        for place, centred in enumerate(layer.centred):
            first = 1 + place * (rank + 1)
            status = packed[:, first].astype(np.int8)
            values = packed[:, first + 1 : first + 1 + rank].copy()
            for member in np.flatnonzero(np.isin(status, [Status.refined, Status.fallback])):
                matrix = layer.load(int(member), int(member) + 1)[0].to("cpu", torch.float64)
                if centred:
                    matrix = matrix - matrix.mean(dim=0)
                values[member], status[member] = lapack(matrix, Status(int(status[member])))
            spectra.append(Spectrum(values, status))
        measured = packed[:, 1 + len(layer.centred) * (rank + 1) :].copy()
        return Decomposition(tuple(spectra), None if layer.measure is None else measured)


def _chunk(layer: _Layer, start: int, stop: int, chosen: frozenset[int]) -> torch.Tensor:
    """Results of the matrices start … stop − 1, a row for each.

    Columns: difference of the spot check or NaN; for each spectrum its status and its singular
    values; what was measured.
    """
    given = layer.load(start, stop)
    eps = resolution_of(given.dtype)
    measured = None if layer.measure is None else layer.measure(given).to(torch.float64)
    batch = given.to(torch.float64, copy=True)
    del given
    low, high = torch.aminmax(batch.flatten(1), dim=1)
    # not finite if and only if an entry is not: both ends hand NaN on
    largest = torch.maximum(-low, high)
    endless, zero = ~torch.isfinite(largest), largest == 0
    bad = endless | zero
    # masked_fill throughout: torch.where may copy a number of Python's to the device, and wait
    scale = largest.masked_fill(bad, 1.0)
    batch.div_(scale[:, None, None])
    # identities in the place of bad matrices: the batch can be solved, and nothing that is not
    # finite reaches the solver
    batch.masked_fill_(bad[:, None, None], 0.0)
    batch.diagonal(dim1=1, dim2=2).add_(bad.to(torch.float64)[:, None])
    difference = torch.full_like(largest, torch.nan)
    columns = []
    for place, centred in enumerate(layer.centred):
        work = batch - batch.mean(dim=1, keepdim=True) if centred else batch
        sigma, sound, resolved = _solve(work, layer.driver, eps)
        status = torch.full_like(largest, float(Status.ok))
        for mask, code in (
            (~resolved, Status.refined),
            (~sound, Status.fallback),
            (zero, Status.zero),
            (endless, Status.non_finite),
        ):
            status = status.masked_fill(mask, float(code))
        unknown = status != float(Status.ok)
        values = (sigma * scale[:, None]).masked_fill(unknown[:, None], torch.nan)
        columns += [status[:, None], values.masked_fill(zero[:, None], 0.0)]
        if place == 0:
            for i in sorted(member - start for member in chosen if start <= member < stop):
                one = slice(i, i + 1)
                found = spot_difference(work[one], sigma[one])
                difference[one] = found.masked_fill(unknown[one], torch.nan)
    if measured is not None:
        columns.append(measured)
    return torch.cat([difference[:, None], *columns], dim=1)


def _solve(
    batch: torch.Tensor, driver: Driver, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Singular values, descending; whether the solver was right; whether it was right enough."""
    try:
        if driver == "svd":
            sigma = torch.linalg.svdvals(batch)
            sound = torch.isfinite(sigma).all(dim=-1)
            return sigma, sound, sound
        tall = batch if batch.shape[1] >= batch.shape[2] else batch.mT
        gram = tall.mT @ tall
        eigenvalues = torch.linalg.eigvalsh(gram).flip(-1)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # one matrix fails the whole call, and does not say for which the others are right
        sigma = batch.new_full((len(batch), min(batch.shape[1:])), torch.nan)
        nowhere = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        return sigma, nowhere, nowhere
    return (
        eigenvalues.clamp_min(0.0).sqrt(),
        keeps_sums(eigenvalues, gram),
        resolved_by(eigenvalues, eps),
    )


def decompose_batched(
    load: Callable[[int], torch.Tensor],
    values: NDArray[np.float64],
    status: NDArray[np.int8],
    *,
    driver: Driver = "gram",
    centred: bool = False,
    road: BatchedRoad | None = None,
) -> None:
    """Decompose matrices in batches on the device they are on.

    Parameters
    ----------
    load : callable
        Gives matrix ``i`` as an (n, m) tensor.
    values : (count, min(n, m)) float64
        Receives the singular values; NaN on entry.
    status : (count) int8
        Receives the statuses.
    driver, centred
        As in :func:`rankscope.linalg.singular_values`.
    road : BatchedRoad, optional
        Of the run; a new one where not given.
    """
    if len(status) == 0:
        return
    first = load(0)
    n, m = first.shape
    road = road or BatchedRoad(place_of(first.device))
    del first
    found = road.decompose(
        stacked(load), len(status), (n, m), driver=driver, centred=(centred,)
    ).spectra[0]
    values[:], status[:] = found.singular_values, found.status


def stacked(load: Callable[[int], torch.Tensor]) -> LoadMany:
    """Matrices one by one as a batch.

    Parameters
    ----------
    load : callable
        Gives matrix ``i`` as an (n, m) tensor.

    Returns
    -------
    callable
        Gives matrices ``start`` … ``stop − 1`` as one tensor.
    """

    def load_many(start: int, stop: int) -> torch.Tensor:
        return torch.stack([load(member) for member in range(start, stop)])

    return load_many
