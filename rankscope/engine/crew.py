"""Who computes the blocks of a run: this process, or worker processes of this machine.

A crew takes blocks as it has room for them and gives results as they are done, in any order; the
process that asks writes them. Worker processes are spawned, never forked (a fork after the first
matrix product may hang), and have one BLAS thread for each of their threads.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING

from rankscope.callbacks import Told
from rankscope.engine.work import Block, Job, Result, compute, portable_error, run_block
from rankscope.exceptions import UsageError, WorkerError
from rankscope.linalg import Workers

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from rankscope.engine.plan import Plan
    from rankscope.models import LoadedModel


WAITING_BYTES = 2**15
"""Largest block that may wait in a worker's pipe."""

DEATHS = 3
"""Workers that may die over one block before the run gives up."""


class Crew(ABC):
    """Whoever computes blocks; a context manager."""

    @abstractmethod
    def run(self, blocks: Iterable[Block]) -> Iterator[Result]:
        """Compute blocks; their results come as they are done.

        Raises
        ------
        WorkerError
            If workers die again and again, or cannot be reached.
        """

    def __enter__(self) -> Crew:
        return self

    @abstractmethod
    def close(self, failed: bool) -> None:
        """Let the workers go; after a failure without waiting for what they are at."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(kind is not None)


class Here(Crew):
    """This process, with threads that share the heads of a layer."""

    def __init__(self, plan: Plan, model: LoadedModel, threads: int) -> None:
        self.plan = plan
        self.model = model
        self._pool = Workers(threads)

    def __enter__(self) -> Here:
        self._pool.__enter__()
        return self

    def close(self, failed: bool) -> None:
        self._pool.__exit__(None, None, None)

    def run(self, blocks: Iterable[Block]) -> Iterator[Result]:
        device = str(self.model.model.device)
        if self.plan.schema.block > 1:
            for block in blocks:
                yield run_block(self.plan, self.model, block.samples, self._pool)
            return
        # one stream for all: the pass over the next window starts while the last layer is at work
        todo = [block.start for block in blocks]
        for sample, fields in self.plan.compute(self.model, todo, self._pool):
            yield Result(sample, [fields], device)


@dataclass
class _Member:
    """A worker process, our end of its pipe, and what it was given: at work on the first.

    `started` is whether it has said that it is there, which it does before its first block.
    """

    number: int
    process: SpawnProcess
    pipe: Connection
    blocks: deque[Block] = field(default_factory=deque)
    started: bool = False

    def has_room(self, bytes_of_block: int) -> bool:
        """Whether it takes another block: one to work on, and one that waits in its pipe.

        A large one must not wait there: with both ends writing neither would read.
        """
        return not self.blocks or (len(self.blocks) == 1 and bytes_of_block <= WAITING_BYTES)


class Processes(Crew):
    """Worker processes of this machine, each with the model and its own windows.

    One that dies is replaced, and its block is given out again; when workers keep dying over the
    same block the run stops, and keeps what it has.

    Parameters
    ----------
    job : Job
    count : int
        Worker processes.
    told : callable, optional
        Called with a line about every worker that was replaced.
    """

    def __init__(self, job: Job, count: int, told: Told | None = None) -> None:
        self._job = pickle.dumps(job)
        self.count = count
        self._told = told or (lambda line: None)
        self._context = multiprocessing.get_context("spawn")
        self._members: list[_Member] = []

    def close(self, failed: bool) -> None:
        for member in self._members:
            if failed or member.blocks:
                member.process.kill()
            # its end of the pipe is what an idle worker waits on
            member.pipe.close()
        for member in self._members:
            member.process.join()
            member.process.close()
        self._members = []

    def run(self, blocks: Iterable[Block]) -> Iterator[Result]:
        waiting = iter(blocks)
        again: deque[Block] = deque()
        deaths: Counter[int] = Counter()
        while True:
            self._give_out(waiting, again)
            busy = {member.pipe: member for member in self._members if member.blocks}
            if not busy:
                return
            for pipe in wait(list(busy)):
                member = busy[pipe]  # type: ignore[index]
                try:
                    answer = pickle.loads(member.pipe.recv_bytes())
                except (EOFError, OSError):
                    again.extend(self._replace(member, deaths))
                    continue
                if answer is None:
                    member.started = True
                    continue
                member.blocks.popleft()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer

    def _give_out(self, waiting: Iterator[Block], again: deque[Block]) -> None:
        """Something to do for everyone who has room, new workers while there are too few."""
        while True:
            block = again.popleft() if again else next(waiting, None)
            if block is None:
                return
            packed = pickle.dumps(block)
            member = self._with_room(len(packed))
            if member is None:
                again.appendleft(block)
                return
            member.blocks.append(block)
            # a worker that died meanwhile is noticed when its answer does not come
            with suppress(OSError):
                member.pipe.send_bytes(packed)

    def _with_room(self, bytes_of_block: int) -> _Member | None:
        least = min(self._members, key=lambda one: len(one.blocks), default=None)
        if (least is None or least.blocks) and len(self._members) < self.count:
            self._members.append(self._start(len(self._members)))
            return self._members[-1]
        return least if least is not None and least.has_room(bytes_of_block) else None

    def _start(self, number: int) -> _Member:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=serve,
            args=(theirs, self._job, number),
            name=f"rankscope-worker-{number}",
            daemon=True,
        )
        try:
            with _no_interrupt():
                process.start()
        finally:
            # with our copy open the end of a worker would not be seen
            theirs.close()
        return _Member(number, process, ours)

    def _replace(self, dead: _Member, deaths: Counter[int]) -> deque[Block]:
        """A new worker in the place of one that died; gives back what that was given."""
        block = dead.blocks[0]
        dead.process.join()
        exit_code = dead.process.exitcode
        how = _ending(exit_code)
        dead.pipe.close()
        dead.process.close()
        deaths[block.start] += 1
        ended_itself = exit_code is not None and exit_code > 0
        if ended_itself and not dead.started:
            # it could not even start, and the next one could not either
            self._members.remove(dead)
            raise WorkerError(
                f"worker {dead.number} {how} before it could start; its reason stands above",
                "in a script of your own, start the run under `if __name__ == '__main__':`, since "
                "every worker imports the script; the windows that are done are kept",
            )
        if deaths[block.start] >= DEATHS:
            self._members.remove(dead)
            raise WorkerError(
                f"{DEATHS} workers died over {block}, the last one {how}",
                ("see what they wrote" if ended_itself else "use fewer workers if memory is short")
                + "; the windows that are done are kept, and the same command goes on",
            )
        self._told(f"worker {dead.number} {how} at {block}; another takes its place")
        self._members[self._members.index(dead)] = self._start(dead.number)
        return dead.blocks


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold back an interrupt from the keyboard, and SIGTERM, while a worker is started.

    An interrupt reaches the whole group, and would end a worker that is still importing with a
    traceback; here it would cut what the worker is told, to the same end. This process gets it when
    the context is closed.
    """
    held: list[int] = []
    handlers = {}
    # blocking alone is not enough: the signal is then given to any other thread of the process
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(known := signal.getsignal(number)):
                handlers[number] = known
                signal.signal(number, lambda number, _frame: held.append(number))
    blocks = hasattr(signal, "pthread_sigmask")
    if blocks:
        # started with the first worker otherwise, it would let the interrupt through again
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blocks else set()
    try:
        yield
    finally:
        for number, known in handlers.items():
            signal.signal(number, known)
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one in held:
            signal.raise_signal(one)


def serve(pipe: Connection, job: bytes, number: int) -> None:
    """Life of a worker process: blocks in, results out, until the other end closes.

    The first thing out is None: the process has started, and what ends it now is the work.
    """
    # an interrupt from the keyboard reaches the whole group; the main process ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        pipe.send_bytes(pickle.dumps(None))
    unpacked: Job | None = None
    while True:
        try:
            block: Block = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            unpacked = unpacked or pickle.loads(job)
            found = compute(unpacked, block, number)
            packed = pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            packed = pickle.dumps(portable_error(error, f"worker {number} (process {os.getpid()})"))
        try:
            pipe.send_bytes(packed)
        except OSError:
            # whoever asked is gone
            return


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            hint = " (short of memory?)" if name == "SIGKILL" else ""
            return f"was ended by {name}{hint}"
    return f"ended with exit status {code}"


def check_counts(workers: int, threads: int) -> None:
    """Refuse no worker and no thread.

    Raises
    ------
    UsageError
    """
    for count, what in ((workers, "workers"), (threads, "threads")):
        if count < 1:
            raise UsageError(f"{count} {what} cannot do any work", "use at least 1")
