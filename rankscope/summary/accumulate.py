"""Running means over windows: what a summary needs, without keeping a window.

A run may hold a hundred thousand windows, so means and variances are updated as windows come and
the memory does not grow with their number. Windows of one text are averaged first and the texts
after that, so that a long text counts as much as a short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import numpy as np

from rankscope.exceptions import StoreError
from rankscope.status import Status
from rankscope.summary.units import Array, Batches, Floats, Moments, half_width, mean_of_present
from rankscope.summary.windows import ClosedTexts, Windows, side_by_side

CODES = {code.name.lower(): int(code) for code in sorted(Status)}
"""Status codes by name, ascending."""

GOOD = tuple(CODES[name] for name in ("ok", "fallback", "refined"))
"""The status codes whose matrices enter a mean."""

FAILED = ("non_finite", "failed")
"""The names of the status codes that say that something went wrong."""

ABSENT = CODES["absent"]
"""The status code of a matrix that was never there."""

SCALARS = (
    "rank_90",
    "numerical_rank",
    "effective_rank",
    "stable_rank",
    "row_entropy",
    "spectral_gap",
)
"""Per-matrix quantities that are averaged when they are given."""

FRACTIONS: Floats = np.linspace(0.0, 1.0, 129)
"""Default k/n grid of the relative curves; holds 1/4, 1/2 and 3/4 exactly."""

Cell = dict[str, tuple[tuple[str, ...], Any]]
"""Dimensions and values of every variable of one model on one corpus."""

PIECE_BYTES = 8 * 2**20
"""How much is made of the windows at a time: many short ones, one after another of the long."""


class Accumulator:
    """Means over the windows of one model on one corpus, fed as they come.

    Parameters
    ----------
    layers, heads : int
        Size of the layer and head axes.
    length : int
        Largest n: the index axis is 1 … length.
    fractions : ndarray (f,), optional
        k/n grid of the relative curves, in [0, 1].

    Notes
    -----
    Windows of one text must come one after another, as every window mode yields them; a text
    that comes back after another one raises, since its mean is closed by then.
    """

    def __init__(
        self, layers: int, heads: int, length: int, *, fractions: Floats = FRACTIONS
    ) -> None:
        self.length = length
        self.fractions = np.asarray(fractions, dtype=np.float64)
        self._shape = (layers, heads)
        # ratios at k = 1 … length and at n/4 of each window, and those over k/n
        self._by_layer = 2 * (length + 1)
        self._width = self._by_layer + 2 * self.fractions.size
        self._text_id: int | None = None
        self._closed = ClosedTexts()
        self._texts = 0
        self._in_text = self._moments()
        self._over_texts = self._moments()
        # what the usable windows of the only usable text have come to, as long as it is the only
        self._only_text: Moments | None = None
        self._usable_texts = 0
        self._text_units = (
            Moments((self._width,), (1,)),
            Moments((layers, self._by_layer), (layers, 1)),
        )
        self._window_units = (
            Batches((self._width,), (1,)),
            Batches((layers, self._by_layer), (layers, 1)),
        )
        self._index = np.arange(1, length + 1)
        self._having = np.zeros((layers, heads, length), dtype=np.int64)
        self._matrices = np.zeros((layers, heads), dtype=np.int64)
        self._rank_90 = np.zeros(length + 1, dtype=np.int64)
        self._codes = np.zeros(len(CODES), dtype=np.int64)
        self._shortest, self._longest = length, 0
        self.windows = 0

    def _moments(self) -> tuple[Moments, Moments]:
        width, scalars = (*self._shape, self._width), (*self._shape, len(SCALARS))
        return Moments(width, (*self._shape, 1)), Moments(scalars, scalars)

    def add(
        self,
        *,
        text_id: int,
        n_tokens: int,
        status: Array,
        cumulative_ratio: Array,
        energy_ratio: Array,
        scalars: Mapping[str, Array] | None = None,
    ) -> None:
        """Take in one window.

        Parameters
        ----------
        text_id : int
            The text that the window comes from.
        n_tokens : int
            Size n of its matrices.
        status : ndarray (layer, head) of int
            Codes of :class:`rankscope.status.Status`. Matrices that are not good are counted
            by code and enter no mean; a window without any matrix (all absent) is not counted.
        cumulative_ratio, energy_ratio : ndarray (layer, head, index)
            1 for index ≥ n.
        scalars : mapping of str to ndarray (layer, head), optional
            Any of `SCALARS`; NaN is left out.

        Raises
        ------
        StoreError
            A good matrix without a finite ratio, or a text that comes back.
        """
        self.add_many(
            text_id=np.array([text_id]),
            n_tokens=np.array([n_tokens]),
            status=np.asarray(status)[None],
            cumulative_ratio=np.asarray(cumulative_ratio)[None],
            energy_ratio=np.asarray(energy_ratio)[None],
            scalars={name: np.asarray(array)[None] for name, array in (scalars or {}).items()},
        )

    def add_many(
        self,
        *,
        text_id: Array,
        n_tokens: Array,
        status: Array,
        cumulative_ratio: Array,
        energy_ratio: Array,
        scalars: Mapping[str, Array] | None = None,
    ) -> None:
        """Take in several windows at once, in order.

        The result is that of :meth:`add` window by window, but for rounding (a relative 1e-12).

        Parameters
        ----------
        text_id, n_tokens : ndarray (window,) of int
        status : ndarray (window, layer, head) of int
        cumulative_ratio, energy_ratio : ndarray (window, layer, head, index)
        scalars : mapping of str to ndarray (window, layer, head), optional

        Raises
        ------
        StoreError
            As :meth:`add`.
        """
        width = 8 * self._width * self._shape[0] * self._shape[1]
        step = max(1, PIECE_BYTES // max(1, width))
        for start in range(0, len(text_id), step):
            part = slice(start, start + step)
            codes = np.asarray(status[part], dtype=np.int64)
            # windows without any matrix are as if they were not given
            given = np.flatnonzero((codes != ABSENT).any(axis=(1, 2)))
            chosen: Any = slice(None) if len(given) == len(codes) else given
            self._take(
                np.asarray(text_id)[part][chosen].astype(np.int64),
                np.asarray(n_tokens, dtype=np.int64)[part][chosen],
                codes[chosen],
                np.stack([cumulative_ratio[part], energy_ratio[part]], axis=-2)[chosen],
                {name: array[part][chosen] for name, array in (scalars or {}).items()},
            )

    def _take(
        self,
        texts: Array,
        sizes: Array,
        status: Array,
        ratios: Array,
        scalars: Mapping[str, Array],
    ) -> None:
        good = np.isin(status, GOOD)
        broken = good & ~np.isfinite(ratios).all(axis=(-2, -1))
        if broken.any():
            place, layer, head = np.argwhere(broken)[0]
            raise StoreError(
                f"window {self.windows + place} of text {texts[place]}: the matrix at layer "
                f"position {layer}, head position {head} is marked good but its ratios are not "
                "finite",
                "the data are damaged: compute the run again",
            )
        extra = np.full((*good.shape, len(SCALARS)), np.nan)
        for column, name in enumerate(SCALARS):
            if name in scalars:
                extra[..., column] = scalars[name]
        values = side_by_side(ratios, sizes, good, self.fractions)
        known = good[..., None] & np.isfinite(extra)
        window = Windows(values, good, extra, known)
        # windows of one text are together
        starts = np.flatnonzero(np.diff(texts, prepend=texts[:1] - 1))
        ends = np.append(starts[1:], len(texts))
        group = 0
        # the first may go on with a text, the last may be gone on with
        while group < len(starts) and (group in (0, len(starts) - 1) or not self._usable_texts):
            self._open(int(texts[starts[group]]))
            self._take_windows(window.part(starts[group], ends[group]))
            group += 1
        if group < len(starts):
            self._close_text()
            for text_id in texts[starts[group:-1]].tolist():
                self._begin(text_id)
            self._take_texts(
                window.part(starts[group], starts[-1]), starts[group:-1] - starts[group]
            )
            self._begin(int(texts[starts[-1]]))
            self._take_windows(window.part(starts[-1], ends[-1]))
        self._count(sizes, status, good, extra[..., SCALARS.index("rank_90")])

    def _count(self, sizes: Array, status: Array, good: Array, rank_90: Floats) -> None:
        self.windows += len(sizes)
        self._matrices += (status != ABSENT).sum(axis=0)
        # the codes start below zero, a histogram at zero
        self._codes += np.bincount(status.ravel() - min(CODES.values()), minlength=len(CODES))
        if (real := sizes[sizes > 0]).size:
            self._shortest = min(self._shortest, int(real.min()))
            self._longest = max(self._longest, int(real.max()))
        reaching = (sizes[:, None] >= self._index).astype(np.float64)
        self._having += np.tensordot(good.astype(np.float64), reaching, (0, 0)).astype(np.int64)
        ranks = rank_90[good]
        ranks = ranks[np.isfinite(ranks)].astype(np.int64)
        self._rank_90 += np.bincount(ranks, minlength=self.length + 1)

    def _open(self, text_id: int) -> None:
        if text_id == self._text_id:
            return
        if self._text_id is not None:
            self._close_text()
        self._begin(text_id)

    def _begin(self, text_id: int) -> None:
        if self._text_id is not None:
            self._closed.add(self._text_id)
        if text_id in self._closed:
            raise StoreError(
                f"the windows of text {text_id} are not together: another text came in between",
                "order the windows by text",
            )
        self._text_id = text_id
        self._texts += 1

    def _take_windows(self, window: Windows) -> None:
        """Windows of the text that is open."""
        curves, numbers = self._in_text
        curves.add_many(window.values, window.good[..., None])
        numbers.add_many(window.scalars, window.known)
        if self._usable_texts == 0:
            self._add_units(self._window_units, window.values, window.good)

    def _close_text(self) -> None:
        for inner, outer in zip(self._in_text, self._over_texts, strict=True):
            outer.add(inner.mean, inner.count > 0)
        curves = self._in_text[0]
        there = curves.count[..., 0] > 0
        self._add_units(self._text_units, curves.mean[None], there[None])
        self._know_usable(int(there.any()), curves)
        self._in_text = self._moments()

    def _take_texts(self, window: Windows, starts: Array) -> None:
        """Windows of texts that are here as a whole, where another text was usable before."""
        for values, keep, outer in zip(
            (window.values, window.scalars),
            (window.good[..., None], window.known),
            self._over_texts,
            strict=True,
        ):
            means, count = values, keep.astype(np.int64)
            # not worth its time where every window is a text
            if len(starts) < len(values):
                count = np.add.reduceat(count, starts, axis=0)
                total = np.add.reduceat(np.where(keep, values, 0.0), starts, axis=0)
                means = total / np.maximum(count, 1)
            outer.add_many(means, count > 0)
            if keep.shape[-1] == 1:
                there = count[..., 0] > 0
                self._add_units(self._text_units, means, there)
                self._know_usable(int(there.any(axis=(1, 2)).sum()), None)

    def _know_usable(self, new: int, only: Moments | None) -> None:
        if new:
            self._only_text = only if self._usable_texts == 0 else None
            self._usable_texts += new

    def _add_units(
        self, units: tuple[Moments, Moments] | tuple[Batches, Batches], values: Floats, there: Array
    ) -> None:
        """A unit for each window or text: the mean of all heads, and of those of each layer.

        Those without a usable matrix are none.
        """
        some = there.any(axis=(1, 2))
        there = there[some][..., None]
        chosen = values if some.all() else values[some]
        total = (chosen if there.all() else np.where(there, chosen, 0.0)).sum(axis=-2)
        heads = there.sum(axis=-2)
        whole, by_layer = units
        n_heads = heads.sum(axis=-2)
        whole.add_many(total.sum(axis=-2) / n_heads, n_heads > 0)
        by_layer.add_many(total[..., : self._by_layer] / np.maximum(heads, 1), heads > 0)

    def result(self) -> Cell:
        """What has been taken in so far, as name → (dims, array); more windows may follow.

        The interval around a curve is mean ± t · s / √u over u units: texts, or batches of windows
        if there is a single usable text; with one unit it is NaN. That of a layer's mean over its
        heads is given as half its width, `layer_half_width` (layer, index), and at n/4 of each
        window `quarter_layer_half_width` (layer).
        """
        done = copy(self)
        done._over_texts = deepcopy(self._over_texts)
        done._text_units = deepcopy(self._text_units)
        done._close_text()
        curves, numbers = done._over_texts
        single = done._usable_texts < 2
        whole, by_layer = done._window_units if single else done._text_units
        spread = (done._only_text if single else curves) or self._moments()[0]
        per_head, variance = curves.mean, spread.variance
        centre, half, layers = (
            mean_of_present(per_head, (0, 1)),
            half_width(whole),
            half_width(by_layer),
        )
        f, n, m = self.fractions.size, self.length, self._by_layer
        parts = {
            "": (slice(0, n), "index"),
            "energy_": (slice(n + 1, m - 1), "index"),
            "relative_": (slice(m, m + f), "fraction"),
            "relative_energy_": (slice(m + f, None), "fraction"),
        }
        out: Cell = {}
        for prefix, (part, dim) in parts.items():
            if dim == "index":
                out[f"mean_{prefix}ratio"] = (("layer", "head", dim), per_head[..., part])
                out[f"{prefix}ratio_variance"] = (("layer", "head", dim), variance[..., part])
                out[f"mean_{prefix}ratio_curve"] = ((dim,), centre[part])
                out[f"{prefix}layer_half_width"] = (("layer", dim), layers[:, part])
            else:
                out[f"{prefix}ratio_curve"] = ((dim,), centre[part])
            out[f"{prefix}interval_low"] = ((dim,), (centre - half)[part])
            out[f"{prefix}interval_high"] = ((dim,), (centre + half)[part])
        for prefix, at in {"": n, "energy_": m - 1}.items():
            out[f"{prefix}quarter_ratio"] = (("layer", "head"), per_head[..., at])
            out[f"{prefix}quarter_mean"] = ((), centre[at])
            out[f"{prefix}quarter_mean_low"] = ((), (centre - half)[at])
            out[f"{prefix}quarter_mean_high"] = ((), (centre + half)[at])
            out[f"{prefix}quarter_layer_half_width"] = (("layer",), layers[:, at])
        for column, name in enumerate(SCALARS):
            label = "k90" if name == "rank_90" else f"mean_{name}"
            out[label] = (("layer", "head"), numbers.mean[..., column])
        out["count"] = (("layer", "head", "index"), self._having.copy())
        out["n_matrices"] = (("layer", "head"), self._matrices.copy())
        out["rank_90_count"] = (("index",), self._rank_90[1:].copy())
        out["status_count"] = (("status",), self._codes.copy())
        for label, number in {
            "n_windows": self.windows,
            "n_texts": self._texts,
            "n_units": int(whole.count[0]),
            "batch_windows": whole.length if isinstance(whole, Batches) else 1,
            "n_tokens_min": min(self._shortest, self._longest),
            "n_tokens_max": self._longest,
        }.items():
            out[label] = ((), np.int64(number))
        out["layer_units"] = (("layer",), by_layer.count[:, 0])
        out["interval_unit"] = ((), "window" if single else "text")
        return out
