"""The blocks of a run on an existing Dask cluster: the same work, scheduled by others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from rankscope.callbacks import Told
from rankscope.engine.crew import Crew
from rankscope.engine.work import Block, Job, Result, compute, portable_error
from rankscope.exceptions import RankscopeError, UsageError, WorkerError

if TYPE_CHECKING:
    from distributed import Client, Future


CONNECT_S = 20
"""How long the scheduler, and its first worker, may take to answer, in seconds."""

CLOSE_S = 5
"""How long taking leave of the scheduler may take, in seconds."""

AHEAD = 2
"""Blocks given out for every worker: one at work, one waiting there."""

PATIENCE_S = 300
"""How long a run waits for a worker when the last one has gone, in seconds."""

REMIND_S = 60
"""How often it says so meanwhile, in seconds."""

LIST_S = 5
"""How long a list of workers is taken for true, in seconds; an empty one never is."""

FETCH_S = 30
"""How long a result may take from its worker before it is seen to whether there still is one."""


class Cluster(Crew):
    """The workers of a Dask cluster, as many as there are while the run lasts.

    The scheduler gives the blocks of a worker that died to others; when a block has killed several
    it gives up, and so does the run, which keeps what it has. When the last worker has gone the run
    says so, waits `PATIENCE_S` for another, and then ends.

    Parameters
    ----------
    job : Job
    address : str
        Of the scheduler, such as ``tcp://10.0.0.1:8786``.
    told : callable, optional
        Called with lines about the cluster.
    """

    def __init__(self, job: Job, address: str, told: Told | None = None) -> None:
        self._job = job
        self.address = address
        self._told = told or (lambda line: None)
        self._client: Client | None = None
        self._given: dict[Future[Result], Block] = {}
        self._places: dict[str, int] = {}
        self._asked = -math.inf
        # since when there has been no worker, and when that was said last
        self._alone: float | None = None
        self._said = 0.0

    def __enter__(self) -> Cluster:
        try:
            from distributed import Client
        except ImportError as error:
            raise UsageError(
                "a Dask cluster needs the package distributed", 'pip install "rankscope[cluster]"'
            ) from error
        try:
            self._client = Client(self.address, timeout=CONNECT_S, set_as_default=False)
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except (OSError, TimeoutError, ValueError) as error:
            reached = self._client is not None
            self.close(failed=True)
            raise WorkerError(
                f"the scheduler {self.address} has no worker"
                if reached
                else f"there is no Dask scheduler at {self.address}: {str(error) or 'no answer'}",
                "start `dask worker` there"
                if reached
                else "start `dask scheduler`, and give the address that it prints",
            ) from error
        self._told(f"cluster {self.address}: {len(self._workers())} workers")
        return self

    def close(self, failed: bool) -> None:
        if self._client is None:
            return
        client, self._client = self._client, None
        self._given = {}
        # a scheduler that is gone cannot be told, and what cannot be told must not hide why
        with suppress(TimeoutError, OSError):
            client.close(timeout=CLOSE_S)

    def run(self, blocks: Iterable[Block]) -> Iterator[Result]:
        from distributed import CancelledError, wait

        waiting = iter(blocks)
        while True:
            self._give_out(waiting)
            if not self._given:
                return
            assert self._client is not None
            try:
                with suppress(TimeoutError), self._client.as_current():
                    wait(list(self._given), timeout=1, return_when="FIRST_COMPLETED")
            except CancelledError as error:
                raise self._lost() from error
            # a client whose scheduler has gone cancels everything
            self._check_connection()
            self._check_workers()
            for future in [one for one in self._given if one.done()]:
                block = self._given.pop(future)
                yield self._result(future, block)
                future.release()

    def _give_out(self, waiting: Iterator[Block]) -> None:
        assert self._client is not None
        places = self._workers()
        while len(self._given) < AHEAD * max(1, len(places)):
            block = next(waiting, None)
            if block is None:
                return
            future = self._client.submit(
                compute_there,
                self._job,
                block,
                places,
                key=f"rankscope-{self._job.key}-{block.start}-{time.monotonic_ns()}",
                pure=False,
            )
            self._given[future] = block

    def _result(self, future: Future[Result], block: Block) -> Result:
        from distributed import CancelledError, KilledWorker

        try:
            answer: Result | Exception = self._fetched(future)
        except KilledWorker as error:
            raise WorkerError(
                f"workers of the cluster died over {block}, the last one {error.last_worker}",
                "give them more memory, or start them again: the windows that are done are kept, "
                "and the same command goes on",
            ) from error
        except CancelledError as error:
            raise self._lost() from error
        except ModuleNotFoundError as error:
            raise WorkerError(
                f"the workers of {self.address} lack {error.name}",
                "install rankscope and what it needs there, in the same versions",
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _fetched(self, future: Future[Result]) -> Result | Exception:
        """What a future has come to; its worker may die before it has handed that over."""
        while True:
            try:
                found: Result | Exception = future.result(timeout=FETCH_S)
                return found
            except TimeoutError:
                self._check_connection()
                self._check_workers()

    def _check_workers(self) -> None:
        """Say when there is no worker left, and after some time give up.

        Raises
        ------
        WorkerError
        """
        now = time.monotonic()
        there = len(self._workers())
        if there:
            if self._alone is not None:
                self._told(f"cluster {self.address}: {there} workers again")
            self._alone = None
            return
        if self._alone is None:
            self._alone, self._said = now, -math.inf
        alone = now - self._alone
        if alone >= PATIENCE_S:
            raise WorkerError(
                f"the cluster {self.address} has had no worker for {alone:.0f} s",
                "start `dask worker` there: the windows that are done are kept, and the same "
                "command goes on",
            )
        if now - self._said >= REMIND_S:
            self._said = now
            self._told(
                f"cluster {self.address}: no worker for {alone:.0f} s; the run goes on when there "
                f"is one, and ends after {PATIENCE_S} s"
            )

    def _workers(self) -> dict[str, int]:
        """Address of each worker, and its number among those of its machine."""
        now = time.monotonic()
        if not self._places or now - self._asked >= LIST_S:
            self._places, self._asked = self._list(), now
        return self._places

    def _list(self) -> dict[str, int]:
        assert self._client is not None
        found = self._client.scheduler_info(n_workers=-1).get("workers", {})
        places: dict[str, int] = {}
        hosts: dict[str, int] = {}
        for address, one in sorted(found.items()):
            host = str(one.get("host"))
            places[address] = hosts.get(host, 0)
            hosts[host] = places[address] + 1
        return places

    def _check_connection(self) -> None:
        assert self._client is not None
        if self._client.status != "running":
            raise self._lost()

    def _lost(self) -> RankscopeError:
        return WorkerError(
            f"the scheduler {self.address} is gone",
            "start it again: the windows that are done are kept, and the same command goes on",
        )


def compute_there(job: Job, block: Block, places: dict[str, int]) -> Result | Exception:
    """Compute a block in a worker of a cluster; an error comes back as a value.

    Dask would run a failed block again elsewhere, which is right for a worker that died and wrong
    for windows that are refused.
    """
    from distributed import get_worker

    worker = get_worker()
    try:
        number = places.get(worker.address, hash(worker.address))
        return compute(job, block, number)
    except Exception as error:
        return portable_error(error, f"the worker {worker.address}")
