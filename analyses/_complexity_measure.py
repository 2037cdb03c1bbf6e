"""Time in one process, all sides in turn; peak memory in a process of its own for every figure."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from analyses._complexity_sides import Side, gaussian
from analyses._timing import ONE_THREAD
from rankscope import terminal
from rankscope.engine.machine import return_freed_memory
from rankscope.linalg import one_blas_thread

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def times(
    measured: Sequence[Side],
    lengths: Sequence[int],
    possible: npt.NDArray[np.bool_],
    *,
    d: int,
    device: torch.device,
    repeats: int,
    shortest: float,
    progress: Progress,
) -> Floats:
    """Seconds of one call, every side at every length in turn and all of it `repeats` times.

    Parameters
    ----------
    measured : sequence of Side
    lengths : sequence of int
    possible : (sides, lengths) bool
        What is measured.
    d : int
    device : torch.device
    repeats : int
    shortest : float
        Seconds that one measurement lasts at least, by as many calls as that takes.
    progress : callable

    Returns
    -------
    (sides, lengths, repeats) float64
        NaN where nothing is measured.
    """
    seconds = np.full((*possible.shape, repeats), np.nan)
    calls = np.ones(possible.shape, dtype=int)
    inputs = [gaussian(n, d, device) for n in lengths]
    total, done = (repeats + 1) * int(possible.sum()), 0
    progress(done, total)
    with one_blas_thread():
        # the first turn, warm and untimed, says how many calls a measurement needs
        for turn in range(-1, repeats):
            for at, attention in enumerate(inputs):
                for place, side in enumerate(measured):
                    if not possible[place, at]:
                        continue
                    if turn < 0:
                        side.run(attention)
                        spent = _seconds(side, attention, 1, device)
                        calls[place, at] = max(1, math.ceil(shortest / max(spent, 1e-7)))
                    else:
                        spent = _seconds(side, attention, int(calls[place, at]), device)
                        seconds[place, at, turn] = spent
                    done += 1
                    progress(done, total)
    return seconds


def peaks(
    measured: Sequence[Side],
    lengths: Sequence[int],
    possible: npt.NDArray[np.bool_],
    *,
    d: int,
    device: torch.device,
    trials: int,
    progress: Progress,
) -> Floats:
    """Peak memory of one call in bytes, beside query, key, value and what was there before.

    On a CPU every figure comes from a process of its own, see :func:`peak_of_process`; on a GPU
    from the allocator's own count. The output is part of it.

    Returns
    -------
    (sides, lengths, trials) float64
        NaN where nothing is measured.
    """
    found = np.full((*possible.shape, trials), np.nan)
    total, done = trials * int(possible.sum()), 0
    progress(done, total)
    with _own_processes(device) as call:
        for place, side in enumerate(measured):
            for at, n in enumerate(lengths):
                for trial in range(trials if possible[place, at] else 0):
                    found[place, at, trial] = call(side, n, d)
                    done += 1
                    progress(done, total)
    return found


def peak_of_process(side: Side, n: int, d: int) -> int:
    """Largest resident memory of this process during a call, less that before it, in bytes.

    A call at half the length comes first, so that code and buffers of the libraries are there;
    what depends on n is not. Freed memory is given back to the system before and during the call.

    Parameters
    ----------
    side : Side
    n, d : int

    Returns
    -------
    int
    """
    torch.set_num_threads(1)
    return_freed_memory()
    cpu = torch.device("cpu")
    side.run(gaussian(max(n // 2, side.least), d, cpu, seed=1))
    attention = gaussian(n, d, cpu)
    before = _settle()
    output = side.run(attention)
    after = _peak()
    assert output.shape[2] == n
    return after - before


def peak_on_device(side: Side, n: int, d: int, device: torch.device) -> int:
    """The same by the count of the device's allocator."""
    attention = gaussian(n, d, device)
    # libraries take their workspaces at the first call
    side.run(gaussian(max(n // 2, side.least), d, device, seed=1))
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = side.run(attention)
    torch.cuda.synchronize(device)
    assert output.shape[2] == n
    return torch.cuda.max_memory_allocated(device) - before


def _seconds(side: Side, attention: Any, calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            side.run(attention)
        return (time.perf_counter() - began) / calls
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(calls):
        side.run(attention)
    stop.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(stop)) / 1e3 / calls


@contextmanager
def _own_processes(device: torch.device) -> Iterator[Callable[[Side, int, int], float]]:
    """Something that measures the peak of one call, in a new process on a CPU."""
    if device.type == "cuda":
        yield lambda side, n, d: float(peak_on_device(side, n, d, device))
        return
    # a fork of a process that has only imported is as good as a new one, and torch takes seconds
    server = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if server else "spawn")
    if server:
        context.set_forkserver_preload(["analyses.complexity"])
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)

    def call(side: Side, n: int, d: int) -> float:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_peak, args=(sender, side, n, d))
        process.start()
        sender.close()
        try:
            return float(receiver.recv())
        except EOFError:
            process.join()
            # ended by a signal, most likely for lack of memory; an error of its own is a defect
            if process.exitcode >= 0:
                raise RuntimeError(f"{side.text} failed at n = {n}, as told above") from None
            terminal.note(f"{side.text} at n = {n}: its process was killed, no peak")
            return math.nan
        finally:
            process.join()
            receiver.close()
            process.close()

    try:
        yield call
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _send_peak(sender: Any, side: Side, n: int, d: int) -> None:
    sender.send(peak_of_process(side, n, d))


def _settle() -> int:
    """Give back what is free, forget the peak so far, and say what is held."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        try:
            # proc(5): 5 sets the peak to what is resident now
            _RESET.write_text("5")
        except OSError:
            return _peak()
    return _peak()


def _peak() -> int:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    # no such file: the process's largest so far, in bytes on macOS and in KiB elsewhere
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
