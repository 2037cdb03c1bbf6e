"""Models and their tokenizers: find, check, load, and say exactly what was loaded.

:func:`check` refuses within seconds what cannot work; :func:`load` gives a :class:`LoadedModel`:
the transformers model, its tokenizer, and a :class:`ModelInfo` that is stored with every result.
Files are found in :mod:`rankscope.models.checkpoints` and :mod:`rankscope.models.hub`, checked in
:mod:`rankscope.models.weights`, understood in :mod:`rankscope.models.architecture`; text becomes
tokens in :mod:`rankscope.models.tokenizers`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.exceptions import FileDamaged, ModelError, UsageError
from rankscope.models.architecture import (
    build_config,
    shape,
    usable_length,
)
from rankscope.models.checkpoints import (
    BUILTIN,
    RANDOM,
    Checkpoint,
    KnownModel,
    Source,
    known_models,
    resolve,
    resolve_tokenizer,
)
from rankscope.models.hub import Need
from rankscope.models.loading import draw, parameter_dtype, read
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
    from transformers import PreTrainedConfig, PreTrainedModel

    from rankscope.text import Tokenizer

__all__ = [
    "DEFAULT_MODEL",
    "DTYPES",
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
class ModelInfo:
    """What was loaded, in plain values that are stored with every result.

    Parameters
    ----------
    spec, name : str
        What the user typed, and the short name for tables; a folder's name without its path.
    family : str
        The configuration's ``model_type``.
    n_layers, n_heads : int
        Attention layers and query heads a layer; of the encoder where there are two stacks.
    n_decoder_layers, n_decoder_heads : int or None
        The decoder's, None where there is only one stack.
    max_tokens : int or None
        Longest window, special tokens included; None without a limit.
    stored_dtype, dtype : str or None, str
        Type of the weights in the file (None if drawn) and as loaded.
    device : str
        Device of the model.
    weights_sha256 : str or None
        Checksum of the weights files; None if drawn, or not read yet.
    seed : int or None
        Seed of weights that were drawn, all of them or those that were missing.
    revision : str or None
        Commit of the hub repository.
    missing, unexpected : tuple of str
        Weights that the file lacks, and those that the model does not know.
    tokenizer : str
        Name of the tokenizer.
    source : {"builtin", "folder", "hub", "extra", "random"}
        Where the weights come from.
    """

    spec: str
    name: str
    family: str
    n_layers: int
    n_heads: int
    n_decoder_layers: int | None
    n_decoder_heads: int | None
    max_tokens: int | None
    stored_dtype: str | None
    dtype: str
    device: str
    weights_sha256: str | None
    seed: int | None
    revision: str | None
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    tokenizer: str
    source: Source

    def as_dict(self) -> dict[str, Any]:
        """The same as a dictionary that ``json.dumps`` takes."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, its tokenizer and its provenance.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Base model, without a head; without a pooling layer where the family allows it.
    tokenizer : rankscope.text.Tokenizer
        Tokenizer.
    info : ModelInfo
        What was loaded.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    info: ModelInfo


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

    Returns
    -------
    LoadedModel

    Raises
    ------
    UsageError
        For an unknown dtype, a device that is not there, or a tokenizer that does not fit.
    IncompleteWeights
        If the file lacks weights that take part in the attention, or has them in another shape.
    ModelError
        One of its kinds for what :func:`check` refuses.
    """
    prepared = _prepare(spec, dtype, device, seed, tokenizer, "download")
    info, checkpoint = prepared.info, prepared.checkpoint
    if checkpoint.source == "random":
        model = draw(prepared.config, seed, dtype=dtype, name=info.name)
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
        )
        model = reading.model
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
    return LoadedModel(model, prepared.tokenizer, info)


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
    _check_device(device)
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


def _here(checkpoint: Checkpoint) -> bool:
    assert checkpoint.folder is not None
    found = locate(checkpoint.folder)
    return found is not None and not found.missing


def _check_device(device: str) -> None:
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"unknown device {device!r}", "use cpu or cuda") from error
    if parsed.type not in ("cpu", "cuda"):
        raise UsageError(f"the device {device!r} is not supported", "use cpu or cuda")
    if parsed.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                f"the device {device!r} is not there: torch finds no CUDA device",
                "use --device cpu, or install a torch that is built for CUDA",
            )
        if parsed.index is not None and parsed.index >= torch.cuda.device_count():
            raise UsageError(
                f"the device {device!r} is not there: torch finds {torch.cuda.device_count()}",
                "count from cuda:0",
            )
