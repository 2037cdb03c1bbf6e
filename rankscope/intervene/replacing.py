"""Where attention is replaced, by what, and a model that runs with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from rankscope.approximations import Approximation
from rankscope.attention import Attention, Group
from rankscope.capture.batches import Windows
from rankscope.capture.lending import network_of
from rankscope.capture.replacement import Forward, Replacement, forwarding
from rankscope.exceptions import MethodError, UsageError
from rankscope.models import LoadedModel
from rankscope.models.architecture import shape

Heads = Sequence[int] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Intervention:
    """An approximation in the place of a model's attention, everywhere or in some heads.

    Attributes
    ----------
    method : Approximation
    layers : tuple of int, optional
        Layers whose attention is replaced; all when not given.
    heads : tuple of int, or of (layer, head), optional
        Heads of those layers, or single heads by layer and number; all when not given.

    Examples
    --------
    >>> from rankscope.approximations import method
    >>> str(Intervention(method("truncated:k=8"), layers=(0, 1), heads=(2,)))
    'truncated:k=8 in layers 0/1, heads 2'
    >>> Intervention(method("uniform"), heads=((0, 1), (3, 2), (0, 0))).places(4, 4)
    {0: (0, 1), 3: (2,)}
    """

    method: Approximation
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            given = getattr(self, name)
            if given is None:
                continue
            if len(given) == 0:
                raise UsageError(f"no {name[:-1]} was chosen", f"leave `{name}` out for all")
            kept = tuple(tuple(one) if isinstance(one, Sequence) else int(one) for one in given)
            object.__setattr__(self, name, kept)
        pairs = [isinstance(one, tuple) for one in self.heads or ()]
        if any(pairs) and (not all(pairs) or self.layers is not None):
            raise UsageError(
                f"heads {self.heads} beside layers {self.layers} are ambiguous",
                "give heads as numbers, with or without layers, or as pairs (layer, head) alone",
            )

    def places(self, n_layers: int, n_heads: int) -> dict[int, tuple[int, ...]]:
        """The heads that are replaced, by layer.

        Parameters
        ----------
        n_layers, n_heads : int
            What the model has.

        Returns
        -------
        dict of int to tuple of int

        Raises
        ------
        UsageError
            For layers and heads that the model does not have.
        """
        layers = range(n_layers) if self.layers is None else self.layers
        heads: Sequence[Any] = range(n_heads) if self.heads is None else self.heads
        pairs = [
            pair
            for head in heads
            for pair in ([head] if isinstance(head, tuple) else [(layer, head) for layer in layers])
        ]
        for layer, head in pairs:
            if not 0 <= layer < n_layers:
                raise UsageError(
                    f"layer {layer} does not exist", f"the model has layers 0 … {n_layers - 1}"
                )
            if not 0 <= head < n_heads:
                raise UsageError(
                    f"head {head} does not exist", f"the layers have heads 0 … {n_heads - 1}"
                )
        found: dict[int, set[int]] = {}
        for layer, head in pairs:
            found.setdefault(layer, set()).add(head)
        return {layer: tuple(sorted(found[layer])) for layer in sorted(found)}

    def settings(self) -> dict[str, Any]:
        """What a result records: the method's settings, and where it is applied."""
        return {
            **self.method.settings(),
            "layers": None if self.layers is None else list(self.layers),
            "heads": None
            if self.heads is None
            else [list(one) if isinstance(one, tuple) else one for one in self.heads],
        }

    def __str__(self) -> str:
        where = [
            f"{name} {'/'.join(_spelled(one) for one in chosen)}"
            for name, chosen in (("layers", self.layers), ("heads", self.heads))
            if chosen is not None
        ]
        return f"{self.method} in {', '.join(where)}" if where else str(self.method)


class Run(Protocol):
    """Runs token ids through a model whose attention is replaced."""

    def __call__(
        self,
        ids: Windows,
        attention_mask: torch.Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Any:
        """One forward pass, without gradients.

        Parameters
        ----------
        ids : (batch, n) token ids, or windows of one length
            Padded or not. Methods never see padding, and padded rows keep full attention.
        attention_mask : (batch, n), optional
            1 for tokens, 0 for padding; made from the model's pad token when not given.

        Returns
        -------
        transformers.utils.ModelOutput
        """
        ...


@contextmanager
def replacing(
    model: LoadedModel | Any,
    method: Approximation,
    *,
    layers: Sequence[int] | None = None,
    heads: Heads | None = None,
    group: Group | None = None,
) -> Iterator[Run]:
    """Run a model with its attention replaced by an approximation, errors compounding.

    Every layer gets the hidden states that the replaced layers before it have left, as it would
    in a model that was built with the approximation.

    Parameters
    ----------
    model : LoadedModel or transformers.PreTrainedModel
        In evaluation mode while the context is open; afterwards mode, attention implementation and
        hooks are what they were, on every way out.
    method : Approximation
    layers, heads
        As in :class:`Intervention`. The method is applied to whole layers and the chosen heads are
        taken from its output, because a head's number may matter to it.
    group : {"encoder", "decoder", "cross"}, optional
        Which attention of an encoder-decoder; the model's first when not given.

    Yields
    ------
    Run
        Function from token ids to the model's output.

    Raises
    ------
    UsageError
        For layers, heads or a group that the model does not have.
    MethodError
        If the method would let a causal model see the future, or refuses the attention.
    """
    intervention = Intervention(
        method,
        None if layers is None else tuple(layers),
        None if heads is None else tuple(heads),  # type: ignore[arg-type]
    )
    with forwarding(model) as forward:
        replacement = replacement_of(intervention, model, forward, group)

        def run(
            ids: Windows,
            attention_mask: torch.Tensor | Sequence[Sequence[int]] | None = None,
        ) -> Any:
            batches = forward.batches(ids, attention_mask, batch_size=len(ids))
            if len(batches) != 1:
                raise UsageError("windows of several lengths are no one batch", "run one by one")
            return forward(batches[0], replacement)

        yield run


def group_of(forward: Forward, group: Group | None) -> Group:
    """The attention that is meant, the model's first when none is named.

    Raises
    ------
    UsageError
        If the model has no such attention.
    """
    if group is None:
        return next(iter(forward.groups))
    if group not in forward.groups:
        raise UsageError(f"this model has no {group} attention", f"one of {[*forward.groups]}")
    return group


def replacement_of(
    intervention: Intervention, model: LoadedModel | Any, forward: Forward, group: Group | None
) -> Replacement:
    """An intervention as what a forward pass of one model takes.

    Raises
    ------
    UsageError, MethodError
        As :func:`replacing`.
    """
    group = group_of(forward, group)
    method = intervention.method
    if group == "decoder":
        refuse_future(method)
    places = intervention.places(forward.groups[group], heads_of(model, group))
    return Replacement(lambda attention: _output(method, attention), places, group)


def refuse_future(method: Approximation) -> None:
    """Refuse a method that lets a causal model look ahead.

    Raises
    ------
    MethodError
    """
    if not method.causal:
        raise MethodError(
            f"{method} lets a causal model see the future, so that its predictions of the next "
            "token would be worth nothing",
            "use a method that keeps order, or a model with a masked-LM head",
        )


def heads_of(model: LoadedModel | Any, group: Group) -> int:
    """Query heads of a layer."""
    found = shape(network_of(model).config)
    if group == "encoder" or found.n_decoder_heads is None:
        return found.n_heads
    return found.n_decoder_heads


def _output(method: Approximation, attention: Attention) -> torch.Tensor:
    """The method's output; NaN for windows that are broken already, which it never sees."""
    value = attention.values
    finite = (
        torch.isfinite(attention.query).all(dim=3).all(dim=2).all(dim=1)
        & torch.isfinite(attention.key).all(dim=3).all(dim=2).all(dim=1)
        & torch.isfinite(value).all(dim=3).all(dim=2).all(dim=1)
    )
    if bool(finite.all()):
        return method.apply(attention)
    output = value.new_full((*attention.query.shape[:3], value.shape[-1]), torch.nan)
    if bool(finite.any()):
        output[finite] = method.apply(_rows(attention, finite)).to(output.dtype)
    return output


def _rows(attention: Attention, chosen: torch.Tensor) -> Attention:
    """The same attention with some of its windows only."""
    bias = attention.bias
    if bias is not None and bias.ndim == 4 and bias.shape[0] > 1:
        bias = bias[chosen]
    return replace(
        attention,
        query=attention.query[chosen],
        key=attention.key[chosen],
        value=attention.values[chosen],
        bias=bias,
        tokens=attention.tokens[chosen],
        samples=tuple(
            one for one, kept in zip(attention.samples, chosen.tolist(), strict=True) if kept
        ),
    )


def _spelled(one: int | tuple[int, int]) -> str:
    return f"{one[0]}.{one[1]}" if isinstance(one, tuple) else str(one)
