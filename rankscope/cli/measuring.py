"""The commands `figure1` and `spectra`: spectra of models, with controls beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope import terminal
from rankscope.cli.drawing import draw_figure1, spectra_summaries
from rankscope.cli.options import (
    Centred,
    Controls,
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
    control_names,
)
from rankscope.cli.running import (
    BAD_HEADS,
    TOO_SHORT,
    check_folder,
    check_models,
    compute,
    cutting,
    load_corpora,
    load_model,
    precision_reached,
)
from rankscope.exceptions import UsageError
from rankscope.labels import file_name

if TYPE_CHECKING:
    from rankscope.engine import Recipe
    from rankscope.models import LoadedModel
    from rankscope.summary.differences import Difference
    from rankscope.text import Corpus

RANDOM = "random"

Target = Callable[[str, "Corpus", str], Path]
"""File of a run, from the model's name, the corpus and the control, which may be empty."""


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
    controls: Controls = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder.")] = Path("rankscope-out"),
) -> None:
    """Linformer's Figure 1 for your model: mean curves, layer × head map, random-weight control."""
    from rankscope.plots import check_panels

    recipe = windows.recipe(driver, False, precision)
    options = text.options()
    chosen = control_names(controls)
    if control:
        chosen = tuple(dict.fromkeys((*chosen, RANDOM)))
    names = _without_controls(list(dict.fromkeys(model)), chosen)
    check_panels(len(names), len(set(corpus)) * (1 + len(chosen)))
    known = check_models(_loaded(names, chosen), loading, windows.length, running)[: len(names)]
    check_folder(out)
    corpora = load_corpora(corpus, options)

    def target(name: str, one: Corpus, which: str) -> Path:
        first = file_name(f"{which}:{name}" if which else name)
        return out / f"{first}--{file_name(one.name)}.nc"

    measured = _Measured(recipe, loading, running, chosen)
    measured.check(names, known, corpora, target)
    measured.run(names, corpora, target)
    pictures = [out / "figure1.png", out / "figure1.svg"]
    draw_figure1(measured.runs, pictures, differences=measured.differences)
    measured.finish(precision)


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
    controls: Controls = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File: .nc, .zarr, .csv or .parquet.")
    ] = Path("spectra.nc"),
) -> None:
    """Singular values and both ratios of every window, layer and head, into one file.

    Each control has a file of its own beside it, named after it.
    """
    from rankscope.store.files import file_format

    file_format(out)
    recipe = windows.recipe(driver, centred, precision)
    options = text.options()
    chosen = control_names(controls)
    if RANDOM in chosen and _is_random(model):
        raise UsageError(
            f"{model} has random weights already: it has no control `{RANDOM}`",
            "leave that control out, or take another --seed for other random weights",
        )
    check_models(_loaded([model], chosen), loading, windows.length, running)
    check_folder(out.parent)
    corpora = load_corpora([corpus], options)

    def target(_name: str, _one: Corpus, which: str) -> Path:
        return out.with_name(f"{out.stem}--{which}{out.suffix}") if which else out

    measured = _Measured(recipe, loading, running, chosen)
    measured.run([model], corpora, target)
    measured.finish(precision)


class _Measured:
    """Runs of models on corpora, each followed by its controls on the same windows."""

    def __init__(
        self, recipe: Recipe, loading: Loading, running: Running, controls: tuple[str, ...]
    ) -> None:
        self.recipe, self.loading, self.running = recipe, loading, running
        self.controls = controls
        self.runs: list[Path] = []
        self.pairs: list[tuple[Path, Path]] = []

    def check(
        self, names: list[str], known: list[str], corpora: list[Corpus], target: Target
    ) -> None:
        """Refuse two runs of one file or one name, before the first of them is computed.

        Raises
        ------
        UsageError
        """
        taken: dict[Path, str] = {}
        for spec, name in zip(names, known, strict=True):
            for corpus in corpora:
                for control in ("", *self.controls):
                    path = target(name, corpus, control)
                    if path in taken:
                        raise UsageError(
                            f"the results of {taken[path]} and {spec} on {corpus.name} would both "
                            f"be {path}",
                            "rename the folder or the text, or measure them one by one with "
                            "another --out",
                        )
                    taken[path] = f"{spec} on {corpus.name}"

    def run(self, names: list[str], corpora: list[Corpus], target: Target) -> None:
        """Measure every model on every corpus, and then the controls."""
        for name in names:
            loaded = load_model(name, self.loading, self.running)
            known = loaded.info.name
            own = {}
            for corpus in corpora:
                path = target(known, corpus, "")
                own[corpus.name] = self._compute(loaded, corpus, self.recipe, path)
                for control in self.controls:
                    if control != RANDOM:
                        path = target(known, corpus, control)
                        self._control(loaded, corpus, own[corpus.name], control, path)
            del loaded
            if RANDOM in self.controls and not _is_random(name):
                drawn = load_model(f"{RANDOM}:{name}", self.loading, self.running)
                for corpus in corpora:
                    path = target(known, corpus, RANDOM)
                    self._control(drawn, corpus, own[corpus.name], None, path)
                del drawn

    @cached_property
    def differences(self) -> list[Difference]:
        """What was measured less each control; after the runs, which it reads."""
        from rankscope.store.files import load
        from rankscope.summary.differences import difference

        found = []
        for one, other in self.pairs:
            with load(one, lazy=True) as measured, load(other, lazy=True) as control:
                found.append(difference(measured, control))
        return found

    def finish(self, precision: float | None) -> None:
        """The table of all runs, their differences to the controls, and the exit status."""
        from rankscope.summary import table

        rows = table(spectra_summaries(self.runs))
        terminal.note("data: " + ", ".join(map(str, self.runs)))
        terminal.summary_table(rows)
        if self.pairs:
            terminal.difference_table(self.differences)
        short = [run for run in self.runs if not precision_reached(run)]
        for run in short:
            terminal.note(
                f"{run}: the text ended before the intervals were narrower than {precision}; "
                "give more text, or allow more windows"
            )
        if any(row.n_failed for row in rows):
            terminal.note(
                "finished, but some matrices have no spectrum: see their status in the file"
            )
            raise typer.Exit(BAD_HEADS)
        if short:
            raise typer.Exit(TOO_SHORT)

    def _control(
        self, model: LoadedModel, corpus: Corpus, own: Path, control: str | None, path: Path
    ) -> None:
        from rankscope.store.files import load

        # a run that stopped at its precision says itself which windows it has
        with load(own, lazy=True) as dataset:
            count = dataset.sizes["sample"]
        recipe = replace(self.recipe, control=control, precision=None, windows=count)
        self.pairs.append((own, self._compute(model, corpus, recipe, path)))

    def _compute(self, model: LoadedModel, corpus: Corpus, recipe: Recipe, path: Path) -> Path:
        from rankscope.engine import SpectraPlan

        what = f"{recipe.control} of " if recipe.control else ""
        with cutting(corpus):
            plan = SpectraPlan(model, corpus, recipe)
        if recipe.control is None:
            # what a control would refuse is known before the run that it belongs to
            for control in self.controls:
                if control != RANDOM:
                    plan.check_control(control)
        self.runs.append(compute(plan, model, path, self.running, what))
        return self.runs[-1]


def _is_random(name: str) -> bool:
    return name.startswith(f"{RANDOM}:")


def _without_controls(names: list[str], controls: tuple[str, ...]) -> list[str]:
    """Models less those that are measured anyway, as the control of another one."""
    if RANDOM not in controls:
        return names
    return [name for name in names if not _is_random(name) or name.partition(":")[2] not in names]


def _loaded(names: list[str], controls: tuple[str, ...]) -> list[str]:
    """Models that a command loads: those that are measured, then those of their controls."""
    drawn = [f"{RANDOM}:{name}" for name in names if not _is_random(name)]
    return list(dict.fromkeys([*names, *(drawn if RANDOM in controls else [])]))
