"""Model folders as a user has them: the tiny model of the field cases, tokenizer and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 18,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "type_vocab_size": 1,
}
QUERY = "encoder.layer.1.attention.self.query.weight"


def add_tokenizer(folder: Path, size: int = 20) -> None:
    """A word tokenizer of `size` pieces with RoBERTa's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "<pad>", "</s>", "<unk>", *(chr(97 + i) for i in range(size - 4))]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>").save_pretrained(folder)


def rewrite(folder: Path, change: Any) -> None:
    """Apply `change` to the dictionary of a folder's weights."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
