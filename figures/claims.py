"""Every claim of the source: one picture a claim, and the page with numbers and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyses._claims_page import page
from analyses._claims_results import PUBLISHED, Measured, Results, gather
from analyses._claims_rules import Estimate
from figures._data import DATA, FOLDER
from rankscope import plots
from rankscope.atomic import write_whole, writing
from rankscope.plots.claims import curves, interval_rows

Point = tuple[float, float, float]


def draw(data: Path = DATA, target: Path = FOLDER / "claims.md") -> list[Path]:
    """Draw what ``analyses/claims.py`` measured, and write the page.

    Parameters
    ----------
    data : Path
        Folder of ``claims--MODEL--CORPUS.nc``, ``graphs.nc`` and ``complexity.nc``.
    target : Path
        The page; pictures go to a folder of its name beside it.

    Returns
    -------
    list of Path
    """
    return write(gather(data), target)


def write(results: Results, target: Path) -> list[Path]:
    """Draw and write what was found; parameters as for :func:`draw`."""
    pictures = target.with_suffix("")
    written = []
    drawn = set()
    for name, make in PICTURES.items():
        figure = make(results)
        if figure is not None:
            files = [pictures / f"{name}.png", pictures / f"{name}.svg"]
            written += plots.save(figure, files)
            drawn.add(name)
    text = page(results, pictures.name, drawn)

    def put(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    with writing(target):
        write_whole(target, put)
    return [*written, target]


def _rows(
    claim: str, columns: dict[str, str], label: str, **options: Any
) -> Callable[[Results], Any]:
    """Numbers of a claim by model and text: columns of its findings, and their names."""

    def make(results: Results) -> Any:
        places = results.findings[claim]
        series = {
            name: [
                _point(found.cells.get(column) if column else found.number)
                for found in places.values()
            ]
            for column, name in columns.items()
        }
        series = {name: one for name, one in series.items() if _any(one)}
        if not series:
            return None
        names = [results.measured[place].title for place in places]
        return interval_rows(names, series, label=label, **options)

    return make


def _proof(claim: str, label: str, groups: Sequence[str] = (), **options: Any) -> Any:
    """Points of a claim that mathematics decides."""

    def make(results: Results) -> Any:
        points = results.proofs[claim].points
        if groups:
            rows = list(dict.fromkeys(name.rpartition(": ")[0] for name in points))
            series = {
                group: [_point(points.get(f"{row}: {group}")) for row in rows] for group in groups
            }
        else:
            rows, series = list(points), {"": [_point(one) for one in points.values()]}
        return interval_rows(rows, series, label=label, **options)

    return make


def _curves(claim: str, **options: Any) -> Callable[[Results], Any]:
    def make(results: Results) -> Any:
        return curves(results.proofs[claim].curves, **options)

    return make


def _shown(results: Results, parts: tuple[str, ...]) -> list[Measured]:
    """Curves are those of one text: the first that any model was measured on."""
    there = [one for one in results.measured if one.has(parts)]
    return [one for one in there if one.corpus == results.corpora[0]] or there[:1]


def _published(results: Results) -> Any:
    found = _shown(results, ("spectra",))
    lines = {"published, RoBERTa-base": (np.linspace(0, 1, len(PUBLISHED)), np.array(PUBLISHED))}
    for one in found:
        means = one.layer_means
        lines[one.short] = (np.linspace(0, 1, len(means)), means)
    axes = {"x": "layer, first (0) to last (1)", "y": "ratio at n/4"}
    return curves(lines, **axes, grey=[next(iter(lines))], y_range=(None, 1.0))  # type: ignore[arg-type]


def _lengths(results: Results) -> Any:
    lines = {}
    for one in _shown(results, ("spectra",)):
        n = one.kept["spectra_length"].to_numpy().astype(np.float64)
        lines[one.short] = (n, one.mean_over_heads("spectra", "length_rank_90") / n)
    return curves(lines, x="tokens n", y="k90(n) / n", doublings=True) if lines else None


def _near(results: Results) -> Any:
    lines, n = {}, None
    for one in _shown(results, ("near",)):
        w = one.kept["near_w"].to_numpy().astype(np.float64)
        lines[one.short] = (w, one.mean_over_heads("near", "mass", near_order="text"))
        n = (w, one.kept["near_uniform"].to_numpy())
    if n is None:
        return None
    lines["uniform attention"] = n
    return curves(
        lines,
        x="w (tokens to each side)",
        y="mass within ±w",
        doublings=True,
        grey=["uniform attention"],
        y_range=(0, 1),
    )


def _low_rank(results: Results) -> Any:
    lines = {}
    for one in _shown(results, ("errors",)):
        names = [str(name) for name in one.kept["errors_method"].to_numpy()]
        ks = sorted(int(name.rpartition("=")[2]) for name in names if name.startswith("truncated:"))
        error = one.mean_over_heads("errors", "output", errors_rows="all")
        values = [float(error[names.index(f"truncated:k={k}")]) for k in ks]
        lines[one.short] = (np.array(ks, dtype=np.float64), np.array(values))
    axes = {"x": "rank k", "y": "relative output error"}
    return curves(lines, **axes, doublings=True, limit=0.1, y_range=(0, None)) if lines else None  # type: ignore[arg-type]


def _point(found: Estimate | str | None) -> Point:
    if isinstance(found, Estimate):
        return found.value, found.low, found.high
    return math.nan, math.nan, math.nan


def _any(points: Sequence[Point]) -> bool:
    return any(math.isfinite(value) for value, _, _ in points)


_CONTROLS = {"rows shuffled": "rows shuffled", "random weights": "random weights"}
_ERROR = "relative output error"

PICTURES: dict[str, Callable[[Results], Any]] = {
    "figure1": lambda results: _published(results) if results.measured else None,
    "C1": _rows(
        "C1", {"": "measured", **_CONTROLS}, "ratio at n/4", limits=(0.88, 0.92), between=True
    ),
    "C2": _rows(
        "C2",
        {"least of a window": "measured", **{f"the same, {one}": one for one in _CONTROLS}},
        "ratio at n/4 of the least head",
        limits=(0.88,),
    ),
    "C3": _rows("C3", {"": "τ"}, "Kendall's τ of layer and ratio", limits=(0.0, 0.5)),
    "C4": _lengths,
    "C5": _near,
    "C6": _rows("C6", {"band": "band", "random": "random keys"}, _ERROR),
    "C7": _curves("C7", x="layers l", y="reach to each side (tokens)"),
    "C8": _rows(
        "C8",
        {f"{one}, output error": name for one, name in
         (("rising", "growing"), ("fixed", "fixed"), ("falling", "shrinking"))},
        _ERROR,
    ),
    "C9": _rows(
        "C9",
        {"dilation 1, output error": "dilation 1", "dilation 2, output error": "dilation 2",
         "dilation 4, output error": "dilation 4",
         "dilation by head, output error": "1, 2, 4 in turn"},
        _ERROR,
    ),
    "C10": _rows(
        "C10",
        {"special rows, band alone": "special rows, band alone",
         "other rows, band alone": "other rows, band alone",
         "other rows, special tokens global": "other rows, special tokens global"},
        _ERROR,
    ),
    "C11": _proof("C11", "σ (small world: above 1)", limits=(1.0,), log=True),
    "C12": _curves("C12", x="i", y="singular value", y_range=(0, 1.05)),
    "C13": _curves("C13", x="k", y="cumulative ratio of σ", y_range=(0, 1.02)),
    "C14": _proof("C14", "exponent over n", ("time", "memory"), limits=(1.5,)),
    "C15": _low_rank,
    "C16": _proof("C16", "score entries for full reach / n²", limits=(0.5,), log=True),
}  # fmt: skip
"""Pictures by the id of their claim; None where nothing was measured."""
