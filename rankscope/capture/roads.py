"""The two roads to a model's query, key and value: its attention interface, or forward hooks.

Only this file and :mod:`rankscope.capture` know the inside of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from rankscope.attention import Group
from rankscope.capture.kernel import IMPLEMENTATION, current, kernel
from rankscope.exceptions import CaptureError, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

REFUSED = {
    "longformer": "its band layers give n × (w + 1) strips, not n × n matrices",
    "led": "its band layers give n × (w + 1) strips, not n × n matrices",
    "big_bird": "its blocks are gathered, and no n × n matrix exists",
    "bigbird_pegasus": "its blocks are gathered, and no n × n matrix exists",
    "reformer": "it attends within hash buckets, and no n × n matrix exists",
    "deberta": "its scores hold terms between content and position that are no bias",
    "deberta-v2": "its scores hold terms between content and position that are no bias",
}
"""Families that cannot be captured, and why."""


@dataclass(frozen=True)
class Heard:
    """What one attention module was given: whole batch, padding included."""

    group: Group
    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    bias: torch.Tensor | None
    causal: bool
    local: int | None


Edit = Callable[[torch.Tensor], torch.Tensor]
"""From a module's own output P·V, (batch, head, n, d_v), to the one that the model goes on with."""

Listener = Callable[[Heard], Edit | None]
"""Hears an attention module; an `Edit` in return changes the module's output."""


class Road(Protocol):
    """A way to hear every attention module of one model."""

    def installed(self) -> AbstractContextManager[None]:
        """Change the model so that it can be heard; undone when the context closes."""
        ...

    def listening(self, listener: Listener) -> AbstractContextManager[None]:
        """Send what the forward passes of this thread say to `listener`, and do as it says."""
        ...


def choose(network: PreTrainedModel) -> Road:
    """The road for a model's family.

    Raises
    ------
    UnsupportedModel
        With the reason, for a family that has no n × n softmax attention or that cannot be heard.
    """
    family = str(network.config.model_type)
    if family in REFUSED:
        raise UnsupportedModel(
            f"attention of the family {family} cannot be captured: {REFUSED[family]}",
            "see `rankscope models` for the families that can",
        )
    if family in HOOKED:
        return HookRoad(network, HOOKED[family])
    if network._can_set_attn_implementation():
        return InterfaceRoad(network)
    raise UnsupportedModel(
        f"attention of the family {family} cannot be captured: it does not use transformers' "
        "attention interface, and its query, key and value layers are not known here",
        "see `rankscope models` for the families that can",
    )


def expected_layers(network: PreTrainedModel) -> dict[Group, int]:
    """Number of attention layers in every group, by the configuration."""
    config = network.config
    if getattr(config, "is_encoder_decoder", False):
        encoder = _first(config, "encoder_layers", "num_layers", "num_hidden_layers")
        decoder = _first(config, "decoder_layers", "num_decoder_layers", "num_hidden_layers")
        return {"encoder": encoder, "decoder": decoder, "cross": decoder}
    layers = _first(config, "num_hidden_layers")
    return {"decoder" if _is_causal_model(network) else "encoder": layers}


def layer_reach(network: PreTrainedModel) -> dict[int, int]:
    """How far to each side the tokens of a local layer attend, by layer; other layers are left out.

    Read off the modules, before anything is captured; the band itself comes with the mask.
    """
    places = _Places(network)
    reach: dict[int, int] = {}
    for module in network.modules():
        width = getattr(module, "sliding_window", None)
        if isinstance(width, int) and not hasattr(module, "vocab_size"):
            # transformers counts the token itself
            reach[places.of(module, calls=0)[1]] = width - 1
    return reach


def _first(config: Any, *names: str) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise UnsupportedModel(f"the configuration names none of {', '.join(names)}")


def _is_causal_model(network: PreTrainedModel) -> bool:
    if getattr(network.config, "is_decoder", False):
        return True
    flags = {
        bool(module.is_causal)
        for name, module in network.named_modules()
        if isinstance(getattr(module, "is_causal", None), bool)
    }
    return flags == {True}


class _Places:
    """Where a module stands: its group and its layer, from its role and numeric position."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.names = {module: name for name, module in network.named_modules()}
        self.encoder_decoder = bool(getattr(network.config, "is_encoder_decoder", False))
        self.alone: Group = "decoder" if _is_causal_model(network) else "encoder"
        # ALBERT runs one layer's weights again and again: the call tells the layer, not the place
        self.shared = network.config.model_type == "albert"

    def of(self, module: torch.nn.Module, calls: int) -> tuple[Group, int]:
        name = self.names.get(module)
        if name is None:
            raise CaptureError(f"{type(module).__name__} attended, but is no part of the model")
        if self.shared:
            return self.alone, calls
        number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
        if number is None:
            raise CaptureError(f"the attention module {name} has no layer number in its name")
        return self._group(module, name), int(number.group(1))

    def _group(self, module: torch.nn.Module, name: str) -> Group:
        parts = name.split(".")
        is_cross = (
            "Cross" in type(module).__name__
            or getattr(module, "is_cross_attention", False)
            or any(part in ("encoder_attn", "crossattention", "EncDecAttention") for part in parts)
        )
        if is_cross:
            return "cross"
        if not self.encoder_decoder:
            return self.alone
        return "decoder" if "decoder" in parts else "encoder"


class InterfaceRoad:
    """Our kernel in place of the model's, through ``AttentionInterface``."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.places = _Places(network)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Change the model so that it can be heard; undone when the context closes."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        AttentionInterface.register(IMPLEMENTATION, kernel)
        # without a mask of its own the kernel would get None, and attend to padding
        AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)
        configs = [
            module.config
            for module in self.network.modules()
            if hasattr(module, "config") and hasattr(module.config, "_attn_implementation_internal")
        ]
        before = [(config, config._attn_implementation_internal) for config in configs]
        try:
            self.network.set_attn_implementation(IMPLEMENTATION)
            yield
        finally:
            for config, implementation in before:
                config._attn_implementation_internal = implementation

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Send what the forward passes of this thread say to `listener`, and do as it says."""
        calls = 0

        def hear(module: torch.nn.Module, **given: Any) -> Edit | None:
            nonlocal calls
            group, layer = self.places.of(module, calls)
            calls += 1
            return listener(Heard(group=group, layer=layer, **given))

        current.hear = hear
        try:
            yield
        finally:
            del current.hear


@dataclass(frozen=True)
class HookedFamily:
    """Names of the parts of an attention module that does not use the interface.

    Attributes
    ----------
    module : str
        Class of the self-attention module.
    query, key, value : str
        Its linear layers.
    output : str
        Its linear layer that takes P·V, with the heads side by side.
    arguments : tuple of str
        Names of its forward's arguments, in order, for those given by position.
    biases : tuple of str
        Those of them that are added to the scaled scores.
    """

    module: str
    query: str
    key: str
    value: str
    output: str
    arguments: tuple[str, ...]
    biases: tuple[str, ...]


HOOKED = {
    "mpnet": HookedFamily(
        module="MPNetSelfAttention",
        query="q",
        key="k",
        value="v",
        output="o",
        arguments=("hidden_states", "attention_mask", "position_bias"),
        biases=("attention_mask", "position_bias"),
    )
}
"""Families heard by forward hooks."""


class HookRoad:
    """Forward hooks on the query, key and value layers of every attention module."""

    def __init__(self, network: PreTrainedModel, family: HookedFamily) -> None:
        self.network = network
        self.family = family
        self.places = _Places(network)
        self.listener: Listener | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Change the model so that it can be heard; undone when the context closes."""
        with ExitStack() as stack:
            for module in self.network.modules():
                if type(module).__name__ == self.family.module:
                    self._hook(module, stack)
            yield

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Send what the forward passes of this thread say to `listener`, and do as it says."""
        self.listener = listener
        try:
            yield
        finally:
            self.listener = None

    def _hook(self, module: torch.nn.Module, stack: ExitStack) -> None:
        heard: dict[str, torch.Tensor] = {}

        def before(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            heard.clear()
            given = dict(zip(self.family.arguments, args, strict=False)) | kwargs
            for name in self.family.biases:
                if given.get(name) is not None:
                    heard[name] = given[name].detach()

        def keep(name: str) -> Callable[[object, object, torch.Tensor], None]:
            def hook(_module: object, _inputs: object, output: torch.Tensor) -> None:
                heard[name] = output.detach()

            return hook

        def between(_: object, args: tuple[torch.Tensor]) -> tuple[torch.Tensor] | None:
            edit = self._tell(module, heard)
            heard.clear()
            if edit is None:
                return None
            heads = int(vars(module)["num_attention_heads"])
            return (_side_by_side(edit(_by_head(args[0], heads))),)

        handles = [
            module.register_forward_pre_hook(before, with_kwargs=True),
            getattr(module, self.family.output).register_forward_pre_hook(between),
            *(
                getattr(module, name).register_forward_hook(keep(name))
                for name in (self.family.query, self.family.key, self.family.value)
            ),
        ]
        for handle in handles:
            stack.callback(handle.remove)

    def _tell(self, module: torch.nn.Module, heard: dict[str, torch.Tensor]) -> Edit | None:
        if self.listener is None:
            return None
        heads = int(vars(module)["num_attention_heads"])
        query, key, value = (
            _by_head(heard[name], heads)
            for name in (self.family.query, self.family.key, self.family.value)
        )
        bias: torch.Tensor | None = None
        for name in self.family.biases:
            if name in heard:
                bias = heard[name] if bias is None else bias + heard[name]
        group, layer = self.places.of(module, calls=0)
        return self.listener(
            Heard(
                group=group,
                layer=layer,
                query=query,
                key=key,
                value=value,
                scale=query.shape[-1] ** -0.5,
                bias=bias,
                causal=False,
                local=None,
            )
        )


def _by_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    return tensor.reshape(*tensor.shape[:-1], heads, -1).transpose(1, 2)


def _side_by_side(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(1, 2).flatten(2)
