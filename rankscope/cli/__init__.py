"""The command `rankscope`: every option is checked before the long work starts.

Nothing heavy is imported before a command needs it, so that ``rankscope --help`` is quick.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rankscope import __version__, terminal
from rankscope.cli.drawing import draw_figure1, plot, spectra_summaries
from rankscope.cli.linformer import linformer
from rankscope.cli.methods import add_to
from rankscope.cli.options import (
    Centred,
    Corpora,
    Driver,
    DriverOption,
    Loading,
    Model,
    Models,
    OneCorpus,
    Precision,
    Running,
    TextChoice,
    WindowChoice,
    bundled,
)
from rankscope.cli.ranks import choose_rank
from rankscope.cli.running import (
    BAD_HEADS,
    TOO_SHORT,
    check_folder,
    check_models,
    compute,
    load_corpora,
    load_model,
    precision_reached,
    slug,
)
from rankscope.exceptions import RankscopeError

app = typer.Typer(
    name="rankscope",
    help="Spectral analysis of attention: singular values of every head, low-rank plots, ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
@bundled
def figure1(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    model: Models = ["builtin"],  # noqa: B006 typer copies it
    corpus: Corpora = ["builtin"],  # noqa: B006
    driver: DriverOption = Driver.gram,
    precision: Precision = None,
    control: Annotated[
        bool, typer.Option(help="Draw the same architecture with random weights beside it.")
    ] = True,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder.")] = Path("rankscope-out"),
) -> None:
    """Linformer's Figure 1 for your model: mean curves, layer × head map, random-weight control."""
    from rankscope.engine import SpectraPlan
    from rankscope.plots import check_panels

    recipe = windows.recipe(driver, False, precision)
    options = text.options()
    names = list(dict.fromkeys(model))
    if control:
        names += [f"random:{name}" for name in names if not name.startswith("random:")]
        names = list(dict.fromkeys(names))
    check_panels(len(set(model)), len(set(corpus)) * (2 if control else 1))
    check_models(names, loading, windows.length, running)
    check_folder(out)
    corpora = load_corpora(corpus, options)
    runs = []
    for name in names:
        loaded = load_model(name, loading, running)
        for one in corpora:
            target = out / f"{slug(loaded.info.name)}--{slug(one.name)}.nc"
            runs.append(compute(SpectraPlan(loaded, one, recipe), loaded, target, running))
        del loaded
    draw_figure1(runs, [out / "figure1.png", out / "figure1.svg"])
    _finish(runs)


@app.command()
@bundled
def spectra(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    driver: DriverOption = Driver.gram,
    centred: Centred = False,
    precision: Precision = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File: .nc, .zarr, .csv or .parquet.")
    ] = Path("spectra.nc"),
) -> None:
    """Singular values and both ratios of every window, layer and head, into one file."""
    from rankscope.engine import SpectraPlan
    from rankscope.store.files import file_format

    file_format(out)
    recipe = windows.recipe(driver, centred, precision)
    options = text.options()
    check_models([model], loading, windows.length, running)
    check_folder(out.parent)
    corpora = load_corpora([corpus], options)
    loaded = load_model(model, loading, running)
    _finish([compute(SpectraPlan(loaded, corpora[0], recipe), loaded, out, running)])


add_to(app)
app.command()(choose_rank)
app.command()(plot)
app.add_typer(linformer, name="linformer")


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


def _finish(runs: list[Path]) -> None:
    from rankscope.summary import table

    rows = table(spectra_summaries(runs))
    terminal.note("data: " + ", ".join(map(str, runs)))
    terminal.summary_table(rows)
    short = [run for run in runs if not precision_reached(run)]
    for run in short:
        terminal.note(
            f"{run}: the text ended before the intervals were as narrow as was asked for; "
            "give more text, or allow more windows"
        )
    if any(row.n_failed for row in rows):
        terminal.note("finished, but some matrices have no spectrum: see their status in the file")
        raise typer.Exit(BAD_HEADS)
    if short:
        raise typer.Exit(TOO_SHORT)
