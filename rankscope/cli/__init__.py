"""The command `rankscope`: every option is checked before the long work starts.

Nothing heavy is imported before a command needs it, so that ``rankscope --help`` is quick.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankscope import __version__, terminal
from rankscope.cli.options import (
    AllowMissing,
    Breaks,
    Centred,
    Corpora,
    Device,
    Driver,
    DriverOption,
    Dtype,
    Field,
    Group,
    Headings,
    Kind,
    Layers,
    Length,
    Marks,
    Memory,
    Mode,
    Model,
    Models,
    ModeOption,
    OneCorpus,
    Overlap,
    Overwrite,
    Seed,
    Special,
    SpecialOption,
    Split,
    Tokenizer,
    Unit,
    Windows,
    Workers,
    device_of,
    recipe_of,
    text_options_of,
)
from rankscope.exceptions import RankscopeError, UsageError

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.engine import Recipe
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus

BAD_HEADS = 7
"""Exit status of a run that finished, but with matrices that have no spectrum."""

INTERRUPTED = 130

app = typer.Typer(
    name="rankscope",
    help="Spectral analysis of attention: singular values of every head, low-rank plots, ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def figure1(
    model: Models = ["builtin"],  # noqa: B006 typer copies it
    corpus: Corpora = ["builtin"],  # noqa: B006
    length: Length = 512,
    windows: Windows = "8",
    mode: ModeOption = Mode.packed,
    overlap: Overlap = 0,
    special: SpecialOption = Special.keep,
    layers: Layers = None,
    group: Group = None,
    driver: DriverOption = Driver.gram,
    dtype: Dtype = "float32",
    device: Device = "auto",
    seed: Seed = 0,
    workers: Workers = None,
    memory_limit: Memory = None,
    tokenizer: Tokenizer = None,
    allow_missing: AllowMissing = False,
    unit: Unit = "file",
    headings: Headings = "keep",
    marks: Marks = "keep",
    breaks: Breaks = "keep",
    field: Field = "text",
    split: Split = "test",
    control: Annotated[
        bool, typer.Option(help="Draw the same architecture with random weights beside it.")
    ] = True,
    overwrite: Overwrite = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder.")] = Path("rankscope-out"),
) -> None:
    """Linformer's Figure 1 for your model: mean curves, layer × head map, random-weight control."""
    from rankscope.plots import check_panels

    recipe = recipe_of(length, windows, mode, overlap, special, layers, group, driver, False)
    text = text_options_of(unit, headings, marks, breaks, field, split)
    names = list(dict.fromkeys(model))
    if control:
        names += [f"random:{name}" for name in names if not name.startswith("random:")]
        names = list(dict.fromkeys(names))
    check_panels(len(set(model)), len(set(corpus)) * (2 if control else 1))
    loading = dict(dtype=dtype, device=device_of(device), seed=seed, tokenizer=tokenizer)
    _check_models(names, loading, length)
    _check_folder(out)
    corpora = _load_corpora(corpus, text)
    runs = []
    for name in names:
        loaded = _load(name, loading, allow_missing)
        for one in corpora:
            target = out / f"{_slug(loaded.info.name)}--{_slug(one.name)}.nc"
            runs.append(_run(loaded, one, recipe, target, workers, memory_limit, overwrite))
        del loaded
    _draw_figure1(runs, [out / "figure1.png", out / "figure1.svg"])
    _finish(runs)


@app.command()
def spectra(
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    length: Length = 512,
    windows: Windows = "8",
    mode: ModeOption = Mode.packed,
    overlap: Overlap = 0,
    special: SpecialOption = Special.keep,
    layers: Layers = None,
    group: Group = None,
    driver: DriverOption = Driver.gram,
    centred: Centred = False,
    dtype: Dtype = "float32",
    device: Device = "auto",
    seed: Seed = 0,
    workers: Workers = None,
    memory_limit: Memory = None,
    tokenizer: Tokenizer = None,
    allow_missing: AllowMissing = False,
    unit: Unit = "file",
    headings: Headings = "keep",
    marks: Marks = "keep",
    breaks: Breaks = "keep",
    field: Field = "text",
    split: Split = "test",
    overwrite: Overwrite = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File: .nc, .zarr, .csv or .parquet.")
    ] = Path("spectra.nc"),
) -> None:
    """Singular values and both ratios of every window, layer and head, into one file."""
    from rankscope.store.files import file_format

    file_format(out)
    recipe = recipe_of(length, windows, mode, overlap, special, layers, group, driver, centred)
    text = text_options_of(unit, headings, marks, breaks, field, split)
    loading = dict(dtype=dtype, device=device_of(device), seed=seed, tokenizer=tokenizer)
    _check_models([model], loading, length)
    _check_folder(out.parent)
    corpora = _load_corpora([corpus], text)
    loaded = _load(model, loading, allow_missing)
    _finish([_run(loaded, corpora[0], recipe, out, workers, memory_limit, overwrite)])


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A result of rankscope.")],
    target: Annotated[Path, typer.Argument(help="New file: .nc, .zarr, .csv or .parquet.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the target.")] = False,
) -> None:
    """Write a result in another format; it reads back identically."""
    from rankscope.store.files import check_target, load
    from rankscope.store.files import export as write

    with load(source, lazy=True) as dataset:
        check_target(target, attrs=dataset.attrs, overwrite=overwrite)
        path = write(dataset, target, overwrite=overwrite)
    terminal.note(f"wrote {path}")


@app.command()
def plot(
    sources: Annotated[list[Path], typer.Argument(help="Results of rankscope spectra or figure1.")],
    kind: Annotated[Kind, typer.Option("--kind", "-k", help="What to draw.")] = Kind.figure1,
    quantity: Annotated[
        str, typer.Option("--quantity", help="cumulative (σ) or energy (σ²), for figure1.")
    ] = "cumulative",
    layer: Annotated[int, typer.Option("--layer", help="For --kind head.")] = 0,
    head: Annotated[int, typer.Option("--head", help="For --kind head.")] = 0,
    sample: Annotated[int, typer.Option("--sample", help="Window, for head and spectra.")] = 0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Picture: .png or .svg; .pdf works too.")
    ] = Path("figure.png"),
) -> None:
    """Draw stored results: Figure 1, one head with its matrix, or the spectra of all heads."""
    from rankscope import plots
    from rankscope.store.files import load

    plots.check_picture(out)
    _check_folder(out.parent)
    if kind is Kind.figure1:
        _draw_figure1(sources, [out], quantity)
        return
    if len(sources) != 1:
        raise UsageError(f"{kind.value} is drawn from one file", f"{len(sources)} were given")
    dataset = load(sources[0])
    if kind is Kind.head:
        from rankscope.revisit import head_of

        found = head_of(dataset, sample=sample, layer=layer, head=head)
        figure = plots.head_figure(found.matrix, found.singular_values, title=found.title)
        paths = plots.save(figure, out)
    else:
        paths = plots.save_pages(plots.head_grid(dataset, sample=sample), out)
    terminal.note("wrote " + ", ".join(map(str, paths)))


@app.command()
def models() -> None:
    """Models that are known by name, and the families whose attention can be captured."""
    from rankscope.capture.roads import HOOKED, REFUSED
    from rankscope.models import known_models

    terminal.model_table(known_models())
    terminal.out.print(
        "Any folder or hub id of a family that uses transformers' attention interface can be "
        f"captured, and by hooks: {', '.join(HOOKED)}."
    )
    terminal.out.print("Not captured:")
    for family, reason in REFUSED.items():
        terminal.out.print(f"  {family}: {reason}", markup=False)


def main() -> None:
    """Entry point: errors that a user can mend end with cause, remedy and their own exit status."""
    try:
        app()
    except RankscopeError as error:
        terminal.fail(error)
        sys.exit(error.exit_code)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        terminal.out.print(__version__)
        raise typer.Exit


def _check_models(names: list[str], loading: dict[str, Any], length: int) -> None:
    from rankscope.models import check, check_length

    for name in names:
        check_length(check(name, **loading), length)


def _check_folder(folder: Path) -> None:
    from rankscope.exceptions import StoreError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be made: {error.strerror}", "choose another --out"
        ) from error
    if not os.access(folder, os.W_OK):
        raise StoreError(f"the folder {folder} cannot be written", "choose another --out")


def _load_corpora(specs: list[str], options: Any) -> list[Corpus]:
    from rankscope.text import load_corpus

    corpora = [load_corpus(spec, options) for spec in dict.fromkeys(specs)]
    names = [corpus.name for corpus in corpora]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise UsageError(
            f"two corpora have the name {', '.join(doubled)}", "rename one of the files"
        )
    for corpus in corpora:
        for remark in corpus.notes:
            terminal.note(f"{corpus.name}: {remark}")
    return corpora


def _load(name: str, loading: dict[str, Any], allow_missing: bool) -> LoadedModel:
    from rankscope import linalg
    from rankscope.engine.machine import return_freed_memory
    from rankscope.models import load

    return_freed_memory()
    linalg.warm_up()
    return load(name, allow_missing=allow_missing, **loading)


def _run(
    model: LoadedModel,
    corpus: Corpus,
    recipe: Recipe,
    target: Path,
    workers: int | None,
    memory_limit: int | None,
    overwrite: bool,
) -> Path:
    from rankscope import engine
    from rankscope.engine.machine import usable_cores
    from rankscope.store import working_path

    workers = workers if workers is not None else usable_cores()
    label = f"{model.info.name} on {corpus.name}"
    limit = engine.free_memory() if memory_limit is None else memory_limit * 2**20
    needed = engine.estimate(model, recipe, workers)
    terminal.note(f"{label}: about {max(1, needed >> 20)} MiB beside the model")
    try:
        with terminal.progress(label) as progress:
            return engine.run(
                model,
                corpus,
                recipe,
                target,
                workers=workers,
                progress=progress,
                overwrite=overwrite,
                memory_limit=limit,
            )
    except KeyboardInterrupt:
        folder = working_path(target)
        terminal.note(f"stopped; the same command goes on from {folder}")
        raise typer.Exit(INTERRUPTED) from None


def _summaries(paths: list[Path]) -> list[xr.Dataset]:
    from rankscope.store.files import load
    from rankscope.summary import combine, summarise

    parts = []
    for path in paths:
        with load(path, lazy=True) as dataset:
            parts.append(summarise(dataset) if "sample" in dataset.dims else dataset.load())
    return combine(parts)


def _draw_figure1(sources: list[Path], targets: list[Path], quantity: str = "cumulative") -> None:
    from rankscope import plots

    plots.check_quantity(quantity)
    figure = plots.figure1(_summaries(sources), quantity=quantity)  # type: ignore[arg-type]
    paths = [path for target in targets for path in plots.save(figure, target)]
    terminal.note("wrote " + ", ".join(map(str, paths)))


def _finish(runs: list[Path]) -> None:
    from rankscope.summary import table

    rows = table(_summaries(runs))
    terminal.note("data: " + ", ".join(map(str, runs)))
    terminal.summary_table(rows)
    if any(row.n_bad for row in rows):
        terminal.note("finished, but some matrices have no spectrum: see their status in the file")
        raise typer.Exit(BAD_HEADS)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "unnamed"
