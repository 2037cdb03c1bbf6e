"""What a worker is given and what it gives back: a job, blocks of windows, and their results.

This is the part that is the same on every road: in this process, in worker processes of this
machine, and on the workers of a Dask cluster.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankscope.exceptions import MemoryLimit, ModelError, UsageError, WorkerError
from rankscope.linalg import Workers

if TYPE_CHECKING:
    from rankscope.engine.plan import Plan
    from rankscope.models import LoadedModel
    from rankscope.text import Window


@dataclass(frozen=True)
class Block:
    """Windows that are computed together.

    Attributes
    ----------
    start : int
        Sample of the first.
    windows : tuple of Window
    """

    start: int
    windows: tuple[Window, ...]

    @property
    def samples(self) -> range:
        """Samples of its windows."""
        return range(self.start, self.start + len(self.windows))

    def __str__(self) -> str:
        last = self.samples[-1]
        return f"window {self.start}" if last == self.start else f"windows {self.start} to {last}"


@dataclass(frozen=True)
class Result:
    """What became of a block.

    Attributes
    ----------
    start : int
    fields : list of dict
        One for each window, in order.
    device : str
        Where it was computed.
    """

    start: int
    fields: list[dict[str, Any]]
    device: str


@dataclass(frozen=True)
class Job:
    """A run as it travels to a worker: no window, no weight, but how to load the model.

    Attributes
    ----------
    plan : Plan
        Without windows.
    model : mapping
        Arguments of :func:`rankscope.models.load`.
    identity : tuple
        Name and checksum that the model must have.
    threads : int
        Threads of each worker.
    versions : mapping
        Of the libraries that decide the result; a worker must have the same.
    key : str
        Tells jobs apart.
    """

    plan: Plan
    model: Mapping[str, Any]
    identity: tuple[str, str | None]
    threads: int
    versions: Mapping[str, str]
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, plan: Plan, model: LoadedModel, threads: int) -> Job:
        """The job of a plan; its workers load the model as it was loaded here.

        Raises
        ------
        UsageError
            For a model that was not loaded by rankscope, which workers could not load.
        """
        if model.arguments is None:
            raise UsageError(
                f"worker processes cannot load {model.info.name}: it was put together by hand",
                "save it to a folder and load it from there, or use one worker",
            )
        return cls(
            plan=plan.holding({}),
            model=dict(model.arguments),
            identity=(model.info.identity, model.info.weights_sha256),
            threads=threads,
            versions=versions(),
        )


def versions() -> dict[str, str]:
    """Versions of the libraries that decide the last bits of a result."""
    names = ("rankscope", "torch", "transformers", "numpy", "numba")
    return {name: importlib.metadata.version(name) for name in names}


class _Loaded:
    """The model of the job at hand; a process keeps one, and lends it to one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.key: str | None = None
        self.model: LoadedModel | None = None

    def of(self, job: Job, number: int) -> LoadedModel:
        if self.key == job.key and self.model is not None:
            return self.model
        from rankscope import linalg
        from rankscope.engine.machine import return_freed_memory
        from rankscope.models import load

        _check_versions(job)
        self.key = self.model = None
        return_freed_memory()
        linalg.warm_up()
        model = load(**{**job.model, "device": device_of(str(job.model["device"]), number)})
        found = (model.info.identity, model.info.weights_sha256)
        if found != job.identity:
            raise ModelError(
                f"the worker on {socket.gethostname()} loaded {found[0]} with weights {found[1]}, "
                f"the run is of {job.identity[0]} with {job.identity[1]}",
                "give all workers the same files",
            )
        self.key, self.model = job.key, model
        return model


_LOADED = _Loaded()


def compute(job: Job, block: Block, number: int = 0) -> Result:
    """Compute one block in a worker, which loads the model at its first.

    Parameters
    ----------
    job : Job
    block : Block
    number : int
        Which worker of its machine this is: where there are several GPUs, each takes its own.

    Returns
    -------
    Result

    Raises
    ------
    RankscopeError
        Whatever the plan raises; a model or versions that are not those of the run.
    """
    with _LOADED.lock, Workers(job.threads) as pool:
        model = _LOADED.of(job, number)
        plan = job.plan.holding(dict(zip(block.samples, block.windows, strict=True)))
        return run_block(plan, model, block.samples, pool)


def run_block(plan: Plan, model: LoadedModel, samples: range, pool: Workers) -> Result:
    """Compute one block with a model that is there."""
    fields = dict(plan.compute(model, samples, pool))
    return Result(samples.start, [fields[sample] for sample in samples], str(model.model.device))


def device_of(wanted: str, number: int) -> str:
    """Device of a worker: ``auto`` and ``cuda`` are shared out over the GPUs of its machine."""
    if wanted not in ("auto", "cuda"):
        return wanted
    import torch

    count = torch.cuda.device_count()
    if wanted == "auto" and count == 0:
        return "cpu"
    return f"cuda:{number % count}" if count > 1 else "cuda"


def portable_error(error: BaseException, worker: str) -> Exception:
    """An error of a worker as it can travel: ours as they are, others with their trace as text."""
    import traceback

    from rankscope.exceptions import RankscopeError

    if (short := short_of_memory(error, worker)) is not None:
        return short
    if isinstance(error, RankscopeError):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return type(error)(error.cause, error.remedy)
        return error
    trace = "".join(traceback.format_exception(error))
    return RuntimeError(f"{worker} failed:\n{trace}")


def short_of_memory(error: BaseException, who: str) -> MemoryLimit | None:
    """The same error as one of ours, if it says that there is no memory left."""
    # torch has no type of its own for the memory of the host
    told = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    if not told and not isinstance(error, MemoryError):
        return None
    reason = str(error).strip().split("\n", maxsplit=1)[0]
    return MemoryLimit(
        f"{who} ran out of memory" + (f": {reason}" if reason else ""),
        "use fewer workers or threads, or shorter windows; the windows that are done are kept, and "
        "the same command goes on",
    )


def plan_part(plan: Plan, samples: range) -> Block:
    """The block of these samples."""
    return Block(samples.start, tuple(plan.frame.windows[sample] for sample in samples))


def _check_versions(job: Job) -> None:
    here = versions()
    other = [
        f"{name} {here[name]} instead of {wanted}"
        for name, wanted in job.versions.items()
        if here[name] != wanted
    ]
    if other:
        raise WorkerError(
            f"the worker {os.getpid()} on {socket.gethostname()} has {', '.join(other)}",
            "install the same versions on all machines: results would differ",
        )
