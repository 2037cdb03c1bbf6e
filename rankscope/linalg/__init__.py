"""float64 singular values of many matrices: drivers, workers, and a status for every matrix.

``gram`` (default) takes the eigenvalues of the Gram matrix on the smaller side, in float64. It is
several times as fast as an SVD, and squares the condition: values below about 1e-8·σ₁ are lost in
rounding. That is below the error that a float32 matrix already carries, and where it would still
show (a float64 matrix with a long tail, a matrix of almost rank one) the error bound notices and
LAPACK's SVD does that matrix again (status ``refined``). ``svd`` is LAPACK throughout.

One bad matrix never spoils its neighbours, and nothing that is not finite reaches a solver.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from rankscope.exceptions import UsageError
from rankscope.linalg.kernels import LANES
from rankscope.linalg.solvers import Buffers, Driver, Group, is_resolved, lapack, resolution_of
from rankscope.status import Status

if TYPE_CHECKING:
    from types import TracebackType


Result = TypeVar("Result")

BATCH = 64
"""Matrices that a GPU solves at once, at most."""

BATCH_BYTES = 2**30
"""What one batch of float64 matrices may take there; four copies of it are alive at once."""


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

    def __enter__(self) -> Workers:
        self._stack.enter_context(one_blas_thread())
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
            decompose_batched(load, values, status, driver=driver, centred=centred)
            return Spectrum(values, status)

        def work(members: Sequence[int]) -> None:
            group = Group(values, status, members, driver=driver, centred=centred)
            group.run(load, self._buffers(shape))

        futures = [self._pool.submit(work, members) for members in _groups(count, self.count)]
        for future in futures:
            future.result()
        return Spectrum(values, status)

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


def decompose_batched(
    load: Callable[[int], torch.Tensor],
    values: NDArray[np.float64],
    status: NDArray[np.int8],
    *,
    driver: Driver = "gram",
    centred: bool = False,
) -> None:
    """Decompose matrices in batches on the device they are on, as a GPU wants it.

    Parameters
    ----------
    load : callable
        Gives matrix ``i`` as an (n, m) tensor.
    values : (count, min(n, m)) float64
        Receives the singular values; NaN on entry.
    status : (count) int8
        Receives the statuses.
    driver, centred
        As in :func:`singular_values`.

    Notes
    -----
    float64 Gram matrices and batched symmetric eigenvalues; what that cannot resolve is redone by
    LAPACK on the host, one matrix at a time.
    """
    count = len(status)
    step = max(1, min(BATCH, BATCH_BYTES // (8 * load(0).numel()))) if count else 1
    for start in range(0, count, step):
        members = range(start, min(start + step, count))
        given = [load(member) for member in members]
        batch = torch.stack([matrix.to(torch.float64) for matrix in given])
        largest = batch.abs().amax(dim=(1, 2))
        for place, scale in enumerate(largest.tolist()):
            if scale == 0.0:
                values[members[place]] = 0.0
                status[members[place]] = Status.zero
            elif not np.isfinite(scale):
                status[members[place]] = Status.non_finite
        good = [i for i, scale in enumerate(largest.tolist()) if 0.0 < scale < np.inf]
        if not good:
            continue
        batch = batch[good]
        if centred:
            batch = batch - batch.mean(dim=1, keepdim=True)
        scales = largest[good]
        solved = _solve_batch(batch / scales[:, None, None], driver)
        for place, i in enumerate(good):
            member = members[i]
            if solved is not None:
                found = solved[place]
                eps = resolution_of(given[i].dtype)
                if driver == "svd" or is_resolved(found, eps):
                    kept = found if driver == "svd" else np.sqrt(np.clip(found, 0.0, None))
                    values[member] = kept * float(scales[place])
                    status[member] = Status.ok
                    continue
            redo = Status.fallback if solved is None else Status.refined
            values[member], status[member] = lapack(batch[place].cpu(), redo)


def _solve_batch(batch: torch.Tensor, driver: Driver) -> NDArray[np.float64] | None:
    """Singular values, or eigenvalues of the Gram matrices, descending; None where it fails."""
    try:
        if driver == "svd":
            found = torch.linalg.svdvals(batch)
        else:
            tall = batch if batch.shape[1] >= batch.shape[2] else batch.mT
            found = torch.linalg.eigvalsh(tall.mT @ tall).flip(-1)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    host: NDArray[np.float64] = found.cpu().numpy()
    return host if np.isfinite(host).all() else None


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
