"""Commands about approximations: `truncate`, `compare`, `intervene`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankscope import tables, terminal
from rankscope.cli.options import (
    Loading,
    Model,
    OneCorpus,
    Running,
    TextChoice,
    WindowChoice,
    bundled,
    numbers_of,
)
from rankscope.cli.running import (
    check_folder,
    check_models,
    compute,
    cutting,
    load_corpora,
    load_model,
)
from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.approximations import Approximation

Methods = Annotated[
    list[str],
    typer.Option(
        "--method",
        "-M",
        help="NAME or NAME:PARAMETER=VALUE,…; repeatable. `rankscope methods` lists them.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", help="Budgets such as 32,64,128, for every method that leaves its own out."
    ),
]
OutFile = Annotated[Path, typer.Option("--out", "-o", help="File: .nc, .zarr, .csv or .parquet.")]
RanksOption = Annotated[
    str | None,
    typer.Option("--ranks", help="Ranks at which P_low is built: 16,32,64,128,256."),
]
HeadsOption = Annotated[
    str | None,
    typer.Option("--heads", help="Heads such as 0,3, or by layer 1.0,2.11; all when left out."),
]


def add_to(app: typer.Typer) -> None:
    """Give the commands of this file to the command line."""
    for command in (truncate, compare, intervene, methods):
        app.command()(command)


@bundled
def truncate(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    ranks: RanksOption = None,
    out: OutFile = Path("truncation.nc"),
) -> None:
    """Error of P_low for every rank k, layer and head: in the matrix and in the output P·V."""
    from rankscope.engine import TruncationPlan
    from rankscope.store.files import file_format
    from rankscope.summary.methods import summarise_truncation
    from rankscope.summary.rows import truncation_rows

    file_format(out)
    sampling = windows.sampling()
    chosen = None if ranks is None else numbers_of(ranks, "--ranks")
    options = text.options()
    check_models([model], loading, windows.length, running)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    loaded = load_model(model, loading, running)
    with cutting(one):
        plan = TruncationPlan(loaded, one, sampling, chosen)
    path = compute(plan, loaded, out, running)
    _show(
        path,
        lambda dataset: truncation_rows(summarise_truncation(dataset)),
        tables.truncation_table,
    )


@bundled
def compare(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    method: Methods = [  # noqa: B006 typer copies it
        "truncated",
        "best-output",
        "linformer",
        "mean-row",
        "uniform",
    ],
    at: At = "32,64,128,256",
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    spectral: Annotated[
        bool, typer.Option(help="Also the spectral error of the matrix, the dearest of them.")
    ] = True,
    out: OutFile = Path("comparison.nc"),
) -> None:
    """Errors of approximations, in the matrix and in the output, side by side at equal budget."""
    from rankscope.engine import ComparisonPlan
    from rankscope.store.files import file_format

    file_format(out)
    sampling = windows.sampling()
    chosen = methods_of(method, at)
    options = text.options()
    check_models([model], loading, windows.length, running)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    loaded = load_model(model, loading, running)
    with cutting(one):
        plan = ComparisonPlan(loaded, one, sampling, chosen, spectral)
    show_comparison(compute(plan, loaded, out, running))


@bundled
def intervene(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    method: Methods = [  # noqa: B006 typer copies it
        "truncated",
        "linformer",
        "uniform",
    ],
    at: At = "32,64,128,256",
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    heads: HeadsOption = None,
    mask_seed: Annotated[int, typer.Option("--mask-seed", help="Seed of the hidden tokens.")] = 0,
    fraction: Annotated[float, typer.Option("--fraction", help="Share of hidden tokens.")] = 0.15,
    pseudo: Annotated[
        int,
        typer.Option("--pseudo", help="Pseudo-perplexity from every so many-th token; slow."),
    ] = 0,
    out: OutFile = Path("intervention.nc"),
) -> None:
    """Loss of the model with its attention replaced; hidden states where it has no head."""
    from rankscope.engine import InterventionPlan
    from rankscope.engine.measure_losses import parsed_heads
    from rankscope.store.files import file_format

    file_format(out)
    sampling = windows.sampling()
    chosen = methods_of(method, at)
    places = None if heads is None else parsed_heads(heads)
    options = text.options()
    check_models([model], loading, windows.length, running)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    loaded = load_model(model, loading, running, head=True)
    if loaded.head is None:
        terminal.note(f"{loaded.info.name} has no language-model head: hidden states are compared")
    with cutting(one):
        plan = InterventionPlan(
            loaded,
            one,
            sampling,
            chosen,
            heads=places,
            mask_seed=mask_seed,
            fraction=fraction,
            pseudo=pseudo,
        )
    show_losses(compute(plan, loaded, out, running))


def methods() -> None:
    """Approximations that --method takes, with their parameters."""
    from rankscope.approximations import METHODS

    tables.methods_table(METHODS)


def methods_of(texts: list[str], at: str | None) -> list[Approximation]:
    """Methods from their texts; those that leave their budget out, once for every budget of `at`.

    Raises
    ------
    UsageError
    """
    from rankscope.approximations import METHODS
    from rankscope.approximations import method as parse

    budgets = () if at is None else numbers_of(at, "--at")
    found: list[Approximation] = []
    for text in texts:
        name, _, rest = text.strip().partition(":")
        kind = METHODS.get(name)
        given = {part.partition("=")[0].strip() for part in rest.split(",")}
        # a file of ranks, or of fitted projections, says how much it spends itself
        fixed = {"ranks", "file"} & given
        if kind is None or kind.budget is None or kind.budget in given or fixed or not budgets:
            found.append(parse(text))
            continue
        found += [
            parse(f"{name}:{kind.budget}={budget}{',' if rest else ''}{rest}") for budget in budgets
        ]
    if not found:
        raise UsageError("no method was given", "name one with --method")
    return list(dict.fromkeys(found))


def show_comparison(path: Path) -> None:
    """Table of a comparison; leaves with a status of its own when matrices could not be used."""
    from rankscope.summary.methods import summarise_methods
    from rankscope.summary.rows import method_rows

    _show(path, lambda dataset: method_rows(summarise_methods(dataset)), tables.method_table)


def show_losses(path: Path) -> None:
    """Table of a run of interventions; leaves as `show_comparison` does."""
    from rankscope.summary.losses import summarise_losses
    from rankscope.summary.rows import loss_rows

    _show(path, lambda dataset: loss_rows(summarise_losses(dataset)), tables.loss_table)


def _show(
    path: Path, rows_of: Callable[[xr.Dataset], list[Any]], table: Callable[[list[Any]], None]
) -> None:
    from rankscope.store.files import load

    terminal.note(f"data: {path}")
    with load(path, lazy=True) as dataset:
        rows = rows_of(dataset)
    table(rows)
    _leave_with_bad(rows[0].source.n_failed)


def _leave_with_bad(count: int) -> None:
    from rankscope.cli.running import BAD_HEADS

    if count:
        terminal.note("finished, but some matrices could not be used: see their status in the file")
        raise typer.Exit(BAD_HEADS)
