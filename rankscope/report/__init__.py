"""The explorer: a run as one HTML file that opens from disk and needs no network.

`explorer` makes the page, `write_report` writes it. Means over windows are those of
:mod:`rankscope.summary`; the page's charts are Vega-Lite, made by Altair, and its few lines of
JavaScript are the files in ``assets``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from rankscope.atomic import write_whole, writing
from rankscope.exceptions import UsageError
from rankscope.report.images import Pictures, pictures

__all__ = ["Pictures", "check_report", "explorer", "pictures", "write_report"]

Datasets = xr.Dataset | Sequence[xr.Dataset]


def explorer(
    spectra: Datasets,
    *,
    errors: Sequence[xr.Dataset] = (),
    pictures: Pictures | Sequence[Pictures] | None = None,
    controls: Datasets | None = None,
) -> str:
    """One HTML page that shows every head of a run, with nothing left to load.

    A layer × head map of a chosen quantity at a chosen rank k; the heads that meet a tolerance, on
    the map and counted; of a chosen head the spectrum, both ratios, the error of each method over
    k, controls and a picture of P; and a table of all heads. Curves are stored at every k in
    single precision; only their drawing is thinned.

    Parameters
    ----------
    spectra : Dataset or sequence of Dataset
        Runs of ``rankscope spectra``, dims (model, corpus, sample, layer, head, index), or their
        summaries, which hold no singular values: σ_k/Σσ is drawn in their place. Models of
        different shapes come as several.
    errors : sequence of Dataset
        Runs of ``rankscope truncate`` and ``rankscope compare``, or their summaries, of models and
        corpora that are among the spectra.
    pictures : Pictures or sequence of Pictures, optional
        P of every head for one window of a model, from `pictures`.
    controls : Dataset or sequence of Dataset, optional
        What chance alone gives: runs of spectra or summaries on the corpora of the spectra, with
        as many layers and heads. One with a dimension ``control`` holds several, by name; else its
        name is its attribute ``control``, or its model's.

    Returns
    -------
    str
        HTML. Heads without a usable matrix are blank, with the reason.

    Raises
    ------
    StoreError
        If a dataset is of another kind.
    UsageError
        If errors, pictures or controls belong to no model and corpus of the spectra, one comes
        twice, or there is nothing to show.
    """
    from rankscope.report.collect import collect
    from rankscope.report.page import page

    shown = [] if pictures is None else pictures
    return page(
        collect(
            _listed(spectra),
            errors=list(errors),
            pictures=[shown] if isinstance(shown, Pictures) else list(shown),
            controls=_listed(controls),
        )
    )


def write_report(
    target: str | os.PathLike[str],
    spectra: Datasets,
    *,
    errors: Sequence[xr.Dataset] = (),
    pictures: Pictures | Sequence[Pictures] | None = None,
    controls: Datasets | None = None,
) -> Path:
    """Write `explorer`'s page to a file, which is whole or not there.

    Parameters
    ----------
    target : path
        Ends in .html; an older file there is replaced.
    spectra, errors, pictures, controls
        As for `explorer`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError, StoreError
        As `explorer` does; for another suffix; if the file cannot be written.
    """
    path = check_report(target)
    text = explorer(spectra, errors=errors, pictures=pictures, controls=controls)
    with writing(path):
        write_whole(path, lambda temporary: _write(temporary, text))
    return path


def check_report(target: str | os.PathLike[str]) -> Path:
    """Refuse a file name that no report can have, before anything is computed.

    Examples
    --------
    >>> check_report("run.html").name
    'run.html'

    Raises
    ------
    UsageError
        Unless the name ends in .html.
    """
    path = Path(target)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"cannot write a report as {path.name!r}", "end the name in .html")
    return path


def _write(path: Path, text: str) -> None:
    # the same bytes on every system
    path.write_bytes(text.encode())


def _listed(datasets: Datasets | None) -> list[xr.Dataset]:
    if datasets is None:
        return []
    return [datasets] if isinstance(datasets, xr.Dataset) else list(datasets)
