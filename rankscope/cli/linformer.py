"""Commands `linformer fit` and `linformer evaluate`: fitted on one text, scored on another."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankscope import tables, terminal
from rankscope.cli.methods import show_comparison
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
    INTERRUPTED,
    check_folder,
    check_models,
    compute,
    cutting,
    load_corpora,
    load_model,
)
from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    from rankscope.engine import Sampling


class Projection(StrEnum):
    """What is fitted."""

    learned = "learned"
    learned_conv = "learned-conv"
    svd = "svd"


class SharingChoice(StrEnum):
    """What shares a projection."""

    headwise = "headwise"
    none = "none"
    key_value = "key-value"
    layerwise = "layerwise"


class Bias(StrEnum):
    """What to do with relative positions."""

    refuse = "refuse"
    project = "project"


linformer = typer.Typer(
    no_args_is_help=True, help="Fit Linformer's projections on one text, evaluate on another."
)


@linformer.command("fit")
@bundled
def fit_command(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    k: Annotated[int, typer.Option("-k", "--k", help="Rows that the tokens are projected to.")],
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    projection: Annotated[
        Projection, typer.Option("--projection", help="Matrices, kernels, or singular vectors.")
    ] = Projection.learned,
    sharing: Annotated[
        SharingChoice, typer.Option("--sharing", help="One E and F a layer, a head, …")
    ] = SharingChoice.headwise,
    held_out: Annotated[
        int | None, typer.Option("--held-out", help="Windows that decide when to stop; 16.")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="At most; 12.")] = None,
    fit_seed: Annotated[
        int | None, typer.Option("--fit-seed", help="Order of the windows; 0.")
    ] = None,
    bias: Annotated[
        Bias, typer.Option("--bias", help="Relative positions: refuse, or project them too.")
    ] = Bias.refuse,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another file.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="File: .safetensors.")] = Path(
        "projections.safetensors"
    ),
) -> None:
    """Fit projections to a model's attention; the file is what --method linformer:file= reads."""
    from rankscope.approximations.fitted import read_projections
    from rankscope.engine.fit import Fit, fit
    from rankscope.store import working_path

    sampling = windows.sampling()
    learning = {"held_out": held_out, "epochs": epochs, "seed": fit_seed}
    given = {name: value for name, value in learning.items() if value is not None}
    if projection is Projection.svd:
        if given:
            raise UsageError(
                "singular vectors are computed, not learned", f"leave out {', '.join(given)}"
            )
        given = {"held_out": 0}
    settings = Fit(
        k=k,
        projection=projection.value,
        sharing=sharing.value,
        bias=bias.value,
        **given,
    )
    options = text.options()
    check_models([model], loading, windows.length)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    loaded = load_model(model, loading)
    before = out.stat().st_mtime_ns if out.exists() else None
    try:
        with terminal.progress(f"{loaded.info.name} on {one.name}", "layers") as progress:
            fit(
                loaded,
                one,
                sampling,
                settings,
                out,
                progress=progress,
                overwrite=overwrite,
                told=terminal.note,
            )
    except KeyboardInterrupt:
        terminal.note(f"stopped; the same command goes on from {working_path(out)}")
        raise typer.Exit(INTERRUPTED) from None
    unchanged = before is not None and out.stat().st_mtime_ns == before
    terminal.note(f"{out} is there already" if unchanged else f"wrote {out}")
    tables.projection_table(read_projections(out))


@linformer.command("evaluate")
@bundled
def evaluate(
    windows: WindowChoice,
    loading: Loading,
    text: TextChoice,
    running: Running,
    file: Annotated[Path, typer.Argument(help="What `linformer fit` wrote.")],
    model: Model = "builtin",
    corpus: OneCorpus = "builtin",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File: .nc, .zarr, .csv or .parquet.")
    ] = Path("evaluation.nc"),
) -> None:
    """Score fitted projections on windows they never saw, beside pooling, chance and P_low."""
    from rankscope.approximations.fitted import read_projections
    from rankscope.approximations.linformer import Linformer
    from rankscope.approximations.projected import Projected
    from rankscope.approximations.truncated import BestOutput, Truncated
    from rankscope.engine import ComparisonPlan
    from rankscope.store.files import file_format, load
    from rankscope.summary.methods import summarise_methods

    file_format(out)
    stored = read_projections(file)
    sampling = windows.sampling()
    options = text.options()
    check_models([model], loading, windows.length, running)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    ks = sorted({stored.k(layer) for layer in stored.layers})
    k = ks[0]
    if one.sha256 == stored.text_sha256 and _overlaps(stored.how.get("recipe", {}), sampling):
        terminal.note(
            "careful: these are windows that the projections were fitted to, or stopped by; skip "
            "them with --skip"
        )
    kind = stored.kind.removesuffix("-conv")
    shared: Any = dict(projection=kind, sharing=stored.sharing, file=file)
    bias = stored.how.get("fit", {}).get("bias", "refuse")
    chosen = {
        kind: Linformer(k, bias=bias, **shared),
        **({"P·EᵀE": Projected(k, **shared)} if kind == "svd" else {}),
        "mean": Linformer(k, bias=bias),
        "random": Linformer(k, projection="gaussian", bias=bias),
        "P·RᵀR": Projected(k),
        "P_low": Truncated(k),
        "bound": BestOutput(k),
    }
    loaded = load_model(model, loading, running)
    with cutting(one):
        plan = ComparisonPlan(loaded, one, sampling, list(chosen.values()))
    path = compute(plan, loaded, out, running)
    with load(path, lazy=True) as dataset:
        tables.layer_table(summarise_methods(dataset), stored, list(chosen))
    show_comparison(path)


def _overlaps(fitted: dict[str, Any], scored: Sampling) -> bool:
    """Whether windows of a fit are among those that are scored, cut in the same way."""
    alike = all(fitted.get(name) == getattr(scored, name) for name in ("length", "mode", "overlap"))
    if not alike or fitted.get("windows") is None or scored.windows is None:
        return True
    first, last = fitted["skip"], fitted["skip"] + fitted["windows"]
    return bool(first < scored.skip + scored.windows and scored.skip < last)
