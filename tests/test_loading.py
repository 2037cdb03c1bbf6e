"""Weights into a model: all of them, in the type that was asked for, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from folders import QUERY, TINY, add_tokenizer, rewrite
from rankscope.exceptions import IncompleteWeights, ModelError
from rankscope.models import load


def test_f16_an_untouched_masked_lm_loads_into_the_base_class(
    masked_lm: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = load(str(masked_lm))
    assert type(loaded.model).__name__ == "RobertaModel"
    assert loaded.info.missing == ()
    assert "lm_head.dense.weight" in loaded.info.unexpected
    stored = load_file(masked_lm / "model.safetensors")
    state = loaded.model.state_dict()
    assert len(state) == 5 + 3 * 16
    for name, value in state.items():
        assert torch.equal(value, stored[f"roberta.{name}"])
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_f16_a_renamed_prefix_is_refused_naming_the_keys(
    masked_lm: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rewrite(masked_lm, lambda s: {k.replace("roberta.", "enc."): v for k, v in s.items()})
    with pytest.raises(IncompleteWeights) as caught:
        load(str(masked_lm))
    assert caught.value.exit_code == 15
    cause = caught.value.cause
    assert str(masked_lm / "model.safetensors") in cause
    assert "lacks 53 of the model's 53 weights" in cause
    assert "embeddings.word_embeddings.weight" in cause
    assert "enc.embeddings.word_embeddings.weight" in cause
    assert "and 47 more" in cause
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize(
    "name",
    [
        QUERY,
        "encoder.layer.2.attention.output.LayerNorm.bias",
        "embeddings.position_embeddings.weight",
        "encoder.layer.0.intermediate.dense.weight",
        "encoder.layer.0.output.LayerNorm.weight",
    ],
)
def test_f16_one_missing_weight_is_refused_naming_it(masked_lm: Path, name: str) -> None:
    rewrite(masked_lm, lambda s: {k: v for k, v in s.items() if k != f"roberta.{name}"})
    with pytest.raises(IncompleteWeights, match=f"lacks 1 of the model's 53 weights: {name}"):
        load(str(masked_lm))


def test_f16_a_weight_of_another_shape_is_refused(masked_lm: Path) -> None:
    rewrite(masked_lm, lambda s: s | {f"roberta.{QUERY}": torch.zeros(16, 32)})
    with pytest.raises(IncompleteWeights) as caught:
        load(str(masked_lm))
    assert f"1 of another shape: {QUERY} (file (16, 32), model (32, 32))" in caught.value.cause


def test_f16_missing_weights_can_be_allowed_and_are_recorded(masked_lm: Path) -> None:
    def damage(state: dict[str, Any]) -> dict[str, Any]:
        state[f"roberta.{QUERY}"] = torch.zeros(16, 32)
        del state["roberta.encoder.layer.0.output.dense.weight"]
        return state

    rewrite(masked_lm, damage)
    one, same, other = (load(str(masked_lm), allow_missing=True, seed=s) for s in (5, 5, 6))
    assert one.info.missing == ("encoder.layer.0.output.dense.weight", QUERY)
    assert (one.info.seed, other.info.seed) == (5, 6)
    query = [m.model.state_dict()[QUERY] for m in (one, same, other)]
    assert torch.equal(query[0], query[1])
    assert not torch.equal(query[0], query[2])
    assert load(str(masked_lm), allow_missing=True).info.missing


def test_f16_a_missing_pooler_is_fine_where_it_cannot_be_left_out(tmp_path: Path) -> None:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(**TINY, embedding_size=8)
    AlbertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    assert load(str(tmp_path)).info.missing == ()
    from rankscope.models import loading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_without_pooling", lambda config: {})
        assert load(str(tmp_path)).info.missing == ("pooler.bias", "pooler.weight")


def test_f04_half_precision_files_are_loaded_in_float32_and_both_are_recorded(
    masked_lm: Path,
) -> None:
    rewrite(masked_lm, lambda s: {k: v.half() for k, v in s.items()})
    config = masked_lm / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float16"}))
    loaded = load(str(masked_lm))
    assert (loaded.info.stored_dtype, loaded.info.dtype) == ("float16", "float32")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert {p.dtype for p in load(f"random:{masked_lm}").model.parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_f04_other_types_come_only_when_asked_for(masked_lm: Path, dtype: str) -> None:
    loaded = load(str(masked_lm), dtype=dtype)
    assert (loaded.info.stored_dtype, loaded.info.dtype) == ("float32", dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}
    drawn = load(f"random:{masked_lm}", dtype=dtype, seed=4).model.state_dict()
    for name, value in load(f"random:{masked_lm}", seed=4).model.state_dict().items():
        assert torch.equal(drawn[name], value.to(drawn[name].dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_rotary_frequencies_keep_their_precision(tmp_path: Path, dtype: str) -> None:
    from transformers import LlamaConfig, LlamaModel

    small = {key: value for key, value in TINY.items() if key != "type_vocab_size"}
    LlamaModel(LlamaConfig(**small)).save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    for spec in (str(tmp_path), f"random:{tmp_path}"):
        model = load(spec, dtype=dtype).model
        assert model.rotary_emb.inv_freq.dtype == torch.float32
        with torch.no_grad():
            hidden = model(torch.tensor([[0, 5, 2]])).last_hidden_state
        assert hidden.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [("num_attention_heads", 5, "not a multiple"), ("hidden_act", "foo", "foo")],
)
def test_f17_impossible_configuration_is_not_blamed_on_the_weights(
    masked_lm: Path, name: str, value: object, fault: str
) -> None:
    file = masked_lm / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(ModelError) as caught:
        load(str(masked_lm))
    assert fault in caught.value.cause
    assert "model.safetensors" not in caught.value.cause
    assert "config.json" in str(caught.value.remedy)
