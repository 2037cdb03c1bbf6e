"""A model with its attention replaced, against models that were changed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from transformers import PreTrainedModel

from rankscope.approximations import Approximation, Cost, method
from rankscope.attention import Attention
from rankscope.capture import capture
from rankscope.exceptions import CaptureError, MethodError
from rankscope.intervene import measure, replacing
from tiny import as_loaded, tiny, tiny_with_head, window

IDS = torch.tensor([[3, 5, 6, 7, 8, 4], [3, 9, 10, 11, 12, 4]])
FULL, UNIFORM, MEAN_ROW = (method(name) for name in ("full", "uniform", "mean-row"))
TEXTS = [window(0, *range(5 + i, 17 + i), 2) for i in range(3)]


def result(output: Any) -> torch.Tensor:
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def plain(model: PreTrainedModel, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    """The same by transformers alone."""
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids
    with torch.no_grad():
        return result(model(input_ids=ids, **given))


FAMILIES = ["roberta", "bert", "mpnet", "gpt2", "distilbert", "electra", "albert", "llama"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("make", [tiny, tiny_with_head])
def test_full_attention_changes_nothing(family: str, make: Any) -> None:
    model = make(family)
    expected = plain(model, IDS)
    with replacing(model, FULL) as run:
        found = result(run(IDS))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert not found.requires_grad
    # another method does change it: the comparison is not blind
    with replacing(model, UNIFORM) as run:
        assert float((result(run(IDS)) - expected).abs().max()) > 1e-2


@pytest.mark.parametrize("group", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_full_attention_changes_nothing_in_any_group(family: str, group: Any) -> None:
    model = tiny(family)
    expected = plain(model, IDS)
    with replacing(model, FULL, group=group) as run:
        torch.testing.assert_close(result(run(IDS)), expected, atol=1e-5, rtol=0)
    with replacing(model, UNIFORM, group=group) as run:
        changed = result(run(IDS))
    assert float((changed - expected).abs().max()) > 1e-3
    if group == "encoder":
        with replacing(model, UNIFORM) as run:
            assert torch.equal(result(run(IDS)), changed)


@pytest.mark.parametrize("family", ["roberta", "bert", "mpnet", "gpt2", "distilbert"])
@pytest.mark.parametrize("name", ["full", "uniform", "truncated:k=2"])
def test_f28_padding_changes_no_valid_row(family: str, name: str) -> None:
    if family == "gpt2" and name == "truncated:k=2":
        name = "full"
    # in float64, so that a leak of 1e-9 would show; rounding alone is a millionth of that
    model = tiny_with_head(family).double()
    short, long = [3, 5, 6, 4], [3, 9, 10, 11, 12, 4]
    with replacing(model, method(name)) as run:
        alone = result(run([short]))
        other = result(run([long]))
        for length in (6, 9):
            for pad in (1, 13, 40):
                ids = torch.full((2, length), pad)
                ids[0, :4], ids[1, :6] = torch.tensor(short), torch.tensor(long)
                mask = torch.zeros(2, length)
                mask[0, :4] = mask[1, :6] = 1
                rows = result(run(ids, mask))
                torch.testing.assert_close(rows[:1, :4], alone, atol=1e-9, rtol=0)
                torch.testing.assert_close(rows[1:, :6], other, atol=1e-9, rtol=0)
                first = ids.clone()
                first[0, 4:] = 20
                again = result(run(first, mask))
                torch.testing.assert_close(again[0, :4], rows[0, :4], atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
@pytest.mark.parametrize("name", ["full", "uniform", "truncated:k=2"])
def test_f28_padding_on_the_left_changes_no_valid_row(family: str, name: str) -> None:
    model = tiny_with_head(family).double()
    with replacing(model, method(name)) as run:
        alone = result(run([[3, 5, 6, 4]]))
        rows = result(run([[1, 1, 3, 5, 6, 4], [3, 9, 10, 11, 12, 4]]))
    torch.testing.assert_close(rows[:1, 2:], alone, atol=1e-9, rtol=0)


def test_f28_padded_rows_keep_full_attention() -> None:
    ids, mask = [[3, 5, 6, 4, 1, 1], [3, 9, 10, 11, 12, 4]], [[1] * 4 + [0] * 2, [1] * 6]
    model = tiny("roberta")
    expected = plain(model, torch.tensor(ids), attention_mask=torch.tensor(mask))
    for name in ("full", "truncated:k=6"):
        with replacing(model, method(name)) as run:
            found = result(run(ids, mask))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@dataclass(frozen=True)
class Spy(Approximation):
    """Full attention that remembers what it was given."""

    name: ClassVar[str] = "spy"
    seen: ClassVar[list[Attention]] = []

    def matrix(self, attention: Attention) -> torch.Tensor:
        return attention.weights

    def apply(self, attention: Attention) -> torch.Tensor:
        self.seen.append(attention)
        return attention.output

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        return Cost(1, 1)


def test_methods_see_what_capture_hands_out_and_never_padding() -> None:
    Spy.seen.clear()
    ids, mask = [[3, 5, 6, 4, 1, 1], [3, 9, 10, 11, 12, 4]], [[1] * 4 + [0] * 2, [1] * 6]
    model = tiny("mpnet")
    with replacing(model, Spy(), layers=[0, 2]) as run:
        run(ids, mask)
    captured = list(capture(model, ids, attention_mask=mask, layers=[0, 2], batch_size=2))
    assert [(a.layer, a.samples) for a in Spy.seen] == [(0, (0,)), (0, (1,)), (2, (0,)), (2, (1,))]
    for one, other in zip(Spy.seen, captured, strict=True):
        assert one.weights.shape == other.weights.shape
        torch.testing.assert_close(one.weights, other.weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(one.output, other.output, atol=1e-5, rtol=0)


def by_hand(model: PreTrainedModel, changes: dict[int, tuple[int, ...]]) -> torch.Tensor:
    """RoBERTa's hidden states with the mean row in some heads, by plain hooks and formulas."""
    handles = []

    def hook(heads: tuple[int, ...]) -> Any:
        def change(module: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> Any:
            hidden = inputs[0]
            context = output[0].clone()
            for head in heads:
                part = slice(8 * head, 8 * head + 8)
                query, key, value = (
                    (hidden @ layer.weight.T + layer.bias)[..., part]
                    for layer in (module.query, module.key, module.value)
                )
                weights = torch.softmax(query @ key.mT / 8**0.5, dim=-1)
                context[..., part] = weights.mean(1, keepdim=True) @ value
            return (context, *output[1:])

        return change

    for layer, heads in changes.items():
        module = model.encoder.layer[layer].attention.self
        handles.append(module.register_forward_hook(hook(heads)))
    found = plain(model, IDS)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(
    ("choice", "changes"),
    [
        ({"layers": [0], "heads": [1]}, {0: (1,)}),
        ({"heads": [(0, 1)]}, {0: (1,)}),
        ({"layers": [1]}, {1: (0, 1, 2, 3)}),
        ({"layers": [0, 2]}, {0: (0, 1, 2, 3), 2: (0, 1, 2, 3)}),
        ({"heads": [0, 3]}, {0: (0, 3), 1: (0, 3), 2: (0, 3)}),
        ({"heads": [(2, 3), (0, 1), (2, 0)]}, {0: (1,), 2: (0, 3)}),
        ({}, dict.fromkeys(range(3), (0, 1, 2, 3))),
    ],
)
def test_chosen_heads_equal_hand_made_ones_and_errors_compound(
    choice: dict[str, Any], changes: dict[int, tuple[int, ...]]
) -> None:
    model = tiny("roberta")
    with replacing(model, MEAN_ROW, **choice) as run:
        found = result(run(IDS))
    torch.testing.assert_close(found, by_hand(model, changes), atol=1e-5, rtol=0)
    assert float((found - plain(model, IDS)).abs().max()) > 1e-3


def test_later_layers_are_fed_with_what_earlier_ones_left() -> None:
    Spy.seen.clear()
    model = tiny("roberta")
    before = next(a for a in capture(model, IDS[:1], layers=[1]))
    handle = model.encoder.layer[0].attention.self.register_forward_hook(
        lambda _module, _inputs, output: (torch.zeros_like(output[0]), None)
    )
    after = next(a for a in capture(model, IDS[:1], layers=[1]))
    with replacing(model, Spy(), layers=[1]) as run:
        run(IDS[:1])
    handle.remove()
    assert not torch.allclose(before.query, after.query, atol=1e-3)
    torch.testing.assert_close(Spy.seen[0].query, after.query, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("family", "query"), [("roberta", "query"), ("distilbert", "q_lin")])
def test_uniform_equals_a_model_without_queries(family: str, query: str) -> None:
    model = tiny_with_head(family)
    with replacing(model, UNIFORM) as run:
        found = result(run(IDS))
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] == query:
            parameter.data.zero_()
    torch.testing.assert_close(found, plain(model, IDS), atol=1e-5, rtol=0)


def hooks(model: PreTrainedModel) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


@dataclass(frozen=True)
class Broken(Spy):
    name: ClassVar[str] = "broken"

    def apply(self, attention: Attention) -> torch.Tensor:
        if attention.layer == 1:
            raise ZeroDivisionError("broken method")
        return attention.output


@dataclass(frozen=True)
class Misshapen(Spy):
    name: ClassVar[str] = "misshapen"

    def apply(self, attention: Attention) -> torch.Tensor:
        return attention.output.mean(dim=2, keepdim=True)


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
@pytest.mark.parametrize("way", ["success", "broken", "misshapen", "reader", "busy", "measure"])
def test_f27_model_is_restored_on_every_way_out(family: str, way: str) -> None:
    model = tiny(family).train()
    model.encoder.layer[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    kernel = model.config._attn_implementation
    if way == "success":
        with replacing(model, UNIFORM) as run:
            assert not model.training
            run(IDS)
    elif way == "broken":
        with pytest.raises(ZeroDivisionError), replacing(model, Broken()) as run:
            run(IDS)
    elif way == "misshapen":
        wrong = pytest.raises(MethodError, match="layer 0 has the shape")
        with wrong, replacing(model, Misshapen()) as run:
            run(IDS)
    elif way == "reader":
        with pytest.raises(KeyError), replacing(model, UNIFORM):
            raise KeyError
    elif way == "busy":
        twice = pytest.raises(CaptureError, match="already being captured")
        with replacing(model, UNIFORM), twice:
            next(capture(model, IDS))
    else:
        with pytest.raises(ZeroDivisionError):
            measure(as_loaded(model), TEXTS, [Broken()])
    assert {name: module.training for name, module in model.named_modules()} == before
    assert hooks(model) == 0
    assert model.config._attn_implementation == kernel
    assert getattr(model.encoder.layer[0], "chunk_size_feed_forward", 0) == 0
    assert len(list(capture(model, IDS[:1]))) == 3


def test_a_layer_that_is_not_heard_is_an_error() -> None:
    model = tiny("roberta")
    model.config.num_hidden_layers = 4
    missing = pytest.raises(CaptureError, match="promises 4")
    with replacing(model, UNIFORM, layers=[3]) as run, missing:
        run(IDS)


def test_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    with replacing(tiny("roberta"), UNIFORM) as run:
        run(IDS)
    assert torch.equal(torch.get_rng_state(), before)
