"""Where batches are solved: free memory, streams, and the one way back to the host.

:class:`Place` is all that :mod:`rankscope.linalg.batched` knows of a device, so that its logic runs
on a CPU as well, with memory and faults made up by a test.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

_NO_MEMORY = ("out of memory", "ALLOC_FAILED")


class Place:
    """A device without streams: everything is done in the order of the calls.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def free(self) -> int:
        """Bytes that could be allocated now."""
        import psutil

        return int(psutil.virtual_memory().available)

    def release(self) -> None:
        """Give memory back that is held but not used."""

    def mark(self) -> object:
        """The work that the caller has queued so far, for :meth:`working` to wait for."""
        return None

    @contextmanager
    def working(self, mark: object) -> Iterator[None]:
        """Work after `mark`, beside what the caller queues from now on.

        Parameters
        ----------
        mark : object
            From :meth:`mark`, or None for nothing to wait for.
        """
        yield

    def fetch(self, tensor: torch.Tensor) -> NDArray[np.float64]:
        """Copy to the host and wait for it.

        Parameters
        ----------
        tensor : float64 tensor

        Returns
        -------
        float64 array of the same shape
        """
        found: NDArray[np.float64] = tensor.cpu().numpy()
        return found


class CachePlace(Place):
    """The CPU for small matrices: chunks that its cache holds, however much memory there is."""

    def free(self) -> int:
        return 2**24


class CudaPlace(Place):
    """A CUDA device: a stream of its own, so that the forward pass goes on beside it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def free(self) -> int:
        """Free on the device, and what torch has reserved there without using it."""
        free, _ = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        return int(free + reserved - torch.cuda.memory_allocated(self.device))

    def release(self) -> None:
        # what was queued may still use the blocks that are to be given back
        self._stream.synchronize()
        torch.cuda.empty_cache()

    def mark(self) -> object:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def working(self, mark: object) -> Iterator[None]:
        # the stream has to be set in the thread that works: it belongs to a thread
        with torch.cuda.stream(self._stream):
            if isinstance(mark, torch.cuda.Event):
                self._stream.wait_event(mark)
            try:
                yield
            finally:
                # The inputs belong to the caller's stream. Whoever lets go of them after this
                # point hands back memory that no kernel of this stream can still read, so that
                # record_stream is not needed; this holds when an error ends the work, too.
                self._stream.synchronize()

    def fetch(self, tensor: torch.Tensor) -> NDArray[np.float64]:
        """Copy into pinned memory without blocking, then wait for one event."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        # a blocking event lets the thread sleep, where others would keep a core busy
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        event.synchronize()
        found: NDArray[np.float64] = host.numpy().copy()
        return found


def place_of(device: torch.device) -> Place:
    """The place that belongs to a device.

    Parameters
    ----------
    device : torch.device

    Returns
    -------
    Place
    """
    if device.type != "cuda":
        return Place(device)
    # the device that "cuda" means belongs to a thread as well
    index = torch.cuda.current_device() if device.index is None else device.index
    return CudaPlace(torch.device("cuda", index))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error means that the device has no memory left.

    torch's own allocator says so by its type; cuBLAS and cuSOLVER, which allocate their handles
    themselves, only by their message.

    Examples
    --------
    >>> is_out_of_memory(RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not fit"))
    False
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in _NO_MEMORY)


_precision_lock = threading.Lock()
_precision_users = 0
_precision_before = "highest"


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products in full float32 (no TF32, no bfloat16) while any such context is open.

    The setting belongs to the process. It is counted, so that contexts of several threads may
    overlap: the first sets it, the last puts back what was there before.
    """
    global _precision_users, _precision_before
    with _precision_lock:
        if _precision_users == 0:
            _precision_before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
        _precision_users += 1
    try:
        yield
    finally:
        with _precision_lock:
            _precision_users -= 1
            if _precision_users == 0:
                torch.set_float32_matmul_precision(_precision_before)
