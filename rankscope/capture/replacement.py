"""Forward passes whose attention outputs are replaced on the way, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankscope.attention import Attention, Group
from rankscope.capture import roads
from rankscope.capture.batches import Batch, Windows
from rankscope.capture.lending import (
    RollCall,
    borrowed,
    checked_batches,
    in_quarters,
    network_of,
)
from rankscope.models import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Replacement:
    """What stands in for P·V, and where.

    Attributes
    ----------
    output : function
        From a layer's :class:`Attention`, without padding and with all its heads, to an output of
        shape (batch, head, n, d_v) for all its heads.
    heads : mapping of int to tuple of int
        For every layer that is changed, the heads whose output is taken from there; everything
        else keeps full attention.
    group : {"encoder", "decoder", "cross"}
    """

    output: Callable[[Attention], torch.Tensor]
    heads: Mapping[int, tuple[int, ...]]
    group: Group


class Forward:
    """Forward passes through a borrowed model; made by :func:`forwarding`.

    Attributes
    ----------
    groups : dict
        Number of attention layers in every group of the model.
    """

    def __init__(self, model: LoadedModel | PreTrainedModel, road: roads.Road) -> None:
        self._model = model
        self._network = network_of(model)
        self._road = road
        self.groups = roads.expected_layers(self._network)

    def batches(
        self,
        windows: Windows,
        attention_mask: torch.Tensor | Sequence[Sequence[int]] | None = None,
        batch_size: int = 1,
    ) -> list[Batch]:
        """Batches to run; parameters and refusals as in :func:`rankscope.capture.capture`."""
        return checked_batches(self._model, windows, attention_mask, batch_size)

    def __call__(self, batch: Batch, replacement: Replacement | None = None) -> Any:
        """Run one batch, without gradients.

        Parameters
        ----------
        batch : Batch
        replacement : Replacement, optional
            Full attention everywhere without one. Layers are replaced one after the other, each
            fed with what the layers before it have become.

        Returns
        -------
        transformers.utils.ModelOutput
            What the model returns.

        Raises
        ------
        CaptureError
            If a layer is heard twice or not at all.
        MethodError
            If an output has another shape, or its function refuses this attention.
        """
        roll = RollCall(self.groups)

        def listener(heard: roads.Heard) -> roads.Edit | None:
            group, layer = roll.answer(heard)
            if replacement is None or group != replacement.group:
                return None
            heads = replacement.heads.get(layer)
            if not heads:
                return None
            output = replacement.output
            return lambda own: batch.edited(own, heard, heads, output)

        in_quarters(self._network, batch.ids.shape[1])
        with torch.no_grad(), self._road.listening(listener):
            result = self._network(**batch.inputs(self._network))
        roll.close()
        return result


@contextmanager
def forwarding(model: LoadedModel | PreTrainedModel) -> Iterator[Forward]:
    """Borrow a model for forward passes whose attention may be replaced.

    Parameters
    ----------
    model : LoadedModel or PreTrainedModel
        In evaluation mode and heard while the context is open; its mode, attention implementation
        and hooks are afterwards what they were, on every way out.

    Yields
    ------
    Forward

    Raises
    ------
    UnsupportedModel
        For a family whose attention cannot be captured.
    CaptureError
        If the model is being captured.
    """
    network = network_of(model)
    road = roads.choose(network)
    with borrowed(network), road.installed():
        yield Forward(model, road)
