"""Pictures of P: small indexed PNG files, one for every head of one window."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rankscope.exceptions import UsageError

if TYPE_CHECKING:
    from rankscope.attention import Group, Special
    from rankscope.models import LoadedModel
    from rankscope.text import Window

SIZE = 128
"""Largest width and height of a picture, in pixels."""

FLOOR = 1e-5
"""Weights below are drawn as this; the colour scale is logarithmic and ends at 1."""

LEVELS = 64
"""Colours of the scale: few enough to pack well, more than the eye tells apart."""

_ANCHORS = (
    (0x44, 0x01, 0x54),
    (0x48, 0x28, 0x78),
    (0x3E, 0x49, 0x89),
    (0x31, 0x68, 0x8E),
    (0x26, 0x82, 0x8E),
    (0x1F, 0x9E, 0x89),
    (0x35, 0xB7, 0x79),
    (0x6E, 0xCE, 0x58),
    (0xB5, 0xDE, 0x2B),
    (0xFD, 0xE7, 0x25),
)
_MISSING = (0xB0, 0xB0, 0xB0)


@dataclass(frozen=True)
class Picture:
    """P of one head, as a PNG.

    Attributes
    ----------
    png : bytes
    largest : float
        The largest weight of P; NaN where nothing in it is finite.
    """

    png: bytes
    largest: float


@dataclass(frozen=True)
class Pictures:
    """P of every layer and head of a model for one window.

    Attributes
    ----------
    model : str
        Name of the model, as runs have it.
    window : str
        Which window it is.
    n : int
        Size of P.
    block : int
        Weights of block × block entries share a pixel, which shows the largest of them.
    heads : mapping of (layer, head) to Picture
    weights_sha256 : str or None
        Checksum of the model's weights.
    corpus : str or None
        Name of the corpus; None where it is not known, for all that the model was run on.
    """

    model: str
    window: str
    n: int
    block: int
    heads: Mapping[tuple[int, int], Picture]
    weights_sha256: str | None = None
    corpus: str | None = None

    @property
    def caption(self) -> str:
        """How to read the pictures."""
        shared = "" if self.block == 1 else f"; a pixel is the largest of {self.block} × "
        shared += "" if self.block == 1 else f"{self.block} weights"
        return f"n = {self.n}, {self.window}; log scale 1e-5 … 1, the same for all{shared}"


def pictures(
    model: LoadedModel,
    window: Window,
    *,
    corpus: str | None = None,
    layers: Iterable[int] | None = None,
    group: Group | None = None,
    special: Special = "keep",
    size: int = SIZE,
) -> Pictures:
    """Draw P of every head for one window, one layer at a time.

    Parameters
    ----------
    model : LoadedModel
    window : Window
        One of the run's windows, so that the pictures are of what was measured.
    corpus : str, optional
        Name of the corpus that the window is from.
    layers, group, special
        As the run has them; see :func:`rankscope.capture.capture`. Of a model with several groups
        the encoder's attention is drawn where none is given.
    size : int, default 128
        Largest width of a picture; a larger P is shown by the largest weight of each block, so that
        a single diagonal of large weights stays visible.

    Returns
    -------
    Pictures

    Raises
    ------
    UsageError
        If the window has no token that takes part, and so no P.
    UnsupportedModel, CaptureError
        As capturing does.
    """
    from rankscope.capture import capture

    where = f"window {window.number} of text {window.text_id}"
    heads: dict[tuple[int, int], Picture] = {}
    n, block, first = 0, 1, group
    stream = capture(model, [window], layers=layers, group=group, special=special, values=False)
    with closing(stream):  # type: ignore[type-var]
        for attention in stream:
            first = first or attention.group
            if attention.group != first:
                continue
            n = max(attention.shape)
            if n == 0:
                raise UsageError(f"{where} has no token, and so no P", "draw another window")
            block = max(1, math.ceil(n / size))
            for head in range(attention.n_heads):
                matrix = attention.matrix(0, head).cpu().numpy()
                heads[attention.layer, head] = picture_of(matrix, block)
    info = model.info
    return Pictures(info.name, where, n, block, heads, info.weights_sha256, corpus)


def picture_of(matrix: ArrayLike, block: int = 1) -> Picture:
    """A matrix of weights as a picture.

    Parameters
    ----------
    matrix : (n, m) array
        Weights in [0, 1]; what is not finite is drawn grey.
    block : int
        Entries of block × block share a pixel, which shows the largest of them, or grey if one
        of them is not finite.

    Returns
    -------
    Picture

    Raises
    ------
    UsageError
        If the matrix is empty or no matrix.
    """
    weights = np.asarray(matrix, dtype=np.float64)
    if weights.ndim != 2 or weights.size == 0:
        raise UsageError(f"no picture of an array of shape {weights.shape}", "give a matrix")
    finite = weights[np.isfinite(weights)]
    weights = block_maximum(np.where(np.isfinite(weights), weights, np.nan), block)
    return Picture(_png(levels_of(weights)), float(finite.max()) if finite.size else math.nan)


def block_maximum(matrix: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Largest entry of every block; blocks at the lower and right edge may be smaller.

    Examples
    --------
    >>> block_maximum(np.arange(9.0).reshape(3, 3), 2).tolist()
    [[4.0, 5.0], [7.0, 8.0]]
    """
    rows, columns = (np.arange(0, size, block) for size in matrix.shape)
    # NaN wins, so that what is missing stays so
    return np.maximum.reduceat(np.maximum.reduceat(matrix, rows, axis=0), columns, axis=1)


def levels_of(weights: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Number of the colour of every weight: 1 for the floor, `LEVELS` for 1, 0 for missing.

    Examples
    --------
    >>> levels_of(np.array([np.nan, 0.0, 1e-5, 1.0])).tolist()
    [0, 1, 1, 64]
    """
    share = 1 - np.log(np.clip(weights, FLOOR, 1.0)) / math.log(FLOOR)
    return np.where(np.isnan(weights), 0, np.rint(1 + share * (LEVELS - 1))).astype(np.uint8)


def palette() -> NDArray[np.uint8]:
    """Colours of the numbers that `levels_of` gives, (LEVELS + 1, 3): grey, then dark to light."""
    at = np.linspace(0, len(_ANCHORS) - 1, LEVELS)
    anchors = np.array(_ANCHORS, dtype=np.float64)
    scale = [np.interp(at, np.arange(len(_ANCHORS)), channel) for channel in anchors.T]
    return np.vstack([_MISSING, np.rint(np.stack(scale, axis=1))]).astype(np.uint8)


def _png(levels: NDArray[np.uint8]) -> bytes:
    """An indexed picture of 8 bits; PNG specification (W3C 2003), sections 5 and 11."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    height, width = levels.shape
    header: Any = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    # every row starts with the number of its filter, 0 for none
    rows = np.pad(levels, ((0, 0), (1, 0))).tobytes()
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", header),
            chunk(b"PLTE", palette().tobytes()),
            chunk(b"IDAT", zlib.compress(rows, 9)),
            chunk(b"IEND", b""),
        ]
    )
