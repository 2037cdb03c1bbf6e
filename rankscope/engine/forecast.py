"""What a run of spectra would take: time, memory and disk, from a short calibration."""

from __future__ import annotations

import math
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.engine.calibration import Calibration
from rankscope.engine.calibration import calibrate as measure
from rankscope.engine.counting import Count, count_windows
from rankscope.engine.execution import WORKER_BYTES
from rankscope.engine.machine import estimate, free_memory, usable_cores, weights_bytes
from rankscope.exceptions import UsageError
from rankscope.models.tokenizers import HashTokenizer
from rankscope.text.streaming import CONTEXT, PART, has_seams

if TYPE_CHECKING:
    from rankscope.engine.recipe import Recipe
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

TOKENISING_BYTES = {"hash": 15, "library": 165}
"""Bytes a character that tokenising takes at its peak, by the kind of the tokenizer.

Measured on 12 million characters at once. Only the part of a text that is being tokenised takes
them, or the longest text where the tokenizer cannot be given one in parts.
"""

LONG = 30 * 86400.0
"""Seconds beyond which a run is said to be too long."""


@dataclass(frozen=True)
class Forecast:
    """What a run of spectra would take; an estimate from a few windows on this machine.

    Attributes
    ----------
    model, corpus : str
    length : int
        Tokens of a window.
    workers : int
        Worker processes that are asked about, one thread each.
    cores : int
        Cores that this process may use.
    format : {"nc", "zarr"}
        Of the final file.
    count : Count
        Windows and tokens.
    calibration : Calibration
        What was measured.
    loading : float or None
        Seconds to load libraries and model; None where nobody measured it, and then not counted.
    model_bytes : int
        The model's weights.
    worker_bytes : int
        What a worker process takes, its model included.
    own_bytes : int
        What the main process needs beside the model to compute by itself, with one worker.
    tokenised : int
        Characters that are tokenised at once.
    text_bytes : int
        Windows, characters, and the tokenising of a part of them, in the main process.
    memory_free, disk_free : int
        Bytes that a run may take here now, of memory and of the disk of the target.
    entries_free : int or None
        Files and folders that this disk takes; None where it does not say.
    on_cpu : bool
        Whether the model computes on the processor.
    """

    model: str
    corpus: str
    length: int
    workers: int
    cores: int
    format: str
    count: Count
    calibration: Calibration
    loading: float | None
    model_bytes: int
    worker_bytes: int
    own_bytes: int
    tokenised: int
    text_bytes: int
    memory_free: int
    disk_free: int
    entries_free: int | None
    on_cpu: bool = True

    def start_up(self, workers: int) -> float:
        """Seconds before the first window: loading, here and in the workers, and tokenising."""
        loading = (self.loading or 0.0) * (1 if workers == 1 else 2)
        return loading + self.count.read / self.count.rate

    def running(
        self, workers: int, windows: int | None = None, window: float | None = None
    ) -> float:
        """Seconds in which the windows are computed and written.

        With W windows in blocks of B, t and b the wall and processor time of a window, w what it
        takes to write it, and C cores (one for each worker at least): W·(t + w) for one worker,
        which writes by itself. For N of them the largest of ⌈W / B / N⌉·B·t, W·(b + w) / C, and
        W·w: they share nothing but the cores and the main process, which alone writes.

        Parameters
        ----------
        workers : int
        windows : int, optional
            W; the estimate by default.
        window : float, optional
            t; the mean of the calibration by default. The processor time grows with it.
        """
        cal = self.calibration
        count = self.count.windows if windows is None else windows
        wall = cal.mean if window is None else window
        if workers == 1:
            return count * (wall + cal.writing)
        rounds = -(-count // (cal.block * workers))
        busy = cal.busy * (wall / cal.mean if cal.mean > 0 else 1.0)
        cores = max(workers, self.cores)
        return max(
            # the last round may have fewer windows than a block
            min(rounds * cal.block, count) * wall,
            count * (busy + cal.writing) / cores,
            count * cal.writing,
        )

    def seconds(
        self, workers: int | None = None, windows: int | None = None, window: float | None = None
    ) -> float:
        """Seconds of a whole run: start-up, the windows, and the final file.

        Parameters
        ----------
        workers : int, optional
            Those of the forecast by default.
        windows, window
            As for `running`.
        """
        workers = self.workers if workers is None else workers
        count = self.count.windows if windows is None else windows
        finishing = count * self.calibration.finishing
        return self.start_up(workers) + self.running(workers, count, window) + finishing

    def interval(self, workers: int | None = None) -> tuple[float, float]:
        """95 % intervals of the windows and of their time together, in seconds of the whole run.

        It knows how much windows differ, not how much machines do. NaN where the calibration has
        a single block.
        """
        low, high = self.calibration.interval
        if math.isnan(low):
            return math.nan, math.nan
        return (
            self.seconds(workers, self.count.low, low),
            self.seconds(workers, self.count.high, high),
        )

    @property
    def main_bytes(self) -> int:
        """Memory of the main process at its peak."""
        alone = self.own_bytes if self.workers == 1 else 0
        return WORKER_BYTES + self.model_bytes + self.text_bytes + alone

    @property
    def memory(self) -> int:
        """Memory of all processes, as if they were on one machine."""
        return self.main_bytes + (self.workers * self.worker_bytes if self.workers > 1 else 0)

    @property
    def folder_bytes(self) -> int:
        """Bytes on the disk of the working folder when all windows are in it."""
        cal = self.calibration
        return round(cal.folder_base + cal.folder_bytes * self.count.windows)

    @property
    def file_bytes(self) -> int:
        """Bytes of the final file."""
        return round(self.calibration.file_base + self.calibration.file_bytes * self.count.windows)

    @property
    def disk(self) -> int:
        """Bytes that the disk must have: a file is made while the working folder is still there."""
        return self.folder_bytes + (0 if self.format == "zarr" else self.file_bytes)

    @property
    def entries(self) -> int:
        """Files and folders of the working folder."""
        cal = self.calibration
        return round(cal.folder_base_entries + cal.folder_entries * self.count.windows)

    def notes(self) -> list[str]:
        """What a person should know before starting such a run."""
        said = []
        cal = self.calibration
        if self.memory > self.memory_free:
            said.append(
                "memory: more than is free here; use fewer workers or shorter windows"
                + (
                    ", or cut the text into many (--unit): its tokenizer takes each one whole"
                    if self.tokenised > 2 * PART and self.text_bytes > self.memory / 2
                    else ""
                )
            )
        if self.disk > self.disk_free:
            said.append("disk: more than is free; use another folder, or fewer windows or layers")
        if self.entries_free is not None and self.entries > self.entries_free:
            said.append("disk: more files and folders than it takes")
        if self.seconds() > LONG:
            said.append(
                "time: more than a month; a precision (--precision) needs far fewer windows"
            )
        if self.on_cpu and cal.mean > 1.25 * cal.busy:
            said.append(
                "this machine was busy meanwhile: a window took "
                f"{cal.mean / max(cal.busy, 1e-9):.1f} times its processor time"
            )
        if self.workers > self.cores:
            said.append(
                f"{self.workers} workers are taken to have a core each; there are {self.cores} here"
            )
        if len(cal.seconds) < 2:
            said.append("a single block of windows was timed: there is no interval")
        return said

    def as_dict(self) -> dict[str, Any]:
        """All figures, in seconds and bytes, as a dictionary that ``json.dumps`` takes."""
        cal = self.calibration
        measured = asdict(cal) | {
            "seconds": list(cal.seconds),
            "windows": cal.windows,
            "mean": cal.mean,
            "standard_error": cal.standard_error,
            "interval": list(cal.interval),
        }
        found = {
            "model": self.model,
            "corpus": self.corpus,
            "length": self.length,
            "workers": self.workers,
            "cores": self.cores,
            "format": self.format,
            "count": asdict(self.count),
            "calibration": measured,
            "loading": self.loading,
            "start_up": {"1": self.start_up(1), str(self.workers): self.start_up(self.workers)},
            "seconds": {"1": self.seconds(1), str(self.workers): self.seconds()},
            "interval": {"1": list(self.interval(1)), str(self.workers): list(self.interval())},
            "memory": {
                "main": self.main_bytes,
                "worker": self.worker_bytes,
                "windows_and_text": self.text_bytes,
                "all": self.memory,
                "free": self.memory_free,
            },
            "disk": {
                "working_folder": self.folder_bytes,
                "file": self.file_bytes,
                "at_once": self.disk,
                "free": self.disk_free,
                "entries": self.entries,
                "entries_free": self.entries_free,
            },
            "notes": self.notes(),
        }
        plain: dict[str, Any] = _without_nan(found)
        return plain


def forecast(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe,
    *,
    workers: int,
    tokens: int | None = None,
    calibrate: int | None = None,
    format: str = "nc",
    folder: str | os.PathLike[str] | None = None,
    loading: float | None = None,
) -> Forecast:
    """Say what a run of spectra would take, from a few of its windows.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
        A text of the kind; of a large one a sample is tokenised.
    recipe : Recipe
        With ``windows=None`` for all that there are.
    workers : int
        Worker processes of one thread each.
    tokens : int, optional
        Size of the corpus in tokens, instead of the given one's own.
    calibrate : int, optional
        Windows to time; as many as fit into about 12 seconds when left out.
    format : {"nc", "zarr"}
        Of the result.
    folder : path, optional
        Where it would lie; the calibration writes and removes a folder in it. The system's folder
        for such things by default.
    loading : float, optional
        Seconds that loading the model took.

    Returns
    -------
    Forecast

    Raises
    ------
    UsageError, TextError
        For numbers out of their range, and more windows than the corpus has.
    """
    if workers < 1:
        raise UsageError(f"{workers} workers cannot do any work", "use at least 1")
    if format not in ("nc", "zarr"):
        raise UsageError(f"no run is planned for the format {format!r}", "use nc or zarr")
    count, pieces = count_windows(corpus, model.tokenizer, recipe, tokens)
    place = None if folder is None else Path(folder)
    found = measure(model, pieces, recipe, windows=calibrate, format=format, folder=place)
    kind = "hash" if isinstance(model.tokenizer, HashTokenizer) else "library"
    # a character takes one, two or four bytes, as its text needs
    stored = sum(sys.getsizeof(text.text) for text in corpus.texts)
    wide = stored / sum(len(text.text) for text in corpus.texts)
    largest = max((text.text for text in corpus.texts), key=len)
    tokenised = count.longest
    if has_seams(model.tokenizer, largest):
        tokenised = min(tokenised, PART + CONTEXT)
    texts = round(count.characters * wide + tokenised * TOKENISING_BYTES[kind])
    own, weights = estimate(model, recipe, 1), weights_bytes(model)
    disk = shutil.disk_usage(place or ".")
    return Forecast(
        model=model.info.name,
        corpus=corpus.name,
        length=recipe.length,
        workers=workers,
        cores=usable_cores(),
        format=format,
        count=count,
        calibration=found,
        loading=loading,
        model_bytes=weights,
        worker_bytes=own + weights + WORKER_BYTES,
        own_bytes=own,
        tokenised=tokenised,
        text_bytes=texts + round(count.windows * found.window_bytes),
        memory_free=free_memory(),
        disk_free=disk.free,
        entries_free=_entries_free(place or Path()),
        on_cpu=model.model.device.type == "cpu",
    )


def _entries_free(folder: Path) -> int | None:
    """Files and folders that a file system still takes; None where it has no such limit."""
    ask = getattr(os, "statvfs", None)
    if ask is None:
        return None
    found = ask(folder)
    return int(found.f_favail) if found.f_files else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
