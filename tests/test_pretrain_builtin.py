"""The training of the built-in model: reproducible, resumable, and on clean text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from analyses import _pretraining as parts
from analyses import builtin_quality as quality
from analyses import pretrain_builtin as training

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHAPE = parts.Shape(vocabulary=300, hidden=32, layers=2, heads=2, feed_forward=48, positions=66)
PLAN = training.Plan(
    tokens=6 * 128, batch_tokens=128, short=32, long=64, warm_up=2, finish_steps=2, peak=1e-2
)
START = parts.Start(neighbours=(-1, 1))
TEXT = "The quick brown fox , “ naïve ” , jumps over the lazy dog . \n \n = Title = \n" * 40


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return parts.train_tokenizer([TEXT], SHAPE.vocabulary)


@pytest.fixture(scope="module")
def stream(tokenizer: PreTrainedTokenizerBase) -> parts.Ids:
    return parts.encode(tokenizer, TEXT)


def trained(stream: parts.Ids, steps: int, plan: training.Plan = PLAN) -> training.State:
    state = training.new_state(SHAPE, START, plan, stream)
    for _ in range(steps):
        training.train_step(state, stream, SHAPE, plan)
    return state


def same_weights(a: training.State, b: training.State) -> bool:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_same_seed_same_weights_and_another_seed_others(stream: parts.Ids) -> None:
    assert same_weights(trained(stream, 4), trained(stream, 4))
    other = dataclasses.replace(PLAN, seed=1)
    assert not same_weights(trained(stream, 4), trained(stream, 4, other))


def test_resume_is_exact(stream: parts.Ids, tmp_path: Path) -> None:
    whole = trained(stream, 6)
    half = trained(stream, 3)
    training.save(half, tmp_path / "checkpoint.pt")
    resumed = training.new_state(SHAPE, START, dataclasses.replace(PLAN, seed=5), stream)
    training.restore(resumed, tmp_path / "checkpoint.pt")
    assert resumed.step == 3
    assert not same_weights(resumed, whole)
    for _ in range(3):
        training.train_step(resumed, stream, SHAPE, PLAN)
    assert same_weights(resumed, whole)


def test_training_learns_order(stream: parts.Ids) -> None:
    plan = dataclasses.replace(
        PLAN, tokens=150 * 128, warm_up=10, peak=3e-3, long_from=1.0, masked=(0.25, 0.25)
    )
    test = parts.held_out(stream, length=32, count=8, seed=0)
    order_ignored = parts.unigram_loss(stream, test.targets, SHAPE.vocabulary)
    assert parts.held_out_loss(trained(stream, 0, plan).model, test) > order_ignored - 0.2
    assert parts.held_out_loss(trained(stream, 150, plan).model, test) < order_ignored - 0.5


def test_finish_file_ends_early_with_a_rate_that_falls(stream: parts.Ids, tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, tokens=1000 * 128)
    (tmp_path / "finish").touch()
    state = training.new_state(SHAPE, START, plan, stream)
    training.run(state, stream, {}, SHAPE, plan, tmp_path)
    assert (state.step, state.finish_from) == (plan.finish_steps, 0)
    rates = [training.learning_rate(plan, step, 0) for step in range(3)]
    assert rates[0] > rates[1] > rates[2] == 0


def test_run_exports_a_model_that_the_auto_classes_load(
    stream: parts.Ids, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    state = training.new_state(SHAPE, START, PLAN, stream)
    training.run(state, stream, {}, SHAPE, PLAN, tmp_path, test_every=3)
    assert [row["tokens"] for row in state.rows] == [3 * 128, 6 * 128]
    out = tmp_path / "out"
    training.export(state.model, tokenizer, state.rows, {"steps": state.step}, out)
    assert (out / "training_log.csv").read_text().splitlines()[0] == ",".join(training.COLUMNS)
    model, loaded = quality.load(out)
    assert loaded("The fox")["input_ids"] == tokenizer("The fox")["input_ids"]
    for ours, theirs in zip(state.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.half().float(), theirs)


def test_special_tokens_have_the_ids_of_roberta(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.convert_tokens_to_ids(list(parts.SPECIALS)) == [0, 1, 2, 3, 4]
    assert len(tokenizer) == SHAPE.vocabulary
    ids = tokenizer("A <mask> dog")["input_ids"]
    assert (ids[0], ids[-1]) == (parts.START, parts.END)
    assert ids.count(parts.MASK) == 1
    assert tokenizer.pad_token_id == parts.PAD


@pytest.mark.parametrize("text", [" = Title = \n", "naïve “quotes” @-@ 北 \n\n\ttab", "a  b   c"])
def test_tokenizer_round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert parts.UNKNOWN not in ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert parts.encode(tokenizer, text).tolist() == ids


def test_rare_word_marks_do_not_reach_the_training_text(tmp_path: Path) -> None:
    for name in parts.TRAINING_FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(" <unk> of <unk> , <unk>\n kept \n", encoding="utf-8")
    texts = parts.training_texts(tmp_path)
    assert texts == [" of ,\n kept \n"] * len(parts.TRAINING_FILES)


def test_batches_hide_the_asked_share_and_keep_positions_in_the_table() -> None:
    stream = np.arange(5, 300, dtype=np.int64).repeat(4)
    batch = parts.batch_at(
        stream, 7, seed=0, rows=1000, length=32, shape=SHAPE, masked=0.25, hidden=0.8, moved=0.5
    )
    assert (batch.ids == parts.MASK).mean() == pytest.approx(0.2 * 30 / 32, abs=0.01)
    assert not batch.chosen[:, [0, -1]].any()
    kept = (batch.ids[batch.chosen] == batch.targets).mean()
    assert kept == pytest.approx(0.1, abs=0.02)
    assert (batch.offsets == 0).mean() == pytest.approx(0.5, abs=0.05)
    assert batch.offsets.max() == SHAPE.positions - 2 - 32
    assert batch.chosen.sum() == len(batch.targets)


def test_heads_of_the_first_layer_start_at_their_neighbours() -> None:
    stream = np.random.default_rng(0).integers(5, 1024, 100_000)
    model = training.new_state(parts.Shape(layers=1), parts.Start(), PLAN, stream).model.eval()
    ids = torch.full((1, 60), 7)  # equal pieces: only positions tell them apart
    with torch.no_grad():
        weights = model.roberta(ids, output_attentions=True).attentions[0][0]
    for head, shift in enumerate(parts.Start().neighbours):
        sums = {gap: weights[head].diagonal(gap).mean().item() for gap in range(-4, 5)}
        assert max(sums, key=lambda gap: sums[gap]) == shift


def test_plain_class_and_size_of_the_shipped_model(stream: parts.Ids) -> None:
    state = training.new_state(parts.Shape(), parts.Start(), training.Plan(), stream)
    assert type(state.model).__name__ == "RobertaForMaskedLM"
    count = sum(p.numel() for p in state.model.parameters())
    assert 2 * count < 10e6


def test_shuffle_keeps_the_pieces_and_the_targets_of_each_window(stream: parts.Ids) -> None:
    batch = parts.held_out(stream, length=64, count=4, seed=0)
    mixed = quality.shuffled(batch, seed=0)
    assert not np.array_equal(mixed.ids, batch.ids)
    np.testing.assert_array_equal(np.sort(mixed.ids), np.sort(batch.ids))
    np.testing.assert_array_equal(mixed.chosen.sum(1), batch.chosen.sum(1))
    np.testing.assert_array_equal(np.sort(mixed.targets), np.sort(batch.targets))


def test_uniform_attention_gives_the_mean_value_and_is_undone(stream: parts.Ids) -> None:
    values = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(0))
    output, weights = quality.attend_uniformly(torch.nn.Identity(), values, values, values, None)
    torch.testing.assert_close(output[0, 4], values[0].mean(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weights, torch.full((1, 2, 5, 5), 0.2), rtol=1e-6, atol=0)
    model = trained(stream, 3).model.eval()
    test = parts.held_out(stream, length=32, count=2, seed=0)
    before = parts.held_out_loss(model, test)
    with quality.uniform_attention(model):
        assert parts.held_out_loss(model, test) != before
    assert parts.held_out_loss(model, test) == before


def test_unigram_loss_of_equal_counts_is_the_log_of_the_vocabulary() -> None:
    ids = np.arange(16, dtype=np.int64)
    assert parts.unigram_loss(ids, ids, 16) == pytest.approx(np.log(16), rel=1e-12)
    rare = np.array([0] * 98, dtype=np.int64)
    assert parts.unigram_loss(rare, np.array([1]), 2) == pytest.approx(np.log(100), rel=1e-12)
