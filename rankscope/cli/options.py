"""Options that commands share, and how their words become settings.

Options that go together are a dataclass here; a command takes one as a parameter, and `bundled`
shows its fields to typer as options of the command.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    from rankscope.engine import Recipe, Resources, Sampling
    from rankscope.text import TextOptions


DEFAULT_WINDOWS = "8"
DEFAULT_CONTROLS = ("rows", "random")


class Mode(StrEnum):
    """How a corpus is cut into windows."""

    packed = "packed"
    document = "document"
    overlap = "overlap"


class Special(StrEnum):
    """What happens to special tokens."""

    keep = "keep"
    drop = "drop"
    renormalise = "renormalise"


class Driver(StrEnum):
    """How singular values are computed."""

    gram = "gram"
    svd = "svd"


class Kind(StrEnum):
    """What `plot` draws."""

    figure1 = "figure1"
    head = "head"
    spectra = "spectra"
    errors = "errors"
    losses = "losses"
    ranks = "ranks"


Models = Annotated[
    list[str],
    typer.Option(
        "--model", "-m", help="builtin, minilm, a folder, a hub id, random:NAME; repeatable."
    ),
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="builtin, minilm, a folder, a hub id or random:NAME.")
]
CorpusHelp = "builtin, wikitext103, imdb, or a text file, JSONL file or folder"
Corpora = Annotated[list[str], typer.Option("--corpus", "-c", help=f"{CorpusHelp}; repeatable.")]
OneCorpus = Annotated[str, typer.Option("--corpus", "-c", help=f"{CorpusHelp}.")]
Length = Annotated[
    int, typer.Option("--length", "-n", help="Tokens of a window, specials included.")
]
Windows = Annotated[
    str | None,
    typer.Option(
        "--windows", "-w", help="Number of windows, or 'all'; 8, or with a precision all."
    ),
]
Precision = Annotated[
    float | None,
    typer.Option(
        "--precision",
        help="Add windows until the 95 % intervals of the mean ratio at n/4, of all heads and of "
        "every layer, are narrower than this; --windows is then the most.",
    ),
]
Skip = Annotated[int, typer.Option("--skip", help="Leave out that many windows at the start.")]
ModeOption = Annotated[Mode, typer.Option("--mode", help="How the corpus is cut into windows.")]
Overlap = Annotated[
    int, typer.Option("--overlap", help="Tokens that neighbours share (mode overlap).")
]
SpecialOption = Annotated[
    Special, typer.Option("--special", help="Rows and columns of special tokens.")
]
Layers = Annotated[
    str | None, typer.Option("--layers", help="Layers such as 0,3,8-11; all when left out.")
]
Group = Annotated[
    str | None, typer.Option("--group", help="encoder, decoder or cross, for models with several.")
]
DriverOption = Annotated[Driver, typer.Option("--driver", help="Gram eigenvalues or LAPACK's SVD.")]
Centred = Annotated[
    bool, typer.Option("--centred", help="Also the spectrum of P less its mean row.")
]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, float64, float16 or bfloat16.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 …")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of random weights.")]
Controls = Annotated[
    str | None,
    typer.Option(
        "--controls",
        help="Also what chance alone gives, on the same windows: rows, gaussian, tokens, random, "
        "padded-L, mean-M, separated by commas; 'default' for rows,random.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-j", help="Worker processes, each with the model; this process when left out."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="Threads of each worker; 1 when --workers is given, otherwise one for every core.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of a Dask scheduler whose workers do the work."),
]
Memory = Annotated[
    int | None,
    typer.Option("--memory-limit", help="MiB beside the model; what is free when left out."),
]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Another tokenizer.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Go on with weights that the checkpoint lacks.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results of other settings.")]
Unit = Annotated[str, typer.Option("--unit", help="One text is a: file, line, paragraph, article.")]
Headings = Annotated[str, typer.Option("--headings", help="WikiText headings: keep or drop.")]
Marks = Annotated[str, typer.Option("--marks", help="WikiText's @-@ and the like: keep or join.")]
Breaks = Annotated[str, typer.Option("--breaks", help="<br />: keep, newline or space.")]
Field = Annotated[str, typer.Option("--field", help="Field of a JSONL record that holds the text.")]
Split = Annotated[str, typer.Option("--split", help="Split of a hub data set.")]


@dataclass
class WindowChoice:
    """Windows and layers."""

    length: Length = 512
    windows: Windows = None
    skip: Skip = 0
    mode: ModeOption = Mode.packed
    overlap: Overlap = 0
    special: SpecialOption = Special.keep
    layers: Layers = None
    group: Group = None

    def _fields(self) -> dict[str, Any]:
        windows = self.windows or DEFAULT_WINDOWS
        if windows != "all" and not re.fullmatch(r"[1-9]\d*", windows):
            raise UsageError(f"--windows {windows!r} is no number of windows", "1, 2, … or 'all'")
        if self.group not in (None, "encoder", "decoder", "cross"):
            raise UsageError(f"--group {self.group!r}", "encoder, decoder or cross")
        return dict(
            length=self.length,
            windows=None if windows == "all" else int(windows),
            skip=self.skip,
            mode=self.mode.value,
            overlap=self.overlap,
            special=self.special.value,
            group=self.group,
            layers=None if self.layers is None else numbers_of(self.layers, "--layers"),
        )

    def sampling(self) -> Sampling:
        """Which windows and layers a run takes."""
        from rankscope.engine import Sampling

        return Sampling(**self._fields())

    def recipe(self, driver: Driver, centred: bool, precision: float | None = None) -> Recipe:
        """The same, with how spectra are computed."""
        from rankscope.engine import Recipe

        chosen = self._fields()
        if precision is not None and self.windows is None:
            chosen["windows"] = None
        return Recipe(**chosen, driver=driver.value, centred=centred, precision=precision)


@dataclass
class Loading:
    """How a model is loaded."""

    dtype: Dtype = "float32"
    device: Device = "auto"
    seed: Seed = 0
    tokenizer: Tokenizer = None
    allow_missing: AllowMissing = False

    def arguments(self) -> dict[str, Any]:
        """Arguments of `rankscope.models.load` and, less `allow_missing`, of its `check`."""
        return dict(
            dtype=self.dtype,
            device=_device_of(self.device),
            seed=self.seed,
            tokenizer=self.tokenizer,
        )


@dataclass
class TextChoice:
    """How the texts of a corpus are read."""

    unit: Unit = "file"
    headings: Headings = "keep"
    marks: Marks = "keep"
    breaks: Breaks = "keep"
    field: Field = "text"
    split: Split = "test"

    def options(self) -> TextOptions:
        """The same for `rankscope.text`."""
        from rankscope.text import TextOptions

        return TextOptions(**asdict(self))


@dataclass
class Running:
    """How a run goes about it; none of it changes the result."""

    workers: Workers = None
    threads: Threads = None
    scheduler: Scheduler = None
    memory_limit: Memory = None
    overwrite: Overwrite = False

    def resources(self) -> Resources:
        """Workers and threads, or a cluster.

        Raises
        ------
        UsageError
        """
        from rankscope.engine import Resources
        from rankscope.engine.machine import usable_cores

        own = self.workers is None and self.scheduler is None
        threads = self.threads if self.threads is not None else usable_cores() if own else 1
        if self.scheduler is not None and self.workers is not None:
            raise UsageError(
                "a cluster has its own workers", "give --workers or --scheduler, not both"
            )
        return Resources(
            workers=self.workers if self.workers is not None else 1,
            threads=threads,
            scheduler=self.scheduler,
        )


def control_names(text: str | None) -> tuple[str, ...]:
    """Names of controls from their list.

    Raises
    ------
    UsageError
    """
    if text is None:
        return ()
    names = DEFAULT_CONTROLS if text == "default" else tuple(text.split(","))
    known = ("rows", "gaussian", "tokens", "random")
    for name in (name.strip() for name in names):
        if name not in known and not re.fullmatch(r"(padded|mean)-[1-9]\d*", name):
            raise UsageError(
                f"--controls {text!r}: there is no control {name!r}",
                f"one or more of {', '.join(known)}, padded-L such as padded-128, mean-M such as "
                "mean-8, or default",
            )
    return tuple(dict.fromkeys(name.strip() for name in names))


def bundled(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show typer the fields of every parameter that is a dataclass as options of the command."""
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        bundles[name] = hints[name]
        inner = get_type_hints(hints[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=inner[field.name],
            )
            for field in fields(hints[name])
        ]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        return command(**given)

    # keyword-only parameters come last in a signature, and so in the help
    ordered = sorted(parameters, key=lambda one: one.kind is inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in ordered}
    return run


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """``0,3,8-11`` as numbers, ascending.

    Raises
    ------
    UsageError
    """
    numbers: set[int] = set()
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if bounds is None:
            raise UsageError(f"{option} {text!r} is no list of numbers", "for example 0,3,8-11")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first:
            raise UsageError(f"{option} {text!r}: {part.strip()} runs backwards")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def _device_of(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
