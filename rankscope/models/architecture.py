"""What a configuration promises: family, layers, heads, and how many tokens the model can take.

Also the published shapes of RoBERTa, written down so that a model of the same architecture with
fresh weights can be built with no file and no network.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.exceptions import ModelError, NotAModelFolder, UnsupportedModel
from rankscope.models.weights import refuse_pointer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONFIG = "config.json"

_ROBERTA: dict[str, Any] = {
    "model_type": "roberta",
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
# Liu et al. 2019, arXiv:1907.11692, table 9; the other constants from the published config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "roberta-base": {
        **_ROBERTA,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "roberta-large": {
        **_ROBERTA,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
"""Configurations that are known without a file, by the name that ``random:`` takes."""

# Families whose position ids start at pad_token_id + 1, as RoBERTa's do.
POSITIONS_AFTER_PAD = frozenset(
    {
        "bridgetower_text_model",
        "camembert",
        "clap_text_model",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
# MPNet numbers its positions from a constant, whatever pad_token_id its configuration names.
_MPNET_PAD = 1
# Position is a bias on the scores, of any distance; an old file may still carry n_positions.
_RELATIVE_ONLY = frozenset(
    {
        "bloom",
        "funnel",
        "longt5",
        "mpt",
        "mt5",
        "switch_transformers",
        "t5",
        "udop",
        "umt5",
        "xlnet",
    }
)


@dataclass(frozen=True)
class Shape:
    """Layers and heads as the configuration names them.

    Parameters
    ----------
    family : str
        The configuration's ``model_type``.
    n_layers, n_heads : int
        Attention layers and query heads a layer; of the encoder where there are two stacks.
    n_decoder_layers, n_decoder_heads : int or None
        The decoder's, None where there is only one stack.
    vocab_size : int
        Rows of the token embedding.
    max_tokens : int or None
        What :func:`usable_length` says.
    """

    family: str
    n_layers: int
    n_heads: int
    n_decoder_layers: int | None
    n_decoder_heads: int | None
    vocab_size: int
    max_tokens: int | None


def usable_length(config: PreTrainedConfig) -> int | None:
    """Number of tokens that the model can take in one window, special tokens included.

    RoBERTa and its relatives number positions from ``pad_token_id + 1``, so that

        n_max = max_position_embeddings − pad_token_id − 1,

    512 for RoBERTa's 514 positions; other families use all of their positions. For rotary
    positions it is the length that the model was made for; the tokenizer's own limit, which may
    be missing, is never asked.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration of the whole model.

    Returns
    -------
    int or None
        None where positions are relative only and any length can be used.

    Examples
    --------
    >>> from transformers import RobertaConfig
    >>> usable_length(RobertaConfig(max_position_embeddings=514, pad_token_id=1))
    512
    """
    config = _text_part(config)
    if config.model_type in _RELATIVE_ONLY:
        return None
    for name in ("max_encoder_position_embeddings", "max_position_embeddings", "n_positions"):
        positions = getattr(config, name, None)
        if isinstance(positions, int):
            break
    else:
        return None
    if positions <= 0:
        return None
    if config.model_type == "mpnet":
        return positions - _MPNET_PAD - 1
    if config.model_type in POSITIONS_AFTER_PAD and config.pad_token_id is not None:
        return int(positions - config.pad_token_id - 1)
    return int(positions)


def shape(config: PreTrainedConfig) -> Shape:
    """Read layers, heads and vocabulary off a configuration.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration of the whole model.

    Returns
    -------
    Shape

    Raises
    ------
    UnsupportedModel
        If the configuration names no vocabulary, attention layers or heads, or several numbers
        of heads.
    """
    text = _text_part(config)
    decoder_layers = decoder_heads = None
    if getattr(config, "is_encoder_decoder", False):
        decoder = getattr(config, "decoder", None)
        source = decoder if hasattr(decoder, "num_hidden_layers") else config
        decoder_layers = _count(source, "decoder_layers", "num_decoder_layers", "num_hidden_layers")
        decoder_heads = _count(
            source, "decoder_attention_heads", "num_decoder_attention_heads", "num_attention_heads"
        )
    return Shape(
        family=config.model_type,
        n_layers=_count(text, "num_hidden_layers"),
        n_heads=_count(text, "num_attention_heads"),
        n_decoder_layers=decoder_layers,
        n_decoder_heads=decoder_heads,
        vocab_size=_count(text, "vocab_size"),
        max_tokens=usable_length(config),
    )


def _text_part(config: PreTrainedConfig) -> Any:
    """The part that reads the text: the encoder of two stacks, the text model of several."""
    encoder = getattr(config, "encoder", None)
    part: Any = encoder if hasattr(encoder, "model_type") else config
    try:
        return part.get_text_config()
    except ValueError as error:
        raise UnsupportedModel(f"{config.model_type} has several text models: {error}") from error


def _count(config: Any, *names: str) -> int:
    for name in names:
        try:
            number = getattr(config, name, None)
        except Exception as error:
            # transformers refuses to name one number where its layers differ.
            raise UnsupportedModel(
                f"{config.model_type}: its layers differ in {name}", "use another model"
            ) from error
        if isinstance(number, int) and not isinstance(number, bool) and number > 0:
            return number
    raise UnsupportedModel(
        f"{config.model_type} has no {names[-1]} in its configuration: it is no text model with "
        "softmax attention, or its layers differ",
        "use a transformer for text",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` as plain JSON and refuse what is clear without transformers.

    Parameters
    ----------
    folder : pathlib.Path
        Folder that has a ``config.json``.

    Returns
    -------
    dict

    Raises
    ------
    NotAModelFolder
        If the file is no JSON object or names no ``model_type``.
    FileDamaged
        If it is a git-lfs pointer.
    UnsupportedModel
        If the weights are stored quantised.
    """
    file = folder / CONFIG
    refuse_pointer(file)
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise NotAModelFolder(
            f"{file} ({file.stat().st_size} bytes) is no valid JSON: {error}",
            "download the file again",
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise NotAModelFolder(
            f"{file} names no model_type: it is not the configuration of a transformers model",
            "give the folder that save_pretrained wrote, or add the model_type to the file",
        )
    if found.get("quantization_config"):
        raise UnsupportedModel(
            f"{file}: the weights are stored quantised", "use the checkpoint in full precision"
        )
    return found


def build_config(raw: dict[str, Any], where: str) -> PreTrainedConfig:
    """Turn plain JSON into transformers' configuration; no code of the checkpoint is run.

    Parameters
    ----------
    raw : dict
        What :func:`read_config` read, or an entry of :data:`SHAPES`.
    where : str
        Where it comes from, for messages.

    Returns
    -------
    transformers.PreTrainedConfig

    Raises
    ------
    UnsupportedModel
        If transformers does not know the family, or would need the checkpoint's own code.
    ModelError
        If transformers refuses the values.
    """
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    family = raw["model_type"]
    if family not in CONFIG_MAPPING:
        import transformers

        own_code = " and would need the checkpoint's own code, which is not run" * bool(
            raw.get("auto_map")
        )
        raise UnsupportedModel(
            f"{where}: transformers {transformers.__version__} does not know the family "
            f"{family!r}{own_code}",
            "use a family that transformers contains, or a newer transformers",
        )
    try:
        with quiet():
            config = CONFIG_MAPPING[family].from_dict(
                {key: value for key, value in raw.items() if key != "auto_map"}
            )
    except Exception as error:
        raise ModelError(
            f"{where}: transformers refuses the configuration: {str(error).strip()}",
            f"mend the values in {CONFIG}",
        ) from error
    if type(config) not in MODEL_MAPPING:
        raise UnsupportedModel(
            f"{where}: transformers has no base model for the family {family!r}",
            "use a transformer for text",
        )
    return config


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' log and progress bars, and put both back on every way out."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    # transformers switches the hub client's bars along with its own.
    hub_bars = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    _switch(logging.disable_progress_bar)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            _switch(logging.enable_progress_bar)
        if hub_bars != (not are_progress_bars_disabled()):
            _switch(enable_progress_bars if hub_bars else disable_progress_bars)


def _switch(change: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        # The client warns where HF_HUB_DISABLE_PROGRESS_BARS has already decided the matter.
        warnings.simplefilter("ignore")
        change()
