"""Fitting Linformer's projections to captured attention, by gradient descent on the output.

It takes `Attention` objects and knows no models. What was fitted on some windows is worth what it
does on others: those that decide when to stop are no test either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from rankscope.approximations.linformer import Linformer, linformer_attention
from rankscope.approximations.projections import Sharing, check_length, pooling, stride, strided
from rankscope.approximations.subspaces import Subspace, alike, kept_energy, svd_projections
from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError

__all__ = ["Learned", "Subspace", "kept_energy", "learn", "svd_projections"]

LEARNING_RATE = 2e-4
"""For E and F. From mean pooling 1e-4 to 4e-4 learn; 5e-4 is worse, 5e-3 ruins the start."""

KERNEL_LEARNING_RATE = 2e-2
"""For the kernels of a convolution, whose few numbers have further to go and cannot overfit."""

_WARM_UP = 20

Progress = Callable[[int, float, float], None]


@dataclass(frozen=True, eq=False)
class Learned:
    """Projections fitted by gradient, and how the fit went.

    Attributes
    ----------
    e : (h, k, n) float32, or kernels (h, s)
        For the keys.
    f : tensor of the same shape, or None
        For the values; None where they share `e`.
    training, held_out : tuple of float
        Mean relative output error after each epoch, from 0 on, the start. That of training is
        taken while the weights change.
    best : int
        The epoch whose weights these are: that of the smallest held-out error.
    training_error, held_out_error : dict of layer to float
        Mean relative output error of these weights.
    """

    e: torch.Tensor
    f: torch.Tensor | None
    training: tuple[float, ...]
    held_out: tuple[float, ...]
    best: int
    training_error: dict[int, float]
    held_out_error: dict[int, float]


def learn(
    train: Sequence[Attention],
    held_out: Sequence[Attention],
    k: int,
    *,
    sharing: Sharing = "headwise",
    kind: Literal["matrix", "conv"] = "matrix",
    seed: int = 0,
    epochs: int = 12,
    learning_rate: float | None = None,
    decay: float = 1.0,
    patience: int = 3,
    bias: Literal["refuse", "project"] = "refuse",
    start: Learned | None = None,
    progress: Progress | None = None,
) -> Learned:
    """Fit E and F to the outputs of frozen attention, from mean pooling on.

    The loss of a window is the mean over its heads of ‖Y − Ỹ‖²/‖Y‖², Y = P·V. One step a window,
    in an order shuffled by `seed`, by Adam with a short warm-up and a cosine to zero over all
    epochs. What is learned is the distance from the start, and `decay` pulls it towards zero.
    After every epoch the held-out windows are scored; the best weights are kept, the start among
    them, so that the result is never worse on those than mean pooling.

    Matrices do better when they start from fitted kernels: fit those first, with ``kind="conv"``,
    and give them as `start`. A few numbers find the scale of E and cannot overfit.

    Parameters
    ----------
    train : sequence of Attention
        Of one layer (of all, to share layerwise), all of one length n, with values.
    held_out : sequence of Attention
        Windows that decide when to stop. Test windows must be others again.
    k : int
        1 … n.
    sharing : {"none", "headwise", "key-value", "layerwise"}
    kind : {"matrix", "conv"}
        E and F themselves, or kernels with a stride of their own length ⌈n/k⌉.
    seed : int
        Of the order of the windows; the same seed gives the same result on one machine.
    epochs : int
        At most.
    learning_rate : float, optional
        The highest; 2e-4 for matrices and 2e-2 for kernels when not given.
    decay : float
        Each step moves E and F by this times the learning rate back towards the start.
    patience : int
        Epochs without a better held-out error before it stops.
    bias : {"refuse", "project"}
        As for :class:`~rankscope.approximations.linformer.Linformer`.
    start : Learned, optional
        Where to start from instead: kernels or matrices of the same k, n and sharing.
    progress : callable, optional
        Called after every epoch with its number and both errors.

    Returns
    -------
    Learned
        On the device of the windows. An interrupt leaves nothing behind.

    Raises
    ------
    MethodError
        For attention that Linformer refuses, windows of different lengths or layers, k > n.
    UsageError
        For settings out of their range, or no windows.
    """
    rate = learning_rate or (LEARNING_RATE if kind == "matrix" else KERNEL_LEARNING_RATE)
    if min(epochs, patience) < 1 or not rate > 0 or not decay >= 0:
        raise UsageError(
            f"{epochs} epochs, patience {patience}, learning rate {rate} and decay {decay} cannot "
            "fit anything",
            "use at least one epoch, patience 1, a rate above 0 and a decay of 0 or more",
        )
    if not train or not held_out:
        raise UsageError(
            f"{len(train)} windows to fit to and {len(held_out)} to stop by are too few",
            "give one of each at least",
        )
    targets = list(_targets([*train, *held_out], k, sharing, bias))
    seen, unseen = targets[: len(train)], targets[len(train) :]
    n = seen[0].n
    starts = _starts(seen[0], k, sharing, kind, start)
    sides = [one.clone().requires_grad_() for one in starts]

    def errors(target: _Target) -> torch.Tensor:
        """Relative output errors (batch, head)."""
        e, f = sides[0], sides[-1]
        if kind == "conv":
            e, f = strided(e, n), strided(f, n)
        return target.errors(e, f)

    @torch.no_grad()
    def mean(targets: Sequence[_Target]) -> float:
        return float(torch.stack([errors(target).mean() for target in targets]).mean())

    optimiser = _Adam(sides)
    generator = torch.Generator().manual_seed(seed)
    training, validation = [mean(seen)], [mean(unseen)]
    best, kept = 0, [side.detach().clone() for side in sides]
    step, steps = 0, epochs * len(seen)
    for epoch in range(1, epochs + 1):
        running = 0.0
        for place in torch.randperm(len(seen), generator=generator).tolist():
            now = (
                rate * min(1.0, (step + 1) / _WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
            )
            with torch.enable_grad():
                found = errors(seen[place])
                slopes = torch.autograd.grad(found.square().mean(), sides)
            with torch.no_grad():
                optimiser.step(slopes, now)
                for side, origin in zip(sides, starts, strict=True):
                    side -= now * decay * (side - origin)
            running += float(found.detach().mean())
            step += 1
        training.append(running / len(seen))
        validation.append(mean(unseen))
        if progress is not None:
            progress(epoch, training[-1], validation[-1])
        if validation[-1] < validation[best]:
            best, kept = epoch, [side.detach().clone() for side in sides]
        elif not epoch - best < patience:
            break
    with torch.no_grad():
        for side, weights in zip(sides, kept, strict=True):
            side.copy_(weights)

    def by_layer(targets: Sequence[_Target]) -> dict[int, float]:
        layers = sorted({target.layer for target in targets})
        return {layer: mean([one for one in targets if one.layer == layer]) for layer in layers}

    return Learned(
        e=kept[0],
        f=kept[1] if len(kept) > 1 else None,
        training=tuple(training),
        held_out=tuple(validation),
        best=best,
        training_error=by_layer(seen),
        held_out_error=by_layer(unseen),
    )


@dataclass(frozen=True, eq=False)
class _Target:
    """A window in float32, and the output that it should have."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    output: torch.Tensor
    norm: torch.Tensor
    layer: int

    @property
    def n(self) -> int:
        return self.key.shape[2]

    def errors(self, e: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        output = linformer_attention(
            self.query, self.key, self.value, e, f, self.scale, bias=self.bias
        )
        # a square root has no slope at zero, where attention of one token may well be
        difference = (output - self.output).square().sum(dim=(-2, -1)) + 1e-12 * self.norm
        return (difference / self.norm).sqrt()


def _targets(
    windows: Iterable[Attention], k: int, sharing: Sharing, bias: Literal["refuse", "project"]
) -> Iterator[_Target]:
    checked = Linformer(k, bias=bias)
    for attention in alike(windows, sharing):
        # no float64: it doubles the time and the result is saved in float32
        whole = checked.usable(attention)
        check_length("learned", k, whole.key.shape[2])
        with torch.no_grad():
            output = whole.output.float()
        norm = output.square().sum(dim=(-2, -1))
        if not bool((norm > 0).all() & torch.isfinite(norm).all()):
            raise MethodError(
                f"the output of layer {whole.layer} for the windows {whole.samples} is zero or not "
                "finite",
                "leave that window out",
            )
        yield _Target(
            query=whole.query.float(),
            key=whole.key.float(),
            value=whole.values.float(),
            scale=whole.scale,
            bias=None if whole.bias is None else whole.bias.float(),
            output=output,
            norm=norm,
            layer=whole.layer,
        )


def _starts(
    target: _Target, k: int, sharing: Sharing, kind: str, given: Learned | None
) -> list[torch.Tensor]:
    """Where each side starts: mean pooling, or what was fitted before."""
    n, heads = target.n, target.query.shape[1] if sharing == "none" else 1
    size = stride(n, k)
    if given is None:
        if kind == "conv":
            one = torch.full((heads, size), 1.0 / size, device=target.query.device)
        else:
            one = pooling(n, k).to(target.query).repeat(heads, 1, 1)
        return [one, one.clone()] if sharing in ("none", "headwise") else [one]
    sides = [given.e] if given.f is None else [given.e, given.f]
    if kind == "matrix" and given.e.ndim == 2:
        sides = [strided(side, n) for side in sides]
    wanted = (heads, size) if kind == "conv" else (heads, k, n)
    if tuple(sides[0].shape) != wanted or (len(sides) > 1) != (sharing in ("none", "headwise")):
        raise UsageError(
            f"a fit of shape {tuple(given.e.shape)} is no start for k = {k}, n = {n}, "
            f"sharing {sharing}, {kind}",
            "fit the start with the same k and sharing; kernels need a k that divides n",
        )
    return [side.to(target.query) for side in sides]


class _Adam:
    """Adam with β = (.9, .999) and ε = 1e-8.

    torch's own imports its compiler first, which takes longer than fitting a layer.

    References
    ----------
    Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self.first = [torch.zeros_like(one) for one in parameters]
        self.second = [torch.zeros_like(one) for one in parameters]
        self.steps = 0

    def step(self, slopes: Sequence[torch.Tensor], rate: float) -> None:
        self.steps += 1
        for place, (parameter, slope) in enumerate(zip(self.parameters, slopes, strict=True)):
            self.first[place].lerp_(slope, 1 - 0.9)
            self.second[place].lerp_(slope.square(), 1 - 0.999)
            first = self.first[place] / (1 - 0.9**self.steps)
            second = self.second[place] / (1 - 0.999**self.steps)
            parameter -= rate * first / (second.sqrt() + 1e-8)
