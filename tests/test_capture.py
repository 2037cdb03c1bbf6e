"""Captured attention against the model's own eager result, and the model left as it was."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from rankscope.attention import Attention, check_matrix
from rankscope.capture import capture, roads
from rankscope.capture.batches import Batch
from rankscope.exceptions import CaptureError, UnsupportedModel, UsageError
from rankscope.text import Window
from tiny import tiny
from tolerances import ATOL

ATOL32 = ATOL["float32"]
IDS = torch.tensor([[3, 5, 6, 7, 8, 4], [3, 9, 10, 11, 12, 4]])
ENCODERS = ("roberta", "xlm-roberta", "camembert", "bert", "distilbert", "electra", "albert")
ALONE = (*ENCODERS, "mpnet", "gpt2", "llama", "modernbert")
PAIRS = ("bart", "t5")


def eager(model: PreTrainedModel, ids: torch.Tensor, mask: Any = None) -> dict[Any, torch.Tensor]:
    """(group, layer) → P, by transformers' own eager kernel."""
    model.eval()
    if roads.IMPLEMENTATION not in str(model.config._attn_implementation):
        model.set_attn_implementation("eager")
    given: dict[str, Any] = {"input_ids": ids, "output_attentions": True}
    if mask is not None:
        given["attention_mask"] = torch.as_tensor(mask)
    paired = bool(model.config.is_encoder_decoder)
    if paired:
        given["decoder_input_ids"] = ids
        if mask is not None:
            given["decoder_attention_mask"] = given["attention_mask"]
    with torch.no_grad():
        out = model(**given)
    if paired:
        groups = {
            "encoder": out.encoder_attentions,
            "decoder": out.decoder_attentions,
            "cross": out.cross_attentions,
        }
    else:
        causal = model.config.model_type in ("gpt2", "llama")
        groups = {"decoder" if causal else "encoder": out.attentions}
    return {(name, i): p for name, ps in groups.items() for i, p in enumerate(ps)}


def captured(stream: Any) -> dict[Any, torch.Tensor]:
    return {(found.group, found.layer): found.weights for found in stream}


@pytest.mark.parametrize("family", [*ALONE, *PAIRS])
def test_f36_every_family_equals_its_own_eager_result(family: str) -> None:
    found = captured(capture(tiny(family), IDS, batch_size=2))
    expected = eager(tiny(family), IDS)
    assert found.keys() == expected.keys()
    for place, weights in expected.items():
        torch.testing.assert_close(found[place], weights, atol=ATOL32, rtol=0, msg=str(place))
    # the comparison is not blind: uniform and rank-one matrices are far off
    for weights in expected.values():
        assert float((weights - 1 / weights.shape[-1]).abs().max()) > 0.01
        assert float((weights - weights.mean(dim=-2, keepdim=True)).abs().max()) > 1e-3


@pytest.mark.parametrize("family", ["roberta", "bert", "mpnet", "gpt2", "llama", "bart"])
def test_f02_padding_never_arrives(family: str) -> None:
    pad = {"bert": 0, "gpt2": 0, "llama": 0}.get(family, 1)
    text = [3, 5, 6, 4]
    alone = captured(capture(tiny(family), [text]))
    padded = [[*text, *[pad] * 4], [3, 9, 10, 11, 12, 13, 14, 4]]
    mask = [[1] * 4 + [0] * 4, [1] * 8]
    expected = eager(tiny(family), torch.tensor(padded), mask)
    got = list(capture(tiny(family), padded, attention_mask=mask, batch_size=2))
    short = {(a.group, a.layer): a for a in got if a.samples == (0,)}
    assert short.keys() == alone.keys() == expected.keys()
    for place, attention in short.items():
        assert attention.weights.shape[-2:] == (4, 4)
        assert attention.tokens.tolist() == [text]
        torch.testing.assert_close(attention.weights, alone[place], atol=ATOL32, rtol=0)
        own = expected[place][:1, :, :4, :4]
        torch.testing.assert_close(attention.weights, own, atol=ATOL32, rtol=0)
        torch.testing.assert_close(
            attention.weights.sum(-1), torch.ones_like(attention.weights[..., 0]), atol=1e-5, rtol=0
        )


def test_f02_mask_is_made_from_the_pad_token() -> None:
    text = [0, 5, 6, 2]
    without = captured(capture(tiny("roberta"), [[*text, 1, 1, 1, 1]]))
    alone = captured(capture(tiny("roberta"), [text]))
    for place, weights in alone.items():
        torch.testing.assert_close(without[place], weights, atol=ATOL32, rtol=0)


def test_f02_values_of_the_example() -> None:
    from rankscope.linalg import singular_values
    from rankscope.rank import cumulative_ratio

    padded = torch.eye(8)
    padded[4:] = torch.tensor([0.25] * 4 + [0.0] * 4)
    padded[:4, 4:] = 0
    whole = singular_values(padded).singular_values
    np.testing.assert_allclose(whole[:4], [np.sqrt(2), 1, 1, 1], atol=1e-6)
    cropped = singular_values(padded[:4, :4]).singular_values
    np.testing.assert_allclose(cumulative_ratio(cropped), [0.25, 0.5, 0.75, 1], atol=1e-9)


def test_left_padding_is_cut_off() -> None:
    padded = [[1, 1, 0, 5, 6, 2]]
    found = list(capture(tiny("roberta"), padded))
    assert all(attention.tokens.tolist() == [[0, 5, 6, 2]] for attention in found)


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_f08_training_mode_and_implementation_come_back(family: str) -> None:
    model = tiny(family)
    model.train()
    model.encoder.layer[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    kernel = model.config._attn_implementation
    first = captured(capture(model, IDS))
    second = captured(capture(model, IDS))
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.training
    assert getattr(model.encoder.layer[0], "chunk_size_feed_forward", 0) == 0
    assert model.config._attn_implementation == kernel
    for place, weights in first.items():
        assert torch.equal(weights, second[place])
        assert float((weights.sum(-1) - 1).abs().max()) < 1e-5


def hooks(model: PreTrainedModel) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
@pytest.mark.parametrize("way", ["error", "close", "forget", "early error"])
def test_f27_model_is_restored_on_every_way_out(family: str, way: str) -> None:
    model = tiny(family)
    kernel = model.config._attn_implementation
    if way == "early error":
        with pytest.raises(UsageError):
            capture(model, [list(range(3, 43))])
    else:
        stream = capture(model, IDS)
        next(stream)
        if way == "error":
            with pytest.raises(CaptureError, match="already being captured"):
                next(capture(model, IDS))
        if way == "forget":
            del stream
            gc.collect()
        else:
            stream.close()  # type: ignore[attr-defined]
    assert hooks(model) == 0
    assert model.config._attn_implementation == kernel
    assert len(list(capture(model, IDS[:1]))) == 3


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_f27_an_error_inside_the_forward_pass_reaches_the_reader(family: str) -> None:
    model = tiny(family)

    def fails(*_: object) -> None:
        raise RuntimeError("broken layer")

    handle = model.encoder.layer[2].register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="broken layer"):
        list(capture(model, IDS))
    handle.remove()
    assert hooks(model) == 0
    assert len(list(capture(model, IDS[:1]))) == 3


def test_f27_layers_come_in_numeric_order() -> None:
    found = list(capture(tiny("roberta", num_hidden_layers=12), IDS[:1]))
    assert [attention.layer for attention in found] == list(range(12))


def test_f27_recomputing_a_layer_is_refused() -> None:
    model = tiny("roberta")
    layer = model.encoder.layer[1].attention.self
    forward = layer.forward

    def twice(*args: Any, **kwargs: Any) -> Any:
        forward(*args, **kwargs)
        return forward(*args, **kwargs)

    layer.forward = twice
    with pytest.raises(CaptureError, match="attended twice"):
        list(capture(model, IDS))


def test_f01_a_layer_that_is_not_heard_is_an_error() -> None:
    model = tiny("roberta")
    model.config.num_hidden_layers = 4
    with pytest.raises(CaptureError, match=r"3 attention layers arrived .* promises 4"):
        list(capture(model, IDS))


def test_f01_raw_kernel_gives_nothing_and_we_still_get_all_layers() -> None:
    model = tiny("roberta")
    ids = torch.tensor([[0, 5, 6, 7, 8, 2]])
    assert model.config._attn_implementation == "sdpa"
    found = list(capture(model, ids))
    assert [tuple(attention.weights.shape) for attention in found] == [(1, 4, 6, 6)] * 3


@pytest.mark.parametrize(("pad", "limit"), [(1, 16), (3, 14)])
def test_f03_longest_window_is_known_before_the_forward_pass(pad: int, limit: int) -> None:
    model = tiny("roberta", pad_token_id=pad)
    assert len(list(capture(model, [[5] * limit]))) == 3
    with pytest.raises(UsageError, match=f"at most {limit} tokens"):
        capture(model, [[5] * (limit + 1)])


def test_f06_nothing_asks_for_gradients_and_one_layer_is_alive_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive: weakref.WeakSet[Attention] = weakref.WeakSet()
    make = Batch._attention

    def tracked(*arguments: Any) -> Attention:
        made = make(*arguments)
        alive.add(made)
        return made

    monkeypatch.setattr(Batch, "_attention", tracked)
    most = seen = 0
    for attention in capture(tiny("roberta", num_hidden_layers=8), [[5, 6, 7, 8]]):
        assert not attention.query.requires_grad
        assert not attention.weights.requires_grad
        del attention
        most = max(most, len(alive))
        seen += 1
    assert seen == 8
    # the one that was let go of just now, and the next one that is held out
    assert most <= 2


def test_f36_bart_keeps_its_three_groups_apart() -> None:
    found = list(capture(tiny("bart"), IDS[:1]))
    shapes = {
        group: [tuple(a.weights.shape) for a in found if a.group == group]
        for group in ("encoder", "decoder", "cross")
    }
    assert shapes == {
        "encoder": [(1, 4, 6, 6)] * 2,
        "decoder": [(1, 2, 6, 6)] * 3,
        "cross": [(1, 2, 6, 6)] * 3,
    }
    assert [a.causal for a in found if a.group == "cross"] == [False] * 3
    only = list(capture(tiny("bart"), IDS[:1], group="cross", layers=[2]))
    assert [(a.group, a.layer) for a in only] == [("cross", 2)]


def test_f36_grouped_heads_and_causal_triangle() -> None:
    for attention in capture(tiny("llama"), IDS):
        weights = attention.weights
        assert attention.causal
        assert weights.shape[1] == attention.n_heads == 4
        assert float(weights.triu(1).abs().max()) == 0


def test_f36_local_layers_are_labelled() -> None:
    ids = torch.arange(3, 15)[None]
    model = tiny("modernbert")
    found = {a.layer: a for a in capture(model, ids)}
    assert {layer: a.local for layer, a in found.items()} == {0: None, 1: 2, 2: 2}
    assert roads.layer_reach(model) == {1: 2, 2: 2}
    band = found[1].weights[0, 0] > 0
    assert int(band.sum()) == 54
    assert int((found[0].weights[0, 0] > 0).sum()) == 144


@pytest.mark.parametrize("family", ["deberta-v2", "longformer"])
def test_f36_families_without_full_matrices_are_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match="cannot be captured"):
        capture(tiny(family), IDS)


def window(ids: list[int]) -> Window:
    special = np.zeros(len(ids), dtype=bool)
    special[[0, -1]] = True
    return Window(np.array(ids), special, 0, 0, 0, len(ids) - 2)


def test_windows_are_batched_with_neighbours_of_their_length() -> None:
    windows = [window([0, 5, 6, 2]), window([0, 7, 8, 2]), window([0, 9, 2]), window([0, 5, 6, 2])]
    found = list(capture(tiny("roberta"), windows, layers=[1], batch_size=8))
    assert [a.samples for a in found] == [(0, 1), (2,), (3,)]
    first, last = found[0].weights, found[2].weights
    torch.testing.assert_close(first[:1], last, atol=ATOL32, rtol=0)


@pytest.mark.parametrize("family", ["roberta", "gpt2", "mpnet"])
def test_f13_special_tokens_kept_dropped_renormalised(family: str) -> None:
    windows = [window([0, 5, 6, 7, 2])]
    keep, drop, renormalise = (
        next(capture(tiny(family), windows, special=special))
        for special in ("keep", "drop", "renormalise")
    )
    inner = keep.weights[:, :, 1:-1, 1:-1]
    assert drop.shape == (3, 3)
    torch.testing.assert_close(drop.weights, inner)
    assert float(drop.weights.sum(-1).max()) < 1
    torch.testing.assert_close(renormalise.weights, inner / inner.sum(-1, keepdim=True))
    assert keep.value is not None
    torch.testing.assert_close(drop.output, inner @ keep.value[:, :, 1:-1])
    torch.testing.assert_close(drop.matrix(0, 2), drop.weights[0, 2])


def test_f13_mass_on_a_dropped_sink_leaves_zeros() -> None:
    query = torch.ones(1, 1, 8, 1)
    key = torch.zeros(1, 1, 8, 1)
    key[0, 0, 0] = 1e4
    keep = torch.arange(8) > 0
    attention = Attention(
        query=query, key=key, value=key, scale=1.0, bias=None, layer=0,
        tokens=torch.zeros(1, 8), keep_rows=keep, keep_columns=keep, special="drop",
    )  # fmt: skip
    assert attention.shape == (7, 7)
    assert float(attention.weights.abs().max()) == 0


def test_f04_half_precision_is_raised_before_the_softmax() -> None:
    model = tiny("roberta").half()
    for attention in capture(model, IDS[:1]):
        assert attention.query.dtype == torch.float16
        assert attention.weights.dtype == torch.float32
        assert float((attention.weights.sum(-1) - 1).abs().max()) < 1e-6


def test_output_is_the_weighted_value() -> None:
    attention = next(capture(tiny("roberta"), IDS, batch_size=2))
    assert attention.value is not None
    torch.testing.assert_close(attention.output, attention.weights @ attention.value)


def test_values_can_be_left_out() -> None:
    attention = next(capture(tiny("roberta"), IDS, values=False))
    assert attention.value is None
    assert attention.weights.shape == (1, 4, 6, 6)
    with pytest.raises(UsageError, match="without values"):
        _ = attention.output


def test_check_matrix_sees_what_it_looks_for() -> None:
    attention = next(capture(tiny("gpt2"), IDS[:1]))
    good = attention.matrix(0, 1)
    check_matrix(good, attention, 1)
    with pytest.raises(CaptureError, match=r"layer 0, head 1 sums to 1\.1"):
        check_matrix(good * 1.1, attention, 1)
    with pytest.raises(CaptureError, match="looks ahead"):
        check_matrix(torch.full_like(good, 1 / 6), attention, 1)
    check_matrix(torch.full_like(good, torch.nan), attention, 1)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"windows": []}, "no windows"),
        ({"windows": [[5, 60]]}, "do not fit a vocabulary of 50"),
        ({"windows": [[5, -1]]}, "do not fit"),
        ({"windows": [[5, 6], [7]]}, "rectangle"),
        ({"windows": [[5, 6]], "attention_mask": [[1]]}, "does not fit ids"),
        ({"windows": [[5, 6]], "attention_mask": [[0, 0]]}, "padding only"),
        ({"windows": [[5, 6]], "layers": [3]}, r"layers \[3\] do not exist"),
        ({"windows": [[5, 6]], "layers": []}, "no layer"),
        ({"windows": [[5, 6]], "group": "cross"}, "no cross attention"),
        ({"windows": [[5, 6]], "special": "hide"}, "unknown treatment"),
        ({"windows": [[5, 6]], "batch_size": 0}, "batch size 0"),
    ],
)
def test_wrong_arguments_are_named_before_the_forward_pass(
    options: dict[str, Any], cause: str
) -> None:
    with pytest.raises(UsageError, match=cause):
        capture(tiny("roberta"), **options)


def test_real_model_equals_eager(minilm: Any) -> None:
    text = "Attention matrices of trained encoders are not what chance alone would give. " * 8
    ids = torch.tensor([[*minilm.tokenizer.prefix, *minilm.tokenizer.encode(text)[:100]]])
    found = captured(capture(minilm, ids))
    model = minilm.model
    kernel = model.config._attn_implementation
    expected = eager(model, ids)
    model.set_attn_implementation(kernel)
    for place, weights in expected.items():
        torch.testing.assert_close(found[place], weights, atol=1e-5, rtol=0)
