"""Longformer's and Big Bird's own layers in transformers, with the same weights and masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BigBirdConfig, BigBirdModel
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from rankscope.approximations import bigbird
from rankscope.approximations.bigbird import BigBird
from rankscope.approximations.longformer import Longformer
from rankscope.approximations.sparse import Band
from rankscope.attention import Attention
from tiny import tiny_config

HEADS, WIDTH = 4, 32
LOWEST = -1e4


def made(layer: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """The layer with weights that make attention far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    for weights in layer.parameters():
        weights.data.normal_(0.0, 0.4, generator=generator)
    return layer.eval()


def hidden(n: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, n, WIDTH, generator=torch.Generator().manual_seed(1))


def seen(layer: Any, states: torch.Tensor, tokens: torch.Tensor | None = None) -> Attention:
    """Query, key and value of a layer, as its own linear maps give them."""

    def heads(of: torch.nn.Module) -> torch.Tensor:
        return of(states).unflatten(2, (HEADS, -1)).transpose(1, 2)

    batch, n, _ = states.shape
    return Attention(
        query=heads(layer.query),
        key=heads(layer.key),
        value=heads(layer.value),
        scale=(WIDTH // HEADS) ** -0.5,
        bias=None,
        layer=0,
        tokens=torch.zeros(batch, n, dtype=torch.int64) if tokens is None else tokens,
    )


def merged(output: torch.Tensor) -> torch.Tensor:
    return output.transpose(1, 2).flatten(2)


class TestLongformer:
    @pytest.fixture(autouse=True)
    def no_gradients(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    @pytest.fixture
    def layer(self) -> torch.nn.Module:
        layer = made(
            LongformerSelfAttention(tiny_config("longformer", attention_window=[4] * 3), 0)
        )
        for name in ("query", "key", "value"):
            getattr(layer, f"{name}_global").load_state_dict(getattr(layer, name).state_dict())
        return layer

    def theirs(self, layer: Any, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Its output; the mask is -10,000 for padding, +10,000 for global tokens, 0 otherwise."""
        return layer(
            states,
            attention_mask=mask,
            is_index_masked=mask < 0,
            is_index_global_attn=mask > 0,
            is_global_attn=bool((mask > 0).any()),
        )[0]

    @pytest.mark.parametrize("n", [4, 8, 12, 40])
    def test_local_attention(self, layer: torch.nn.Module, n: int) -> None:
        states = hidden(n)
        found = self.theirs(layer, states, torch.zeros(2, n))
        given = seen(layer, states)
        for ours in (Band(4), Longformer(4, g=0)):
            torch.testing.assert_close(merged(ours.apply(given)), found, rtol=1e-5, atol=1e-5)
        if n > 4:
            # another width is another result
            assert not torch.allclose(merged(Band(6).apply(given)), found, atol=1e-2)

    @pytest.mark.parametrize("g", [1, 3])
    def test_global_tokens_at_the_start(self, layer: torch.nn.Module, g: int) -> None:
        states = hidden(24)
        mask = torch.zeros(2, 24)
        mask[:, :g] = 1e4
        found = self.theirs(layer, states, mask)
        output = merged(Longformer(4, g=g).apply(seen(layer, states)))
        torch.testing.assert_close(output, found, rtol=1e-5, atol=1e-5)
        other = merged(Longformer(4, g=g + 1).apply(seen(layer, states)))
        assert not torch.allclose(other, found, atol=1e-2)

    def test_global_tokens_anywhere_and_padding(self, layer: torch.nn.Module) -> None:
        """Another place in every window; what is padding there is left out here."""
        n, real = 24, 21
        states = hidden(n)
        tokens = torch.zeros(2, n, dtype=torch.int64)
        tokens[0, [0, 9]] = 7
        tokens[1, [3, 4, 20]] = 7
        mask = torch.where(tokens == 7, 1e4, 0.0)
        mask[:, real:] = LOWEST
        found = self.theirs(layer, states, mask)[:, :real]
        given = seen(layer, states[:, :real], tokens[:, :real])
        output = merged(Longformer(4, g=0, ids=7).apply(given))
        torch.testing.assert_close(output, found, rtol=1e-5, atol=1e-5)

    def test_their_further_projections_are_not_ours(self, layer: torch.nn.Module) -> None:
        """What the comparison rests on: equal projections for global tokens."""
        states, mask = hidden(24), torch.zeros(2, 24)
        mask[:, 0] = 1e4
        layer.query_global.weight.mul_(-1.0)
        found = self.theirs(layer, states, mask)
        output = merged(Longformer(4, g=1).apply(seen(layer, states)))
        assert not torch.allclose(output[:, 0], found[:, 0], atol=1e-2)
        torch.testing.assert_close(output[:, 1:], found[:, 1:], rtol=1e-5, atol=1e-5)


class TestBigBird:
    @pytest.fixture(autouse=True)
    def no_gradients(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    @pytest.fixture(autouse=True)
    def numpy_state_is_left_alone(self) -> Iterator[None]:
        state = np.random.get_state()  # noqa: NPY002 the layer seeds the old global generator
        yield
        np.random.set_state(state)  # noqa: NPY002

    def layer(self, r: int) -> Any:
        config = BigBirdConfig(
            vocab_size=50,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            max_position_embeddings=128,
            block_size=4,
            num_random_blocks=r,
        )
        return made(BigBirdBlockSparseAttention(config, seed=3))

    def theirs(self, layer: Any, states: torch.Tensor, real: int) -> torch.Tensor:
        mask = torch.ones(states.shape[:2])
        mask[:, real:] = 0.0
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(mask, 4)
        return layer(
            states,
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
        )[0][:, :real]

    @pytest.mark.parametrize(("n", "r"), [(48, 1), (48, 2), (60, 3), (36, 1)])
    @pytest.mark.parametrize("padding", [0, 3])
    def test_block_sparse_attention_with_its_random_blocks(
        self, monkeypatch: pytest.MonkeyPatch, n: int, r: int, padding: int
    ) -> None:
        """Its plan is drawn in training only; there is no dropout in it. The last block may be
        shorter here where it is padded there."""
        layer = self.layer(r).train()
        plans: list[np.ndarray] = []
        draw = layer._bigbird_block_rand_mask_with_head

        def listen(**given: Any) -> list[np.ndarray]:
            plans.extend(draw(**given))
            return plans

        monkeypatch.setattr(layer, "_bigbird_block_rand_mask_with_head", listen)
        states, real = hidden(n), n - padding
        found = self.theirs(layer, states, real)
        assert len(plans) == HEADS
        assert any((one != plans[0]).any() for one in plans)
        given = seen(layer, states[:, :real])
        ours = BigBird(4 * (7 + r), r=r)
        assert ours.block == 4
        own = merged(ours.apply(given))
        # their random blocks instead of ours; the first and the last block see all
        taken = iter(plans)

        def theirs(*_: Any) -> torch.Tensor:
            edge = np.full((1, r), -1)
            return torch.from_numpy(np.concatenate([edge, next(taken), edge]).astype(np.int64))

        monkeypatch.setattr(bigbird.patterns, "draw_outside", theirs)
        output = merged(ours.apply(given))
        torch.testing.assert_close(output, found, rtol=1e-5, atol=1e-5)
        # with our own draw the rows in the middle differ, and those of global tokens do not
        assert not torch.allclose(own, found, atol=1e-2)
        torch.testing.assert_close(own[:, :4], found[:, :4], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("r", [1, 3])
    def test_in_evaluation_its_random_blocks_are_the_first_one_again(self, r: int) -> None:
        """Without training its plan is all zeros: the first block counts r times more, as a bias
        of ln(1 + r) on its keys makes it count."""
        layer, states = self.layer(r), hidden(48)
        found = self.theirs(layer, states, 48)
        given = seen(layer, states)
        bias = torch.zeros(48, 48)
        bias[4:-4, :4] = np.log(1.0 + r)
        given = Attention(**(vars(given) | {"bias": bias[None, None]}))
        output = merged(BigBird(28, r=0).apply(given))
        torch.testing.assert_close(output, found, rtol=1e-5, atol=1e-5)
        plain = Attention(**(vars(given) | {"bias": None}))
        assert not torch.allclose(merged(BigBird(28, r=0).apply(plain)), found, atol=1e-2)

    def test_our_random_blocks_obey_their_rules(self) -> None:
        """Neither global nor in the window, and none twice."""
        for head in range(20):
            found = BigBird(40, r=3).pattern(400, head).toarray()
            assert set(found[8:-8].sum(axis=1)) == {8 * 4}
