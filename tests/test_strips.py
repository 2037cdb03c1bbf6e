"""Time and memory of sparse attention in strips: what grows with n, and that nothing is n × n."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attentions import attention
from rankscope.approximations import method
from rankscope.approximations.sparse import Sparse
from rankscope.attention import Attention


class Largest(TorchDispatchMode):
    """Bytes of the largest storage that any operation makes, beside those of the given tensors."""

    def __init__(self, given: Attention) -> None:
        super().__init__()
        there = (given.query, given.key, given.values, given.bias)
        self.known = {one.untyped_storage().data_ptr() for one in there if one is not None}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if storage.data_ptr() not in self.known:
                    self.bytes = max(self.bytes, storage.nbytes())
        return result


LONG = (
    "band:w=64",
    "dilated:w=64,dilation=4",
    "longformer:w=64,g=2",
    "global:entries=32",
    "random:r=16",
    "random-band:entries=32",
    "bigbird:entries=64",
    "bigbird:entries=64,mode=etc",
)


@pytest.mark.parametrize("text", LONG)
def test_no_tensor_of_n_by_n_is_made(text: str) -> None:
    n = 16_384
    given = attention(n, heads=1, batch=1, dtype=torch.float32)
    with Largest(given) as seen:
        output = method(text).apply(given)
    assert output.shape == (1, 1, n, 8)
    # n × n scores would be 1 GB, n × n bits 34 MB; here it is 2²⁰ entries' distances of 8 bytes
    assert seen.bytes <= 8 * 2**20
    some = torch.tensor([0, 5_000, n - 1])
    layout = method(text)
    assert isinstance(layout, Sparse)
    found = layout.pattern(n)
    for i in some.tolist():
        keys = found.indices[found.indptr[i] : found.indptr[i + 1]]
        scores = given.key[0, 0, keys] @ given.query[0, 0, i] * given.scale
        torch.testing.assert_close(
            output[0, 0, i], scores.softmax(0) @ given.values[0, 0, keys], rtol=1e-4, atol=1e-5
        )


def test_a_given_bias_is_read_and_not_copied() -> None:
    n = 2_048
    given = attention(n, heads=1, batch=1, causal=True, dtype=torch.float32)
    for text in LONG:
        with Largest(given) as seen:
            method(text).apply(given)
        assert seen.bytes < 4 * n * n / 3, text


def test_the_watch_for_large_tensors_sees_full_attention() -> None:
    given = attention(512, heads=1, batch=1, dtype=torch.float32)
    with Largest(given) as seen:
        method("full").apply(given)
    assert seen.bytes >= 4 * 512 * 512


@pytest.mark.parametrize("text", LONG)
def test_cost_grows_with_n_and_counts_every_entry(text: str) -> None:
    made = method(text)
    assert isinstance(made, Sparse)
    small, large = (made.cost(n, n, 8, 5).multiply_adds for n in (4_096, 8_192))
    # the last block is shorter, and global, for one n and not for the other
    assert 1.8 * small < large < 2.2 * small
    entries = made.pattern(4_096).nnz
    # blocks are filled up: a band in blocks as long as itself computes twice its entries
    assert entries * 13 <= small <= 2.6 * entries * 13


def test_cost_of_a_random_pattern_is_that_of_its_draw() -> None:
    for text in ("random:r=9", "random-band:entries=20"):
        made = method(text)
        assert isinstance(made, Sparse)
        for n in (5, 100):
            drawn = made.layout(n).cost(8, 8)
            assert made.cost(n, n, 8, 8) == drawn
