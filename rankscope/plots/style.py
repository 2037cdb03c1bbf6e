"""What all pictures share: matplotlib without its global state, colours, names, files.

Private to :mod:`rankscope.plots`. Figures are made from :class:`matplotlib.figure.Figure` itself,
never through pyplot, so nothing stays open and no display is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from rankscope.atomic import write_whole, writing
from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FULL_WIDTH = 7.0
"""Inches: the text width of a page of two columns."""

COLUMN_WIDTH = 3.4
"""Inches: one column."""

DPI = 200
MAX_PIXELS = 50_000_000
"""Largest picture that is rendered."""

# Okabe and Ito's colours, told apart with any colour vision; black is left for marks
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
CONTROL_GREYS = ("0.25", "0.5", "0.65", "0.4")
DASHES = ((0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 3)))
COLOUR_MAP = "viridis"
MISSING = "0.88"

_STYLE: dict[str, Any] = {
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "hatch.linewidth": 0.5,
    "image.cmap": COLOUR_MAP,
    # text stays text, and one figure gives one file, byte for byte
    "svg.fonttype": "none",
    "svg.hashsalt": "rankscope",
}
_FORMATS = ("png", "svg", "pdf")


def matplotlib_module() -> ModuleType:
    """matplotlib, imported whatever MPLBACKEND says.

    The variable is inherited from notebooks and may name a backend that is not installed, at
    which the plain import raises. It is hidden for the moment of the import and obeyed
    afterwards if it can be, so that a notebook's own plots behave as ever.
    """
    if "matplotlib" not in sys.modules:
        wanted = os.environ.pop("MPLBACKEND", None)
        try:
            import matplotlib
        finally:
            if wanted is not None:
                os.environ["MPLBACKEND"] = wanted
        if wanted:
            with suppress(ValueError):
                matplotlib.rcParams["backend"] = wanted
    return sys.modules["matplotlib"]


@contextmanager
def house_style() -> Iterator[None]:
    """Print settings, the same whatever the reader's own matplotlib settings are."""
    matplotlib_module()
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]):
        yield


def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """An empty figure of the given size in inches that pyplot does not know of."""
    matplotlib_module()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def figure_of(ax: Axes) -> Figure:
    """The figure that holds an axes."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise UsageError("the axes belong to no figure", "take them from figure.subplots()")
    return figure


def inches_of(ax: Axes) -> tuple[float, float]:
    """Width and height of an axes before the layout is final; good enough to space labels."""
    width, height = figure_of(ax).get_size_inches()
    box = ax.get_position()
    return float(width * box.width), float(height * box.height)


def save(
    figure: Figure, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], dpi: int = DPI
) -> list[Path]:
    """Write a figure to one file or several; each is whole or not there.

    Every file is written beside its target under another name and renamed, so an interrupted run
    leaves the old picture. Text in SVG stays text, and the same figure gives the same bytes.

    Parameters
    ----------
    figure : Figure
    path : path or sequence of paths
        With suffix .png, .svg or .pdf; missing folders are made.
    dpi : int, default 200
        Dots an inch of PNG and of images inside SVG and PDF.

    Returns
    -------
    list of Path
        The files, in the order given.

    Raises
    ------
    UsageError
        For another suffix, or above 50 million pixels.
    StoreError
        If a file cannot be written.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(one) for one in path]
    for target in paths:
        check_picture(target)
    width, height = figure.get_size_inches()
    if width * height * dpi**2 > MAX_PIXELS:
        raise UsageError(
            f"the picture would have {width * dpi:.0f} × {height * dpi:.0f} pixels, "
            f"above {MAX_PIXELS}",
            "draw fewer or smaller panels on a page, or lower dpi",
        )
    # a date in the file would make every run differ from the last
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for target in paths:
        suffix = target.suffix[1:].lower()

        def write(path: Path, suffix: str = suffix) -> None:
            figure.savefig(path, format=suffix, dpi=dpi, metadata=dated.get(suffix))

        # some parts, as ticks, are made only when they are drawn, by the settings of then
        with house_style(), writing(target):
            write_whole(target, write)
    return paths


def save_pages(
    figures: Iterable[Figure], path: str | os.PathLike[str], dpi: int = DPI
) -> list[Path]:
    """Write the pages of a grid; a single page to `path`, several to name-1, name-2, ….

    Parameters
    ----------
    figures : iterable of Figure
        Taken one at a time, so that only two are in memory.
    path : path
        As for :func:`save`.
    dpi : int, default 200

    Returns
    -------
    list of Path
        The files, in the order of the pages.

    Raises
    ------
    UsageError, StoreError
        As :func:`save` does.
    """
    target = Path(path)
    check_picture(target)
    pages = iter(figures)
    page = next(pages, None)
    written: list[Path] = []
    while page is not None:
        following = next(pages, None)
        name = target
        if written or following is not None:
            name = target.with_name(f"{target.stem}-{len(written) + 1}{target.suffix}")
        written += save(page, name, dpi)
        page = following
    return written


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuse a file name that no picture can have, before anything is computed.

    Raises
    ------
    UsageError
        Unless the name ends in .png, .svg or .pdf.
    """
    if Path(path).suffix[1:].lower() not in _FORMATS:
        raise UsageError(
            f"cannot draw a picture as {Path(path).name!r}", "end the name in .png, .svg or .pdf"
        )
