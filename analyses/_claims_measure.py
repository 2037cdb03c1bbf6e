"""What the claims need of one model on one text: four parts, each with a name of its own.

- ``spectra``: ratios, ranks and row controls at n tokens, and at the first n/2, n/4, n/8 of them
- ``near``: attention mass within ±w, of the text and of its tokens in a random order
- ``errors``: output error of every method of the claims, on special tokens and on the others
- ``losses``: loss of the model with its attention replaced (final states where it has no head)

Variables and dimensions of a part begin with its name, so that one file can hold all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr

from analyses._claims_methods import loss_methods, methods_of
from analyses._claims_places import Place, checksum
from rankscope import engine, rank, terminal
from rankscope.approximations import Approximation
from rankscope.capture import capture
from rankscope.controls import shortened, shuffled_tokens
from rankscope.engine.machine import usable_cores
from rankscope.errors import output_errors
from rankscope.exceptions import MethodError
from rankscope.linalg import Workers, singular_values
from rankscope.models import LoadedModel

Floats = npt.NDArray[np.float64]

SEED = 0
"""Of everything that is drawn: the order of rows and tokens, hidden tokens, fresh weights."""

HIDDEN = 0.15
"""Share of the tokens that are hidden for a loss."""

ROWS = ("all", "special", "other")
"""Queries that an output error is of."""

_HEADS = ("layer", "head")


@dataclass(frozen=True)
class Part:
    """One of the measurements.

    Attributes
    ----------
    version : int
        To be raised whenever the same settings come to give other numbers.
    find : function
        Measures it.
    windows : function
        How many windows it looks at.
    says : function
        What else decides the numbers, in plain values.
    """

    version: int
    find: Callable[[Place], xr.Dataset]
    windows: Callable[[Place], int]
    says: Callable[[Place], dict[str, Any]]


def near_widths(n: int) -> list[int]:
    """w of the mass within ±w: powers of two up to n/4, and that of the claim.

    Examples
    --------
    >>> near_widths(512), near_widths(96)
    ([1, 2, 4, 8, 16, 32, 64, 128], [1, 2, 3, 4, 8, 16])
    """
    powers = [2**e for e in range((n // 4).bit_length())]
    return sorted({*powers, near_width(n)})


def near_width(n: int) -> int:
    """w of C5: n/32, rounded down, at least 1.

    Examples
    --------
    >>> near_width(512), near_width(96), near_width(16), near_width(8192)
    (16, 3, 1, 256)
    """
    return max(1, n // 32)


def _spectra(place: Place) -> xr.Dataset:
    settings = place.settings
    n, cores = settings.length, usable_cores()

    def run(model: LoadedModel, control: str | None = None) -> xr.Dataset:
        recipe = engine.Recipe(
            length=n, windows=settings.windows, control=control, control_seed=SEED
        )
        with terminal.progress(control or model.info.name) as progress:
            found = engine.spectra(model, place.corpus, recipe, threads=cores, progress=progress)
        return found.isel(model=0, corpus=0)

    runs = {"": run(place.model), "rows": run(place.model, "rows")}
    if not place.drawn:
        runs["random"] = run(place.control)
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
        ratio = one["cumulative_ratio"].sel(index=quarter)
        found[f"spectra_ratio{end}"] = (dims, ratio.to_numpy())
    ratios, ranks = _by_length(place, own, quarter)
    found["spectra_length"] = ("spectra_length", list(settings.lengths))
    found["spectra_length_ratio"] = (("spectra_length", *dims), ratios)
    found["spectra_length_rank_90"] = (("spectra_length", *dims), ranks)
    return found


def _by_length(place: Place, own: xr.Dataset, quarter: int) -> tuple[Floats, Floats]:
    """Ratio at n/4 and rank for 90 % of the first tokens of every window: paired by window."""
    settings = place.settings
    shape = (len(settings.lengths), *own["rank_90"].shape)
    ratios, ranks = np.full(shape, np.nan), np.full(shape, np.nan)
    ratios[-1] = own["cumulative_ratio"].sel(index=quarter).to_numpy()
    ranks[-1] = own["rank_90"].to_numpy()
    for row, n in enumerate(settings.lengths[:-1]):
        short = [shortened(one, n) for one in place.windows(settings.windows)]
        for attention in capture(place.model, short, values=False, batch_size=4):
            sigma = singular_values(attention.weights).singular_values
            at = list(attention.samples)
            ratios[row, at, attention.layer] = rank.cumulative_ratio(sigma)[..., n // 4 - 1]
            ranks[row, at, attention.layer] = rank.rank_at(sigma, 0.9)
    return ratios, ranks


def _near(place: Place) -> xr.Dataset:
    model = place.model
    windows = place.windows(place.settings.windows)
    n = place.settings.length
    widths = near_widths(n)
    shape = (2, len(windows), model.info.n_layers, model.info.n_heads, len(widths))
    mass, top = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    near = torch.stack([(apart <= w).flatten() for w in widths], dim=1).to(torch.float32)
    for row, texts in enumerate((windows, [shuffled_tokens(one, SEED) for one in windows])):
        with terminal.progress(("mass", "mass, tokens shuffled")[row]) as progress:
            progress(0, len(windows))
            for attention in capture(model, texts, values=False):
                p = attention.weights[0].to(torch.float32)
                at = (row, attention.samples[0], attention.layer)
                mass[at] = (p.flatten(1) @ near / n).numpy()
                far = (p.argmax(dim=-1) - torch.arange(n)).abs()
                within = torch.stack([(far <= w).float().mean(dim=-1) for w in widths], dim=1)
                # a matrix of NaN has a largest entry for argmax, and none for us
                top[at] = np.where(np.isnan(mass[at]), np.nan, within.numpy())
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
    model = place.model
    windows = place.windows(place.settings.error_windows)
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


def _losses(place: Place) -> xr.Dataset:
    model = place.with_head
    settings = place.settings
    window, *_ = place.windows(1)
    (first,) = capture(model, [window], layers=[0])
    methods = _taken(loss_methods(window, model.info.n_layers), first)
    sampling = engine.Sampling(length=settings.length, windows=settings.loss_windows)
    with terminal.progress("losses") as progress:
        run = engine.losses(
            model,
            place.corpus,
            methods,
            sampling,
            mask_seed=SEED,
            fraction=HIDDEN,
            progress=progress,
        )
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


def _spectra_says(place: Place) -> dict[str, Any]:
    said: dict[str, Any] = {"lengths": list(place.settings.lengths), "rows_seed": SEED}
    if not place.drawn:
        said["random"] = place.control.info.identity
        said["random_sha256"] = checksum(place.control)
    return said


def _errors_says(place: Place) -> dict[str, Any]:
    (window,) = place.windows(1)
    methods = methods_of(window, place.model.info.n_layers)
    return {"methods": [str(one) for one in methods], "rows": list(ROWS)}


def _losses_says(place: Place) -> dict[str, Any]:
    (window,) = place.windows(1)
    methods = loss_methods(window, place.model.info.n_layers)
    return {
        "methods": [str(one) for one in methods],
        "head": place.with_head.head,
        "mask_seed": SEED,
        "fraction": HIDDEN,
    }


PARTS: dict[str, Part] = {
    "spectra": Part(1, _spectra, lambda place: place.settings.windows, _spectra_says),
    "near": Part(
        1,
        _near,
        lambda place: place.settings.windows,
        lambda place: {"widths": near_widths(place.settings.length), "shuffle_seed": SEED},
    ),
    "errors": Part(1, _errors, lambda place: place.settings.error_windows, _errors_says),
    "losses": Part(1, _losses, lambda place: place.settings.loss_windows, _losses_says),
}
"""All parts, in the order in which they are measured."""
