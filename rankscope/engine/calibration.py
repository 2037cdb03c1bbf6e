"""A few windows of a run, computed and stored as the run would, with a clock beside them."""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scipy import stats

from rankscope.engine.measure_spectra import SpectraPlan
from rankscope.engine.work import run_block
from rankscope.exceptions import UsageError
from rankscope.linalg import Workers
from rankscope.store import RunStore, working_path
from rankscope.store.files import export, file_format

if TYPE_CHECKING:
    from rankscope.engine.plan import Plan
    from rankscope.engine.recipe import Recipe
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window

SECONDS = 12.0
"""Time that a calibration takes when no number of windows is given, about."""

FEWEST, MOST = 4, 64
"""Blocks that it takes then."""

# bytes of a window's entries in the two tables that find it by its number
_TABLES = 200

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Calibration:
    """What a few windows cost here, on one worker with one thread.

    Attributes
    ----------
    seconds : tuple of float
        Wall time a window, one value for each block that was timed.
    busy : float
        Processor seconds a window, all threads of the process together.
    writing : float
        Seconds a window that the main process writes.
    finishing : float
        Seconds a window that it takes in the end to make the file of the working folder.
    block : int
        Windows that are computed and stored together.
    warm_up : float
        Seconds of the first block, which is not counted.
    folder_bytes, folder_entries : float
        Bytes on the disk, and files and folders, of the working folder, a window.
    folder_base, folder_base_entries : int
        The same of what it has whatever the number of windows.
    file_bytes, file_base : float
        Bytes of the final file a window, and whatever the number of windows.
    window_bytes : float
        Bytes in memory of a window that waits to be computed.
    """

    seconds: tuple[float, ...]
    busy: float
    writing: float
    finishing: float
    block: int
    warm_up: float
    folder_bytes: float
    folder_entries: float
    folder_base: int
    folder_base_entries: int
    file_bytes: float
    file_base: float
    window_bytes: float

    @property
    def windows(self) -> int:
        """Windows that were timed."""
        return len(self.seconds) * self.block

    @property
    def mean(self) -> float:
        """Mean seconds a window."""
        return statistics.fmean(self.seconds)

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN where a single block was timed."""
        if len(self.seconds) < 2:
            return math.nan
        return statistics.stdev(self.seconds) / math.sqrt(len(self.seconds))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean (Student's t); NaN where a single block was timed."""
        if len(self.seconds) < 2:
            return math.nan, math.nan
        half = float(stats.t.ppf(0.975, len(self.seconds) - 1)) * self.standard_error
        return max(0.0, self.mean - half), self.mean + half


def calibrate(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe,
    *,
    windows: int | None = None,
    format: str = "nc",
    folder: Path | None = None,
) -> Calibration:
    """Compute and store a few windows spread over a corpus, by the road of a worker.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
        What the windows are cut from, all of them.
    recipe : Recipe
        Its number of windows, and a precision, are left aside.
    windows : int, optional
        How many are timed, in whole blocks and as far as there are so many; as many as fit into
        about `SECONDS` when left out.
    format : {"nc", "zarr"}
        Of the final file.
    folder : Path, optional
        Where the store is made, in a folder that is removed again; the system's by default.

    Returns
    -------
    Calibration

    Raises
    ------
    RankscopeError
        Whatever the windows, the model or the store refuse.
    """
    if windows is not None and windows < 1:
        raise UsageError(f"{windows} windows tell nothing about a run", "calibrate with 1 or more")
    plan = SpectraPlan(model, corpus, replace(recipe, windows=None, skip=0, precision=None))
    block = min(plan.schema.block, plan.n_samples)
    limit = MOST if windows is None else -(-windows // block)
    part = _chosen(plan, _spread(plan.n_samples // block, limit + 1), block)
    with tempfile.TemporaryDirectory(prefix=".rankscope-plan-", dir=folder) as place:
        target = Path(place) / f"run.{format}"
        store = RunStore.create(working_path(target), part.schema)
        warm_up, seconds, busy, writing = _timed(part, model, store, block, windows is None)
        done = len(seconds) + 1
        whole, entries = _on_disk(store.path.rglob("*"))
        base, base_entries = _on_disk(_shared(store))
        each = (whole - base) / (done * block)
        file_bytes, file_base, finishing = each, float(base), 0.0
        # a Zarr target is the working folder itself, under its name
        if file_format(target) != "zarr":
            first = target.with_name(f"first.{format}")
            with store.dataset() as dataset:
                export(dataset.isel(sample=slice(0, block)), first)
            began = time.perf_counter()
            store.finish(target, samples=done * block)
            finishing = (time.perf_counter() - began) / (done * block)
            small, large = (_on_disk([path])[0] for path in (first, target))
            file_bytes = (large - small) / ((done - 1) * block)
            file_base = max(0.0, small - block * file_bytes)
    return Calibration(
        seconds=seconds,
        busy=busy,
        writing=writing,
        finishing=finishing,
        block=block,
        warm_up=warm_up,
        folder_bytes=each,
        folder_entries=(entries - base_entries) / (done * block),
        folder_base=base,
        folder_base_entries=base_entries,
        file_bytes=file_bytes,
        file_base=file_base,
        window_bytes=_bytes_of(list(part.frame.windows.values())),
    )


def _timed(
    plan: Plan, model: LoadedModel, store: RunStore, block: int, by_time: bool
) -> tuple[float, tuple[float, ...], float, float]:
    """Time of the first block, times a window of the others, processor and writing time a window.

    By time, it stops after about `SECONDS`.
    """
    walls: list[float] = []
    busy = writing = first = 0.0
    with Workers(1) as pool:
        for start in range(0, plan.n_samples, block):
            began, worked = time.perf_counter(), time.process_time()
            result = run_block(plan, model, range(start, start + block), pool)
            computed = time.perf_counter()
            spent = time.process_time() - worked
            store.write_block(start, result.fields)
            if start == 0:
                first = computed - began
                continue
            walls.append((computed - began) / block)
            busy += spent
            writing += time.perf_counter() - computed
            if by_time and len(walls) >= FEWEST and sum(walls) * block >= SECONDS:
                break
    count = len(walls) * block
    return first, tuple(walls), busy / count, writing / count


def _spread(blocks: int, count: int) -> list[int]:
    """Numbers of `count` blocks in an order whose every beginning is spread over all of them.

    Where there is a single block it comes twice, once to warm up.
    """
    numbers = dict.fromkeys(int(i * _GOLDEN % 1 * blocks) for i in range(4 * count))
    chosen = list(numbers)[:count]
    return chosen * 2 if len(chosen) == 1 else chosen


def _chosen(plan: SpectraPlan, blocks: list[int], size: int) -> Plan:
    """The same run with these blocks of windows only, in this order."""
    samples = [block * size + i for block in blocks for i in range(size)]
    windows = {place: plan.frame.windows[sample] for place, sample in enumerate(samples)}
    part = plan.holding(windows)
    schema = plan.schema
    part.schema = replace(
        schema,
        text_id=schema.text_id[samples],
        window=schema.window[samples],
        token_start=schema.token_start[samples],
        token_end=schema.token_end[samples],
    )
    return part


def _shared(store: RunStore) -> list[Path]:
    """Files and folders of a store that are there whatever the number of windows."""
    own = {name for name, one in store.layout.variables.items() if not one.coord} - {"state"}
    return [
        path
        for path in store.path.rglob("*")
        if (parts := path.relative_to(store.path).parts)[0] not in own
        or len(parts) == 1
        or path.name == "zarr.json"
    ]


def _on_disk(paths: Iterable[Path]) -> tuple[int, int]:
    """Bytes that files and folders take of the disk, whole blocks of it, and their number."""
    total = entries = 0
    for path in paths:
        found = path.lstat()
        # the second where a system does not say
        total += max(getattr(found, "st_blocks", 0) * 512, found.st_size)
        entries += 1
    return total, entries


def _bytes_of(windows: list[Window]) -> float:
    """Bytes in memory of a window, its arrays and its places in two tables; the mean."""
    own = [
        sum(map(sys.getsizeof, (one, vars(one), one.ids, one.special, one.start, one.end)))
        for one in windows
    ]
    return statistics.fmean(own) + _TABLES
