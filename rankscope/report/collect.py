"""What the page shows, out of runs and summaries: one record for every model and corpus."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import check_name, control_of
from rankscope.report.controls import gap_of, has_same_heads
from rankscope.report.images import Pictures
from rankscope.report.methods import Series, series_of
from rankscope.report.provenance import Origin
from rankscope.summary import combine
from rankscope.summary.accumulate import ABSENT, CODES, GOOD
from rankscope.summary.averages import Measure, blocks, whole_numbers

Floats = npt.NDArray[np.floating[Any]]

FULL = 64
"""Curves are drawn at every k up to here …"""

POINTS = 160
"""… and at about so many in all."""

SCALARS = ("k90", "mean_effective_rank", "mean_stable_rank", "mean_row_entropy")


@dataclass(eq=False)
class Pair:
    """A model on a corpus.

    Attributes
    ----------
    summary : Dataset
        Of :func:`rankscope.summary.combine`, the dimensions model and corpus of size one.
    spectrum : (layer, head, index) float64
        Mean singular values, or mean shares σ_k/Σσ where only a summary is known.
    measured : bool
        Whether `spectrum` holds singular values.
    notes : (layer, head) list of str
        What became of a head's matrices that are not usable; "" where all are, or a summary does
        not say.
    run : Dataset or None
        The run itself with its layers and heads, dimensions model and corpus of size one; None
        where only a summary is known.
    """

    summary: xr.Dataset
    spectrum: Floats
    measured: bool
    notes: list[list[str]]
    run: xr.Dataset | None = None
    series: list[Series] = field(default_factory=list)
    controls: list[tuple[str, Pair]] = field(default_factory=list)
    pictures: Pictures | None = None

    @property
    def origin(self) -> Origin:
        """Which model, text and settings it is about."""
        return Origin.of(self.summary)

    @property
    def key(self) -> tuple[str, str]:
        """Names of model and corpus."""
        return str(self.summary["model"].item()), str(self.summary["corpus"].item())

    @property
    def shape(self) -> tuple[list[int], list[int]]:
        """Numbers of the layers and of the heads."""
        return self.summary["layer"].to_numpy().tolist(), self.summary["head"].to_numpy().tolist()

    def one(self, name: str) -> Floats:
        """A variable of the summary, without its model and corpus; layer and head come first."""
        found = self.summary[name].isel(model=0, corpus=0)
        return found.transpose("layer", "head", ..., missing_dims="ignore").to_numpy()


def collect(
    spectra: Sequence[xr.Dataset],
    *,
    errors: Sequence[xr.Dataset],
    pictures: Sequence[Pictures],
    controls: Sequence[xr.Dataset],
) -> list[Pair]:
    """Bring together what belongs to the same model and corpus.

    Returns
    -------
    list of Pair
        In the order of the spectra.

    Raises
    ------
    StoreError, UsageError
        As :func:`rankscope.report.explorer` does.
    """
    pairs: dict[tuple[str, str], Pair] = {}
    for dataset in spectra:
        for pair in pairs_of(dataset):
            if pair.key in pairs:
                raise UsageError(
                    f"two runs of model {pair.key[0]!r} on corpus {pair.key[1]!r}",
                    "name each model and corpus once",
                )
            pairs[pair.key] = pair
    if not pairs:
        raise UsageError("there is no window to show", "give a run that has at least one")
    origins = {key: pair.origin for key, pair in pairs.items()}
    for key, series in series_of(errors, origins).items():
        pairs[key].series += series
    for drawn in pictures:
        owners = [pair for pair in pairs.values() if _shows(drawn, pair.origin)]
        if not owners:
            raise UsageError(
                f"pictures of {drawn.model!r}, whose spectra are not shown",
                "draw them with the model and text of the run",
            )
        for pair in owners:
            if pair.pictures is not None:
                raise UsageError(
                    f"two windows are drawn of {drawn.model!r}", "give the pictures of one"
                )
            pair.pictures = drawn
    for name, control in (named for dataset in controls for named in _controls(dataset)):
        for pair in _owners(name, control, [*pairs.values()]):
            pair.controls.append((name, control))
    for pair in pairs.values():
        _check_names(pair)
    return [*pairs.values()]


def _check_names(pair: Pair) -> None:
    """Refuse what could not be written into the page."""
    for name, _ in pair.controls:
        check_name(name, "control")
    for one in pair.series:
        check_name(one.name, "method")


def pairs_of(dataset: xr.Dataset) -> list[Pair]:
    """Every model and corpus of a run or summary of spectra that has a window."""
    if not {"mean_ratio", "count"} <= {*dataset.data_vars} and "sample" not in dataset.dims:
        raise StoreError(
            "neither a run of spectra nor its summary", "give the result of `rankscope spectra`"
        )
    for dim, what in (("model", "model"), ("corpus", "text")):
        for name in dataset[dim].to_numpy().ravel().tolist():
            check_name(str(name), what)
    found = []
    for part in combine([dataset]):
        if "sample" not in dataset.dims:
            found.append(_of_summary(part))
            continue
        run = dataset.sel({name: [part[name].item()] for name in ("model", "corpus")})
        for name in ("layer", "head"):
            # a list of positions is slow to read from a file, so only where some are left out
            if run.sizes[name] != part.sizes[name]:
                run = run.sel({name: part[name].to_numpy()})
        pair = _of_summary(part)
        pair.run = run
        alone = run.isel(model=0, corpus=0)
        if "singular_value" in run:
            pair.spectrum, pair.measured = mean_spectra(alone), True
        pair.notes = _notes(alone)
        found.append(pair)
    return found


def mean_spectra(run: xr.Dataset) -> Floats:
    """Mean singular values of each head over its usable matrices, by text and then over texts.

    Parameters
    ----------
    run : Dataset, dims (sample, layer, head, index)

    Returns
    -------
    (layer, head, index) float64
        Beyond a window's own n there is no value, and the mean is over the windows that have one;
        NaN where none has.
    """
    names = ("singular_value", "status", "n_tokens")
    measure = Measure(tuple(run.sizes[dim] for dim in ("layer", "head", "index")))
    ks = run["index"].to_numpy()
    for block in blocks(run, names):
        status = whole_numbers(block["status"].to_numpy(), ABSENT)
        sizes = whole_numbers(block["n_tokens"].to_numpy(), 0)
        real = (ks <= sizes[:, None])[:, None, None]
        own = np.where(real, block["singular_value"].to_numpy(), np.nan)
        measure.add_many(own, np.isin(status, GOOD)[..., None], block["text_id"].to_numpy())
    return measure.result("text")[""]


def drawn_ks(n: int) -> list[int]:
    """Ranks at which curves of 1 … n are drawn: all of the first ones, then on a log scale.

    Examples
    --------
    >>> drawn_ks(5)
    [1, 2, 3, 4, 5]
    >>> len(drawn_ks(512)), drawn_ks(512)[-1]
    (160, 512)
    """
    if n <= POINTS:
        return [*range(1, n + 1)]
    beyond = np.rint(np.geomspace(FULL, n, POINTS - FULL + 1)).astype(int)
    return [*range(1, FULL), *np.unique(beyond).tolist()]


def packed(values: npt.ArrayLike) -> str:
    """Numbers as base64 of little-endian float32; NaN and infinity stay what they are."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


def as_json(pairs: Sequence[Pair]) -> str:
    """What the page's JavaScript reads, as JSON that is safe inside an HTML script element."""
    text = json.dumps([_record(pair) for pair in pairs], ensure_ascii=False, allow_nan=False)
    # an end tag or a comment in a name must not end the element
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _record(pair: Pair) -> dict[str, Any]:
    layers, heads = pair.shape
    usable = pair.one("count")[..., 0]
    record = {
        "model": pair.key[0],
        "corpus": pair.key[1],
        "facts": pair.origin.facts,
        "layers": layers,
        "heads": heads,
        "drawn": drawn_ks(pair.spectrum.shape[-1]),
        "nTokens": int(pair.summary["n_tokens_max"].item()),
        "windows": int(pair.summary["n_windows"].item()),
        "usable": usable.ravel().tolist(),
        "matrices": pair.one("n_matrices").ravel().tolist(),
        "notes": [note for row in pair.notes for note in row],
        "scalars": {name: packed(pair.one(name)) for name in SCALARS if _known(pair, name)},
        **_curves(pair),
        "errors": [one.record(layers, heads, packed) for one in pair.series],
        "controls": [
            {
                "name": name,
                "sameHeads": has_same_heads(name, control.key[0], pair.key[0]),
                "gap": gap_of(pair, control),
                **_curves(control),
            }
            for name, control in pair.controls
        ],
        "pictures": None,
    }
    if pair.pictures is not None:
        record["pictures"] = {
            "caption": pair.pictures.caption,
            "n": pair.pictures.n,
            "heads": {
                f"{layer},{head}": {
                    "png": base64.b64encode(one.png).decode(),
                    "largest": None if np.isnan(one.largest) else one.largest,
                }
                for (layer, head), one in pair.pictures.heads.items()
            },
        }
    return record


def _curves(pair: Pair) -> dict[str, Any]:
    n = pair.spectrum.shape[-1]
    drawn = np.array(drawn_ks(n)) - 1
    return {
        "n": n,
        "cumulative": packed(pair.one("mean_ratio")),
        "energy": packed(pair.one("mean_energy_ratio")),
        "spectrum": {
            "ks": (drawn + 1).tolist(),
            "values": packed(pair.spectrum[..., drawn]),
            "isSigma": pair.measured,
        },
    }


def _known(pair: Pair, name: str) -> bool:
    return name in pair.summary and bool(np.isfinite(pair.summary[name]).any())


def _of_summary(part: xr.Dataset) -> Pair:
    ratio = part["mean_ratio"].isel(model=0, corpus=0).transpose("layer", "head", "index")
    # the mean ratio's steps are the mean shares
    share = np.diff(ratio.to_numpy(), axis=-1, prepend=0.0)
    return Pair(part, share, False, [[""] * part.sizes["head"] for _ in part["layer"]])


def _notes(run: xr.Dataset) -> list[list[str]]:
    """What is not usable, by head, in the words of the status codes."""
    status = whole_numbers(run["status"].transpose("layer", "head", "sample").to_numpy(), ABSENT)
    there = (status != ABSENT).any(axis=(0, 1))
    names = {code: name for name, code in CODES.items()}

    def said(codes: npt.NDArray[Any]) -> str:
        found, counts = np.unique(codes[~np.isin(codes, GOOD)], return_counts=True)
        bad = [
            f"{n} {names[code]}" for code, n in zip(found.tolist(), counts.tolist(), strict=True)
        ]
        return ", ".join(bad)

    return [[said(head[there]) for head in layer] for layer in status]


def _shows(drawn: Pictures, origin: Origin) -> bool:
    same_weights = None in (drawn.weights_sha256, origin.weights) or (
        drawn.weights_sha256 == origin.weights
    )
    return drawn.model == origin.model and drawn.corpus in (None, origin.corpus) and same_weights


def _controls(dataset: xr.Dataset) -> list[tuple[str, Pair]]:
    if "control" in dataset.dims:
        return [
            (str(name), pair)
            for name in dataset["control"].to_numpy()
            for pair in pairs_of(dataset.sel(control=name, drop=True))
        ]
    named = str(dataset.attrs.get("control") or "")
    return [(named or pair.key[0], pair) for pair in pairs_of(dataset)]


def _owners(name: str, control: Pair, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that a control is for: those on its text that have its layers and heads."""
    on_text = [pair for pair in pairs if pair.key[1] == control.key[1]]
    # one that names its model is for that one alone
    model = control_of(control.key[0])[1]
    named = [pair for pair in on_text if pair.key[0] == model != control.key[0]]
    on_text = named or on_text
    same = [pair for pair in on_text if pair.key == control.key]
    if name == control.key[0]:
        # a model of its own, which may be shown too, but is no control of itself
        candidates = [pair for pair in on_text if pair not in same]
    else:
        candidates = same or on_text
    fitting = [pair for pair in candidates if pair.shape == control.shape]
    if not fitting:
        raise UsageError(
            f"the control {name!r} on {control.key[1]!r} fits no model that is shown",
            "controls need the corpus, layers and heads of the spectra",
        )
    return fitting
