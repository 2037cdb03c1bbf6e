"""The command `report`: a run as one HTML file for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope import terminal
from rankscope.cli.running import check_folder
from rankscope.exceptions import StoreError, UsageError

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.report import Pictures


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Runs of spectra; beside them their controls, truncations and comparisons."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file; beside the first run when left out."),
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option(help="Draw P of every head for one window, with the model loaded again."),
    ] = True,
    sample: Annotated[int, typer.Option("--sample", help="Window whose P is drawn.")] = 0,
) -> None:
    """An explorer of every head as one HTML file that needs no network."""
    from contextlib import ExitStack

    from rankscope.report import check_report, write_report
    from rankscope.store.files import load

    target = check_report(out or sources[0].with_suffix(".html"))
    check_folder(target.parent)
    with ExitStack() as open_files:
        spectra: list[xr.Dataset] = []
        controls: list[xr.Dataset] = []
        errors: list[xr.Dataset] = []
        for path in sources:
            dataset = open_files.enter_context(load(path, lazy=True))
            _place(path, dataset, spectra, controls, errors)
        if not spectra:
            raise UsageError(
                "none of the files holds the spectra of a model",
                "give a result of `rankscope spectra`",
            )
        drawn = [_pictures(one, sample) for one in spectra] if pictures else []
        with terminal.working(f"writing {target}"):
            write_report(target, spectra, errors=errors, pictures=drawn, controls=controls)
    terminal.note(f"wrote {target} ({target.stat().st_size / 2**20:.1f} MiB)")


def _place(
    path: Path,
    dataset: xr.Dataset,
    spectra: list[xr.Dataset],
    controls: list[xr.Dataset],
    errors: list[xr.Dataset],
) -> None:
    """Put a file among those of its kind."""
    from rankscope.labels import control_of

    if {"output_error", "output"} & {*dataset.data_vars}:
        errors.append(dataset)
    elif {"cumulative_ratio", "mean_ratio"} & {*dataset.data_vars}:
        names = [str(name) for name in dataset["model"].to_numpy()]
        is_control = all(control_of(name)[0] for name in names)
        # random weights that stand alone are what is to be looked at
        (controls if is_control and spectra else spectra).append(dataset)
    else:
        raise StoreError(
            f"{path} holds neither spectra nor errors",
            "give results of `rankscope spectra`, `truncate` or `compare`, the measured run first",
        )


def _pictures(run: xr.Dataset, sample: int) -> Pictures:
    from rankscope.report import pictures
    from rankscope.revisit import window_of

    if "sample" not in run.dims:
        raise UsageError(
            "a summary does not say which window P could be drawn of", "use --no-pictures"
        )
    try:
        again = window_of(run, sample)
    except (StoreError, UsageError) as error:
        raise type(error)(error.cause, f"{error.remedy}; or use --no-pictures") from error
    with terminal.working(f"P of {again.model.info.name}, window {sample}"):
        return pictures(
            again.model,
            again.window,
            corpus=again.corpus.name,
            layers=run["layer"].to_numpy().tolist(),
            group=again.recipe["group"],
            special=again.recipe["special"],
        )
