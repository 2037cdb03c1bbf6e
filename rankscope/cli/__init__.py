"""The command `rankscope`: every option is checked before the long work starts.

Nothing heavy is imported before a command needs it, so that ``rankscope --help`` is quick.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rankscope import __version__, terminal
from rankscope.cli.drawing import plot
from rankscope.cli.linformer import linformer
from rankscope.cli.measuring import figure1, spectra
from rankscope.cli.methods import add_to
from rankscope.cli.planning import plan
from rankscope.cli.ranks import choose_rank
from rankscope.cli.reporting import report
from rankscope.exceptions import RankscopeError

app = typer.Typer(
    name="rankscope",
    help="Spectral analysis of attention: singular values of every head, low-rank plots, ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.command()(figure1)
app.command()(spectra)
add_to(app)
app.command()(choose_rank)
app.command()(plot)
app.command()(plan)
app.command()(report)
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
