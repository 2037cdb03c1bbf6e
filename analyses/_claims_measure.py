"""What the claims need of one model on one text, in four parts, one file for all of them.

- ``spectra``: ratios, ranks and row controls at n tokens, and at the first n/2, n/4, n/8 of them
- ``near``: attention mass within ±w, of the text and of its tokens in a random order
- ``errors``: output error of every method of the claims, on special tokens and on the others
- ``losses``: loss of the model with its attention replaced (final states where it has no head)

A part that was measured with the same settings is not measured again.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr

import rankscope
from analyses._claims_methods import loss_methods, methods_of
from rankscope import engine, rank, terminal
from rankscope.approximations import Approximation
from rankscope.capture import capture
from rankscope.controls import shortened, shuffled_tokens
from rankscope.engine.frame import Frame
from rankscope.engine.machine import usable_cores
from rankscope.errors import output_errors
from rankscope.exceptions import MethodError, StoreError, UsageError
from rankscope.linalg import Workers, one_blas_thread, singular_values
from rankscope.models import LoadedModel, load
from rankscope.store.files import export
from rankscope.store.files import load as read
from rankscope.store.schema import canonical_json
from rankscope.text import Corpus, Window, load_corpus

Floats = npt.NDArray[np.float64]

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
"""w of the mass within ±w."""

ROWS = ("all", "special", "other")
"""Queries that an output error is of."""


@dataclass(frozen=True)
class Settings:
    """How much is measured; what a part depends on is kept with it.

    Attributes
    ----------
    length : int
        n, tokens of a window.
    windows : int
        For spectra and for attention mass.
    error_windows, loss_windows : int
    """

    length: int = 512
    windows: int = 16
    error_windows: int = 8
    loss_windows: int = 8

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise UsageError(f"{name} of {value} measure nothing", "use 1 or more")
        if self.length < 16:
            raise UsageError(f"n = {self.length} is too short for shares of n", "use 16 or more")

    @property
    def lengths(self) -> tuple[int, ...]:
        """n/8, n/4, n/2 and n."""
        return tuple(self.length // part for part in (8, 4, 2, 1))


@dataclass(frozen=True)
class Place:
    """A model on a text; the model is loaded when something is measured."""

    spec: str
    corpus: Corpus
    settings: Settings
    command: str

    def model(self, head: bool = False) -> LoadedModel:
        """The model; a head that is drawn at random has no loss worth anything."""
        return load(self.spec, head=head and not self.spec.startswith("random:"))

    def windows(self, model: LoadedModel, count: int) -> list[Window]:
        """The windows that every part begins with."""
        sampling = engine.Sampling(length=self.settings.length, windows=count)
        return list(Frame.of(model, self.corpus, sampling).windows.values())


def measure(place: Place, folder: Path, parts: Sequence[str], overwrite: bool = False) -> Path:
    """Measure what is missing, part by part, and keep it.

    Parameters
    ----------
    place : Place
    folder : Path
        Where ``claims--MODEL--CORPUS.nc`` stands or will stand.
    parts : sequence of str
        Of :data:`PARTS`.
    overwrite : bool
        Whether parts of other settings are replaced.

    Returns
    -------
    Path

    Raises
    ------
    UsageError
        If a part was measured with other settings and `overwrite` is not set.
    """
    path = folder / file_name(_name(place.spec), place.corpus.name)
    kept = read(path) if path.exists() else None
    for part in parts:
        wanted = _described(place, part)
        there = part_settings(kept, part)
        if there is not None and _core(there) == _core(wanted):
            continue
        if there is not None and not overwrite:
            raise UsageError(
                f"{path.name} holds {part} of other settings: {_core(there)}",
                "give --overwrite to measure it again",
            )
        terminal.note(f"{_name(place.spec)} on {place.corpus.name}: {part}")
        with one_blas_thread():
            found = PARTS[part](place)
        found.attrs |= {f"part_{part}": canonical_json(wanted)}
        kept = _joined(kept, found, part)
        kept.attrs |= {"model": _name(place.spec), "corpus": place.corpus.name}
        export(kept, path, overwrite=True)
    return path


def file_name(model: str, corpus: str) -> str:
    """File of a model on a text."""
    return f"claims--{model}--{corpus}.nc".replace(":", "-").replace("/", "-")


def part_settings(kept: xr.Dataset | None, part: str) -> dict[str, Any] | None:
    """With what a part was measured; None if it was not."""
    if kept is None or f"part_{part}" not in kept.attrs:
        return None
    found: dict[str, Any] = json.loads(kept.attrs[f"part_{part}"])
    return found


def _core(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("versions", "command")}


def _described(place: Place, part: str) -> dict[str, Any]:
    settings = place.settings
    own = {"errors": settings.error_windows, "losses": settings.loss_windows}
    return {
        "n": settings.length,
        "windows": own.get(part, settings.windows),
        "corpus_sha256": place.corpus.sha256,
        "command": place.command,
        "versions": {
            "rankscope": rankscope.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _joined(kept: xr.Dataset | None, found: xr.Dataset, part: str) -> xr.Dataset:
    """All parts in one dataset; their dimensions begin with their names."""
    own = [str(name) for name in [*found.data_vars, *found.coords]]
    if bad := [name for name in own if name not in ("layer", "head") and part not in name]:
        raise StoreError(f"{', '.join(bad)} of the part {part} may be of another", "rename it")
    if kept is None:
        return found
    attrs = {key: value for key, value in kept.attrs.items() if key != f"part_{part}"}
    old = [name for name in kept.variables if str(name).startswith(f"{part}_")]
    merged = xr.merge([kept.drop_vars(old), found], combine_attrs="drop", join="exact")
    merged.attrs = attrs | found.attrs
    return merged


def _name(spec: str) -> str:
    """Name of a model in files: without folders."""
    drawn, bare = ("random:", spec[7:]) if spec.startswith("random:") else ("", spec)
    return drawn + (Path(bare).absolute().name if Path(bare).is_dir() else bare)


def _spectra(place: Place) -> xr.Dataset:
    settings = place.settings
    n, cores = settings.length, usable_cores()

    def run(model: LoadedModel, control: str | None = None) -> xr.Dataset:
        recipe = engine.Recipe(length=n, windows=settings.windows, control=control)
        with terminal.progress(control or model.info.name) as progress:
            found = engine.spectra(model, place.corpus, recipe, threads=cores, progress=progress)
        return found.isel(model=0, corpus=0)

    model = place.model()
    runs = {"": run(model), "rows": run(model, "rows")}
    if not place.spec.startswith("random:"):
        runs["random"] = run(load(f"random:{place.spec}"))
    own, quarter = runs[""], max(1, n // 4)
    dims = ("spectra_window", "layer", "head")
    found = xr.Dataset(
        {
            "spectra_rank_90": (dims, own["rank_90"].to_numpy()),
            "spectra_numerical_rank": (dims, own["numerical_rank"].to_numpy()),
            "spectra_energy": (dims, own["energy_ratio"].sel(index=quarter).to_numpy()),
        },
        {
            "layer": own["layer"].to_numpy(),
            "head": own["head"].to_numpy(),
            "spectra_text": ("spectra_window", own["text_id"].to_numpy()),
        },
    )
    for name, one in runs.items():
        end = f"_{name}" if name else ""
        ratio = one["cumulative_ratio"]
        found[f"spectra_ratio{end}"] = (dims, ratio.sel(index=quarter).to_numpy())
        curve = ratio.mean(("sample", "layer", "head")).to_numpy()
        found[f"spectra_curve{end}"] = ("spectra_index", curve.astype(np.float32))
    ratios, ranks = _by_length(place, model, own, quarter)
    found["spectra_length"] = ("spectra_length", list(settings.lengths))
    found["spectra_length_ratio"] = (("spectra_length", *dims), ratios)
    found["spectra_length_rank_90"] = (("spectra_length", *dims), ranks)
    return found


def _by_length(
    place: Place, model: LoadedModel, own: xr.Dataset, quarter: int
) -> tuple[Floats, Floats]:
    """Ratio at n/4 and rank for 90 % of the first tokens of every window: paired by window."""
    settings = place.settings
    shape = (len(settings.lengths), *own["rank_90"].shape)
    ratios, ranks = np.full(shape, np.nan), np.full(shape, np.nan)
    ratios[-1] = own["cumulative_ratio"].sel(index=quarter).to_numpy()
    ranks[-1] = own["rank_90"].to_numpy()
    for row, n in enumerate(settings.lengths[:-1]):
        short = [shortened(one, n) for one in place.windows(model, settings.windows)]
        for attention in capture(model, short, values=False, batch_size=4):
            sigma = singular_values(attention.weights).singular_values
            at = list(attention.samples)
            ratios[row, at, attention.layer] = rank.cumulative_ratio(sigma)[..., n // 4 - 1]
            ranks[row, at, attention.layer] = rank.rank_at(sigma, 0.9)
    return ratios, ranks


def _near(place: Place) -> xr.Dataset:
    model = place.model()
    windows = place.windows(model, place.settings.windows)
    n = place.settings.length
    widths = [w for w in WIDTHS if w < n]
    shape = (2, len(windows), model.info.n_layers, model.info.n_heads, len(widths))
    mass, top = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    near = torch.stack([(apart <= w).flatten() for w in widths], dim=1).to(torch.float32)
    for row, texts in enumerate((windows, [shuffled_tokens(one) for one in windows])):
        with terminal.progress(("mass", "mass, tokens shuffled")[row]) as progress:
            progress(0, len(windows))
            for attention in capture(model, texts, values=False):
                p = attention.weights[0].to(torch.float32)
                at = (row, attention.samples[0], attention.layer)
                mass[at] = (p.flatten(1) @ near / n).numpy()
                far = (p.argmax(dim=-1) - torch.arange(n)).abs()
                top[at] = torch.stack(
                    [(far <= w).to(torch.float32).mean(dim=-1) for w in widths], dim=1
                ).numpy()
                if attention.layer == model.info.n_layers - 1:
                    progress(attention.samples[0] + 1, len(windows))
    dims = ("near_order", "near_window", "layer", "head", "near_w")
    return xr.Dataset(
        {
            "near_mass": (dims, mass),
            "near_top": (dims, top),
            "near_uniform": ("near_w", near.mean(dim=0).to(torch.float64).numpy()),
        },
        {
            "near_order": ["text", "shuffled"],
            "near_w": widths,
            "near_text": ("near_window", [one.text_id for one in windows]),
        },
    )


def _errors(place: Place) -> xr.Dataset:
    model = place.model()
    windows = place.windows(model, place.settings.error_windows)
    (first,) = capture(model, windows[:1], layers=[0])
    methods = _taken(methods_of(windows[0], model.info.n_layers), first)
    shape = (len(methods), len(ROWS), len(windows), model.info.n_layers, model.info.n_heads)
    found = np.full(shape, np.nan, np.float32)
    with (
        terminal.progress("output errors", "layers") as progress,
        Workers(usable_cores()) as pool,
    ):
        total = len(windows) * model.info.n_layers
        progress(0, total)
        for done, attention in enumerate(capture(model, windows)):
            sample, layer = attention.samples[0], attention.layer
            special = torch.from_numpy(windows[sample].special)
            chosen = [torch.ones_like(special), special, ~special]
            exact = attention.output

            def one(number: int, attention: Any = attention, exact: Any = exact) -> Any:
                output = methods[number].apply(attention)
                return [
                    output_errors(exact[:, :, rows], output[:, :, rows])["output"][0].numpy()
                    if bool(rows.any())
                    else np.nan
                    for rows in chosen  # noqa: B023 the pool is done before the next layer
                ]

            for number, values in enumerate(pool.map(one, len(methods))):
                for row, value in enumerate(values):
                    found[number, row, sample, layer] = value
            progress(done + 1, total)
    return xr.Dataset(
        {"errors_output": (("errors_method", "errors_rows", "errors_window", *_HEADS), found)},
        {
            "errors_method": [str(one) for one in methods],
            "errors_rows": list(ROWS),
            "errors_text": ("errors_window", [one.text_id for one in windows]),
        },
    )


_HEADS = ("layer", "head")


def _losses(place: Place) -> xr.Dataset:
    model = place.model(head=True)
    settings = place.settings
    window, *_ = place.windows(model, 1)
    (first,) = capture(model, [window], layers=[0])
    methods = _taken(loss_methods(window, model.info.n_layers), first)
    sampling = engine.Sampling(length=settings.length, windows=settings.loss_windows)
    with terminal.progress("losses") as progress:
        run = engine.losses(model, place.corpus, methods, sampling, progress=progress)
    run = run.isel(model=0, corpus=0)
    measure = "loss" if model.head else "hidden_error"
    found = xr.Dataset(
        {"losses_value": (("losses_window", "losses_method"), run[measure].to_numpy())},
        {
            "losses_method": [str(name) for name in run["method"].to_numpy()],
            "losses_text": ("losses_window", run["text_id"].to_numpy()),
        },
    )
    # of the dataset, since merging drops what a variable says of itself
    return found.assign_attrs(losses_measure=measure)


def _taken(methods: Sequence[Approximation], attention: Any) -> list[Approximation]:
    """Those that this model's attention takes; what it refuses is said."""
    found = []
    for one in dict.fromkeys(methods):
        try:
            one.apply(attention)
        except MethodError as error:
            terminal.note(f"refused {one}: {error.cause}")
        else:
            found.append(one)
    return found


PARTS: dict[str, Callable[[Place], xr.Dataset]] = {
    "spectra": _spectra,
    "near": _near,
    "errors": _errors,
    "losses": _losses,
}
"""How each part is measured."""


def places(
    specs: Sequence[str], corpora: Sequence[str], settings: Settings, command: str
) -> Iterator[Place]:
    """Every model on every text; an unknown one is refused before anything is measured."""
    from rankscope.models import check, check_length

    texts = [load_corpus(corpus) for corpus in corpora]
    for spec in specs:
        check_length(check(spec), settings.length)
    for spec in specs:
        for text in texts:
            file = Path(text.source)
            said = command.format(
                model=_name(spec), corpus=file.name if file.exists() else text.name
            )
            yield Place(spec, text, settings, said)
