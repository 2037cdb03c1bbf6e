"""The command `report`: a run as one HTML file for the browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope import terminal
from rankscope.cli.running import check_folder
from rankscope.exceptions import RankscopeError, StoreError, UsageError

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.report import Pictures

    Read = tuple[Path, xr.Dataset]


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Runs of spectra; beside them their controls, truncations and comparisons."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file; beside the measured run when left out."),
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option(help="Draw P of every head for one window, with the model loaded again."),
    ] = True,
    sample: Annotated[
        int | None,
        typer.Option("--sample", help="Window whose P is drawn; the first with a token."),
    ] = None,
) -> None:
    """An explorer of every head as one HTML file that needs no network."""
    from contextlib import ExitStack

    from rankscope.report import check_report, write_report
    from rankscope.revisit import check_window
    from rankscope.store.files import load

    if out is not None:
        check_folder(check_report(out).parent)
    with ExitStack() as open_files:
        read = [(path, open_files.enter_context(load(path, lazy=True))) for path in sources]
        spectra, controls, errors = _sorted(read)
        target = out or check_report(spectra[0][0].with_suffix(".html"))
        check_folder(target.parent)
        runs = [run for _, run in spectra]
        if pictures and sample is not None:
            for run in (one for one in runs if "sample" in one.dims):
                check_window(run, sample)
        drawn = [one for run in runs if pictures and (one := _pictures(run, sample))]
        with terminal.working(f"writing {target}"):
            write_report(
                target,
                runs,
                errors=[run for _, run in errors],
                pictures=drawn,
                controls=[run for _, run in controls],
            )
    terminal.note(f"wrote {target} ({target.stat().st_size / 2**20:.1f} MiB)")


def _sorted(read: Sequence[Read]) -> tuple[list[Read], list[Read], list[Read]]:
    """The spectra, the controls and the errors, whatever order they were given in.

    Raises
    ------
    StoreError, UsageError
        If a file is none of these, or there are no spectra.
    """
    from rankscope.labels import control_of

    spectra: list[Read] = []
    controls: list[Read] = []
    errors: list[Read] = []
    for path, dataset in read:
        if {"output_error", "output"} & {*dataset.data_vars}:
            errors.append((path, dataset))
        elif {"cumulative_ratio", "mean_ratio"} & {*dataset.data_vars}:
            is_control = all(control_of(name)[0] for name in _models(dataset))
            (controls if is_control else spectra).append((path, dataset))
        else:
            raise StoreError(
                f"{path} holds neither spectra nor errors",
                "give results of `rankscope spectra`, `truncate` or `compare`",
            )
    if not spectra:
        # what is a control of nothing given, as random weights alone may be, is to be looked at
        given = {name for _, one in controls for name in _models(one)}
        beside = [any(control_of(name)[1] in given for name in _models(one)) for _, one in controls]
        spectra = [one for one, is_beside in zip(controls, beside, strict=True) if not is_beside]
        controls = [one for one, is_beside in zip(controls, beside, strict=True) if is_beside]
    if not spectra:
        raise UsageError(
            "none of the files holds the spectra of a model",
            "give a result of `rankscope spectra`",
        )
    return spectra, controls, errors


def _models(dataset: xr.Dataset) -> list[str]:
    return [str(name) for name in dataset["model"].to_numpy().ravel()]


def _pictures(run: xr.Dataset, sample: int | None) -> Pictures | None:
    """P of every head, or a remark why there is none: the page is worth having without."""
    from rankscope.report import pictures
    from rankscope.revisit import first_window, window_of

    try:
        if "sample" not in run.dims:
            raise UsageError("a summary does not say of which window", "give the run itself")
        chosen = first_window(run) if sample is None else sample
        again = window_of(run, chosen)
        with terminal.working(f"P of {again.model.info.name}, window {chosen}"):
            return pictures(
                again.model,
                again.window,
                corpus=again.corpus.name,
                layers=run["layer"].to_numpy().tolist(),
                group=again.recipe["group"],
                special=again.recipe["special"],
            )
    except RankscopeError as error:
        name = ", ".join(_models(run))
        terminal.note(f"no picture of P of {name}: {error}; --no-pictures leaves them out")
        return None
