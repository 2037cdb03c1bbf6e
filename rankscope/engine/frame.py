"""What runs share before they compute: windows, layers, and the settings that are recorded."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.approximations import Approximation, Shape
from rankscope.attention import Attention
from rankscope.capture import capture
from rankscope.capture.roads import expected_layers, layer_reach
from rankscope.controls import padded_attention
from rankscope.engine.recipe import Sampling
from rankscope.exceptions import UsageError
from rankscope.models import check_length
from rankscope.store.schema import RunSchema, Variables, canonical_json, settings_hash
from rankscope.text import windows as cut_windows

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window


BLOCK_TOKENS = 512
"""Tokens of a block of windows, about."""

LARGEST_BLOCK = 64
"""Windows of a block at most."""


@dataclass(frozen=True)
class Frame:
    """Windows and layers of a run.

    Attributes
    ----------
    windows : mapping of int to Window
        By sample: all of the run, or those that a worker was given.
    sizes : mapping of int to int
        Tokens of each window that take part, special tokens dropped where that was asked for.
    length : int
        Tokens of the longest window of the run that take part, at least 1.
    sampling : Sampling
    group : str
    layers : tuple of int
    n_layers, n_heads : int
        What the group has, of which `layers` may be a part.
    layer_attention : tuple of str
        ``"global"`` or ``"local"`` for each layer.
    causal : bool
    padded_to : int or None
        Tokens that every window is padded to, padding not cut off: a control.
    identity : str
        Name of the model; of drawn weights with their seed.
    model, corpus : mapping
        What is recorded of them.
    """

    windows: Mapping[int, Window]
    sizes: Mapping[int, int]
    length: int
    sampling: Sampling
    group: str
    layers: tuple[int, ...]
    n_layers: int
    n_heads: int
    layer_attention: tuple[str, ...]
    causal: bool
    identity: str
    model: Mapping[str, Any]
    corpus: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    padded_to: int | None = None

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        corpus: Corpus,
        sampling: Sampling,
        *,
        edit: Callable[[Window], Window] | None = None,
        padded_to: int | None = None,
    ) -> Frame:
        """Cut the windows and choose the layers.

        Parameters
        ----------
        model, corpus, sampling
            Of the run.
        edit : function, optional
            What is done to every window before the model sees it.
        padded_to : int, optional
            Tokens that every window is padded to, padding not cut off again.

        Raises
        ------
        UsageError, TextError
            For windows that the model or the corpus does not have, unknown groups and layers.
        """
        check_length(model.info, sampling.length)
        counts = expected_layers(model.model)
        group = sampling.group or next(iter(counts))
        if group not in counts:
            raise UsageError(
                f"{model.info.name} has no {group} attention", f"one of {', '.join(counts)}"
            )
        count = counts[group]
        layers = tuple(sorted(set(sampling.layers))) if sampling.layers else tuple(range(count))
        if bad := [layer for layer in layers if not 0 <= layer < count]:
            raise UsageError(
                f"{model.info.name} has no layer {', '.join(map(str, bad))}",
                f"its {group} has layers 0 to {count - 1}",
            )
        wanted = sampling.windows
        windows = cut_windows(
            corpus,
            model.tokenizer,
            length=sampling.length,
            count=None if wanted is None else wanted + sampling.skip,
            mode=sampling.mode,
            overlap=sampling.overlap,
        )[sampling.skip :]
        if not windows:
            raise UsageError(
                f"{corpus.name} has no window left after {sampling.skip} were skipped",
                "skip fewer, or use a longer text",
            )
        if edit is not None:
            windows = [edit(window) for window in windows]
        sizes = {
            sample: padded_to or _kept(window, sampling) for sample, window in enumerate(windows)
        }
        reach = layer_reach(model.model)
        heads = model.info.n_heads if group == "encoder" else None
        computed = torch.promote_types(model.model.dtype, torch.float32)
        return cls(
            windows=dict(enumerate(windows)),
            sizes=sizes,
            length=max(1, max(sizes.values())),
            sampling=sampling,
            group=group,
            layers=layers,
            n_layers=count,
            n_heads=heads or model.info.n_decoder_heads or model.info.n_heads,
            layer_attention=tuple("local" if reach.get(i) else "global" for i in layers),
            causal=group == "decoder",
            identity=model.info.identity,
            model=model.info.as_dict(),
            corpus={
                "name": corpus.name,
                "sha256": corpus.sha256,
                "options": corpus.options.as_dict(),
            },
            attrs={
                "corpus_source": corpus.source,
                "stored_dtype": model.info.stored_dtype or model.info.dtype,
                "model_dtype": model.info.dtype,
                "matrix_dtype": str(computed).removeprefix("torch."),
                "float32_matmul_precision": "highest",
                "device": model.info.device,
            },
            padded_to=padded_to,
        )

    def holding(self, windows: Mapping[int, Window]) -> Frame:
        """The same run with these windows only, by sample; what a worker is given.

        Length and layers stay those of the run, so that its results fit in.
        """
        sizes = {
            sample: self.padded_to or _kept(window, self.sampling)
            for sample, window in windows.items()
        }
        return replace(self, windows=windows, sizes=sizes)

    @property
    def block(self) -> int:
        """Windows that are computed and stored together: many short ones, or a single long one.

        It follows from the length alone, since the windows of a forward pass decide its last bits.
        """
        return max(1, min(LARGEST_BLOCK, BLOCK_TOKENS // self.length))

    @property
    def shape(self) -> Shape:
        """What methods are checked against."""
        return Shape(
            model=self.identity,
            weights_sha256=self.model["weights_sha256"],
            layers=self.layers,
            n_heads=self.n_heads,
            length=self.length,
            causal=self.causal,
        )

    def recipe(self) -> dict[str, Any]:
        """What decides the result of any run: windows and layers, model and text."""
        settings = asdict(self.sampling) | {"group": self.group}
        # a run without this wish is the same as before there was such a wish
        for name in ("precision", "control"):
            if settings.get(name) is None:
                settings.pop(name, None)
        if "control" not in settings:
            settings.pop("control_seed", None)
        return {
            "recipe": settings,
            "model": {
                key: value
                for key, value in self.model.items()
                # weights that the model does not use are others with a head than without
                if key not in ("spec", "device", "source", "unexpected")
            },
            "corpus": dict(self.corpus),
        }

    def schema(
        self,
        title: str,
        variables: Variables,
        axes: Mapping[str, NDArray[Any]],
        *,
        labels: Mapping[str, tuple[str, NDArray[Any]]] | None = None,
        settings: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        by_head: bool = True,
    ) -> RunSchema:
        """Layout of the run's dataset.

        Parameters
        ----------
        title : str
            What the dataset holds.
        variables, axes, labels
            As in :class:`RunSchema`; layers and heads come first by themselves.
        settings : mapping, optional
            Settings of the run beyond its sampling; they enter the hash.
        attrs : mapping, optional
            Further attributes, which do not.
        by_head : bool
            Whether the run has the dimensions layer and head.
        """
        own = {"layer": np.array(self.layers), "head": np.arange(self.n_heads)} if by_head else {}
        attention = {"attention": ("layer", np.array(self.layer_attention))} if by_head else {}
        recipe = {**self.recipe(), **(settings or {})}
        windows = self.windows.values()
        control = getattr(self.sampling, "control", None)
        versions = {
            name: importlib.metadata.version(name)
            for name in ("rankscope", "torch", "transformers", "numpy", "scipy", "numba")
        }
        return RunSchema(
            model=f"{control}:{self.model['name']}" if control else str(self.model["name"]),
            corpus=str(self.corpus["name"]),
            text_id=np.array([window.text_id for window in windows]),
            window=np.array([window.number for window in windows]),
            token_start=np.array([window.start for window in windows]),
            token_end=np.array([window.end for window in windows]),
            block=self.block,
            axes={**own, **axes},
            variables=variables,
            labels={**attention, **(labels or {})},
            attrs={
                "title": title,
                "settings_hash": settings_hash(recipe),
                "recipe_json": canonical_json(recipe),
                "model_json": canonical_json(self.model),
                **self.attrs,
                **(attrs or {}),
                "versions_json": canonical_json(versions | {"python": platform.python_version()}),
            },
        )

    def try_methods(self, model: LoadedModel, methods: Sequence[Approximation]) -> None:
        """Apply methods once to every kind of layer of the shortest window.

        What a method refuses depends on masks, positions and lengths that only real attention
        shows; this takes a moment, before the long work and before anything is written.

        Raises
        ------
        MethodError
        """
        alive = [sample for sample, size in self.sizes.items() if size > 0]
        if not alive or not methods:
            return
        kinds = {kind: layer for layer, kind in zip(self.layers, self.layer_attention, strict=True)}
        part = replace(self, layers=tuple(sorted(kinds.values())))
        shortest = min(alive, key=lambda sample: self.sizes[sample])
        for _, attention in part.attentions(model, [shortest], values=True):
            for method in methods:
                method.apply(attention)

    def attentions(
        self,
        model: LoadedModel,
        samples: Sequence[int],
        *,
        values: bool,
        batch_size: int = 1,
        overlap: bool = True,
    ) -> Iterator[tuple[tuple[int, ...], Attention]]:
        """The chosen layers of every window of `samples` that has tokens, one layer at a time.

        Neighbours of one length share a forward pass, at most `batch_size` of them; with `overlap`
        it goes on while a layer is at work.

        Yields
        ------
        tuple of int, Attention
            Samples of the rows of its batch, and the attention.
        """
        alive = [sample for sample in samples if self.sizes[sample] > 0]
        if not alive:
            return
        if self.padded_to is not None:
            for sample in alive:
                window = self.windows[sample]
                every = padded_attention(model, window, self.padded_to, self.group)  # type: ignore[arg-type]
                for layer in self.layers:
                    yield (sample,), every[layer]
            return
        stream = capture(
            model,
            [self.windows[sample] for sample in alive],
            layers=self.layers,
            group=self.group,  # type: ignore[arg-type]
            special=self.sampling.special,  # type: ignore[arg-type]
            values=values,
            batch_size=batch_size,
            overlap=overlap,
        )
        # closing: an error or an interrupt here must not leave the model borrowed
        with closing(stream):  # type: ignore[type-var]
            for attention in stream:
                yield tuple(alive[place] for place in attention.samples), attention
                del attention


def _kept(window: Window, sampling: Sampling) -> int:
    return window.n_tokens if sampling.special == "keep" else int((~window.special).sum())
