"""Windows or padded ids as batches for a model, and padding cut off again on the way out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankscope.attention import Attention, Special
from rankscope.exceptions import MethodError, UsageError
from rankscope.text import Window

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rankscope.capture.roads import Heard

Windows = Sequence[Window] | torch.Tensor | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Batch:
    """Token ids of one forward pass.

    Attributes
    ----------
    ids : (batch, n) int64
    mask : (batch, n) bool
        False for padding.
    special : (batch, n) bool
        True for special tokens.
    samples : tuple of int
        Which of the windows the rows are.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    special: torch.Tensor
    samples: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest row, padding not counted."""
        return int(self.mask.sum(dim=1).max())

    def range_of_ids(self) -> tuple[int, int]:
        """Smallest and largest token id."""
        return int(self.ids.min()), int(self.ids.max())

    def inputs(self, network: PreTrainedModel) -> dict[str, Any]:
        """Arguments of the model's forward pass, on its device.

        An encoder-decoder gets the same ids on both sides. Segment ids are never given: models
        with one type would fail, and the others take 0.
        """
        device = network.device
        inputs: dict[str, Any] = {"input_ids": self.ids.to(device)}
        if not bool(self.mask.all()):
            inputs["attention_mask"] = self.mask.to(device=device, dtype=torch.long)
        if getattr(network.config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = inputs["input_ids"]
            if "attention_mask" in inputs:
                inputs["decoder_attention_mask"] = inputs["attention_mask"]
        if "use_cache" in inspect.signature(network.forward).parameters:
            inputs["use_cache"] = False
        return inputs

    def split(self, heard: Heard, special: Special, values: bool) -> Iterator[Attention]:
        """The attention of this batch, padding cut off: whole, or row by row where rows differ."""
        for members in self._alike():
            yield self._attention(heard, members, special, values)

    def edited(
        self,
        own: torch.Tensor,
        heard: Heard,
        heads: Sequence[int],
        output: Callable[[Attention], torch.Tensor],
    ) -> torch.Tensor:
        """A module's output with that of some heads replaced where there is no padding.

        Parameters
        ----------
        own : (batch, head, n, d_v) tensor
            The module's own; what stands in padded rows and in other heads stays.
        heard : Heard
            What the module was given.
        heads : sequence of int
        output : function
            From each part that :meth:`split` gives, values included, to the output of all its
            heads.

        Returns
        -------
        (batch, head, n, d_v) tensor
            A new one, in the type of `own`.

        Raises
        ------
        MethodError
            If `output` gives another shape.
        """
        edited = own.clone()
        chosen = torch.tensor(heads, device=own.device)[:, None]
        for rows in self._alike():
            attention = self._attention(heard, rows, "keep", values=True)
            found = output(attention)
            wanted = (*attention.query.shape[:3], own.shape[-1])
            if found.shape != wanted:
                raise MethodError(
                    f"the output that replaces {heard.group} layer {heard.layer} has the shape "
                    f"{tuple(found.shape)} instead of {wanted}",
                    "mend the method",
                )
            here = self.mask[rows[0]].nonzero().squeeze(-1).to(own.device)
            members = torch.tensor(rows, device=own.device)[:, None, None]
            edited[members, chosen, here] = found[:, list(heads)].to(own.dtype)
        return edited

    def _alike(self) -> list[list[int]]:
        """Rows that can be treated as one tensor: all of them, or each by itself."""
        rows = list(range(len(self.samples)))
        alike = bool((self.mask == self.mask[0]).all() and (self.special == self.special[0]).all())
        return [rows] if alike else [[row] for row in rows]

    def _attention(
        self, heard: Heard, rows: list[int], special: Special, values: bool
    ) -> Attention:
        device = heard.query.device
        here = self.mask[rows[0]].nonzero().squeeze(-1).to(device)
        padded = len(here) < self.mask.shape[1]
        whole = len(rows) == len(self.samples)

        def cut(tensor: torch.Tensor, *dims: int) -> torch.Tensor:
            if not whole and tensor.shape[0] > 1:
                tensor = tensor[rows]
            if padded:
                for dim in dims:
                    if tensor.shape[dim] > 1:
                        tensor = tensor.index_select(dim, here)
            return tensor

        bias = heard.bias
        if bias is not None:
            bias = bias.expand(*([1] * (4 - bias.ndim)), *bias.shape)
            bias = cut(bias, 2, 3)
            if not bool(bias.any()):
                bias = None
        keep = None
        if special != "keep":
            keep = ~self.special[rows[0]].to(device)[here]
            keep = None if bool(keep.all()) else keep
        return Attention(
            query=cut(heard.query, 2),
            key=cut(heard.key, 2),
            value=cut(heard.value, 2) if values else None,
            scale=heard.scale,
            bias=bias,
            layer=heard.layer,
            tokens=cut(self.ids.to(device), 1),
            group=heard.group,
            causal=heard.causal,
            local=heard.local,
            samples=tuple(self.samples[row] for row in rows),
            keep_rows=keep,
            keep_columns=keep,
            special=special,
        )


def batches_of(
    windows: Windows,
    attention_mask: torch.Tensor | Sequence[Sequence[int]] | None,
    batch_size: int,
    special_ids: frozenset[int],
    config: Any,
) -> list[Batch]:
    """Batches of at most `batch_size` rows; windows share one only with neighbours of their length.

    Raises
    ------
    UsageError
        For no windows, ids that form no rectangle, or a mask of another shape.
    """
    if len(windows) == 0:
        raise UsageError("there are no windows to capture")
    if isinstance(windows, torch.Tensor) or not isinstance(windows[0], Window):
        whole = _padded_batch(windows, attention_mask, special_ids, config)
        return [
            Batch(
                whole.ids[start : start + batch_size],
                whole.mask[start : start + batch_size],
                whole.special[start : start + batch_size],
                whole.samples[start : start + batch_size],
            )
            for start in range(0, len(whole.samples), batch_size)
        ]
    if attention_mask is not None:
        raise UsageError("windows hold no padding", "give attention_mask with token ids only")
    batches = []
    numbered: list[tuple[int, Window]] = [
        (i, window) for i, window in enumerate(windows) if isinstance(window, Window)
    ]
    for _, alike in groupby(numbered, key=lambda pair: pair[1].n_tokens):
        members = list(alike)
        for start in range(0, len(members), batch_size):
            part = members[start : start + batch_size]
            ids = torch.from_numpy(np.stack([window.ids for _, window in part]))
            special = torch.from_numpy(np.stack([window.special for _, window in part]))
            mask = torch.ones_like(ids, dtype=torch.bool)
            batches.append(Batch(ids, mask, special, tuple(i for i, _ in part)))
    return batches


def _padded_batch(
    windows: Any,
    attention_mask: torch.Tensor | Sequence[Sequence[int]] | None,
    special_ids: frozenset[int],
    config: Any,
) -> Batch:
    try:
        ids = torch.as_tensor(windows).to(torch.int64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"token ids must form a (batch, n) rectangle: {error}") from error
    if ids.ndim != 2 or ids.numel() == 0:
        raise UsageError(f"token ids must form a (batch, n) rectangle, not {tuple(ids.shape)}")
    if attention_mask is None:
        pad = getattr(config, "pad_token_id", None)
        mask = torch.ones_like(ids, dtype=torch.bool) if pad is None else _ends_cut(ids, pad)
    else:
        mask = torch.as_tensor(attention_mask).to(torch.bool)
        if mask.shape != ids.shape:
            raise UsageError(
                f"attention_mask {tuple(mask.shape)} does not fit ids {tuple(ids.shape)}"
            )
    if not bool(mask.any(dim=1).all()):
        empty = (~mask.any(dim=1)).nonzero().squeeze(-1).tolist()
        raise UsageError(f"rows {empty} hold padding only", "leave texts without tokens out")
    special = torch.isin(ids, torch.tensor(sorted(special_ids), dtype=torch.int64))
    return Batch(ids, mask, special, tuple(range(len(ids))))


def _ends_cut(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """Mask that leaves out the runs of `pad` at both ends; inside a text it is a token."""
    token = (ids != pad).to(torch.int64)
    return (token.cumsum(1) > 0) & (token.flip(1).cumsum(1).flip(1) > 0)
