"""How does the rank grow with the text, and what does padding make of it?

k for 90 % of Σσ, absolute and as k/n, and the cumulative ratio at n/4, for n tokens between 32 and
the model's positions. Windows of the largest n are cut into pieces, so that the text is the same
at every n; the pieces of a window are averaged first, and intervals are over windows. Beside them
the same first pieces padded to the largest n, and all of it with random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr

from analyses.low_rank import OUT
from rankscope import terminal
from rankscope.attention import Attention
from rankscope.capture import capture
from rankscope.controls import padded_attention, shortened
from rankscope.engine.machine import usable_cores
from rankscope.exceptions import UsageError
from rankscope.labels import file_name
from rankscope.linalg import singular_values
from rankscope.models import LoadedModel, check_length, load
from rankscope.rank import cumulative_ratio, energy_ratio, rank_at
from rankscope.store.files import export
from rankscope.summary.accumulate import GOOD
from rankscope.summary.averages import Measure
from rankscope.summary.units import LEVEL, Moments, half_width
from rankscope.text import Corpus, Window, load_corpus, windows

QUANTITIES = ("rank_90", "relative_rank_90", "quarter_ratio", "quarter_energy_ratio")
"""k for 90 % of Σσ; the same over the size of the matrix; Σσ and Σσ² at a quarter of that size."""

LAYOUTS = ("packed", "padded")

Floats = npt.NDArray[np.float64]


def main(argv: Sequence[str]) -> None:
    """Measure every model and its random-weight control, and write one file a model and text."""
    parser = argparse.ArgumentParser(prog="python -m analyses length", description=__doc__)
    parser.add_argument("--model", action="append", help="repeatable; the built-in model")
    parser.add_argument("--corpus", action="append", help="repeatable; the built-in text")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[32, 64, 128, 256, 512, 1024, 2048],
        help="those beyond the model's positions are left out",
    )
    parser.add_argument("--windows", type=int, default=32, help="of the largest length")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    corpora = [load_corpus(spec) for spec in options.corpus or ["builtin"]]
    for spec in options.model or ["builtin"]:
        models = [load(spec), load(f"random:{spec}")]
        for corpus in corpora:
            found = xr.concat(
                [over_lengths(model, corpus, options.lengths, options.windows) for model in models],
                "model",
                combine_attrs="drop_conflicts",
            )
            name = f"length--{file_name(models[0].info.name)}--{file_name(corpus.name)}.nc"
            export(found, options.out / name, overwrite=True)
            _print(found)


def over_lengths(
    model: LoadedModel, corpus: Corpus, lengths: Iterable[int], count: int
) -> xr.Dataset:
    """Rank and ratios of one model over n, packed and padded.

    Parameters
    ----------
    model : LoadedModel
    corpus : Corpus
    lengths : iterable of int
        Tokens n of a text, special tokens included. Those beyond the model's positions are left
        out; the largest that is left is the size that texts are padded to.
    count : int
        Windows of that largest length.

    Returns
    -------
    Dataset, dims (model, layout, length, layer, head)
        `rank_90`, `relative_rank_90`, `quarter_ratio`, `quarter_energy_ratio`, each with `_mean`,
        `_low` and `_high` (model, layout, length): mean over heads and its 95 % interval over
        windows; `growth` and its interval (model): the slope of log k90 over log n, packed.

    Raises
    ------
    UsageError
        If the model has positions for none of the lengths.
    """
    usable = fitting(model, lengths)
    size = usable[-1]
    whole = windows(corpus, model.tokenizer, length=size, count=count)
    found: dict[tuple[str, int], dict[str, Floats]] = {}
    ranks: list[list[float]] = []
    steps = [(layout, n) for n in usable for layout in LAYOUTS]
    with terminal.progress(f"{model.info.name} on {corpus.name}", "steps") as progress:
        for step, (layout, n) in enumerate(steps):
            progress(step, len(steps))
            # a text of the full size has no padding
            if (layout, n) == ("padded", size):
                found[layout, n] = found["packed", n]
                continue
            measures, by_window = _measured(model, whole, n, size if layout == "padded" else None)
            found[layout, n] = measures
            if layout == "packed":
                ranks.append(by_window)
        progress(len(steps), len(steps))
    dims = {"": ("layer", "head"), "_mean": (), "_low": (), "_high": ()}
    data = {
        f"{quantity}{ending}": (
            ("model", "layout", "length", *rest),
            np.array(
                [[[found[layout, n][f"{quantity}{ending}"] for n in usable] for layout in LAYOUTS]]
            ),
        )
        for quantity in QUANTITIES
        for ending, rest in dims.items()
    }
    growth = _slope(np.array(usable), np.array(ranks))
    data |= {
        name: (("model",), np.array([value]))
        for name, value in zip(("growth", "growth_low", "growth_high"), growth, strict=True)
    }
    attrs = {
        "corpus": corpus.name,
        "windows": count,
        "padded_to": size,
        "interval_level": LEVEL,
        "pieces": {str(n): len(pieces(whole[0], n)) for n in usable},
    }
    return xr.Dataset(
        data, {"model": [model.info.name], "layout": list(LAYOUTS), "length": usable}, attrs
    )


def fitting(model: LoadedModel, lengths: Iterable[int]) -> list[int]:
    """The lengths, ascending, that the model has positions for.

    Raises
    ------
    UsageError
        If there is none.
    """
    usable, refused = [], []
    for n in sorted(set(lengths)):
        try:
            check_length(model.info, n)
        except UsageError:
            refused.append(n)
        else:
            usable.append(n)
    if not usable:
        raise UsageError(
            f"{model.info.name} has no positions for {refused} tokens", "choose smaller lengths"
        )
    return usable


def pieces(window: Window, length: int) -> list[Window]:
    """The text of a window cut into windows of `length` tokens, each with all special tokens.

    A rest that is too short for a piece is left out: of 510 tokens of text, 14 or fewer at 32, 64,
    128, 256 and 512.

    Parameters
    ----------
    window : Window
    length : int
        Special tokens included.

    Returns
    -------
    list of Window
        In order, numbered from 0; their text is the number of the window that they come from, so
        that the summaries average the pieces of a window first.
    """
    content = window.ids[~window.special]
    first = shortened(window, length)
    size = int((~first.special).sum())
    found = []
    for number, start in enumerate(range(0, len(content) - size + 1, size)):
        ids = first.ids.copy()
        ids[~first.special] = content[start : start + size]
        begin = window.start + start
        found.append(
            replace(
                first,
                ids=ids,
                text_id=window.number,
                number=number,
                start=begin,
                end=begin + size,
            )
        )
    return found


def _measured(
    model: LoadedModel, whole: Sequence[Window], n: int, padded_to: int | None
) -> tuple[dict[str, Floats], list[float]]:
    """Means of all quantities with their intervals, and k90 of each window's pieces."""
    shape = (model.info.n_layers, model.info.n_heads)
    measures = {quantity: Measure(shape) for quantity in QUANTITIES}
    by_window = []
    for window in whole:
        parts = pieces(window, n)
        seen = np.zeros((len(parts), *shape, len(QUANTITIES)))
        good = np.zeros((len(parts), *shape), dtype=bool)
        for place, attention in _attention(model, parts, padded_to):
            values, usable = _of_layer(attention, n)
            seen[place : place + len(values), attention.layer] = values
            good[place : place + len(values), attention.layer] = usable
        # padded, only the first piece is measured
        used = good.any(axis=(1, 2))
        for values, usable in zip(seen[used], good[used], strict=True):
            for column, measure in enumerate(measures.values()):
                measure.add(values[..., column], usable)
        for measure in measures.values():
            measure.close_text()
        by_window.append(float(seen[..., 0][good].mean()))
    found: dict[str, Floats] = {}
    for quantity, measure in measures.items():
        found |= {f"{quantity}{ending}": value for ending, value in measure.result("text").items()}
    return found, by_window


def _attention(
    model: LoadedModel, parts: Sequence[Window], padded_to: int | None
) -> Iterator[tuple[int, Attention]]:
    """Every layer of every piece, or of the first one padded, and the number of its first piece."""
    if padded_to is not None:
        for attention in padded_attention(model, parts[0], padded_to):
            yield 0, attention
        return
    for attention in capture(model, parts, values=False, batch_size=len(parts)):
        yield attention.samples[0], attention


def _of_layer(attention: Attention, tokens: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(row, head, quantity) of one layer, and which of its matrices are usable."""
    weights = attention.weights
    n = weights.shape[-1]
    # columns of zeros change no singular value: the small matrix is quicker, and better conditioned
    if tokens < n and not weights[..., tokens:].any():
        weights = weights[..., :tokens]
    spectrum = singular_values(weights, workers=usable_cores())
    sigma = np.zeros((*spectrum.status.shape, n))
    sigma[..., : weights.shape[-1]] = spectrum.singular_values
    rank = rank_at(sigma, 0.9)
    quarter = n // 4 - 1
    values = [
        rank,
        rank / n,
        cumulative_ratio(sigma)[..., quarter],
        energy_ratio(sigma)[..., quarter],
    ]
    return np.stack(values, axis=-1), np.isin(spectrum.status, GOOD)


def _slope(lengths: npt.NDArray[np.int64], ranks: Floats) -> tuple[float, float, float]:
    """Slope of log k90 over log n and its 95 % interval over windows; NaN for a single length."""
    if len(lengths) < 2:
        return np.nan, np.nan, np.nan
    x = np.log(lengths)
    x -= x.mean()
    slopes = Moments((), ())
    for window in np.log(ranks).T:
        slopes.add(x @ window / (x @ x))
    half = float(half_width(slopes))
    mean = float(slopes.mean)
    return mean, mean - half, mean + half


def _print(found: xr.Dataset) -> None:
    print(f"{found.attrs['corpus']}, {found.attrs['windows']} windows, mean of the heads")
    for model in found["model"].to_numpy():
        one = found.sel(model=model)
        low, growth, high = (float(one[f"growth{end}"]) for end in ("_low", "", "_high"))
        print(f"{model}: packed, k90 grows as n^{growth:.3f} [{low:.3f}, {high:.3f}]")
        for layout in LAYOUTS:
            for n in one["length"].to_numpy():
                cell = one.sel(layout=layout, length=n)
                told = [_told(cell, *each) for each in zip(QUANTITIES, (1, 3, 3, 3), strict=True)]
                print(f"  {layout:6} {n:5}  {'  '.join(told)}")
    print(f"columns: {', '.join(QUANTITIES)}; ± is half a 95 % interval over windows")


def _told(cell: xr.Dataset, quantity: str, digits: int) -> str:
    mean, high = (float(cell[f"{quantity}_{end}"]) for end in ("mean", "high"))
    return f"{mean:.{digits}f} ± {high - mean:.{digits}f}"
