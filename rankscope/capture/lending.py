"""A model lent to one reader: checked input, evaluation mode, every layer once, all put back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from rankscope.attention import Group
from rankscope.capture.batches import Batch, Windows, batches_of
from rankscope.exceptions import CaptureError, UsageError
from rankscope.linalg import full_precision
from rankscope.models import LoadedModel, check_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rankscope.capture.roads import Heard

_CHUNK = "chunk_size_feed_forward"

_busy = threading.Lock()
_captured: set[int] = set()


def network_of(model: LoadedModel | PreTrainedModel) -> PreTrainedModel:
    """The transformers model itself."""
    return model.model if isinstance(model, LoadedModel) else model


def checked_batches(
    model: LoadedModel | PreTrainedModel,
    windows: Windows,
    attention_mask: torch.Tensor | Sequence[Sequence[int]] | None,
    batch_size: int,
) -> list[Batch]:
    """Batches whose lengths and ids the model can take.

    Raises
    ------
    UsageError
        For windows longer than the model's positions, ids outside its vocabulary, a batch size
        below 1, and what :func:`rankscope.capture.batches.batches_of` refuses.
    """
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size} holds no window", "use at least 1")
    config = network_of(model).config
    batches = batches_of(windows, attention_mask, batch_size, _special_ids(model), config)
    return [_checked(batch, config) for batch in batches]


class RollCall:
    """The attention layers of one forward pass: each of them once, and none missing."""

    def __init__(self, expected: dict[Group, int]) -> None:
        self.promised = {(group, layer) for group, n in expected.items() for layer in range(n)}
        self.seen: set[tuple[Group, int]] = set()

    def answer(self, heard: Heard) -> tuple[Group, int]:
        """Note a layer, and say which it is.

        Raises
        ------
        CaptureError
            If it was heard before.
        """
        place = (heard.group, heard.layer)
        if place in self.seen:
            raise CaptureError(
                f"{heard.group} layer {heard.layer} attended twice in one forward pass",
                "a model that recomputes or shares layers cannot be captured this way",
            )
        self.seen.add(place)
        return place

    def close(self) -> None:
        """End the forward pass.

        Raises
        ------
        CaptureError
            If the layers heard are not those that the configuration promises.
        """
        if self.seen != self.promised:
            missing = sorted(self.promised - self.seen)
            extra = sorted(self.seen - self.promised)
            raise CaptureError(
                f"{len(self.seen)} attention layers arrived where the configuration promises "
                f"{len(self.promised)} (missing {missing[:6]}, unexpected {extra[:6]})",
                "the model's class does not follow its configuration; nothing was written",
            )


@contextmanager
def borrowed(network: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode and full float32 products while the context is open, for one reader."""
    with _busy:
        if id(network) in _captured:
            raise CaptureError(
                "this model is already being captured", "exhaust or close the other stream first"
            )
        _captured.add(id(network))
    training = {module: module.training for module in network.modules()}
    chunks = {module: getattr(module, _CHUNK) for module in _chunkable(network)}
    try:
        network.eval()
        with full_precision():
            yield
    finally:
        for module, flag in training.items():
            module.training = flag
        for module, size in chunks.items():
            setattr(module, _CHUNK, size)
        with _busy:
            _captured.discard(id(network))


def _chunkable(network: PreTrainedModel) -> list[torch.nn.Module]:
    return [module for module in network.modules() if hasattr(module, _CHUNK)]


def in_quarters(network: PreTrainedModel, n: int) -> None:
    """Let BERT-like layers do their feed-forward part for a quarter of the tokens at a time.

    Every token has its own, so that nothing changes but memory: the hidden values of all tokens
    would be the largest thing of the whole run.
    """
    for module in _chunkable(network):
        setattr(module, _CHUNK, n // 4 if n % 4 == 0 else 0)


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
