"""The attention kernel that stands in for a model's own: it tells, computes, and lets edit."""

from __future__ import annotations

import threading
from typing import Any

import torch

from rankscope.exceptions import CaptureError, UnsupportedModel

IMPLEMENTATION = "rankscope"
"""Name under which our kernel and its mask stand in transformers' registries."""

# forward passes run in threads: each thread's kernel calls go to its own listener
current = threading.local()


def kernel(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention kernel for transformers: hand over what came in, then the fused computation.

    An edit that comes back changes the output, (batch, head, n, d_v), before it is returned.
    """
    for name in ("softcap", "s_aux", "head_mask"):
        if others.get(name) is not None:
            raise UnsupportedModel(
                f"{type(module).__name__} changes its attention by `{name}`, "
                "so that it is no softmax(QKᵀ + bias)"
            )
    if dropout:
        raise CaptureError("dropout reached the attention", "the model left evaluation mode")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    n, m = query.shape[2], key.shape[2]
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    causal = causal and n == m
    bias = attention_mask
    if bias is None and causal:
        bias = torch.full((n, m), torch.finfo(query.dtype).min, device=query.device).triu(1)
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    edit = current.hear(
        module,
        query=query.detach(),
        key=key.detach(),
        value=value.detach(),
        scale=scale,
        bias=None if bias is None else bias.detach(),
        causal=causal,
        # transformers counts the token itself
        local=None if sliding_window is None else int(sliding_window) - 1,
    )
    if bool(torch.isfinite(query).all() and torch.isfinite(key).all()):
        mask = None if bias is None else bias.to(query.dtype)
        attend = torch.nn.functional.scaled_dot_product_attention
        output = attend(query, key, value, attn_mask=mask, scale=scale)
    else:
        # the fused kernel turns rows of NaN into zeros, and the fault would vanish
        scores = query @ key.mT * scale
        output = torch.softmax(scores if bias is None else scores + bias, dim=-1) @ value
    if edit is not None:
        output = edit(output)
    return output.transpose(1, 2).contiguous(), None
