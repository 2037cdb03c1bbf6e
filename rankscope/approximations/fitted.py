"""The file of fitted projections: what fitting writes and `linformer` and `projected` read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from rankscope.approximations.base import Shape, file_sha256, reason
from rankscope.approximations.projections import Pair, Sharing, strided
from rankscope.atomic import write_whole, writing
from rankscope.exceptions import MethodError, UsageError

FORMAT = "rankscope projections 1"

Fitted = Literal["svd", "learned", "learned-conv"]


@dataclass(frozen=True, eq=False)
class Projections:
    """Projections that were fitted to a model, and what they were fitted to.

    Attributes
    ----------
    kind : {"svd", "learned", "learned-conv"}
    sharing : {"none", "headwise", "key-value", "layerwise"}
        One projection a head and a side; one a side; one a layer; one for all layers.
    length : int
        Tokens N of the windows that they were fitted on.
    n_heads : int
    e : mapping of layer to (h, k, N) tensor
        For the keys; h is the number of heads without sharing and 1 with it. For ``learned-conv``
        the kernels, (h, s).
    f : mapping of layer to tensor, or None
        For the values; None where they share `e`.
    model : str
    weights_sha256 : str or None
        Checksum of the model's weights; None for drawn ones.
    text : str
        Name of the text that they were fitted on.
    text_sha256 : str
    windows : int
        How many of its windows they were fitted on.
    training_error, validation_error : mapping of layer to float
        Mean relative output error on those windows, and on those kept out of the fit.
    how : mapping
        How they were fitted, seeds included; JSON values.
    """

    kind: Fitted
    sharing: Sharing
    length: int
    n_heads: int
    e: Mapping[int, torch.Tensor]
    f: Mapping[int, torch.Tensor] | None
    model: str
    weights_sha256: str | None
    text: str
    text_sha256: str
    windows: int
    training_error: Mapping[int, float] = field(default_factory=dict)
    validation_error: Mapping[int, float] = field(default_factory=dict)
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Fitted) or self.sharing not in get_args(Sharing):
            raise UsageError(f"there are no {self.kind} projections shared {self.sharing}")
        split = self.kind != "svd" and self.sharing in ("none", "headwise")
        if split != (self.f is not None):
            raise UsageError(
                f"{self.kind} projections shared {self.sharing} have "
                f"{'an E and an F' if split else 'one matrix for keys and values'}"
            )
        sides = [self.e] if self.f is None else [self.e, self.f]
        if not self.e or any(set(side) != set(self.e) for side in sides):
            raise UsageError("projections need the same layers for keys and values, one at least")
        heads = self.n_heads if self.sharing == "none" else 1
        for layer in self.e:
            shapes = {tuple(side[layer].shape) for side in sides}
            if len(shapes) != 1 or not self._fits(shapes.pop(), heads):
                raise UsageError(
                    f"the projections of layer {layer} have shapes "
                    f"{[tuple(side[layer].shape) for side in sides]}, which do not fit {heads} of "
                    f"{self.length} tokens"
                )
            if not all(bool(torch.isfinite(side[layer]).all()) for side in sides):
                raise UsageError(f"the projections of layer {layer} are not finite")
        errors = [*self.training_error.values(), *self.validation_error.values()]
        if not all(map(math.isfinite, errors)):
            raise UsageError("the errors of a fit are finite numbers")
        if self.sharing == "layerwise" and any(
            not torch.equal(one, self.e[self.layers[0]]) for one in self.e.values()
        ):
            raise UsageError("projections shared layerwise are the same in every layer")

    def _fits(self, shape: tuple[int, ...], heads: int) -> bool:
        if self.kind == "learned-conv":
            return len(shape) == 2 and shape[0] == heads and 1 <= shape[1] <= self.length
        fits = len(shape) == 3 and shape[0] == heads and shape[2] == self.length
        return fits and 1 <= shape[1] <= self.length

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers, ascending."""
        return tuple(sorted(self.e))

    def k(self, layer: int) -> int:
        """Rows of a layer's projections at the length that they were fitted for.

        Raises
        ------
        MethodError
            If there are none for the layer.
        """
        self._check_layer(layer)
        if self.kind == "learned-conv":
            return math.ceil(self.length / self.e[layer].shape[-1])
        return self.e[layer].shape[-2]

    def of(self, layer: int, n: int) -> Pair:
        """E and F of one layer for n tokens: the first n columns.

        A convolution is laid out for n anew, without the rows that n does not reach.

        Parameters
        ----------
        layer : int
        n : int
            Tokens, up to `length`.

        Returns
        -------
        two (h, k, n) tensors

        Raises
        ------
        MethodError
            For a layer without projections, or a longer window.
        """
        self._check_layer(layer)
        self._check_length(n)
        sides = (self.e[layer], self.e[layer] if self.f is None else self.f[layer])
        if self.kind == "learned-conv":
            return strided(sides[0], n), strided(sides[1], n)
        return sides[0][..., :n], sides[1][..., :n]

    def check(self, shape: Shape) -> None:
        """Refuse another model, layers or heads that were not fitted, and longer windows.

        Raises
        ------
        MethodError
        """
        shape.check_weights("projections", self.model, self.weights_sha256)
        self.check_heads(shape.n_heads)
        self._check_length(shape.length)
        for layer in shape.layers:
            self._check_layer(layer)

    def check_rank(self, layer: int, k: int) -> None:
        """Refuse a k that is not the file's.

        Raises
        ------
        MethodError
        """
        if k != self.k(layer):
            raise MethodError(
                f"k = {k} is not the {self.k(layer)} that the projections of layer {layer} were "
                "fitted with",
                f"use k={self.k(layer)}, or fit projections to k = {k}",
            )

    def check_heads(self, n_heads: int) -> None:
        """Refuse another number of heads.

        Raises
        ------
        MethodError
        """
        if n_heads != self.n_heads:
            raise MethodError(
                f"the projections were fitted to {self.n_heads} heads, not to {n_heads}",
                "fit projections to this model",
            )

    def _check_layer(self, layer: int) -> None:
        if layer not in self.e:
            raise MethodError(
                f"the projections were fitted to the layers {', '.join(map(str, self.layers))}, "
                f"not to layer {layer}",
                "fit that layer too, or leave it out with --layers",
            )

    def _check_length(self, n: int) -> None:
        if n > self.length:
            raise MethodError(
                f"the projections were fitted to windows of {self.length} tokens and have no "
                f"columns for n = {n}",
                f"fit projections to n = {n}, or use windows of {self.length} tokens or fewer",
            )

    def write(self, path: str | Path) -> Path:
        """Write the file, whole or not at all.

        Returns
        -------
        Path

        Raises
        ------
        StoreError
            If it cannot be written; what was there is unchanged.
        """
        from safetensors.torch import save_file

        tensors = {}
        for side, matrices in (("E", self.e), ("F", self.f or {})):
            layers = self.layers[:1] if self.sharing == "layerwise" else self.layers
            for layer in layers if matrices else ():
                tensors[f"{side}.{layer}"] = matrices[layer].detach().cpu().float().contiguous()
        tree = {
            "format": FORMAT,
            "kind": self.kind,
            "sharing": self.sharing,
            "length": self.length,
            "n_heads": self.n_heads,
            "layers": list(self.layers),
            "k": [self.k(layer) for layer in self.layers],
            "model": self.model,
            "weights_sha256": self.weights_sha256,
            "text": self.text,
            "text_sha256": self.text_sha256,
            "windows": self.windows,
            "training_error": {str(layer): e for layer, e in self.training_error.items()},
            "validation_error": {str(layer): e for layer, e in self.validation_error.items()},
            "how": dict(self.how),
            "tensors_sha256": _digest(tensors),
        }
        text = json.dumps(tree, allow_nan=False)

        def save(temporary: Path) -> None:
            # one entry only: the order of several is left to chance
            save_file(tensors, temporary, metadata={"rankscope": text})

        with writing(Path(path)):
            write_whole(Path(path), save)
        return Path(path)


def read_projections(path: Path) -> Projections:
    """Read the file of :meth:`Projections.write`.

    Returns
    -------
    Projections
        In float32 on the CPU.

    Raises
    ------
    MethodError
        If it cannot be read, is damaged, or is no such file.
    """
    return _read(path, file_sha256(path))


def projections_for(file: Path | None, projection: str, sharing: Sharing) -> Projections | None:
    """What a method reads from its file, if it has one.

    Parameters
    ----------
    file : Path or None
    projection : {"svd", "learned"}
        Must be the file's kind; a learned convolution is ``learned`` too.
    sharing : str
        Must be the file's. Singular vectors serve both sides, so that for them ``headwise`` and
        ``key-value`` are one.

    Returns
    -------
    Projections or None

    Raises
    ------
    MethodError
        If the file cannot be read, or holds something else.
    """
    if file is None:
        return None
    stored = read_projections(file)
    if stored.kind.removesuffix("-conv") != projection:
        raise MethodError(
            f"{file} holds {stored.kind} projections, not {projection} ones",
            f"use projection={stored.kind.removesuffix('-conv')}",
        )
    both = {stored.sharing, sharing}
    if len(both) > 1 and not (stored.kind == "svd" and both == {"headwise", "key-value"}):
        raise MethodError(
            f"the projections of {file} are shared {stored.sharing}, not {sharing}",
            f"use sharing={stored.sharing}",
        )
    return stored


@lru_cache(maxsize=8)
def _read(path: Path, _digest_of_file: str) -> Projections:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {})["rankscope"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tree = json.loads(text)
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']!r}")
        if tree["tensors_sha256"] != _digest(tensors):
            raise ValueError("its numbers are not those that were written")
        layers = [int(layer) for layer in tree["layers"]]
        return Projections(
            kind=tree["kind"],
            sharing=tree["sharing"],
            length=int(tree["length"]),
            n_heads=int(tree["n_heads"]),
            e=_side(tensors, "E", layers, tree["sharing"]),
            f=_side(tensors, "F", layers, tree["sharing"]) if _has(tensors, "F") else None,
            model=str(tree["model"]),
            weights_sha256=tree["weights_sha256"],
            text=str(tree["text"]),
            text_sha256=str(tree["text_sha256"]),
            windows=int(tree["windows"]),
            training_error={int(layer): e for layer, e in tree["training_error"].items()},
            validation_error={int(layer): e for layer, e in tree["validation_error"].items()},
            how=tree["how"],
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, UsageError) as error:
        raise MethodError(
            f"{path} is no file of projections: {reason(error)}",
            "write one with rankscope linformer fit",
        ) from error


def _has(tensors: Mapping[str, torch.Tensor], side: str) -> bool:
    return any(name.startswith(f"{side}.") for name in tensors)


def _side(
    tensors: Mapping[str, torch.Tensor], side: str, layers: Sequence[int], sharing: str
) -> dict[int, torch.Tensor]:
    stored = [layers[0] if sharing == "layerwise" else layer for layer in layers]
    return {layer: tensors[f"{side}.{at}"] for layer, at in zip(layers, stored, strict=True)}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
