"""One head of a stored run again: its matrix, computed anew from the recorded recipe."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankscope.exceptions import StoreError, UsageError

if TYPE_CHECKING:
    import xarray as xr

    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window


@dataclass(frozen=True)
class Head:
    """One attention matrix and its spectrum.

    Attributes
    ----------
    matrix : (n, n) float32 or float64
    singular_values : (n,) float64
        As stored with the run.
    title : str
        Model, corpus, window, layer and head.
    """

    matrix: NDArray[np.floating]
    singular_values: NDArray[np.float64]
    title: str


@dataclass(frozen=True)
class Again:
    """Model, text and window of a run, as they were.

    Attributes
    ----------
    model : LoadedModel
    corpus : Corpus
    window : Window
    recipe : dict
        The run's :class:`rankscope.engine.Sampling`, as it is recorded.
    """

    model: LoadedModel
    corpus: Corpus
    window: Window
    recipe: dict[str, Any]


def head_of(dataset: xr.Dataset, *, sample: int | None = None, layer: int, head: int) -> Head:
    """Compute one head's P again; runs store spectra, not matrices.

    Parameters
    ----------
    dataset : Dataset
        A run, which names its model, text and recipe in its attributes.
    sample : int, optional
        Coordinate of the window; the first that has a token by default.
    layer, head : int
        Coordinates of the head.

    Returns
    -------
    Head

    Raises
    ------
    UsageError
        If the run has no such window, layer or head, or the window has no token.
    StoreError
        If the dataset is no run, or model or text are no longer those of the run.
    """
    from rankscope.capture import capture

    for name, wanted in (("layer", layer), ("head", head)):
        _check_place(dataset, name, wanted)
    sample = first_window(dataset) if sample is None else sample
    again = window_of(dataset, sample)
    recipe = again.recipe
    attention = next(
        capture(
            again.model,
            [again.window],
            layers=[layer],
            group=recipe["group"],
            special=recipe["special"],
        )
    )
    values = dataset["singular_value"].sel(sample=sample, layer=layer, head=head).to_numpy().ravel()
    name = f"{again.model.info.name} on {again.corpus.name}"
    return Head(
        matrix=attention.matrix(0, head).cpu().numpy(),
        singular_values=values[: attention.shape[0]],
        title=f"{name}, window {sample}, layer {layer}, head {head}",
    )


def first_window(dataset: xr.Dataset) -> int:
    """Coordinate of the first window of a run that has a token, and so a P.

    Parameters
    ----------
    dataset : Dataset
        A run of spectra.

    Returns
    -------
    int

    Raises
    ------
    StoreError
        If the dataset is no run.
    UsageError
        If there is none.
    """
    there = np.flatnonzero(_sizes(dataset) > 0)
    if not there.size:
        raise UsageError("no window of the run has a token, and so a P", "give a run of more text")
    return int(dataset["sample"].to_numpy()[there[0]])


def check_window(dataset: xr.Dataset, sample: int) -> None:
    """Refuse a window of which there is no P, before anything is loaded.

    Parameters
    ----------
    dataset : Dataset
        A run of spectra.
    sample : int
        Coordinate of the window.

    Raises
    ------
    StoreError
        If the dataset is no run.
    UsageError
        If it has no such window, or the window has no token.
    """
    _check_place(dataset, "sample", sample)
    place = int(np.flatnonzero(dataset["sample"].to_numpy() == sample)[0])
    if _sizes(dataset)[place] == 0:
        raise UsageError(
            f"window {sample} of the run has no token, and so no P",
            f"the first that has one is window {first_window(dataset)}",
        )


def _sizes(dataset: xr.Dataset) -> NDArray[np.int64]:
    """Tokens of every window, 0 where it was never computed."""
    from rankscope.summary.averages import check_run, whole_numbers

    check_run(dataset, ("sample", "layer", "head", "index"), ("n_tokens",), "spectra")
    sizes = dataset["n_tokens"].transpose("sample", ...).to_numpy()
    return whole_numbers(sizes.reshape(len(sizes), -1)[:, 0], 0)


def window_of(dataset: xr.Dataset, sample: int) -> Again:
    """Load the model and text of a run again, and cut one of its windows.

    Parameters
    ----------
    dataset : Dataset
        A run, which names its model, text and recipe in its attributes.
    sample : int
        Coordinate of the window.

    Returns
    -------
    Again

    Raises
    ------
    UsageError
        If the run has no such window, the window has no token, or the run is one of a control.
    StoreError
        If the dataset is no run, or model or text are no longer those of the run.
    """
    from rankscope.models import HASH, load
    from rankscope.summary.averages import check_run
    from rankscope.text import TextOptions, load_corpus, windows

    check_run(dataset, ("sample", "layer", "head", "index"), ("singular_value",), "spectra")
    if "recipe_json" not in dataset.attrs:
        raise StoreError("this file is no run", "give the result of `rankscope spectra`")
    check_window(dataset, sample)
    settings = json.loads(dataset.attrs["recipe_json"])
    recipe, stored = settings["recipe"], json.loads(dataset.attrs["model_json"])
    corpus = load_corpus(
        dataset.attrs["corpus_source"]
        if settings["corpus"]["name"] not in ("builtin", "wikitext103", "imdb")
        else settings["corpus"]["name"],
        TextOptions(**settings["corpus"]["options"]),
    )
    if recipe.get("control"):
        raise UsageError(
            f"this run is the control {recipe['control']!r}, not the attention of the model",
            "give the run that was measured",
        )
    _same("text", corpus.sha256, settings["corpus"]["sha256"])
    hashed = str(stored["tokenizer"]).startswith(HASH)
    model = load(
        stored["spec"],
        dtype=stored["dtype"],
        seed=stored["seed"] or 0,
        tokenizer=HASH if hashed else None,
    )
    _same("tokenizer", model.info.tokenizer, stored["tokenizer"])
    _same("model's weights", model.info.weights_sha256, stored["weights_sha256"])
    # runs from before windows could be skipped do not say so
    skip = recipe.get("skip", 0)
    cut = windows(
        corpus,
        model.tokenizer,
        length=recipe["length"],
        count=skip + sample + 1,
        mode=recipe["mode"],
        overlap=recipe["overlap"],
    )
    return Again(model, corpus, cut[skip + sample], recipe)


def _check_place(dataset: xr.Dataset, name: str, wanted: int) -> None:
    if name not in dataset.dims:
        raise StoreError(f"not a run of spectra: without {name}", "give one of `rankscope spectra`")
    there = dataset[name].to_numpy()
    if wanted not in there:
        raise UsageError(f"the run has no {name} {wanted}", f"{there[0]} … {there[-1]}")


def _same(what: str, here: object, stored: object) -> None:
    if here != stored:
        raise StoreError(
            f"the {what} is no longer that of the run ({here} here, {stored} there)",
            "draw from a new run",
        )
