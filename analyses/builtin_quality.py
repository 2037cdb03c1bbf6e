"""How good is the built-in model, and does it use its attention?

On held-out text (WikiText-103, validation split): the unigram loss of its tokenizer, the masked-LM
loss in windows of 512 and of 128, the loss with the pieces of each window shuffled, and the loss
with every attention matrix replaced by the uniform one. Losses are in nats a piece, means over the
same seeded 15 % of the pieces, all hidden by ``<mask>``. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analyses._pretraining import (
    MASK,
    SPECIALS,
    VALIDATION_FILE,
    Batch,
    encode,
    held_out,
    held_out_loss,
    training_texts,
    unigram_loss,
)
from rankscope.exceptions import RankscopeError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, RobertaForMaskedLM

UNIFORM = "rankscope_uniform"


def main(argv: Sequence[str]) -> None:
    """Measure and print."""
    options = _options(argv)
    import torch

    torch.set_num_threads(options.threads)
    began = time.monotonic()
    model, tokenizer = load(Path(options.model))
    data = Path(options.data)
    valid = encode(tokenizer, (data / VALIDATION_FILE).read_text(encoding="utf-8"))
    train = np.concatenate([encode(tokenizer, text) for text in training_texts(data)])
    vocabulary = model.config.vocab_size
    long = held_out(valid, length=512, count=options.windows, seed=options.seed)
    short = held_out(valid, length=128, count=4 * options.windows, seed=options.seed)
    figures: dict[str, Any] = {
        "unigram_of_training_text": unigram_loss(train, valid, vocabulary),
        "unigram_of_validation_text": unigram_loss(valid, valid, vocabulary),
        "loss_512": held_out_loss(model, long),
        "loss_128": held_out_loss(model, short),
        "loss_512_shuffled": held_out_loss(model, shuffled(long, options.seed)),
    }
    with uniform_attention(model):
        figures["loss_512_uniform_attention"] = held_out_loss(model, long)
    loss = figures["loss_512"]
    figures["below_unigram"] = figures["unigram_of_training_text"] - loss
    figures["shuffled_rise"] = figures["loss_512_shuffled"] - loss
    figures["uniform_rise"] = figures["loss_512_uniform_attention"] - loss
    for name, value in figures.items():
        print(f"{name:28} {value:7.3f} nats")
    whole = {
        "analysis": "builtin_quality",
        "windows_512": len(long.ids),
        "windows_128": len(short.ids),
        "predicted_512": len(long.targets),
        "predicted_128": len(short.targets),
        "seed": options.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(whole | {name: round(value, 4) for name, value in figures.items()}))


def load(folder: Path) -> tuple[RobertaForMaskedLM, PreTrainedTokenizerBase]:
    """Model in float32 and its tokenizer, from a folder."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise RankscopeError(
            f"{folder} holds no model", "name a folder that analyses/pretrain_builtin.py exported"
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids(list(SPECIALS))
    if ids != list(range(len(SPECIALS))):
        raise RankscopeError(
            f"the special tokens of {folder} have the ids {ids}, not 0 to {MASK}",
            "this analysis measures models of analyses/pretrain_builtin.py only",
        )
    return AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer


def shuffled(batch: Batch, seed: int) -> Batch:
    """The batch with the pieces of each window in random order, between ``<s>`` and ``</s>``.

    Hidden places move with their pieces, so the same pieces are predicted from the same others.
    """
    draw = np.random.default_rng((seed, 1))
    truth = batch.ids.copy()
    truth[batch.chosen] = batch.targets
    ids, chosen = batch.ids.copy(), batch.chosen.copy()
    for row in range(len(ids)):
        order = 1 + draw.permutation(ids.shape[1] - 2)
        for array in (ids, chosen, truth):
            array[row, 1:-1] = array[row, order]
    return replace(batch, ids=ids, chosen=chosen, targets=truth[chosen])


def attend_uniformly(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention whose every allowed weight is the same, for (batch, head, n, d); the output is
    (batch, n, head, d)."""
    import torch

    scores = torch.zeros(*query.shape[:3], key.shape[2], dtype=query.dtype)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2), weights


@contextmanager
def uniform_attention(model: RobertaForMaskedLM) -> Iterator[None]:
    """Within the block every head of every layer attends uniformly."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(UNIFORM, attend_uniformly)
    # without a mask function of the same name the kernel would get no mask at all
    AttentionMaskInterface.register(UNIFORM, eager_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(UNIFORM)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m analyses builtin_quality", description=__doc__)
    parser.add_argument("--model", default="rankscope/assets", help="folder of the model")
    parser.add_argument("--data", default="../shared/data", help="folder of the text data")
    parser.add_argument(
        "--windows", type=int, default=256, help="of 512; four times as many of 128"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the hidden places and the shuffle")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
