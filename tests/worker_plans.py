"""Plans that do something to the process they run in; worker processes import them from here."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import threadpoolctl
import torch

from rankscope.engine import SpectraPlan
from rankscope.exceptions import MethodError
from rankscope.linalg import Workers
from rankscope.models import LoadedModel


class Marked(SpectraPlan):
    """Spectra, with something done at one window."""

    at = 1
    mark: Path | None = None

    def act(self) -> None:
        raise NotImplementedError

    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        if self.at in todo:
            self.act()
        yield from super().compute(model, todo, pool)


class Dying(Marked):
    """The worker kills itself, each time, or only until its mark is there."""

    def act(self) -> None:
        if self.mark is not None:
            if self.mark.exists():
                return
            self.mark.touch()
        self.end()

    def end(self) -> None:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)


class Leaving(Dying):
    """The same with an exit status of its own."""

    def end(self) -> None:
        os._exit(3)


class Refusing(Marked):
    """An error of ours, with cause and remedy."""

    def act(self) -> None:
        raise MethodError("nothing can be done here", "do it elsewhere")


class Failing(Marked):
    """A fault of the program."""

    def act(self) -> None:
        raise ZeroDivisionError("of the worker")


class Counting(Marked):
    """Writes down how many threads every pool of the process has."""

    def act(self) -> None:
        pools = {one["prefix"]: one["num_threads"] for one in threadpoolctl.threadpool_info()}
        pools["torch"] = torch.get_num_threads()
        assert self.mark is not None
        self.mark.write_text(repr((os.getpid(), pools)))


class Starving(Marked):
    """Asks for more memory than the process may have."""

    def act(self) -> None:
        room = psutil.Process().memory_info().vms + 64 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        torch.empty(2**28, dtype=torch.float64)
