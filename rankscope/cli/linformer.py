"""Commands `linformer fit` and `linformer evaluate`: fitted on one text, scored on another."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

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
    load_corpora,
    load_model,
)


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
        int, typer.Option("--held-out", help="Windows that decide when to stop.")
    ] = 16,
    epochs: Annotated[int, typer.Option("--epochs", help="At most.")] = 12,
    fit_seed: Annotated[int, typer.Option("--fit-seed", help="Order of the windows.")] = 0,
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
    settings = Fit(
        k=k,
        projection=projection.value,
        sharing=sharing.value,
        held_out=0 if projection is Projection.svd else held_out,
        seed=fit_seed,
        epochs=epochs,
        bias=bias.value,
    )
    options = text.options()
    check_models([model], loading, windows.length)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    loaded = load_model(model, loading)
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
    terminal.note(f"wrote {out}")
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
    from rankscope.approximations import method
    from rankscope.approximations.fitted import read_projections
    from rankscope.engine import ComparisonPlan
    from rankscope.store.files import file_format, load
    from rankscope.summary.methods import summarise_methods

    file_format(out)
    stored = read_projections(file)
    sampling = windows.sampling()
    options = text.options()
    check_models([model], loading, windows.length)
    check_folder(out.parent)
    (one,) = load_corpora([corpus], options)
    ks = sorted({stored.k(layer) for layer in stored.layers})
    k = ks[0]
    if one.sha256 == stored.text_sha256:
        terminal.note(
            f"careful: {one.name} is the text that the projections were fitted to; leave its first "
            f"windows out with --skip, or the errors are those of training"
        )
    kind = stored.kind.removesuffix("-conv")
    fitted = f"k={k},projection={kind},sharing={stored.sharing},file={file}"
    bias = stored.how.get("fit", {}).get("bias", "refuse")
    chosen = {
        kind: f"linformer:{fitted},bias={bias}",
        **({"P·EᵀE": f"projected:{fitted}"} if kind == "svd" else {}),
        "mean": f"linformer:k={k},projection=mean,bias={bias}",
        "random": f"linformer:k={k},projection=gaussian,bias={bias}",
        "P·RᵀR": f"projected:k={k}",
        "P_low": f"truncated:k={k}",
        "bound": f"best-output:k={k}",
    }
    loaded = load_model(model, loading)
    plan = ComparisonPlan(loaded, one, sampling, [method(text) for text in chosen.values()])
    path = compute(plan, loaded, out, running)
    with load(path, lazy=True) as dataset:
        tables.layer_table(summarise_methods(dataset), stored, list(chosen))
    show_comparison(path)
