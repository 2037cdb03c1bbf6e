"""Fitting Linformer's projections to a model's attention on a text, layer by layer, resumable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankscope.approximations.base import check_budget
from rankscope.approximations.draws import check_seed
from rankscope.approximations.fitted import Projections, read_projections
from rankscope.approximations.fitting import Learned, learn, svd_projections
from rankscope.approximations.linformer import Linformer
from rankscope.approximations.projections import Sharing
from rankscope.atomic import remove
from rankscope.attention import Attention
from rankscope.callbacks import Progress
from rankscope.engine.frame import Frame
from rankscope.engine.recipe import Sampling
from rankscope.exceptions import MethodError, StoreError, UsageError
from rankscope.linalg import one_blas_thread
from rankscope.store import locked, working_path
from rankscope.store.schema import differences

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus


@dataclass(frozen=True)
class Fit:
    """What is fitted, and how.

    Attributes
    ----------
    k : int
    projection : {"learned", "learned-conv", "svd"}
        By gradient, matrices or kernels of a strided convolution; or the leading right singular
        vectors of all P.
    sharing : {"headwise", "none", "key-value", "layerwise"}
    held_out : int
        Windows after those of the fit that decide when to stop; 0 only for ``svd``.
    seed : int
        Of the order of the windows.
    epochs : int
        At most.
    patience : int
        Epochs without a better held-out error before a layer stops.
    bias : {"refuse", "project"}
        What to do with a bias of finite terms, as relative positions.
    """

    k: int
    projection: Literal["learned", "learned-conv", "svd"] = "learned"
    sharing: Sharing = "headwise"
    held_out: int = 16
    seed: int = 0
    epochs: int = 12
    patience: int = 3
    bias: Literal["refuse", "project"] = "refuse"

    def __post_init__(self) -> None:
        check_budget("linformer", "k", self.k)
        check_seed("the fit", self.seed)
        if min(self.epochs, self.patience) < 1 or self.held_out < 0:
            raise UsageError(
                f"{self.epochs} epochs, patience {self.patience} and {self.held_out} windows held "
                "out are no fit",
                "use 1 or more epochs, patience 1 or more, and no negative number of windows",
            )
        if self.projection != "svd" and self.held_out < 1:
            raise UsageError("learning needs windows to stop by", "hold out at least one")


def fit(
    model: LoadedModel,
    corpus: Corpus,
    sampling: Sampling,
    settings: Fit,
    target: str | Path,
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
    told: Callable[[str], None] | None = None,
) -> Path:
    """Fit projections into a file that `linformer` and `projected` read.

    Layers are fitted one after the other (all at once when they share one projection); each is
    kept beside the target when it is done, so that a stopped fit goes on from there.

    Parameters
    ----------
    model, corpus : LoadedModel, Corpus
    sampling : Sampling
        The windows to fit to, packed; those held out follow them.
    settings : Fit
    target : path
        ``.safetensors``.
    progress : callable, optional
        Called with layers done and layers in all.
    overwrite : bool
        Whether another file at the target may be replaced.
    told : callable, optional
        Called with a line about every epoch.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    RankscopeError
        Of a kind that tells what is wrong with model, windows, settings or target.
    """
    target = Path(target)
    if target.suffix != ".safetensors":
        raise UsageError(f"{target} is no .safetensors file", "name one")
    if sampling.windows is None:
        raise UsageError("a fit needs a number of windows", "give one in place of all")
    with locked(target):
        return _fit(model, corpus, sampling, settings, target, progress, overwrite, told)


def _fit(
    model: LoadedModel,
    corpus: Corpus,
    sampling: Sampling,
    settings: Fit,
    target: Path,
    progress: Progress | None,
    overwrite: bool,
    told: Callable[[str], None] | None,
) -> Path:
    assert sampling.windows is not None
    count = sampling.windows
    frame = Frame.of(model, corpus, replace(sampling, windows=count + settings.held_out))
    if settings.k > frame.length:
        raise MethodError(
            f"k = {settings.k} is more than windows of n = {frame.length} tokens have",
            f"use a k of {frame.length} or less",
        )
    # layers are kept one by one, so that which of them are fitted does not matter to each
    recipe = frame.recipe()
    recipe["recipe"]["layers"] = None
    head = _Head(frame, settings, {"fit": asdict(settings), **recipe}, str(corpus.sha256))
    if target.exists() and not overwrite and head.matches(target):
        if set(read_projections(target).layers) >= set(frame.layers):
            return target
        raise StoreError(f"{target} lacks some of the layers", "choose another name, or overwrite")
    # what Linformer refuses (causal, masks, positions, dropped tokens) is refused at once
    frame.try_methods(model, [Linformer(settings.k, bias=settings.bias)])
    together = settings.sharing == "layerwise"
    groups = [frame.layers] if together else [(layer,) for layer in frame.layers]
    folder = working_path(target)
    parts = []
    with one_blas_thread():
        for number, layers in enumerate(groups):
            if progress is not None:
                progress(number, len(groups))
            part = folder / f"layer-{layers[0]}.safetensors"
            if not (part.exists() and head.matches(part, overwrite)):
                _fit_layers(model, frame, head, layers, told).write(part)
            parts.append(read_projections(part))
    whole = replace(
        parts[0],
        e=_joined(one.e for one in parts),
        f=None if parts[0].f is None else _joined(one.f or {} for one in parts),
        training_error=_joined(one.training_error for one in parts),
        validation_error=_joined(one.validation_error for one in parts),
    )
    whole.write(target)
    remove(folder)
    if progress is not None:
        progress(len(groups), len(groups))
    return target


@dataclass(frozen=True)
class _Head:
    """Everything of the file but the projections themselves."""

    frame: Frame
    settings: Fit
    how: dict[str, Any]
    text_sha256: str

    def matches(self, path: Path, overwrite: bool = False) -> bool:
        """Whether a file is the result, or a part of it, of these very settings.

        Raises
        ------
        StoreError
            If it is of other settings and must not be replaced.
        """
        try:
            stored = read_projections(path)
        except MethodError:
            if overwrite:
                return False
            raise
        changed = differences(stored.how, self.how)
        if changed and not overwrite:
            raise StoreError(
                f"{path} was fitted with other settings: {'; '.join(changed)}",
                "use the same settings, another output, or overwrite it",
            )
        return not changed

    @property
    def _weights(self) -> str | None:
        found: str | None = self.frame.model["weights_sha256"]
        return found

    def file(self, layers: tuple[int, ...], found: Any) -> Projections:
        """What was found of some layers, as a file."""
        learned = isinstance(found, Learned)
        e = found.e if learned else found.basis.float()
        f = found.f if learned else None
        assert self.frame.sampling.windows is not None
        return Projections(
            kind=self.settings.projection,
            sharing=self.settings.sharing,
            length=self.frame.length,
            n_heads=self.frame.n_heads,
            e=dict.fromkeys(layers, e),
            f=None if f is None else dict.fromkeys(layers, f),
            model=self.frame.identity,
            weights_sha256=self._weights,
            text=str(self.frame.corpus["name"]),
            text_sha256=self.text_sha256,
            windows=self.frame.sampling.windows - self.settings.held_out,
            training_error=found.training_error if learned else {},
            validation_error=found.held_out_error if learned else {},
            how=self.how,
        )


def _fit_layers(
    model: LoadedModel,
    frame: Frame,
    head: _Head,
    layers: tuple[int, ...],
    told: Callable[[str], None] | None,
) -> Projections:
    settings = head.settings
    part = replace(frame, layers=layers)
    assert frame.sampling.windows is not None
    last = frame.sampling.windows - settings.held_out
    samples = range(len(frame.windows))
    if settings.projection == "svd":
        stream = (one for _, one in part.attentions(model, samples[:last], values=False))
        return head.file(layers, svd_projections(stream, settings.k, settings.sharing))
    seen: list[Attention] = []
    unseen: list[Attention] = []
    for (sample,), attention in part.attentions(model, samples, values=True):
        (seen if sample < last else unseen).append(attention)
    where = f"layer {layers[0]}" if len(layers) == 1 else "all layers"

    def say(epoch: int, training: float, validation: float) -> None:
        if told is not None:
            told(f"{where}, epoch {epoch}: training {training:.4f}, held out {validation:.4f}")

    options: dict[str, Any] = dict(
        sharing=settings.sharing,
        seed=settings.seed,
        epochs=settings.epochs,
        patience=settings.patience,
        bias=settings.bias,
        progress=say,
    )
    kernels = None
    # a few numbers that cannot overfit, quickly found; they need a stride that divides n to be a
    # start for matrices
    if settings.projection == "learned-conv" or frame.length % settings.k == 0:
        kernels = learn(
            seen, unseen, settings.k, kind="conv", **options | {"epochs": min(5, settings.epochs)}
        )
    if settings.projection == "learned-conv":
        assert kernels is not None
        return head.file(layers, kernels)
    return head.file(
        layers, learn(seen, unseen, settings.k, kind="matrix", start=kernels, **options)
    )


def _joined(parts: Any) -> dict[int, Any]:
    whole: dict[int, Any] = {}
    for part in parts:
        whole |= part
    return whole
