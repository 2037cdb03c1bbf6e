"""The model with its attention replaced: loss, agreement, hidden states, errors compounding.

:func:`replacing` runs a model with any approximation in the place of its attention;
:func:`measure` says what that does to its predictions, against full attention on the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.approximations import Approximation, Shape
from rankscope.attention import Group
from rankscope.capture.batches import Batch
from rankscope.capture.replacement import Forward, Replacement, forwarding
from rankscope.errors import output_errors
from rankscope.exceptions import UsageError
from rankscope.intervene.predictions import (
    agreement,
    divergence,
    masked_positions,
    token_losses,
)
from rankscope.intervene.replacing import (
    Intervention,
    group_of,
    heads_of,
    refuse_future,
    replacement_of,
    replacing,
)
from rankscope.models import LoadedModel
from rankscope.status import Status
from rankscope.text import Window

__all__ = [
    "MEASURES",
    "Intervention",
    "Measures",
    "check_measurable",
    "masked_positions",
    "measure",
    "replacing",
]

MEASURES = (
    "loss",
    "kl",
    "top1_agreement",
    "hidden_error",
    "hidden_cosine",
    "pseudo_perplexity",
)
"""Fields of :class:`Measures` that are numbers, one for every window and method."""


@dataclass(frozen=True, eq=False)
class Measures:
    """What replacing the attention did, (window, method); the first method is full attention.

    What does not apply to the model, or was not asked for, is NaN.

    Attributes
    ----------
    loss : (window, 1 + method) float64
        Nats a predicted token: the hidden ones of a masked-LM head, all but the first of a
        causal-LM head.
    kl : (window, 1 + method) float64
        KL divergence of the predicted distributions from those of full attention, in nats; mean
        over the same tokens.
    top1_agreement : (window, 1 + method) float64
        Share of the same tokens whose likeliest prediction is that of full attention, 0 … 1.
    hidden_error : (window, 1 + method) float64
        For models without a head: relative Frobenius error of the final hidden states.
    hidden_cosine : (window, 1 + method) float64
        For models without a head: mean cosine of the final hidden states over the tokens.
    pseudo_perplexity : (window, 1 + method) float64
        exp of the mean loss of tokens that are hidden one at a time.
    masked_tokens : (window,) int64
        Tokens that were predicted; 0 for models without a head.
    status : (window, 1 + method) int8
        :class:`rankscope.status.Status`: ``ok``; ``empty`` for a window without a token to
        predict; ``non_finite`` where the model's result, or that of full attention, is not finite.
    """

    loss: NDArray[np.float64]
    kl: NDArray[np.float64]
    top1_agreement: NDArray[np.float64]
    hidden_error: NDArray[np.float64]
    hidden_cosine: NDArray[np.float64]
    pseudo_perplexity: NDArray[np.float64]
    masked_tokens: NDArray[np.int64]
    status: NDArray[np.int8]

    @classmethod
    def unmeasured(cls, windows: int, methods: int) -> Measures:
        """Room for the measures of so many windows and methods, with nothing in it yet."""
        return cls(
            **{name: np.full((windows, methods), np.nan) for name in MEASURES},
            masked_tokens=np.zeros(windows, np.int64),
            status=np.full((windows, methods), Status.absent, np.int8),
        )


def measure(
    model: LoadedModel,
    windows: Window | Sequence[Window],
    methods: Sequence[Approximation | Intervention],
    *,
    seed: int = 0,
    fraction: float = 0.15,
    pseudo: int = 0,
    group: Group | None = None,
    numbers: Sequence[int] | None = None,
    batch_size: int = 1,
) -> Measures:
    """Measure a model with its attention replaced, against the model itself.

    - With a masked-LM head some tokens are hidden, the same for all methods
      (:func:`masked_positions`): loss, KL divergence and agreement there.
    - With a causal-LM head the same of every token's prediction of the next one.
    - Without a head the final hidden states of the window as it is.

    Full attention runs once for every window, by the model's own kernel.

    Parameters
    ----------
    model : LoadedModel
        Loaded with ``head=True`` for predictions, without for hidden states.
    windows : Window or sequence of Window
        Texts are not padded: windows share a pass with neighbours of their length only.
    methods : sequence of Approximation or Intervention
    seed : int
        Of the hidden tokens.
    fraction : float
        Share of the tokens that are hidden, in (0, 1]; special tokens never are.
    pseudo : int
        Also hide every `pseudo`-th token that is not special, from the first, each by itself: a
        pseudo-perplexity, at the price of n / `pseudo` passes. 0 for none.
    group : {"encoder", "decoder", "cross"}, optional
        Which attention of an encoder-decoder is replaced; the model's first when not given.
    numbers : sequence of int, optional
        Number of every window, which with `seed` decides what is hidden; 0, 1, … when not given.
    batch_size : int
        Rows of one forward pass. Predictions take 4 · batch_size · n · vocabulary bytes.

    Returns
    -------
    Measures

    Raises
    ------
    UsageError
        For layers, heads or windows that do not fit the model; for a masked-LM head whose
        tokenizer has no mask token; for a pseudo-perplexity without a masked-LM head.
    MethodError
        For a method that would let a causal model see the future, or cannot be used here.

    References
    ----------
    Pseudo-perplexity: Salazar et al. 2020, arXiv:1910.14659; theirs is over a corpus, this one over
    a window.
    """
    texts = [windows] if isinstance(windows, Window) else list(windows)
    chosen = [one if isinstance(one, Intervention) else Intervention(one) for one in methods]
    names = list(range(len(texts))) if numbers is None else list(numbers)
    if len(names) != len(texts):
        raise UsageError(f"{len(names)} numbers for {len(texts)} windows", "give one for each")
    check_measurable(
        model,
        group,
        [one.method for one in chosen],
        seed=seed,
        fraction=fraction,
        pseudo=pseudo,
    )
    mask = _mask_token(model) if model.head == "masked-lm" else None
    found = Measures.unmeasured(len(texts), 1 + len(chosen))
    with forwarding(model) as forward:
        if model.head == "causal-lm" and "decoder" not in forward.groups:
            raise UsageError(
                f"{model.info.name} predicts the next token, but its attention sees it",
                "set is_decoder in its config.json, or load it without a head",
            )
        batches = forward.batches(texts, batch_size=batch_size)
        replacements = [replacement_of(one, model, forward, group) for one in chosen]
        _check(model, chosen, replacements, max(batch.longest for batch in batches), forward, group)
        for batch in batches:
            run = _Run(forward, batch, [None, *replacements], found)
            if model.head is None:
                run.hidden_states()
            elif mask is None:
                run.next_tokens()
            else:
                run.masked_tokens(mask, [names[one] for one in batch.samples], seed, fraction)
                if pseudo:
                    run.one_at_a_time(mask, pseudo, batch_size)
    return found


def check_measurable(
    model: LoadedModel,
    group: str | None,
    methods: Sequence[Approximation],
    *,
    seed: int = 0,
    fraction: float = 0.15,
    pseudo: int = 0,
) -> None:
    """Refuse what cannot be measured on a model, before any forward pass.

    Parameters
    ----------
    model, group, methods, seed, fraction, pseudo
        As for :func:`measure`.

    Raises
    ------
    UsageError, MethodError
    """
    if not 0 < fraction <= 1:
        raise UsageError(f"a share of {fraction} of the tokens", "use more than 0, at most 1")
    if seed < 0:
        raise UsageError(f"there is no mask of seed {seed}", "use 0 or more")
    if pseudo < 0:
        raise UsageError(
            f"every {pseudo}-th token cannot be hidden", "use 0 for none, or 1 or more"
        )
    if pseudo and model.head != "masked-lm":
        raise UsageError(
            f"{model.info.name} has no masked-LM head here, and so no pseudo-perplexity",
            "leave it out, or load a masked language model with its head",
        )
    if model.head == "masked-lm":
        _mask_token(model)
    if group == "decoder":
        for one in methods:
            refuse_future(one)


def _mask_token(model: LoadedModel) -> int:
    mask: int | None = getattr(model.tokenizer, "mask_id", None)
    if mask is None:
        raise UsageError(
            f"the tokenizer {model.tokenizer.name} has no mask token, so that no token can be "
            "hidden and no masked-LM loss measured",
            "name a tokenizer that has one, or load the model without its head",
        )
    return mask


def _check(
    model: LoadedModel,
    chosen: Sequence[Intervention],
    replacements: Sequence[Replacement],
    longest: int,
    forward: Forward,
    group: Group | None,
) -> None:
    """Let every method refuse what it cannot do before the first pass."""
    group = group_of(forward, group)
    for one, replacement in zip(chosen, replacements, strict=True):
        shape = Shape(
            model=model.info.identity,
            weights_sha256=model.info.weights_sha256,
            layers=tuple(replacement.heads),
            n_heads=heads_of(model, group),
            length=longest,
            causal=group == "decoder",
        )
        one.method.check(shape)


@dataclass(frozen=True, eq=False)
class _Run:
    """All methods on one batch of windows, into the measures of the whole run."""

    forward: Forward
    batch: Batch
    replacements: Sequence[Replacement | None]
    found: Measures

    def hidden_states(self) -> None:
        """Final hidden states against those of full attention."""
        reference: list[torch.Tensor] = []
        for column, replacement in enumerate(self.replacements):
            states = self.forward(self.batch, replacement).last_hidden_state
            reference = reference or list(states)
            for sample, exact, state in zip(self.batch.samples, reference, states, strict=True):
                errors = output_errors(exact, state)
                place = sample, column
                self.found.hidden_error[place] = float(errors["output"])
                self.found.hidden_cosine[place] = float(errors["cosine"])
                self._judge(place, ("hidden_error", "hidden_cosine"))

    def masked_tokens(self, mask: int, numbers: Sequence[int], seed: int, fraction: float) -> None:
        """Predictions of hidden tokens."""
        places = [
            torch.from_numpy(masked_positions(special, seed=seed, number=number, fraction=fraction))
            for special, number in zip(self.batch.special.numpy(), numbers, strict=True)
        ]
        ids = self.batch.ids.clone()
        for row, hidden in zip(ids, places, strict=True):
            row[hidden] = mask
        self._predictions(replace(self.batch, ids=ids), places, shift=0)

    def next_tokens(self) -> None:
        """Predictions of every token but the first, by the one before it."""
        tokens = torch.arange(1, self.batch.ids.shape[1])
        self._predictions(self.batch, [tokens] * len(self.batch.samples), shift=1)

    def one_at_a_time(self, mask: int, step: int, batch_size: int) -> None:
        """Pseudo-perplexity: tokens hidden one at a time, the others in sight."""
        for row, sample in enumerate(self.batch.samples):
            places = (~self.batch.special[row]).nonzero()[::step, 0]
            for column, replacement in enumerate(self.replacements):
                losses = []
                for start in range(0, len(places), batch_size):
                    hidden = places[start : start + batch_size]
                    part = self._rows([row] * len(hidden))
                    at = torch.arange(len(hidden)), hidden
                    part.ids[at] = mask
                    logits = self.forward(part, replacement).logits[at]
                    losses.append(token_losses(logits, self.batch.ids[row, hidden]))
                if losses:
                    place = sample, column
                    self.found.pseudo_perplexity[place] = float(torch.cat(losses).mean().exp())
                    self._judge(place, ("pseudo_perplexity",))

    def _predictions(self, given: Batch, places: Sequence[torch.Tensor], shift: int) -> None:
        """Loss, KL and agreement at the tokens `places`, read `shift` tokens before them."""
        reference: list[torch.Tensor] = []
        targets = [ids[at] for ids, at in zip(self.batch.ids, places, strict=True)]
        for column, replacement in enumerate(self.replacements):
            whole = self.forward(given, replacement).logits
            logits = [row[at - shift] for row, at in zip(whole, places, strict=True)]
            del whole
            reference = reference or logits
            for sample, target, exact, ours in zip(
                self.batch.samples, targets, reference, logits, strict=True
            ):
                place = sample, column
                self.found.masked_tokens[sample] = len(target)
                if len(target) == 0:
                    self.found.status[place] = Status.empty
                    continue
                self.found.loss[place] = float(token_losses(ours, target).mean())
                self.found.kl[place] = float(divergence(exact, ours).mean())
                self.found.top1_agreement[place] = float(agreement(exact, ours).mean())
                self._judge(place, ("loss", "kl", "top1_agreement"))

    def _judge(self, place: tuple[int, int], names: Sequence[str]) -> None:
        """Note whether what was measured is finite; what is not is NaN."""
        status = self.found.status
        for name in names:
            values = getattr(self.found, name)
            if not np.isfinite(values[place]):
                values[place] = np.nan
                status[place] = Status.non_finite
        if status[place] == Status.absent:
            status[place] = Status.ok

    def _rows(self, rows: Sequence[int]) -> Batch:
        """Some rows of the batch, copied, as often as they are named."""
        chosen = torch.tensor(rows)
        return Batch(
            self.batch.ids[chosen],
            self.batch.mask[chosen],
            self.batch.special[chosen],
            tuple(self.batch.samples[row] for row in rows),
        )
