"""Windows through a model, its attention out: a stream of `Attention`, one layer at a time.

Two roads behind one face. Families that ask transformers' attention interface for their kernel get
ours, which hands over query, key and value and goes on with the fused kernel, so that the model
itself never builds an n × n matrix. Families that do not (MPNet) are heard by forward hooks on
their query, key and value layers. Either way P is computed by `Attention`, when it is wanted.

The forward pass runs in a thread of its own and waits while a layer is ready and not yet taken;
closing the stream, an error and a normal end all restore the model.

Whoever hears a layer may also change its output: :mod:`rankscope.capture.replacement` runs a model
whose attention is replaced, without a thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankscope.attention import Attention, Group, Special, check_special
from rankscope.capture import roads
from rankscope.capture.batches import Batch, Windows
from rankscope.capture.lending import (
    RollCall,
    borrowed,
    checked_batches,
    in_quarters,
    network_of,
)
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Attention", "capture"]


def capture(
    model: LoadedModel | PreTrainedModel,
    windows: Windows,
    *,
    layers: Iterable[int] | None = None,
    group: Group | None = None,
    attention_mask: torch.Tensor | Sequence[Sequence[int]] | None = None,
    special: Special = "keep",
    values: bool = True,
    batch_size: int = 1,
    overlap: bool = True,
) -> Iterator[Attention]:
    """Capture the attention of a model, layer by layer, window by window.

    Parameters
    ----------
    model : LoadedModel or PreTrainedModel
        It runs in evaluation mode and without gradients; its mode, attention implementation and
        hooks are afterwards what they were. It must not be used while the stream is open.
    windows : sequence of Window, or (batch, n) token ids
        Windows are batched when they follow each other with the same length. Ids may be padded:
        with `attention_mask`, or else with the model's pad token, from which the mask is made.
    layers : iterable of int, optional
        Which layers to hand out; all when not given.
    group : {"encoder", "decoder", "cross"}, optional
        Which attention of an encoder-decoder model; all when not given.
    attention_mask : (batch, n), optional
        1 for tokens, 0 for padding; only with ids.
    special : {"keep", "drop", "renormalise"}
        What happens to the rows and columns of special tokens; see :class:`Attention`.
    values : bool
        Whether the value vectors are handed out too; spectra do without.
    batch_size : int
        Windows of one forward pass.
    overlap : bool
        Whether the forward pass goes on while the reader works with a layer; without it the two
        take turns and need one core.

    Returns
    -------
    iterator of Attention
        For every batch its layers in order; tensors of the device and dtype of the model, without
        gradients. Padding is cut off before anything is handed out: windows of one batch that
        differ in length come one by one.

    Raises
    ------
    UsageError
        For windows longer than the model's positions, ids outside its vocabulary, unknown layers.
    UnsupportedModel
        For a family whose attention is no softmax(QKᵀ + bias), or not full matrices.
    CaptureError
        If the layers that arrive are not those that the configuration promises.
    """
    check_special(special)
    network = network_of(model)
    road = roads.choose(network)
    expected = roads.expected_layers(network)
    wanted = _wanted(expected, layers, group)
    batches = checked_batches(model, windows, attention_mask, batch_size)
    handout = _Handout(wanted, special, values)
    return _stream(network, road, batches, expected, handout, _Handover(overlap))


class _Stopped(BaseException):
    """Ends a forward pass whose reader has gone; not an Exception, so that no model catches it."""


@dataclass(frozen=True)
class _Handout:
    """Which layers are handed out, and how."""

    wanted: set[tuple[Group, int]]
    special: Special
    values: bool


class _Delivery:
    """What the forward pass of one batch has handed over so far, and the hand-over itself."""

    def __init__(
        self,
        batch: Batch,
        handout: _Handout,
        handover: _Handover,
        roll: RollCall,
    ) -> None:
        self.batch = batch
        self.handout = handout
        self.handover = handover
        self.roll = roll

    def __call__(self, heard: roads.Heard) -> None:
        if self.roll.answer(heard) not in self.handout.wanted:
            return
        for attention in self.batch.split(heard, self.handout.special, self.handout.values):
            self.handover.give(attention)


class _Handover:
    """One thing at a time from the forward pass to the reader.

    The giver waits until its thing is taken, and then goes on while the reader works with it: at
    most two layers are alive, the reader's and the one that is held out. Without overlap it waits
    until the reader asks for the next.
    """

    def __init__(self, overlap: bool) -> None:
        self._overlap = overlap
        self._owed = False
        self._things: queue.Queue[object] = queue.Queue(maxsize=1)
        self._taken = threading.Semaphore(0)
        self._stopped = threading.Event()

    def give(self, thing: object) -> None:
        """Hold out a thing until it is taken; ends the forward pass when nobody will."""
        self._things.put(thing)
        self._taken.acquire()
        if self._stopped.is_set():
            raise _Stopped

    def take(self) -> object:
        """The next thing, waiting for it."""
        if self._owed:
            self._taken.release()
        thing = self._things.get()
        self._owed = not self._overlap
        if self._overlap:
            self._taken.release()
        return thing

    def stop(self) -> None:
        """Nothing more will be taken."""
        self._stopped.set()
        # whoever waits to be taken wakes up and finds out
        self._taken.release()


def _stream(
    network: PreTrainedModel,
    road: roads.Road,
    batches: Sequence[Batch],
    expected: dict[Group, int],
    handout: _Handout,
    handover: _Handover,
) -> Iterator[Attention]:
    threads = torch.get_num_threads()

    def run() -> None:
        # both settings belong to a thread, not to the process
        torch.set_num_threads(threads)
        with suppress(_Stopped):
            try:
                with torch.no_grad():
                    for batch in batches:
                        roll = RollCall(expected)
                        in_quarters(network, batch.ids.shape[1])
                        with road.listening(_Delivery(batch, handout, handover, roll)):
                            network(**batch.inputs(network))
                        roll.close()
                handover.give(None)
            except Exception as error:
                handover.give(error)

    with borrowed(network), road.installed():
        producer = threading.Thread(target=run, name="rankscope-forward", daemon=True)
        producer.start()
        try:
            # in a list, so that this frame does not keep a layer alive after its reader let go
            while (item := [handover.take()]) != [None]:
                if isinstance(item[0], BaseException):
                    raise item[0]
                assert isinstance(item[0], Attention)
                yield item.pop()  # type: ignore[misc]
        finally:
            handover.stop()
            producer.join()


def _wanted(
    expected: dict[Group, int], layers: Iterable[int] | None, group: Group | None
) -> set[tuple[Group, int]]:
    if group is not None and group not in expected:
        raise UsageError(
            f"this model has no {group} attention", f"one of {', '.join(sorted(expected))}"
        )
    groups = [group] if group is not None else list(expected)
    chosen = None if layers is None else sorted(set(layers))
    if chosen == []:
        raise UsageError("no layer was chosen", "leave `layers` out for all of them")
    wanted: set[tuple[Group, int]] = set()
    for name in groups:
        count = expected[name]
        bad = [layer for layer in chosen or [] if not 0 <= layer < count]
        if bad:
            raise UsageError(
                f"layers {bad} do not exist in the {name}", f"it has layers 0 … {count - 1}"
            )
        wanted |= {(name, layer) for layer in (range(count) if chosen is None else chosen)}
    return wanted
