"""Groups of windows as the samples of a run: what the control ``mean-M`` is measured on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rankscope.attention import Attention
from rankscope.engine.frame import Frame
from rankscope.engine.machine import hidden_states
from rankscope.exceptions import UsageError
from rankscope.text import Window

if TYPE_CHECKING:
    from rankscope.models import LoadedModel


@dataclass(frozen=True)
class GroupFrame(Frame):
    """Groups of windows and layers of a run; a sample is a group.

    A group stands in `windows` as one window that holds its M windows one after another: it goes
    to workers and into the coordinates of the result as any window does, from the start of its
    first to the end of its last. In `sizes`, and in `length`, is the n of each of the M.

    Attributes
    ----------
    together : int
        M, the windows of a group.
    """

    together: int = 1

    @property
    def block(self) -> int:
        """Groups that are computed and stored together; of tokens as many as of windows."""
        return max(1, super().block // self.together)

    def holding(self, windows: Mapping[int, Window]) -> Frame:
        """The same run with these groups only, by sample; what a worker is given."""
        found = super().holding(windows)
        sizes = {sample: size // self.together for sample, size in found.sizes.items()}
        return replace(found, sizes=sizes)

    def attentions(
        self,
        model: LoadedModel,
        samples: Sequence[int],
        *,
        values: bool,
        batch_size: int = 1,
        overlap: bool = True,
    ) -> Iterator[tuple[tuple[int, ...], Attention]]:
        """The chosen layers of every group of `samples`, one layer at a time.

        Every group has a forward pass of its own, whatever `batch_size` is: whoever computes it
        gets the same bits, and a layer comes of all its windows at once, so that no sum has to wait
        for the next window.

        Yields
        ------
        tuple of int, Attention
            The sample, and the attention of its M windows as the rows of a batch.
        """
        alive = [sample for sample in samples if self.sizes[sample] > 0]
        windows = [one for sample in alive for one in apart(self.windows[sample], self.together)]
        sizes = [self.sizes[sample] for sample in alive for _ in range(self.together)]
        single = replace(self, windows=dict(enumerate(windows)), sizes=dict(enumerate(sizes)))
        # neighbours of one length fill a pass: as all have one length, each pass is a group
        stream = Frame.attentions(
            single,
            model,
            range(len(windows)),
            values=values,
            batch_size=self.together,
            overlap=overlap,
        )
        for places, attention in stream:
            yield (alive[places[0] // self.together],), attention
            del attention


def in_groups(frame: Frame, count: int) -> GroupFrame:
    """A run with every `count` windows that follow each other as one sample.

    Parameters
    ----------
    frame : Frame
        Of all windows.
    count : int
        M; what is left of the windows, fewer than that, is left out.

    Returns
    -------
    GroupFrame

    Raises
    ------
    UsageError
        If there are fewer windows than `count`, or those of the groups have several lengths.
    """
    windows = list(frame.windows.values())
    full = len(windows) - len(windows) % count
    if full == 0:
        raise UsageError(
            f"{len(windows)} windows make no group of {count}",
            f"ask for {count} windows at least, or for means of fewer",
        )
    sizes = sorted({frame.sizes[sample] for sample in range(full)})
    if len(sizes) > 1:
        raise UsageError(
            f"the control mean-{count} is a mean of matrices of one size, and the windows have "
            f"{sizes[0]} to {sizes[-1]} tokens",
            "take packed windows, which have one length, or leave this control out",
        )
    groups = [joined(windows[start : start + count]) for start in range(0, full, count)]
    parts = {name: getattr(frame, name) for name in Frame.__dataclass_fields__}
    return GroupFrame(
        **parts
        | {
            "windows": dict(enumerate(groups)),
            "sizes": dict.fromkeys(range(len(groups)), sizes[0]),
            "length": max(1, sizes[0]),
        },
        together=count,
    )


def joined(windows: Sequence[Window]) -> Window:
    """Windows one after another as one, with their special tokens.

    Returns
    -------
    Window
        Text, number and start of the first, end of the last.
    """
    first, last = windows[0], windows[-1]
    return replace(
        first,
        ids=np.concatenate([window.ids for window in windows]),
        special=np.concatenate([window.special for window in windows]),
        end=last.end,
    )


def apart(window: Window, count: int) -> list[Window]:
    """The `count` windows of one length that :func:`joined` has put together.

    Returns
    -------
    list of Window
        With ids and special tokens of their own; the place in the text is that of the whole.
    """
    return [
        replace(window, ids=ids, special=special)
        for ids, special in zip(
            np.split(window.ids, count), np.split(window.special, count), strict=True
        )
    ]


def group_bytes(model: LoadedModel, n: int, count: int, threads: int) -> int:
    """Bytes that a group of windows needs beyond a single window; an estimate.

    Each thread holds the sum of one head's P, the mean in the type of P, and as much again for the
    entropy of its rows: 16·n² bytes. The forward pass holds M windows in place of one. No P waits
    for the next window.
    """
    return threads * n * n * 2 * 8 + (count - 1) * hidden_states(model, n)
