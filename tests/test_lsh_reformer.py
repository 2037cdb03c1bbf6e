"""LSH attention against transformers' Reformer layer.

Both agree in hashing, sorting, chunks, scores, the causal mask and "itself only when alone". They
differ in three things, each shown below. Theirs lets the first chunk of a round look back at the
last chunk of the round before; ours at nothing, as the paper defines the set of keys. Theirs counts
a pair as often as it is seen; ours once, as in the paper's appendix. Theirs adds 1e-6 to the mean
square of a vector before it divides by its length. Their keys have length 1 and the scores no
further factor: our scale is 1 here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers as tf

from attentions import attention
from rankscope.approximations import lsh
from rankscope.approximations.lsh import Lsh
from rankscope.attention import Attention

DOUBLE = torch.float64


def reformer(rounds: int, buckets: int, causal: bool) -> torch.nn.Module:
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = tf.ReformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        attention_head_size=8,
        lsh_attn_chunk_length=4,
        num_hashes=rounds,
        num_buckets=buckets,
        hash_seed=7,
        is_decoder=causal,
        lsh_attention_probs_dropout_prob=0.0,
        axial_pos_embds_dim=[12, 12],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = LSHSelfAttention(config, layer_idx=0)
        torch.nn.init.normal_(layer.query_key.weight, std=0.6)
    return layer.double().eval()


def both(
    monkeypatch: pytest.MonkeyPatch, *, n: int, rounds: int, buckets: int, causal: bool
) -> tuple[Attention, torch.Tensor, torch.Tensor]:
    """The layer's vectors, its output (2, 3, n, 8), and the rotations that it drew."""
    layer = reformer(rounds, buckets, causal)
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, n, 24, generator=draw, dtype=DOUBLE)

    def split(part: torch.nn.Module) -> torch.Tensor:
        return part(hidden).detach().unflatten(-1, (3, 8)).transpose(1, 2)

    given = replace(
        attention(n, causal=causal),
        query=split(layer.query_key),
        key=split(layer.query_key),
        value=split(layer.value),
        scale=1.0,
    )
    with torch.random.fork_rng(devices=[]):
        theirs = layer(hidden).hidden_states.detach()
        torch.manual_seed(7)
        turns = torch.randn(3, 8, rounds, buckets // 2, dtype=DOUBLE).permute(2, 0, 1, 3)
    monkeypatch.setattr(lsh, "rotations", lambda *_, **__: turns)
    return given, theirs.unflatten(-1, (3, 8)).transpose(1, 2), turns


def first_chunk(given: Attention, turn: torch.Tensor) -> torch.Tensor:
    """(2, 3, n) bool: the tokens of the first chunk of a round."""
    bucket = lsh._hash(given.query, turn, (turn.shape[-1] * 2,))
    return lsh._inverse(bucket.argsort(dim=-1, stable=True)) < 4


@pytest.mark.parametrize("causal", [False, True])
def test_same_as_transformers_in_one_round(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    given, theirs, turns = both(monkeypatch, n=32, rounds=1, buckets=8, causal=causal)
    ours = Lsh(entries=8, rounds=1, mode="shared", buckets=8).apply(given)
    first = first_chunk(given, turns[0])
    assert int(first.sum()) == 2 * 3 * 4
    torch.testing.assert_close(ours[~first], theirs[~first], rtol=1e-5, atol=1e-5)
    # the first chunk looks round to the last one, there and not here
    assert float((ours[first] - theirs[first]).abs().max()) > 1e-2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_same_as_transformers_where_all_is_seen(
    monkeypatch: pytest.MonkeyPatch, n: int, causal: bool
) -> None:
    given, theirs, turns = both(monkeypatch, n=n, rounds=1, buckets=4, causal=causal)
    ours = Lsh(entries=8, rounds=1, mode="shared", buckets=4).apply(given)
    if n == 8:
        # of two chunks only the second sees all
        keep = ~first_chunk(given, turns[0])
        ours, theirs = ours[keep], theirs[keep]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_transformers_counts_pairs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given, theirs, turns = both(monkeypatch, n=32, rounds=2, buckets=8, causal=False)
    ours = Lsh(entries=16, rounds=2, mode="shared", buckets=8).apply(given)
    alone = []
    for turn in turns:
        monkeypatch.setattr(lsh, "rotations", lambda *_, turn=turn, **__: turn[None])
        alone.append(Lsh(entries=8, rounds=1, mode="shared", buckets=8).matrix(given) > 0)
    counts = torch.stack(alone).sum(dim=0)
    assert int(counts.max()) == 2
    key = given.query / given.query.norm(dim=-1, keepdim=True)
    powers = torch.exp(given.query @ key.mT)
    keep = ~(first_chunk(given, turns[0]) | first_chunk(given, turns[1]))
    for weights, output in ((powers * (counts > 0), ours), (powers * counts, theirs)):
        expected = weights / weights.sum(dim=-1, keepdim=True) @ given.values
        torch.testing.assert_close(output[keep], expected[keep], rtol=1e-5, atol=1e-5)
    assert float((ours[keep] - theirs[keep]).abs().max()) > 1e-2
