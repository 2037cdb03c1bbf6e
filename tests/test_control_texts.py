"""Controls made of a window: its tokens in another order, and padding that is not cut off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rankscope.capture import capture
from rankscope.controls import padded_attention, shortened, shuffled_tokens
from rankscope.exceptions import UsageError
from rankscope.linalg import singular_values
from rankscope.rank import cumulative_ratio
from rankscope.text import Window
from tiny import as_loaded, tiny, window

# tokens


def words(n: int, number: int = 0, text_id: int = 0) -> Window:
    special = np.zeros(n, dtype=bool)
    special[[0, -1]] = True
    return Window(np.arange(n) % 30 + 4, special, text_id, number, 7, 7 + n - 2)


def test_shuffled_tokens_are_the_same_tokens() -> None:
    given = words(40)
    found = shuffled_tokens(given, seed=0)
    assert sorted(found.ids) == sorted(given.ids)
    assert (found.ids[[0, -1]] == given.ids[[0, -1]]).all()
    assert (found.ids != given.ids).sum() > 20
    assert (found.special == given.special).all()
    assert (found.text_id, found.number, found.start, found.end) == (0, 0, 7, 45)
    # the window itself is untouched, and a draw is repeated
    assert (given.ids == np.arange(40) % 30 + 4).all()
    assert (shuffled_tokens(words(40), seed=0).ids == found.ids).all()
    others = [
        shuffled_tokens(given, 1),
        shuffled_tokens(words(40, 1)),
        shuffled_tokens(words(40, 0, 1)),
    ]
    assert not any((one.ids == found.ids).all() for one in others)


def test_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="seed -1"):
        shuffled_tokens(words(5), -1)


def test_special_tokens_inside_a_window_stay() -> None:
    given = words(12)
    given.special[5] = True
    for seed in range(20):
        assert shuffled_tokens(given, seed).ids[5] == given.ids[5]
    assert {int(shuffled_tokens(given, seed).ids[1]) for seed in range(200)} == {
        *given.ids[~given.special].tolist()
    }


def test_a_model_reads_the_shuffled_window() -> None:
    """Without positions a model sees a set: the order of P follows that of the tokens."""
    network = tiny("roberta")
    table = network.embeddings.position_embeddings.weight
    table.data[:] = table.data[5]
    given = window(0, *range(4, 14), 2)
    moved = shuffled_tokens(given, 3)
    order = [given.ids.tolist().index(one) for one in moved.ids]
    before, after = ([one.weights[0] for one in capture(network, [w])] for w in (given, moved))
    assert order != sorted(order)
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old[:, order][:, :, order], rtol=1e-4, atol=1e-6)


# padding


def test_shortened_keeps_the_special_tokens() -> None:
    given = words(10)
    found = shortened(given, 6)
    assert found.ids.tolist() == [4, 5, 6, 7, 8, 13]
    assert found.special.tolist() == [True, False, False, False, False, True]
    assert (found.start, found.end) == (7, 11)
    assert shortened(given, 10).ids.tolist() == given.ids.tolist()
    for length in (2, 11):
        with pytest.raises(UsageError, match="use 3 to 10"):
            shortened(given, length)


@pytest.mark.parametrize("family", ["roberta", "bert", "mpnet", "distilbert", "bart"])
def test_padded_attention_against_the_text_alone(family: str) -> None:
    network = tiny(family)
    given = window(0, 5, 6, 7, 8, 2)
    alone = list(capture(network, [given], group="encoder"))
    padded = padded_attention(as_loaded(network), given, 16)
    assert [one.layer for one in padded] == [one.layer for one in alone]
    for whole, own in zip(padded, alone, strict=True):
        weights, real = whole.weights[0], own.weights[0]
        assert weights.shape[1:] == (16, 16)
        torch.testing.assert_close(weights[:, :6, :6], real, rtol=1e-4, atol=1e-6)
        assert bool((weights[:, :, 6:] == 0).all())
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        rows = weights[:, 6:, :6].double()
        if family == "roberta":
            torch.testing.assert_close(rows, rows[:, :1].expand_as(rows), rtol=1e-4, atol=1e-6)
        gram = weights[:, :6, :6].double().mT @ weights[:, :6, :6].double() + rows.mT @ rows
        found = singular_values(weights).singular_values
        np.testing.assert_allclose(
            found[:, :6], np.linalg.eigvalsh(gram.numpy())[:, ::-1] ** 0.5, rtol=1e-5, atol=1e-6
        )
        assert float(found[:, 6:].max()) < 1e-6
        # and the rows of the pads do change the spectrum
        assert float(np.abs(found[:, :6] - singular_values(real).singular_values).max()) > 0.1


def test_spectrum_with_pad_rows_that_attend_evenly() -> None:
    """FIELD case: four tokens that see themselves alone, four pads that see all four."""
    network = tiny("roberta")
    given = window(0, 5, 6, 2)
    (first, *_) = padded_attention(as_loaded(network), given, 8)
    matrix = torch.zeros(8, 8)
    matrix[:4, :4], matrix[4:, :4] = torch.eye(4), 0.25
    # logits that make this matrix, with the captured mask
    query = matrix.masked_fill(torch.arange(8)[:, None] >= 4, 0.0)[None, None] * 1e3
    made_up = replace(
        first.heads(slice(0, 1)), query=query, key=torch.eye(8)[None, None], scale=1.0
    )
    found = singular_values(made_up.matrix(0, 0)).singular_values
    np.testing.assert_allclose(found, [math.sqrt(2), 1, 1, 1, 0, 0, 0, 0], atol=1e-7)
    assert cumulative_ratio(found)[0] == pytest.approx(0.320377, abs=1e-6)


def test_padding_restores_the_model_and_refuses_what_has_no_meaning() -> None:
    network = tiny("roberta").train()
    before = network.config._attn_implementation
    padded_attention(as_loaded(network), window(0, 5, 2), 5)
    assert network.training
    assert network.config._attn_implementation == before
    assert [one.shape for one in padded_attention(as_loaded(network), window(0, 5, 2), 3)] == [
        (3, 3)
    ] * 3
    for length in (2, 17):
        with pytest.raises(UsageError, match="tokens"):
            padded_attention(as_loaded(network), window(0, 5, 2), length)
    with pytest.raises(UsageError, match="no cross attention"):
        padded_attention(as_loaded(network), window(0, 5, 2), 8, "cross")
    with pytest.raises(UsageError, match="no pad token"):
        padded_attention(as_loaded(tiny("gpt2")), window(0, 5, 2), 8)
