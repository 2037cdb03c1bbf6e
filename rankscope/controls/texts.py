"""Controls made of a window of text: its tokens in another order, and padding around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rankscope.approximations.draws import check_seed
from rankscope.attention import Attention, Group
from rankscope.capture import roads
from rankscope.capture.lending import RollCall, borrowed, checked_batches, network_of
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel, check_length
from rankscope.text import Window


def shuffled_tokens(window: Window, seed: int = 0) -> Window:
    """A window with the tokens of its text in a random order: the control ``tokens``.

    Special tokens stay where they are. Every order is equally likely; it depends on the seed, the
    text and the number of the window in it.

    Parameters
    ----------
    window : Window
    seed : int
        0 or more.

    Returns
    -------
    Window
        With the same tokens and the same place in its corpus.

    Raises
    ------
    UsageError
        If `seed` is negative.
    """
    check_seed("the control tokens", seed)
    content = np.flatnonzero(~window.special)
    random = np.random.default_rng((seed, window.text_id, window.number))
    ids = window.ids.copy()
    ids[content] = window.ids[random.permutation(content)]
    return replace(window, ids=ids)


def shortened(window: Window, length: int) -> Window:
    """The first tokens of a window's text, with all its special tokens around them.

    Parameters
    ----------
    window : Window
    length : int
        Tokens that are left, special tokens included; more than there are special tokens, at most
        the window's own number.

    Returns
    -------
    Window

    Raises
    ------
    UsageError
        If `length` is out of its range.
    """
    specials = int(window.special.sum())
    if not specials < length <= window.n_tokens:
        raise UsageError(
            f"a window of {window.n_tokens} tokens, {specials} of them special, has no "
            f"{length} first ones",
            f"use {specials + 1} to {window.n_tokens}",
        )
    content = length - specials
    keep = window.special | (np.cumsum(~window.special) <= content)
    return replace(
        window,
        ids=window.ids[keep],
        special=window.special[keep],
        end=window.start + content,
    )


def padded_attention(
    model: LoadedModel,
    window: Window,
    length: int,
    group: Group | None = None,
) -> list[Attention]:
    """The attention of a window that is padded on the right, padding not cut off: ``padded``.

    The model gets its pad token and its mask, so that of the n × n matrix

    - the first L rows and columns are P of the L tokens alone;
    - the pad columns are 0: no token attends to padding;
    - the pad rows are what the model makes of its pad tokens: a softmax over the L real columns,
      which has no meaning and yet enters a spectrum that is not cropped. In RoBERTa, whose pad
      tokens all have one position, these rows are equal.

    The rank is L at most. With R the pad rows, σ² are the eigenvalues of PᵀP + RᵀR.

    Parameters
    ----------
    model : LoadedModel
        As for :func:`rankscope.capture.capture`.
    window : Window
        L tokens, at least one.
    length : int
        Tokens n after padding, L at least.
    group : {"encoder", "decoder", "cross"}, optional
        Which attention of a model that has several; its first when not given.

    Returns
    -------
    list of Attention
        One for every layer, in order, without values; all are held at once, which takes
        8 · n · d · heads bytes a layer in float32.

    Raises
    ------
    UsageError
        For a length below L or above the model's positions, a model without pad token, or a group
        that it does not have.
    UnsupportedModel, CaptureError
        As for :func:`rankscope.capture.capture`.
    """
    network = network_of(model)
    pad = getattr(network.config, "pad_token_id", None)
    if pad is None:
        raise UsageError(
            f"a model of the family {network.config.model_type} has no pad token",
            "leave out the control padded",
        )
    check_length(network.config, length)
    size = window.n_tokens
    if not 1 <= size <= length:
        raise UsageError(f"{size} tokens cannot be padded to {length}", "use a longer length")
    ids = torch.full((1, length), int(pad))
    ids[0, :size] = torch.from_numpy(window.ids)
    mask = torch.arange(length)[None] < size
    (batch,) = checked_batches(model, ids, mask, 1)
    # the model sees the mask; what comes out is taken for a window without padding
    uncropped = replace(batch, mask=torch.ones_like(mask))
    road = roads.choose(network)
    expected = roads.expected_layers(network)
    wanted = next(iter(expected)) if group is None else group
    if wanted not in expected:
        raise UsageError(
            f"this model has no {group} attention", f"one of {', '.join(sorted(expected))}"
        )
    roll = RollCall(expected)
    found: dict[int, Attention] = {}

    def listener(heard: roads.Heard) -> None:
        roll.answer(heard)
        if heard.group == wanted:
            (found[heard.layer],) = uncropped.split(heard, "keep", values=False)

    with borrowed(network), road.installed(), torch.no_grad(), road.listening(listener):
        network(**batch.inputs(network))
    roll.close()
    return [found[layer] for layer in sorted(found)]
