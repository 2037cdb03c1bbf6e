"""Options that commands share, and how their words become recipes."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    from rankscope.engine import Recipe
    from rankscope.text import TextOptions


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
Windows = Annotated[str, typer.Option("--windows", "-w", help="Number of windows, or 'all'.")]
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
Workers = Annotated[
    int | None, typer.Option("--workers", "-j", help="Threads; one for every core when left out.")
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


def recipe_of(
    length: int,
    windows: str,
    mode: Mode,
    overlap: int,
    special: Special,
    layers: str | None,
    group: str | None,
    driver: Driver,
    centred: bool,
) -> Recipe:
    from rankscope.engine import Recipe

    if windows != "all" and not re.fullmatch(r"[1-9]\d*", windows):
        raise UsageError(f"--windows {windows!r} is no number of windows", "1, 2, … or 'all'")
    if group not in (None, "encoder", "decoder", "cross"):
        raise UsageError(f"--group {group!r}", "encoder, decoder or cross")
    return Recipe(
        length=length,
        windows=None if windows == "all" else int(windows),
        mode=mode.value,
        overlap=overlap,
        special=special.value,
        group=group,
        layers=None if layers is None else _numbers(layers),
        driver=driver.value,
        centred=centred,
    )


def _numbers(text: str) -> tuple[int, ...]:
    """``0,3,8-11`` as numbers."""
    numbers: set[int] = set()
    for part in text.split(","):
        bounds = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if bounds is None:
            raise UsageError(f"--layers {text!r} is no list of layers", "for example 0,3,8-11")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first:
            raise UsageError(f"--layers {text!r}: {part.strip()} runs backwards")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def text_options_of(
    unit: str, headings: str, marks: str, breaks: str, field: str, split: str
) -> TextOptions:
    from rankscope.text import TextOptions

    return TextOptions(
        unit=unit, headings=headings, marks=marks, breaks=breaks, field=field, split=split
    )


def device_of(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
