"""Tiny random models of every supported family, built from configurations alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as tf
from transformers import PreTrainedModel

from rankscope.models import LoadedModel, ModelInfo
from rankscope.models.tokenizers import HashTokenizer
from rankscope.text import Window

VOCABULARY = 50
MASK = VOCABULARY - 1


def tiny_config(family: str, **changes: Any) -> Any:
    """Configuration of a tiny model; `changes` override single fields."""
    encoder = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=18,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    one_type = encoder | dict(type_vocab_size=1)
    fields: dict[str, tuple[type, dict[str, Any]]] = {
        "roberta": (tf.RobertaConfig, one_type),
        "xlm-roberta": (tf.XLMRobertaConfig, one_type),
        "camembert": (tf.CamembertConfig, one_type),
        "bert": (tf.BertConfig, encoder | dict(pad_token_id=0)),
        "electra": (tf.ElectraConfig, encoder | dict(embedding_size=16, pad_token_id=0)),
        "albert": (tf.AlbertConfig, encoder | dict(embedding_size=16, pad_token_id=0)),
        "mpnet": (tf.MPNetConfig, encoder),
        "distilbert": (
            tf.DistilBertConfig,
            dict(vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=37)
            | dict(max_position_embeddings=18, pad_token_id=0),
        ),
        "gpt2": (
            tf.GPT2Config,
            dict(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=18)
            | dict(bos_token_id=0, eos_token_id=2),
        ),
        "bart": (
            tf.BartConfig,
            dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=3)
            | dict(encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=37)
            | dict(decoder_ffn_dim=37, max_position_embeddings=18, pad_token_id=1)
            | dict(bos_token_id=0, eos_token_id=2, decoder_start_token_id=2),
        ),
        "llama": (
            tf.LlamaConfig,
            encoder | dict(num_key_value_heads=2, pad_token_id=None),
        ),
        "modernbert": (
            tf.ModernBertConfig,
            encoder
            | dict(local_attention=4, global_attn_every_n_layers=3, cls_token_id=0)
            | dict(sep_token_id=2),
        ),
        "t5": (
            tf.T5Config,
            dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=37, num_layers=2)
            | dict(num_decoder_layers=3, num_heads=4, pad_token_id=0, eos_token_id=1),
        ),
        "deberta-v2": (tf.DebertaV2Config, encoder | dict(relative_attention=True)),
        "longformer": (tf.LongformerConfig, one_type | dict(attention_window=4)),
    }
    make, given = fields[family]
    return make(**(given | changes))


def tiny(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Tiny model with random weights, in evaluation mode.

    Weights are larger than the usual start, so that attention is far from uniform.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tf.AutoModel.from_config(tiny_config(family, initializer_range=0.25, **changes))
    return model.eval()


def tiny_with_head(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """The same with its language-model head: causal for GPT-2 and Llama, else masked."""
    causal = family in ("gpt2", "llama")
    auto = tf.AutoModelForCausalLM if causal else tf.AutoModelForMaskedLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(tiny_config(family, initializer_range=0.25, **changes))
    return model.eval()


def as_loaded(model: PreTrainedModel, head: Any = None, mask: int | None = MASK) -> LoadedModel:
    """A model of this file as `load` would give it."""
    info = ModelInfo(
        spec="tiny", name="tiny", family=model.config.model_type, n_layers=3, n_heads=4,
        n_decoder_layers=None, n_decoder_heads=None, max_tokens=16, stored_dtype=None,
        dtype="float32", device="cpu", weights_sha256=None, seed=0, revision=None, missing=(),
        unexpected=(), tokenizer="hash", source="random",
    )  # fmt: skip
    tokenizer = HashTokenizer(VOCABULARY, (0,), (2,), 1, (0, 1, 2, 3), mask)
    return LoadedModel(model, tokenizer, info, head)


def window(*ids: int) -> Window:
    """A window whose first and last token are special."""
    special = np.zeros(len(ids), dtype=bool)
    special[[0, -1]] = True
    return Window(np.array(ids), special, 0, 0, 0, len(ids) - 2)
