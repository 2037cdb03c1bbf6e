"""Parts of the built-in model's training: text, tokenizer, starting values, batches, loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, RobertaForMaskedLM

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""Special tokens in the order of their ids, 0 to 4."""
START, PAD, END, UNKNOWN, MASK = range(len(SPECIALS))

TRAINING_FILES = (
    "wikitext2-train-part.txt",
    "train-corpus/wikipedia-en-extracts.txt",
    "train-corpus/britannica-1911-husband-to-hydrolysis.txt",
    "train-corpus/voyage-of-the-beagle.txt",
    "train-corpus/jack-sheppard.txt",
    "train-corpus/casa-braccio.txt",
)
VALIDATION_FILE = "wikitext103-valid.txt"

# the model must never learn the word that the source wrote for "rare word left out"
_RARE_WORD = "<unk>"


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are those of the built-in one."""

    vocabulary: int = 1024
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    feed_forward: int = 1024
    positions: int = 514


@dataclass(frozen=True)
class Start:
    """Starting values: they spare a small model the long stage in which it ignores order.

    Positions are sinusoids; the heads of layer 0 look at a neighbour each; word vectors come from
    counts of neighbours; values pass through attention and head. Everything is trained from there.
    """

    position_amplitude: float = 0.07
    position_rate: float = 2.0  # of the fastest sinusoid, radians a position
    position_base: float = 1000.0  # fastest over slowest rate
    query_key: float = 1.0  # standard deviation of query and key weights, times hidden^(-1/2)
    passing: float = 1.0  # output weights are the transposed value weights, times this
    vectors: float = 0.05  # root mean square of the word vectors
    neighbours: tuple[int, ...] = (-1, 1, -2, 2)  # where the heads of layer 0 look
    neighbour_gain: float = 2.0  # how sharply


@dataclass(frozen=True)
class Batch:
    """Ids with hidden pieces, where they are, what stood there, and the first position."""

    ids: Ids  # (batch, n)
    chosen: Flags  # (batch, n), the positions to predict
    targets: Ids  # (number chosen,), in row order
    offsets: Ids  # (batch,), added to the positions of a row


def without_rare_word_marks(text: str) -> str:
    """The text without ``<unk>`` and the space before it.

    >>> without_rare_word_marks(" the <unk> fox <unk> , ran ")
    ' the fox , ran '
    """
    return text.replace(" " + _RARE_WORD, "").replace(_RARE_WORD, "")


def training_texts(folder: Path) -> list[str]:
    """The training corpora of a data folder, one string a file, in a fixed order."""
    return [
        without_rare_word_marks((folder / name).read_text(encoding="utf-8"))
        for name in TRAINING_FILES
    ]


def train_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerBase:
    """Byte-level BPE of `size` pieces, special tokens included, as a RoBERTa tokenizer."""
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    backend.train_from_iterator(lines, trainer)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", END), ("<s>", START), trim_offsets=True, add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        # RoBERTa's rule: the mask takes the space before it, as the pieces that it stands for do
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Ids:
    """Ids of a text of any length without special tokens, (n,) int64."""
    backend = tokenizer.backend_tokenizer
    lines = text.splitlines(keepends=True)
    parts = [part.ids for part in backend.encode_batch(lines, add_special_tokens=False)]
    return np.asarray([i for part in parts for i in part], dtype=np.int64)


def new_model(shape: Shape, start: Start, seed: int, stream: Ids) -> RobertaForMaskedLM:
    """A plain ``RobertaForMaskedLM``; only its starting values are our own, see `Start`.

    Parameters
    ----------
    shape, start
        Sizes and starting values.
    seed
        Of the random part of the starting values.
    stream : (n,) int64
        Ids of the training text, for the word vectors and the frequencies.
    """
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.positions,
        type_vocab_size=1,
        # few passes over the corpus and a small model: dropout would only slow it down
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        bos_token_id=START,
        pad_token_id=PAD,
        eos_token_id=END,
        # materialised weights are the faster form on a CPU at these lengths
        attn_implementation="eager",
    )
    model: Any = RobertaForMaskedLM(config)
    scale = shape.hidden**-0.5
    with torch.no_grad():
        table = model.roberta.embeddings.position_embeddings.weight
        table.copy_(_sinusoids(shape.positions, shape.hidden, start))
        # the row of padding takes no part
        table[PAD] = 0.0
        for layer in model.roberta.encoder.layer:
            attention = layer.attention
            for part in (attention.self.query, attention.self.key):
                part.weight.normal_(std=start.query_key * scale)
            attention.self.value.weight.normal_(std=scale)
            attention.output.dense.weight.copy_(start.passing * attention.self.value.weight.T)
        words = model.roberta.embeddings.word_embeddings.weight
        words.normal_(std=start.vectors)
        words[len(SPECIALS) :] = torch.from_numpy(_word_vectors(stream, shape, start.vectors))
        # the head starts as: same vector, and the frequency of the piece
        model.lm_head.dense.weight += torch.eye(shape.hidden)
        model.lm_head.dense.bias.fill_(1.5)  # where GELU is nearly a line
        counts = np.bincount(stream, minlength=shape.vocabulary) + 1.0
        model.lm_head.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
        first = model.roberta.encoder.layer[0].attention.self
        for head, shift in enumerate(start.neighbours):
            _look_at(first, head, shift, _rates(shape.hidden, start), start.neighbour_gain)
    return model


def _word_vectors(stream: Ids, shape: Shape, size: float) -> npt.NDArray[np.float64]:
    """U·√|Λ| of the positive pointwise mutual information of pieces at most two apart.

    max(0, ln p(a, b) / (p(a) p(b))) = U Λ Uᵀ, the largest |λ|; rows of the ordinary pieces only,
    with root mean square `size`.
    """
    counts = np.zeros((shape.vocabulary, shape.vocabulary))
    for gap, weight in ((1, 1.0), (2, 0.5)):
        pair = stream[:-gap] * shape.vocabulary + stream[gap:]
        found = np.bincount(pair, minlength=counts.size).reshape(counts.shape)
        counts += weight * (found + found.T)
    single = counts.sum(axis=0) + 1.0
    information = np.log((counts + 1e-9) * single.sum() / (single[:, None] * single))
    values, vectors = np.linalg.eigh(np.maximum(information, 0.0))
    best = np.argsort(-np.abs(values))[: shape.hidden]
    rows = (vectors[:, best] * np.sqrt(np.abs(values[best])))[len(SPECIALS) :]
    scaled: npt.NDArray[np.float64] = size * rows / np.sqrt((rows**2).mean())
    return scaled


def _look_at(attention: Any, head: int, shift: int, rates: torch.Tensor, gain: float) -> None:
    """Start a head so that t attends to t + shift: q(t)·k(s) = g Σ_j cos ω_j (t + shift − s).

    The fastest sinusoids are used, as many as fit: they tell neighbours apart best.
    """
    half = attention.attention_head_size // 2
    sine, cosine = range(half), range(len(rates), len(rates) + half)
    top = head * 2 * half
    rows, others = range(top, top + half), range(top + half, top + 2 * half)
    query, key = attention.query.weight, attention.key.weight
    query[top : top + 2 * half] = 0.0
    key[top : top + 2 * half] = 0.0
    key[rows, sine] = key[others, cosine] = 1.0
    angle = rates[:half] * shift
    query[rows, sine], query[rows, cosine] = gain * angle.cos(), gain * angle.sin()
    query[others, sine], query[others, cosine] = -gain * angle.sin(), gain * angle.cos()


def _rates(hidden: int, start: Start) -> torch.Tensor:
    """ω_j = rate · base^(−2j/hidden), (hidden/2,)."""
    import torch

    return start.position_rate * start.position_base ** (-torch.arange(0, hidden, 2) / hidden)


def _sinusoids(positions: int, hidden: int, start: Start) -> torch.Tensor:
    """amplitude · (sin t·ω_j, cos t·ω_j), (positions, hidden)."""
    import torch

    angles = torch.arange(positions)[:, None] * _rates(hidden, start)
    return start.position_amplitude * torch.cat([angles.sin(), angles.cos()], dim=1)


def batch_at(
    stream: Ids,
    step: int,
    *,
    seed: int,
    rows: int,
    length: int,
    shape: Shape,
    masked: float,
    hidden: float,
    moved: float,
) -> Batch:
    """The batch of a step: a function of the seed and the step alone, so a resume is exact.

    Windows of `length` ids, ``<s>`` and ``</s>`` included, start anywhere in the stream. A share
    `masked` of the pieces is to be predicted: of these, `hidden` are hidden by ``<mask>``, and the
    rest are half replaced by a random piece and half left. A share `moved` of the windows sits at
    a random place of the table of positions, so that late positions do not stay untrained.
    """
    draw = np.random.default_rng((seed, step))
    content = length - 2
    starts = draw.integers(0, len(stream) - content, size=rows)
    ids = np.empty((rows, length), dtype=np.int64)
    ids[:, 0], ids[:, -1] = START, END
    ids[:, 1:-1] = stream[starts[:, None] + np.arange(content)]
    chosen = draw.random((rows, length)) < masked
    chosen[:, [0, -1]] = False
    targets = ids[chosen]
    fate = draw.random(len(targets))
    strangers = draw.integers(len(SPECIALS), shape.vocabulary, size=len(targets))
    ids[chosen] = np.where(
        fate < hidden, MASK, np.where(fate < (1 + hidden) / 2, strangers, targets)
    )
    room = shape.positions - 2 - length
    offsets = draw.integers(0, room + 1, size=rows) * (draw.random(rows) < moved)
    return Batch(ids, chosen, targets, offsets)


def loss_of(model: RobertaForMaskedLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy in nats over the chosen positions; the head sees only these."""
    import torch

    ids = torch.from_numpy(batch.ids)
    positions = torch.from_numpy(batch.offsets[:, None] + np.arange(batch.ids.shape[1]) + PAD + 1)
    hidden = model.roberta(input_ids=ids, position_ids=positions).last_hidden_state
    logits = model.lm_head(hidden[torch.from_numpy(batch.chosen)])
    return torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(batch.targets))


def held_out(stream: Ids, *, length: int, count: int, seed: int, share: float = 0.15) -> Batch:
    """`count` windows spread evenly over a stream, a seeded `share` of their pieces hidden."""
    content = length - 2
    available = len(stream) // content
    count = min(count, available)
    first = np.arange(count) * available // count * content
    ids = np.empty((count, length), dtype=np.int64)
    ids[:, 0], ids[:, -1] = START, END
    ids[:, 1:-1] = stream[first[:, None] + np.arange(content)]
    chosen = np.random.default_rng((seed, length)).random(ids.shape) < share
    chosen[:, [0, -1]] = False
    targets = ids[chosen]
    ids[chosen] = MASK
    return Batch(ids, chosen, targets, np.zeros(count, dtype=np.int64))


def held_out_loss(model: RobertaForMaskedLM, batch: Batch, rows: int = 8) -> float:
    """Mean loss in nats over all chosen positions of a held-out set, `rows` windows at a time."""
    import torch

    total = 0.0
    ends = np.cumsum(batch.chosen.sum(axis=1))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for i in range(0, len(batch.ids), rows):
            j = min(i + rows, len(batch.ids))
            low, high = (ends[i - 1] if i else 0), ends[j - 1]
            part = Batch(
                batch.ids[i:j], batch.chosen[i:j], batch.targets[low:high], batch.offsets[i:j]
            )
            total += float(loss_of(model, part)) * int(high - low)
    model.train(was_training)
    return total / len(batch.targets)


def unigram_loss(reference: Ids, targets: Ids, vocabulary: int) -> float:
    """Mean of −ln p(piece) over `targets`, p the add-one frequencies of `reference`, in nats.

    >>> round(unigram_loss(np.arange(8), np.arange(8), 8), 4)  # ln 8
    2.0794
    """
    counts = np.bincount(reference, minlength=vocabulary) + 1.0
    return float(-np.log(counts[targets] / counts.sum()).mean())


def parameter_groups(model: RobertaForMaskedLM, decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only, not on biases and normalisation weights."""
    parts = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parts if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in parts if p.ndim < 2], "weight_decay": 0.0},
    ]
