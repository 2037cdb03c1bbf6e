"""Computing what a plan holds into a file: locked, resumable, wherever the work is done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.atomic import remove_leftovers
from rankscope.callbacks import Progress, Told
from rankscope.engine.cluster import Cluster
from rankscope.engine.crew import Crew, Here, Processes, check_counts
from rankscope.engine.machine import weights_bytes
from rankscope.engine.plan import Plan
from rankscope.engine.resuming import clear, holds, open_store
from rankscope.engine.work import Block, Job, plan_part, short_of_memory
from rankscope.exceptions import MemoryLimit, RankscopeError, UsageError
from rankscope.store import RunStore, locked, working_path
from rankscope.store.files import check_target
from rankscope.summary.precision import Precision, Widths, looks

if TYPE_CHECKING:
    from rankscope.models import LoadedModel

WORKER_BYTES = 600 * 2**20
"""What a worker process takes for its libraries, beside model and matrices."""


@dataclass(frozen=True)
class Resources:
    """With what a run is computed; none of it changes the result.

    Attributes
    ----------
    workers : int
        Worker processes; 1 for this process itself.
    threads : int
        Threads of each, which share the heads of a layer.
    scheduler : str or None
        Address of a Dask scheduler, whose workers are used in place of processes of this machine.
    """

    workers: int = 1
    threads: int = 1
    scheduler: str | None = None

    def __post_init__(self) -> None:
        check_counts(self.workers, self.threads)
        if self.scheduler is not None and self.workers > 1:
            raise UsageError(
                "a cluster has its own workers", "give a number of workers or a scheduler"
            )

    def memory(self, plan: Plan, model: LoadedModel) -> int:
        """Bytes that the run needs on this machine beside the model that is loaded; an estimate."""
        if self.scheduler is not None:
            return 0
        each = plan.estimate(model, self.threads)
        if self.workers == 1:
            return each
        return self.workers * (each + weights_bytes(model) + WORKER_BYTES)

    def crew(self, plan: Plan, model: LoadedModel, blocks: int, told: Told | None) -> Crew:
        """Whoever computes so many blocks."""
        if self.scheduler is not None:
            job = Job.of(plan, model, self.threads)
            return Cluster(job, self.scheduler, told)
        if self.workers == 1:
            return Here(plan, model, self.threads)
        job = Job.of(plan, model, self.threads)
        return Processes(job, min(self.workers, max(1, blocks)), told)


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM, as batch systems do when time is up."""


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end a run as an interrupt does: workers ended, model and lock given back.

    Only where nobody else has decided what the signal does, and in the main thread, which alone may
    decide it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: object) -> None:
        # a second one ends the process at once
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def execute(
    plan: Plan,
    model: LoadedModel,
    target: str | Path,
    resources: Resources | None = None,
    *,
    progress: Progress | None = None,
    told: Told | None = None,
    overwrite: bool = False,
    memory_limit: int | None = None,
) -> Path:
    """Compute what a plan holds into a file, window by window.

    Parameters
    ----------
    plan : Plan
    model : LoadedModel
        The one that the plan was made for.
    target : path
        ``.nc``, ``.zarr``, ``.csv`` or ``.parquet``.
    resources : Resources, optional
        Workers, threads, a cluster; one thread of this process by default.
    progress : callable, optional
        Called with windows done and windows in all; with a precision, up to the next look.
    told : callable, optional
        Called with a line about what a user should know: damaged windows that are computed again,
        workers that were replaced, how far the precision is.
    overwrite : bool
        Whether a target, or a stopped run beside it, of other settings may be replaced.
    memory_limit : int, optional
        Bytes that the run may need beside the loaded model; checked against the estimate before
        it starts.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    RankscopeError
        Of a kind that tells what is wrong with windows, model, memory, workers or target.
    """
    asked = Path(target)
    # in full: whoever is called meanwhile may change the working folder
    target = Path(os.path.abspath(asked))
    resources = resources or Resources()
    say = told or (lambda line: None)
    with locked(target), terminable():
        for place in (target, working_path(target)):
            remove_leftovers(place)
        if target.exists() and not overwrite and holds(target, plan):
            clear(working_path(target), plan)
            return asked
        check_target(target, attrs=plan.schema.attrs, overwrite=overwrite)
        needed = resources.memory(plan, model)
        if memory_limit is not None and needed > memory_limit:
            raise MemoryLimit(
                f"the run needs about {needed / 2**20:.0f} MiB beside the model, "
                f"{memory_limit / 2**20:.0f} MiB are allowed",
                "use fewer workers or threads, or shorter windows",
            )
        plan.trial(model)
        run = _Run(plan, open_store(plan, working_path(target), overwrite, say), progress, say)
        try:
            with resources.crew(plan, model, run.blocks_left, told) as crew:
                samples, attrs = run.to_the_end(crew)
        except RankscopeError:
            run.remove_if_empty()
            raise
        except (MemoryError, RuntimeError) as error:
            short = short_of_memory(error, f"process {os.getpid()}")
            if short is None:
                raise
            run.remove_if_empty()
            raise short from error
        run.store.finish(target, overwrite=overwrite, samples=samples, attrs=attrs)
    return asked


@dataclass
class _Run:
    """What is done of a run, and the way to its end."""

    plan: Plan
    store: RunStore
    progress: Progress | None
    say: Told
    devices: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.done = self.store.done()
        if self.finished:
            self.devices.update(str(self.store.layout.attrs["device"]).split(", "))

    @property
    def finished(self) -> int:
        """Windows that are done."""
        return int(self.done.sum())

    def remove_if_empty(self) -> None:
        """Delete a store in which nothing is worth keeping: the corrected command need not know."""
        if self.finished == 0:
            self.store.remove()

    @property
    def blocks_left(self) -> int:
        """Blocks that are not done."""
        return sum(1 for _ in self._blocks(len(self.done)))

    def to_the_end(self, crew: Crew) -> tuple[int, dict[str, Any]]:
        """Compute until all windows are there, or enough.

        Returns
        -------
        int, dict
            How many windows the result has, and attributes that only the end can tell.
        """
        rule = self.plan.rule()
        if rule is None:
            self._compute(crew, len(self.done))
            return len(self.done), {}
        seen, reached, widths = 0, False, rule.widths()
        for look in _looks(len(self.done), self.store.block):
            self._compute(crew, look)
            self._take_in(rule, seen, look)
            seen = look
            widths = rule.widths()
            reached = rule.reached(widths)
            self.say(f"{look} windows: {self._told(widths)}; {rule.width:g} is wanted")
            if reached:
                break
        found = {
            "precision_width": rule.width,
            "precision_reached": bool(reached),
            "precision_overall": widths.overall,
            "precision_widest_layer": widths.layer,
        }
        return seen, found

    def _told(self, widths: Widths) -> str:
        line = f"95 % interval of the mean {widths.overall:.4g} wide"
        if widths.widest_layer >= 0:
            layer = self.plan.frame.layers[widths.widest_layer]
            line += f", of layer {layer} {widths.layer:.4g}"
        return f"{line} ({widths.remark})" if widths.remark else line

    def _compute(self, crew: Crew, stop: int) -> None:
        """Compute what is left of the windows before `stop`."""
        self._report(stop)
        # closing: on an interrupt the model is given back before anything else happens
        with closing(crew.run(self._blocks(stop))) as results:  # type: ignore[type-var]
            for result in results:
                self.store.write_block(result.start, result.fields)
                self.done[result.start : result.start + len(result.fields)] = True
                self._computed_on(result.device)
                self._report(stop)

    def _computed_on(self, device: str) -> None:
        """Keep all devices of a run, those before a stop included."""
        if device in self.devices:
            return
        self.devices.add(device)
        known = ", ".join(sorted(self.devices))
        if known != self.store.layout.attrs["device"]:
            self.store.record({"device": known})

    def _report(self, stop: int) -> None:
        if self.progress is not None:
            self.progress(int(self.done[:stop].sum()), stop)

    def _blocks(self, stop: int) -> Iterator[Block]:
        """Blocks before `stop` that are not whole, always the same windows together."""
        step, count = self.store.block, len(self.done)
        for start in range(0, stop, step):
            samples = range(start, min(start + step, count))
            if not self.done[samples.start : samples.stop].all():
                yield plan_part(self.plan, samples)

    def _take_in(self, rule: Precision, start: int, stop: int) -> None:
        names = ("status", "cumulative_ratio", "n_tokens", "text_id")
        with self.store.dataset() as dataset:
            pair = dataset[list(names)].isel(model=0, corpus=0)
            step = self.store.block
            for first in range(start, stop, step):
                part = pair.isel(sample=slice(first, min(first + step, stop))).load()
                rule.add_many(**{name: part[name].to_numpy() for name in names})


def _looks(limit: int, block: int) -> Sequence[int]:
    """Numbers of windows at which a run looks: whole blocks, or all."""
    return sorted({min(-(-look // block) * block, limit) for look in looks(limit)})
