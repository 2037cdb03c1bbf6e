"""Models and their tokenizers: find, check, load, and say exactly what was loaded.

:func:`check` refuses within seconds what cannot work; :func:`load` gives a :class:`LoadedModel`:
the transformers model, its tokenizer, and a :class:`ModelInfo` that is stored with every result.
Files are found in :mod:`rankscope.models.checkpoints` and :mod:`rankscope.models.hub`, checked in
:mod:`rankscope.models.weights`, understood in :mod:`rankscope.models.architecture`; text becomes
tokens in :mod:`rankscope.models.tokenizers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankscope.exceptions import FileDamaged, ModelError, UsageError
from rankscope.models.architecture import (
    SHAPES,
    build_config,
    shape,
    usable_length,
)
from rankscope.models.checkpoints import (
    BUILTIN,
    MINILM,
    RANDOM,
    Checkpoint,
    KnownModel,
    known_models,
    resolve,
    resolve_tokenizer,
)
from rankscope.models.hub import Need
from rankscope.models.loaded import Head, LoadedModel, ModelInfo
from rankscope.models.loading import (
    check_device,
    draw,
    head_of,
    no_head,
    parameter_dtype,
    read,
)
from rankscope.models.tokenizers import (
    HashTokenizer,
    VocabularyTokenizer,
    check_fits,
    hash_tokenizer,
    load_tokenizer,
    refuse_tokenizer_files,
)
from rankscope.models.weights import Weights, locate, sha256, stored_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = [
    "DEFAULT_MODEL",
    "DTYPES",
    "Head",
    "KnownModel",
    "LoadedModel",
    "ModelInfo",
    "check",
    "check_length",
    "known_models",
    "load",
    "usable_length",
]

DEFAULT_MODEL = BUILTIN
DTYPES = ("float32", "float64", "float16", "bfloat16")
HASH = "hash"


@dataclass(frozen=True)
class _Prepared:
    checkpoint: Checkpoint
    weights: Weights | None
    config: PreTrainedConfig
    tokenizer: HashTokenizer | VocabularyTokenizer
    info: ModelInfo


def load(
    spec: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    allow_missing: bool = False,
    tokenizer: str | None = None,
    head: bool | Literal["required"] = False,
) -> LoadedModel:
    """Load a model for evaluation, with its tokenizer.

    Parameters
    ----------
    spec : str
        ``builtin``; a folder; ``minilm``; a hub id, with ``@REVISION`` if need be; or ``random:``
        before ``roberta-base``, ``roberta-large`` or any of the former: the same architecture with
        fresh weights, drawn by transformers' own initialisation, from the configuration alone.
    dtype : {"float32", "float64", "float16", "bfloat16"}
        Type of the weights as loaded, whatever type they are stored in.
    device : str
        ``cpu``, ``cuda``, ``cuda:1`` …
    seed : int
        Seed of drawn weights, in [0, 2**63). The weights are drawn on the CPU in float32 and then
        converted, so that a seed gives the same ones whatever the dtype and device. The state of
        torch's random numbers is not touched.
    allow_missing : bool
        Go on although weights are missing or of another shape; they are drawn from ``seed`` and
        listed in ``info.missing``.
    tokenizer : str, optional
        Another tokenizer: a folder, a model's name, or ``hash`` for :class:`HashTokenizer`, which
        ``random:roberta-*`` use unasked because their vocabulary cannot be had offline.
    head : bool or "required"
        Whether to load the family's language-model head too, if the checkpoint has its weights; a
        head is never drawn beside weights that are trained. ``model.head`` says what was found;
        with ``"required"`` nothing found is an error. Weights tied to the token embedding count as
        there. ``random:`` draws a head, and the rest as without one.

    Returns
    -------
    LoadedModel

    Raises
    ------
    UsageError
        For an unknown dtype, a device that is not there, or a tokenizer that does not fit.
    IncompleteWeights
        If the file lacks weights that take part in the attention, or has them in another shape;
        with ``head="required"`` also if it lacks those of the head.
    UnsupportedModel
        With ``head="required"``, for a family that has no language-model head here.
    ModelError
        One of its kinds for what :func:`rankscope.models.check` refuses.
    """
    prepared = _prepare(spec, dtype, device, seed, tokenizer, "download")
    info, checkpoint = prepared.info, prepared.checkpoint
    wanted = head_of(prepared.config) if head else None
    if head == "required" and wanted is None:
        raise no_head(info.name, info.family)
    if checkpoint.source == "random":
        model = draw(prepared.config, seed, dtype=dtype, name=info.name, head=wanted)
    else:
        weights = prepared.weights or checkpoint.weights()
        digest = sha256(weights)
        if checkpoint.sha256 not in (None, digest):
            raise FileDamaged(
                f"{weights.entry} ({weights.entry.stat().st_size} bytes) has "
                f"the sha256 {digest}, {checkpoint.sha256} expected",
                checkpoint.remedy,
            )
        stored = stored_dtype(weights)
        reading = read(
            prepared.config,
            weights,
            dtype=dtype,
            seed=seed,
            allow_missing=allow_missing,
            remedy=checkpoint.remedy,
            head=wanted,
        )
        if head == "required" and reading.head is None:
            raise no_head(str(weights.entry), info.family, reading.headless)
        model, wanted = reading.model, reading.head
        info = replace(
            info,
            stored_dtype=stored,
            weights_sha256=digest,
            missing=reading.missing,
            unexpected=reading.unexpected,
            seed=seed if reading.missing else None,
        )
    model = model.to(device).eval()
    info = replace(info, dtype=parameter_dtype(model))
    arguments = dict(
        spec=_from_root(spec),
        dtype=dtype,
        device=device,
        seed=seed,
        allow_missing=allow_missing,
        tokenizer=None if tokenizer is None else _from_root(tokenizer),
        head=head,
    )
    return LoadedModel(model, prepared.tokenizer, info, wanted, arguments)


def check(
    spec: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    tokenizer: str | None = None,
) -> ModelInfo:
    """Refuse within seconds whatever can be refused without reading the weights.

    Parameters
    ----------
    spec, dtype, device, seed, tokenizer
        As in :func:`load`.

    Returns
    -------
    ModelInfo
        Layers, heads, longest window … from the configuration; the checksum, ``missing`` and
        ``unexpected`` are known only after :func:`load`. A hub model's weights are looked up, not
        fetched.

    Raises
    ------
    UsageError, ModelError
        As :func:`load`.
    """
    return _prepare(spec, dtype, device, seed, tokenizer, "probe").info


def check_length(model: ModelInfo | PreTrainedConfig, length: int) -> None:
    """Refuse windows that are longer than the model can take, before any forward pass.

    Parameters
    ----------
    model : ModelInfo or transformers.PreTrainedConfig
        What :func:`check` or :func:`load` told, or a configuration.
    length : int
        Tokens of the window, special tokens included.

    Raises
    ------
    UsageError
        Naming the limit, if ``length`` is above it or below 1.

    Examples
    --------
    >>> from transformers import RobertaConfig
    >>> check_length(RobertaConfig(max_position_embeddings=514, pad_token_id=1), 513)
    Traceback (most recent call last):
    ...
    rankscope.exceptions.UsageError: roberta takes at most 512 tokens, special tokens included; \
513 were asked for (use a length of 512 or less)
    """
    if isinstance(model, ModelInfo):
        name, limit = model.name, model.max_tokens
    else:
        name, limit = model.model_type, usable_length(model)
    if length < 1:
        raise UsageError(f"a window of {length} tokens is no window", "use a length of 1 or more")
    if limit is not None and length > limit:
        raise UsageError(
            f"{name} takes at most {limit} tokens, special tokens included; "
            f"{length} were asked for",
            f"use a length of {limit} or less",
        )


def _prepare(
    spec: str, dtype: str, device: str, seed: int, tokenizer: str | None, need: Need
) -> _Prepared:
    """Everything but the weights; cheap refusals come before torch and transformers are loaded."""
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", f"use one of {', '.join(DTYPES)}")
    if not 0 <= seed < 2**63:
        raise UsageError(f"the seed {seed} is out of range", "use 0 or more, below 2**63")
    try:
        checkpoint, weights, named = _files(spec, tokenizer, need)
    except OSError as error:
        raise ModelError(
            f"{error.filename} cannot be read: {error.strerror}", "check its permissions"
        ) from error
    check_device(device)
    config = build_config(checkpoint.config, checkpoint.where)
    facts = shape(config)
    loaded = hash_tokenizer(config) if named is None else load_tokenizer(*named)
    check_fits(loaded, facts.vocab_size, checkpoint.name)
    stored = weights is not None and weights.kind == "safetensors"
    info = ModelInfo(
        spec=spec,
        name=checkpoint.name,
        family=facts.family,
        n_layers=facts.n_layers,
        n_heads=facts.n_heads,
        n_decoder_layers=facts.n_decoder_layers,
        n_decoder_heads=facts.n_decoder_heads,
        max_tokens=facts.max_tokens,
        stored_dtype=stored_dtype(weights) if stored and weights else None,
        dtype=dtype,
        device=device,
        weights_sha256=None,
        seed=seed if checkpoint.source == "random" else None,
        revision=checkpoint.revision,
        missing=(),
        unexpected=(),
        tokenizer=loaded.name,
        source=checkpoint.source,
    )
    return _Prepared(checkpoint, weights, config, loaded, info)


def _files(
    spec: str, tokenizer: str | None, need: Need
) -> tuple[Checkpoint, Weights | None, tuple[Path, str] | None]:
    """Checkpoint, verified weights if they are here, and folder and name of the tokenizer."""
    checkpoint = resolve(spec, weights=need)
    weights = None
    # The weights of a hub model that was only looked up are not here yet.
    if checkpoint.source != "random" and (checkpoint.source != "hub" or _here(checkpoint)):
        weights = checkpoint.weights()
    named = None
    if tokenizer is not None and tokenizer != HASH:
        named = resolve_tokenizer(tokenizer)
    elif tokenizer is None and checkpoint.folder is not None:
        named = checkpoint.folder, checkpoint.name.removeprefix(RANDOM)
    if named is not None:
        refuse_tokenizer_files(named[0])
    return checkpoint, weights, named


def _from_root(spec: str) -> str:
    """The same model or tokenizer for a process that stands in another folder."""
    drawn = RANDOM if spec.startswith(RANDOM) else ""
    name = spec.removeprefix(drawn)
    folder = Path(name).expanduser()
    known = name in (BUILTIN, MINILM, HASH, *SHAPES)
    return spec if known or not folder.is_dir() else f"{drawn}{folder.absolute()}"


def _here(checkpoint: Checkpoint) -> bool:
    assert checkpoint.folder is not None
    found = locate(checkpoint.folder)
    return found is not None and not found.missing
