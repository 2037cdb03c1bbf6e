"""float64 singular values of many matrices: drivers, workers, and a status for every matrix.

``gram`` (default) takes the eigenvalues of the Gram matrix on the smaller side, in float64. It is
several times as fast as an SVD, and squares the condition: values below about 1e-8·σ₁ are lost in
rounding. That is below the error that a float32 matrix already carries, and where it would still
show (a float64 matrix with a long tail, a matrix of almost rank one) the error bound notices and
LAPACK's SVD does that matrix again (status ``refined``). ``svd`` is LAPACK throughout.

Many matrices of a few tokens (more than ``FEW`` of at most ``SMALL``) are solved in one batch, as
on a GPU: one by one, what surrounds the solver would take ten times as long as the solver.

One bad matrix never spoils its neighbours, and nothing that is not finite reaches a solver.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from rankscope.exceptions import UsageError
from rankscope.linalg.batched import BatchedRoad, LoadMany, Measure, decompose_batched, stacked
from rankscope.linalg.devices import CachePlace, full_precision, place_of
from rankscope.linalg.kernels import LANES
from rankscope.linalg.results import Decomposition, Pending, Spectrum
from rankscope.linalg.solvers import Buffers, Driver, Group
from rankscope.status import Status

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "Decomposition",
    "Driver",
    "Pending",
    "SolverFault",
    "Spectrum",
    "Workers",
    "check_driver",
    "decompose_batched",
    "full_precision",
    "one_blas_thread",
    "singular_values",
    "warm_up",
]

Result = TypeVar("Result")

SMALL = 32
"""Largest side of a matrix that the CPU solves together with others."""

FEW = 16
"""Up to so many matrices of a layer are solved one by one, however small they are."""


def check_driver(driver: str) -> None:
    """Refuse a driver that does not exist.

    Raises
    ------
    UsageError
        If `driver` is neither ``gram`` nor ``svd``.
    """
    if driver not in get_args(Driver):
        raise UsageError(f"unknown driver {driver!r}", f"one of {', '.join(get_args(Driver))}")


def singular_values(
    matrices: torch.Tensor | ArrayLike,
    *,
    driver: Driver = "gram",
    workers: int = 1,
    centred: bool = False,
) -> Spectrum:
    """Singular values of a batch of matrices, in float64.

    Parameters
    ----------
    matrices : (*batch, n, m) tensor or array, any real dtype, on any device
        Attention matrices P or any others; converted to float64 one at a time.
    driver : {"gram", "svd"}
        Eigenvalues of the Gram matrix, or LAPACK's SVD without vectors.
    workers : int
        Threads that share the matrices, one BLAS thread each. The result does not depend on it.
    centred : bool
        Remove the mean row first: the spectrum of P − 1p̄ᵀ, p̄ the mean over the rows.

    Returns
    -------
    Spectrum
        Shapes (*batch, min(n, m)) and (*batch).

    Raises
    ------
    UsageError
        For fewer than two dimensions, complex numbers, an unknown driver or no worker.

    Examples
    --------
    >>> singular_values([[4.0, 0.0], [0.0, 3.0]]).singular_values
    array([4., 3.])
    """
    batch = _as_tensor(matrices)
    if batch.ndim < 2 or batch.is_complex():
        raise UsageError(
            f"singular values need real matrices of shape (*batch, n, m), not {tuple(batch.shape)} "
            f"of {batch.dtype}"
        )
    check_driver(driver)
    *lead, n, m = batch.shape
    flat = batch.reshape(math.prod(lead), n, m)
    with Workers(workers) as pool:
        spectrum = pool.decompose(
            flat.__getitem__,
            flat.shape[0],
            (n, m),
            driver=driver,
            centred=centred,
            device=flat.device,
        )
    return Spectrum(
        spectrum.singular_values.reshape(*lead, min(n, m)), spectrum.status.reshape(lead)
    )


class Workers:
    """Threads that decompose matrices, each with one BLAS thread; a context manager.

    Parameters
    ----------
    count : int
        Number of threads, at least 1.

    Notes
    -----
    BLAS and OpenMP are limited to one thread in the whole process while the context is open:
    on matrices of this size more threads a matrix only get in each other's way.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise UsageError(f"{count} workers cannot do any work", "use at least 1")
        self.count = count
        self._stack = ExitStack()
        self._local = threading.local()
        self._roads: dict[torch.device, BatchedRoad] = {}

    def __enter__(self) -> Workers:
        self._stack.enter_context(one_blas_thread())
        # One thread in front of a device: it waits for the solver while the forward pass goes on.
        # It starts with the first matrix that is not on the CPU.
        self._device_pool = self._stack.enter_context(
            ThreadPoolExecutor(1, "rankscope-device", torch.set_num_threads, (1,))
        )
        self._pool = self._stack.enter_context(
            ThreadPoolExecutor(self.count, initializer=torch.set_num_threads, initargs=(1,))
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def decompose(
        self,
        load: Callable[[int], torch.Tensor],
        count: int,
        shape: tuple[int, int],
        *,
        driver: Driver = "gram",
        centred: bool = False,
        device: torch.device | None = None,
    ) -> Spectrum:
        """Decompose `count` matrices of one shape.

        Parameters
        ----------
        load : callable
            Gives matrix ``i`` as an (n, m) tensor; called in a worker, so that only the matrices at
            work exist; called again for a matrix that has to be done again.
        count : int
        shape : (n, m)
        driver, centred
            As in :func:`singular_values`.
        device : torch.device, optional
            Where the matrices are. On the CPU the workers share them; elsewhere they are solved in
            batches on their device.

        Returns
        -------
        Spectrum
            Shapes (count, min(n, m)) and (count).
        """
        rank = min(shape)
        values = np.full((count, rank), np.nan)
        status = np.full(count, Status.empty, dtype=np.int8)
        if rank == 0 or count == 0:
            return Spectrum(values, status)
        if device is not None and device.type != "cpu":
            later = self.decompose_later(
                load, count, shape, driver=driver, centred=(centred,), device=device
            )
            return later.result().spectra[0]
        if driver == "gram" and max(shape) <= SMALL and count > FEW:
            road = self._road(torch.device("cpu"))
            found = road.decompose(stacked(load), count, shape, driver=driver, centred=(centred,))
            return found.spectra[0]

        def work(members: Sequence[int]) -> None:
            group = Group(values, status, members, driver=driver, centred=centred)
            group.run(load, self._buffers(shape))

        groups = _groups(count, self.count)
        if self.count == 1:
            # handing small matrices to another thread takes longer than solving them
            for members in groups:
                work(members)
            return Spectrum(values, status)
        for future in [self._pool.submit(work, members) for members in groups]:
            future.result()
        return Spectrum(values, status)

    def decompose_later(
        self,
        load: Callable[[int], torch.Tensor],
        count: int,
        shape: tuple[int, int],
        *,
        driver: Driver = "gram",
        centred: Sequence[bool] = (False,),
        device: torch.device | None = None,
        load_many: LoadMany | None = None,
        measure: Measure | None = None,
    ) -> Pending:
        """Decompose the matrices of a layer while the caller goes on to the next.

        On a GPU the work is queued behind what the caller has queued so far, on a stream and in a
        thread of its own; what `load` refers to stays alive until it is done. On the CPU, where the
        workers are all there is, it is done before this returns.

        Parameters
        ----------
        load, count, shape, driver, device
            As for :meth:`decompose`.
        centred : sequence of bool
            Which spectra are wanted: of P (False), of P − 1p̄ᵀ (True), or both.
        load_many : callable, optional
            ``load_many(start, stop)`` gives these matrices as one tensor on the device, at once
            instead of one by one; not used on the CPU.
        measure : callable, optional
            Gives a (k, columns) tensor for a (k, n, m) tensor of matrices as they were loaded.

        Returns
        -------
        Pending
            Its result has one spectrum for each entry of `centred`. Errors are raised there.
        """
        if device is not None and device.type != "cpu" and min(shape) > 0 and count > 0:
            road = self._road(device)
            return Pending(
                self._device_pool.submit(
                    road.decompose,
                    load_many or stacked(load),
                    count,
                    shape,
                    driver=driver,
                    centred=centred,
                    measure=measure,
                    mark=road.place.mark(),
                )
            )
        rows: dict[int, NDArray[np.float64]] = {}

        def noted(i: int) -> torch.Tensor:
            matrix = load(i)
            if measure is not None and i not in rows:
                rows[i] = measure(matrix[None])[0].double().cpu().numpy()
            return matrix

        spectra = tuple(
            self.decompose(noted, count, shape, driver=driver, centred=one) for one in centred
        )
        measured = np.stack([rows[i] for i in range(count)]) if rows else None
        return Pending.of(Decomposition(spectra, measured))

    def map(self, work: Callable[[int], Result], count: int) -> list[Result]:
        """`work(0)` … `work(count − 1)`, shared by the workers, results in order.

        Parameters
        ----------
        work : callable
            Called in a worker with a number.
        count : int

        Returns
        -------
        list
        """
        return list(self._pool.map(work, range(count)))

    def _road(self, device: torch.device) -> BatchedRoad:
        # one for the whole run: it knows what did not fit, and which checks are still to be made
        if device not in self._roads:
            place = CachePlace(device) if device.type == "cpu" else place_of(device)
            self._roads[device] = BatchedRoad(place)
        return self._roads[device]

    def _buffers(self, shape: tuple[int, int]) -> Buffers:
        # kept for each thread: fresh memory costs more page faults than the product itself
        buffers: Buffers | None = getattr(self._local, "buffers", None)
        rank = min(shape)
        if buffers is None or buffers.gram.shape[0] != rank:
            buffers = Buffers.of(shape)
            self._local.buffers = buffers
        return buffers


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One BLAS and OpenMP thread while the context is open; the former numbers come back after."""
    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def warm_up() -> None:
    """Compile the kernels (or load them from their cache) before anything is timed or measured."""
    singular_values(torch.eye(3).expand(2, 3, 3))


def _groups(count: int, workers: int) -> list[Sequence[int]]:
    """Even groups of at most ``LANES`` matrices, a whole number of them for every worker."""
    wanted = max(-(-count // LANES), min(workers, count))
    wanted = min(-(-wanted // workers) * workers, count)
    return [part.tolist() for part in np.array_split(np.arange(count), wanted)]


def _as_tensor(matrices: torch.Tensor | ArrayLike) -> torch.Tensor:
    if isinstance(matrices, torch.Tensor):
        return matrices.detach()
    array = np.asarray(matrices)
    # torch cannot hold read-only memory or byte-swapped numbers
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
