"""Windows through a model, its attention out: a stream of `Attention`, one layer at a time.

Two roads behind one face. Families that ask transformers' attention interface for their kernel get
ours, which hands over query, key and value and goes on with the fused kernel, so that the model
itself never builds an n × n matrix. Families that do not (MPNet) are heard by forward hooks on
their query, key and value layers. Either way P is computed by `Attention`, when it is wanted.

The forward pass runs in a thread of its own and waits while a layer is ready and not yet taken;
closing the stream, an error and a normal end all restore the model.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankscope.attention import Attention, Group, Special, check_special
from rankscope.capture import roads
from rankscope.capture.batches import Batch, Windows, batches_of
from rankscope.exceptions import CaptureError, UsageError
from rankscope.models import LoadedModel, check_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Attention", "capture"]

_CHUNK = "chunk_size_feed_forward"

_busy = threading.Lock()
_captured: set[int] = set()


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
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size} holds no window", "use at least 1")
    network = model.model if isinstance(model, LoadedModel) else model
    road = roads.choose(network)
    expected = roads.expected_layers(network)
    wanted = _wanted(expected, layers, group)
    batches = batches_of(windows, attention_mask, batch_size, _special_ids(model), network.config)
    batches = [_checked(batch, network.config) for batch in batches]
    handout = _Handout(wanted, special, values)
    return _stream(network, road, batches, expected, handout)


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
    ) -> None:
        self.batch = batch
        self.handout = handout
        self.handover = handover
        self.seen: set[tuple[Group, int]] = set()

    def __call__(self, heard: roads.Heard) -> None:
        place = (heard.group, heard.layer)
        if place in self.seen:
            raise CaptureError(
                f"{heard.group} layer {heard.layer} attended twice in one forward pass",
                "a model that recomputes or shares layers cannot be captured this way",
            )
        self.seen.add(place)
        if place not in self.handout.wanted:
            return
        for attention in self.batch.split(heard, self.handout.special, self.handout.values):
            self.handover.give(attention)


class _Handover:
    """One thing at a time from the forward pass to the reader.

    The giver waits until its thing is taken, and then goes on while the reader works with it: at
    most two layers are alive, the reader's and the one that is held out.
    """

    def __init__(self) -> None:
        self._things: queue.Queue[object] = queue.Queue(maxsize=1)
        self._taken = threading.Semaphore(0)
        self._stopped = threading.Event()

    def give(self, thing: object) -> None:
        """Hold out a thing until it is taken; ends the forward pass when nobody will."""
        self._things.put(thing)
        while not self._taken.acquire(timeout=0.1):
            if self._stopped.is_set():
                raise _Stopped

    def take(self) -> object:
        """The next thing, waiting for it."""
        thing = self._things.get()
        self._taken.release()
        return thing

    def stop(self) -> None:
        """Nothing more will be taken."""
        self._stopped.set()


def _stream(
    network: PreTrainedModel,
    road: roads.Road,
    batches: Sequence[Batch],
    expected: dict[Group, int],
    handout: _Handout,
) -> Iterator[Attention]:
    handover = _Handover()
    threads = torch.get_num_threads()

    def run() -> None:
        # both settings belong to a thread, not to the process
        torch.set_num_threads(threads)
        with suppress(_Stopped):
            try:
                with torch.no_grad():
                    for batch in batches:
                        delivery = _Delivery(batch, handout, handover)
                        _in_quarters(network, batch.ids.shape[1])
                        with road.listening(delivery):
                            network(**batch.inputs(network))
                        _check_complete(delivery.seen, expected)
                handover.give(None)
            except Exception as error:
                handover.give(error)

    with _borrowed(network), road.installed():
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


@contextmanager
def _borrowed(network: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode and full float32 products while the context is open, for one reader."""
    with _busy:
        if id(network) in _captured:
            raise CaptureError(
                "this model is already being captured", "exhaust or close the other stream first"
            )
        _captured.add(id(network))
    training = {module: module.training for module in network.modules()}
    chunks = {module: getattr(module, _CHUNK) for module in _chunkable(network)}
    precision = torch.get_float32_matmul_precision()
    try:
        network.eval()
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for module, flag in training.items():
            module.training = flag
        for module, size in chunks.items():
            setattr(module, _CHUNK, size)
        with _busy:
            _captured.discard(id(network))


def _chunkable(network: PreTrainedModel) -> list[torch.nn.Module]:
    return [module for module in network.modules() if hasattr(module, _CHUNK)]


def _in_quarters(network: PreTrainedModel, n: int) -> None:
    """Let BERT-like layers do their feed-forward part for a quarter of the tokens at a time.

    Every token has its own, so that nothing changes but memory: the hidden values of all tokens
    would be the largest thing of the whole run.
    """
    for module in _chunkable(network):
        setattr(module, _CHUNK, n // 4 if n % 4 == 0 else 0)


def _check_complete(seen: set[tuple[Group, int]], expected: dict[Group, int]) -> None:
    promised = {(group, layer) for group, count in expected.items() for layer in range(count)}
    if seen != promised:
        missing = sorted(promised - seen)
        extra = sorted(seen - promised)
        raise CaptureError(
            f"{len(seen)} attention layers arrived where the configuration promises "
            f"{len(promised)} (missing {missing[:6]}, unexpected {extra[:6]})",
            "the model's class does not follow its configuration; nothing was written",
        )


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


def _checked(batch: Batch, config: Any) -> Batch:
    check_length(config, batch.longest)
    vocabulary = getattr(config, "vocab_size", None)
    low, high = batch.range_of_ids()
    if low < 0 or (vocabulary is not None and high >= vocabulary):
        raise UsageError(
            f"token ids {low} … {high} do not fit a vocabulary of {vocabulary}",
            "the tokenizer is not the model's",
        )
    return batch


def _special_ids(model: LoadedModel | PreTrainedModel) -> frozenset[int]:
    config = model.model.config if isinstance(model, LoadedModel) else model.config
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
    ids = {getattr(config, name, None) for name in names}
    if isinstance(model, LoadedModel):
        ids |= {*model.tokenizer.prefix, *model.tokenizer.suffix}
    return frozenset(i for i in ids if isinstance(i, int))
