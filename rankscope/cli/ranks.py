"""The command `choose-rank`: which k for every head, and what it costs on other windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope import tables, terminal
from rankscope.cli.methods import show_losses
from rankscope.cli.options import (
    Loading,
    Model,
    OneCorpus,
    Running,
    TextChoice,
    WindowChoice,
    bundled,
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

    from rankscope.approximations import Ranks
    from rankscope.selection import Choice


class Kind(StrEnum):
    """What a tolerance is about."""

    cumulative = "cumulative"
    energy = "energy"
    output = "output"


class By(StrEnum):
    """Who gets a rank of its own."""

    head = "head"
    layer = "layer"
    uniform = "uniform"


class Objective(StrEnum):
    """Which output error is summed under a budget."""

    relative = "relative"
    relative_squared = "relative-squared"
    absolute = "absolute"
    layer = "layer"


@bundled
def choose_rank(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", help="Largest loss of a head, 0 to 1: the smallest k for it."),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--kind", help="Loss of what: the σ-ratio, the energy or the output."),
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option("--quantile", help="Share of the windows that keep to it, not their mean."),
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", help="Instead: total rank Σk over layers and heads.")
    ] = None,
    mean_rank: Annotated[
        int | None, typer.Option("--mean-rank", help="Instead: the same, as a mean over heads.")
    ] = None,
    objective: Annotated[
        Objective | None,
        typer.Option("--objective", help="Which output error is summed under a budget; absolute."),
    ] = None,
    by: Annotated[
        By, typer.Option("--by", help="A rank for every head, for every layer, or one for all.")
    ] = By.head,
    minimum: Annotated[
        int | None, typer.Option("--minimum", help="Smallest rank of a head under a budget; 1.")
    ] = None,
    check: Annotated[
        int, typer.Option("--check", help="Windows after those of the choice to check it on.")
    ] = 8,
    truncation: Annotated[
        Path | None,
        typer.Option("--truncation", help="Where the error curves are, or will be, kept."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of ranks.")] = Path("ranks.json"),
) -> None:
    """Choose the rank of every head, by tolerance or under a total budget, and check the loss."""
    from rankscope.approximations.truncated import Truncated
    from rankscope.engine import InterventionPlan, TruncationPlan
    from rankscope.selection import ranks_table
    from rankscope.store.files import load

    if sum(one is not None for one in (tolerance, budget, mean_rank)) != 1:
        raise UsageError(
            "ranks are chosen for a tolerance or under a budget",
            "give exactly one of --tolerance, --budget and --mean-rank",
        )
    if out.suffix != ".json":
        raise UsageError(f"{out} is no .json file", "name one with --out")
    if check < 0:
        raise UsageError(f"{check} windows cannot be checked", "use 0 for no check, or more")
    sampling = windows.sampling()
    if check and sampling.windows is None:
        raise UsageError(
            "with --windows all none is left to check on", "give a number, or --check 0"
        )
    if tolerance is None:
        _refuse_given("a budget", {"--kind": kind, "--quantile": quantile})
    else:
        _refuse_given("a tolerance", {"--objective": objective, "--minimum": minimum})
        if by is not By.head:
            raise UsageError("a tolerance gives every head a rank of its own", "leave out --by")
    asked = Asked(
        tolerance=tolerance,
        kind=(kind or Kind.output).value,
        quantile=quantile,
        budget=budget,
        objective=(objective or Objective.absolute).value,
        by=by.value,
        minimum=1 if minimum is None else minimum,
    )
    options = text.options()
    check_models([model], loading, windows.length, running)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    loaded = load_model(model, loading, running, head=True)
    with cutting(one):
        plan = TruncationPlan(loaded, one, sampling)
    frame = plan.frame
    heads = len(frame.layers) * frame.n_heads
    if mean_rank is not None:
        asked = replace(asked, budget=mean_rank * heads)
    asked.check(heads, frame.length)
    later = replace(sampling, skip=sampling.skip + (sampling.windows or 0), windows=check)
    if check:
        # what would make the check fail is known before the choice is made
        InterventionPlan(loaded, one, later, [Truncated(frame.length)])
    curves = truncation or out.with_suffix(".truncation.nc")
    with load(compute(plan, loaded, curves, running, "curves of "), lazy=True) as dataset:
        choices = asked.choices(dataset)
    written = {}
    for name, choice in choices.items():
        path = out if name == by.value else out.with_suffix(f".{name}.json")
        found = choice.to_ranks(
            frame.identity, frame.model["weights_sha256"], frame.layers, frame.length
        )
        _write(found, path, running.overwrite)
        written[name] = path
        terminal.note(f"wrote {path}: {name}, Σk = {choice.total}")
    tables.rank_table(ranks_table({by.value: choices[by.value]}, frame.layers))
    for name, choice in choices.items():
        terminal.out.print(
            f"  {name}: Σk {choice.total}, expected error {choice.error:.4g} ({_measure(choice)})",
            markup=False,
        )
    if not check:
        return
    methods = [Truncated(ranks=path) for path in written.values()]
    checked = InterventionPlan(loaded, one, later, methods)
    show_losses(compute(checked, loaded, out.with_suffix(".check.nc"), running, "check of "))


@dataclass(frozen=True)
class Asked:
    """What ranks are chosen for."""

    tolerance: float | None
    kind: str
    quantile: float | None
    budget: int | None
    objective: str
    by: str
    minimum: int

    def check(self, heads: int, n: int) -> None:
        """Refuse what no curve can give, before any is measured.

        Raises
        ------
        UsageError
        """
        from rankscope.selection import check_range

        if self.tolerance is not None and not 0 <= self.tolerance <= 1:
            raise UsageError(f"a tolerance of {self.tolerance}", "use 0 to 1")
        if self.quantile is not None and not 0 < self.quantile <= 1:
            raise UsageError(f"a quantile of {self.quantile}", "use more than 0, at most 1")
        if self.budget is not None:
            check_range(self.budget, heads, n, self.minimum)

    def choices(self, dataset: xr.Dataset) -> dict[str, Choice]:
        """The choice that was asked for, and what else the same total would buy."""
        from rankscope.selection import from_dataset

        found: dict[str, Choice] = {}
        budget = self.budget
        if self.tolerance is not None:
            found[self.by] = from_dataset(
                dataset, tolerance=self.tolerance, kind=self.kind, quantile=self.quantile
            )
            budget = found[self.by].total
        for name in dict.fromkeys((self.by, "head", "layer", "uniform")):
            if name not in found:
                found[name] = from_dataset(
                    dataset,
                    budget=budget,
                    objective=self.objective,
                    by=name,
                    minimum=self.minimum,
                )
        return found


def _refuse_given(what: str, options: dict[str, object]) -> None:
    """Refuse options that have no effect."""
    if given := [name for name, value in options.items() if value is not None]:
        raise UsageError(f"{', '.join(given)} means nothing with {what}", "leave it out")


def _measure(choice: Choice) -> str:
    how = choice.how
    return str(how.get("objective") or f"{how['kind']} within {how['tolerance']:g}")


def _write(found: Ranks, path: Path, overwrite: bool) -> None:
    """Write a file of ranks, unless another one is there that must not be replaced."""
    from rankscope.approximations import read_ranks
    from rankscope.exceptions import StoreError

    if path.exists() and not overwrite:
        if read_ranks(path) == found:
            return
        raise StoreError(f"{path} holds other ranks", "choose another --out, or --overwrite")
    found.write(path)
