"""The command `plot`: pictures of stored results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankscope import terminal
from rankscope.cli.options import Kind
from rankscope.cli.running import check_folder
from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.summary.differences import Difference


def plot(
    sources: Annotated[list[Path], typer.Argument(help="Results of rankscope.")],
    kind: Annotated[
        Kind | None,
        typer.Option("--kind", "-k", help="What to draw; what suits the first file if left out."),
    ] = None,
    quantity: Annotated[
        str, typer.Option("--quantity", help="cumulative (σ) or energy (σ²), for figure1.")
    ] = "cumulative",
    measure: Annotated[
        str, typer.Option("--measure", help="output, frobenius, spectral, …, for errors.")
    ] = "output",
    layer: Annotated[int, typer.Option("--layer", help="For --kind head.")] = 0,
    head: Annotated[int, typer.Option("--head", help="For --kind head.")] = 0,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample", help="Window, for head and spectra; the first, with a token for head."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Picture: .png or .svg; .pdf works too.")
    ] = Path("figure.png"),
) -> None:
    """Draw stored results: Figure 1, one head, all spectra, errors or losses over k, ranks."""
    from rankscope import plots

    plots.check_picture(out)
    check_folder(out.parent)
    chosen = kind or _suitable(sources[0])
    if chosen is Kind.figure1:
        draw_figure1(sources, [out], quantity)
        return
    if chosen is not Kind.errors and len(sources) != 1:
        raise UsageError(f"{chosen.value} is drawn from one file", f"{len(sources)} were given")
    if chosen is Kind.spectra:
        from rankscope.store.files import load

        paths = plots.save_pages(plots.head_grid(load(sources[0]), sample=sample or 0), out)
    else:
        paths = plots.save(_figure(chosen, sources, measure, (sample, layer, head)), out)
    terminal.note("wrote " + ", ".join(map(str, paths)))


def draw_figure1(
    sources: list[Path],
    targets: list[Path],
    quantity: str = "cumulative",
    differences: Sequence[Difference] = (),
) -> None:
    """Figure 1 of stored spectra, into every target, with known differences to controls."""
    from rankscope import plots

    plots.check_quantity(quantity)
    parts = spectra_summaries(sources)
    known = {(one.name, one.corpus): one.attrs() for one in differences}
    parts = [
        part.assign_attrs(known.get((str(part["model"].item()), str(part["corpus"].item())), {}))
        for part in parts
    ]
    figure = plots.figure1(parts, quantity=quantity)  # type: ignore[arg-type]
    paths = [path for target in targets for path in plots.save(figure, target)]
    terminal.note("wrote " + ", ".join(map(str, paths)))


def spectra_summaries(paths: list[Path]) -> list[xr.Dataset]:
    """Averages of stored spectra, or of files that are averages already."""
    from rankscope.store.files import load
    from rankscope.summary import combine, summarise

    parts = []
    for path in paths:
        with load(path, lazy=True) as dataset:
            parts.append(summarise(dataset) if "sample" in dataset.dims else dataset.load())
    return combine(parts)


def _figure(
    kind: Kind, sources: list[Path], measure: str, place: tuple[int | None, int, int]
) -> Any:
    from rankscope import plots
    from rankscope.approximations import read_ranks
    from rankscope.revisit import head_of
    from rankscope.store.files import load
    from rankscope.summary.losses import summarise_losses

    if kind is Kind.ranks:
        ranks = read_ranks(sources[0])
        title = f"{ranks.model}: Σk = {ranks.total}"
        return plots.rank_map(ranks.ranks, title=title, layers=ranks.layers)
    if kind is Kind.errors:
        return _errors(sources, measure)
    if kind is Kind.losses:
        with load(sources[0], lazy=True) as dataset:
            return plots.loss_over_rank(summarise_losses(dataset))
    sample, layer, head = place
    found = head_of(load(sources[0]), sample=sample, layer=layer, head=head)
    return plots.head_figure(found.matrix, found.singular_values, title=found.title)


def _errors(sources: list[Path], measure: str) -> Any:
    """Errors over k of comparisons, and of one run of truncations at every k."""
    from rankscope import plots
    from rankscope.store.files import load
    from rankscope.summary.methods import summarise_methods, summarise_truncation

    truncations, comparisons = [], []
    for path in sources:
        with load(path, lazy=True) as dataset:
            if "output_error" in dataset:
                truncations.append(summarise_truncation(dataset))
            else:
                comparisons.append(summarise_methods(dataset))
    if len(truncations) > 1:
        raise UsageError("errors are drawn from one run of truncations", "leave the others out")
    return plots.error_over_rank(comparisons, *truncations, measure=measure)


def _suitable(path: Path) -> Kind:
    """What can be drawn of a file, by what is in it."""
    from rankscope.store.files import load

    if path.suffix == ".json":
        return Kind.ranks
    with load(path, lazy=True) as dataset:
        if "loss" in dataset:
            return Kind.losses
        return Kind.errors if {"output", "output_error"} & set(dataset) else Kind.figure1
