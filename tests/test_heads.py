"""Models with their language-model head: really in the checkpoint, or not there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

from folders import QUERY, TINY, add_tokenizer, rewrite
from rankscope.capture import capture
from rankscope.exceptions import IncompleteWeights, UnsupportedModel
from rankscope.models import load
from rankscope.models.checkpoints import BUILTIN_FOLDER
from rankscope.models.loading import head_of
from rankscope.models.tokenizers import HashTokenizer, hash_tokenizer, wrap
from tiny import tiny_config

MASKED = ("roberta", "bert", "mpnet", "distilbert", "electra", "albert", "modernbert")
HEAD = {
    "roberta": "lm_head.dense.weight",
    "bert": "cls.predictions.transform.dense.weight",
    "mpnet": "lm_head.layer_norm.weight",
    "distilbert": "vocab_transform.bias",
    "electra": "generator_predictions.dense.weight",
    "albert": "predictions.dense.weight",
    "modernbert": "head.dense.weight",
    "llama": "lm_head.weight",
}


def saved(folder: Path, family: str, auto: Any, **changes: Any) -> Path:
    """A folder with a tiny model of a family, saved by one of transformers' classes."""
    torch.manual_seed(0)
    auto.from_config(tiny_config(family, **changes)).save_pretrained(folder)
    add_tokenizer(folder)
    return folder


def kind(family: str) -> Any:
    return tf.AutoModelForMaskedLM if family in MASKED else tf.AutoModelForCausalLM


@pytest.mark.parametrize("family", [*MASKED, "gpt2", "llama"])
def test_head_predicts_what_transformers_predicts(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family, kind(family))
    loaded = load(str(folder), head=True)
    assert loaded.head == ("masked-lm" if family in MASKED else "causal-lm")
    # weights tied to the embedding are not in the file, and not missing
    assert loaded.info.missing == ()
    assert loaded.info.unexpected == ()
    ids = torch.tensor([[3, 5, 6, 7, 4]])
    theirs = kind(family).from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, theirs(ids).logits)
    assert load(str(folder), head="required").head == loaded.head
    bare = load(str(folder))
    assert bare.head is None
    assert not hasattr(bare.model, "lm_head")


@pytest.mark.parametrize("family", [*MASKED, "llama"])
def test_f16_a_head_that_is_not_in_the_file_is_never_drawn(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family, tf.AutoModel)
    loaded = load(str(folder), head=True)
    assert loaded.head is None
    assert loaded.info.missing == ()
    state, bare = loaded.model.state_dict(), load(str(folder)).model.state_dict()
    assert state.keys() == bare.keys()
    assert all(torch.equal(state[name], bare[name]) for name in bare)
    with pytest.raises(IncompleteWeights, match="has no language-model head: it lacks") as caught:
        load(str(folder), head="required")
    assert HEAD[family] in caught.value.cause or "more" in caught.value.cause


def test_f16_one_missing_weight_of_the_head_is_no_head(masked_lm: Path) -> None:
    assert load(str(masked_lm), head=True).head == "masked-lm"
    rewrite(masked_lm, lambda s: {k: v for k, v in s.items() if k != "lm_head.dense.bias"})
    for allowed in (False, True):
        assert load(str(masked_lm), head=True, allow_missing=allowed).head is None
    with pytest.raises(IncompleteWeights, match=r"it lacks lm_head\.dense\.bias \("):
        load(str(masked_lm), head="required")


def test_f16_a_head_of_another_shape_is_no_head(masked_lm: Path) -> None:
    rewrite(masked_lm, lambda s: s | {"lm_head.dense.weight": torch.zeros(16, 32)})
    assert load(str(masked_lm), head=True).head is None


def test_f16_untied_output_weights_are_needed(tmp_path: Path) -> None:
    folder = saved(tmp_path, "roberta", tf.AutoModelForMaskedLM, tie_word_embeddings=False)
    assert load(str(folder), head=True).head == "masked-lm"
    rewrite(folder, lambda s: {k: v for k, v in s.items() if k != "lm_head.decoder.weight"})
    assert load(str(folder), head=True).head is None


def test_f16_a_damaged_body_is_refused_with_a_head_too(masked_lm: Path) -> None:
    rewrite(masked_lm, lambda s: {k: v for k, v in s.items() if k != f"roberta.{QUERY}"})
    with pytest.raises(IncompleteWeights, match=f"lacks 1 of .* roberta.{QUERY}"):
        load(str(masked_lm), head=True)
    drawn = load(str(masked_lm), head=True, allow_missing=True)
    assert (drawn.head, drawn.info.missing) == ("masked-lm", (f"roberta.{QUERY}",))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_encoder_decoders_have_none(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path, family, tf.AutoModel)
    assert head_of(tiny_config(family)) is None
    assert load(str(folder), head=True).head is None
    with pytest.raises(UnsupportedModel, match=f"no language-model head .* {family}"):
        load(str(folder), head="required")


def test_a_decoder_of_an_encoder_family_predicts_the_next_token(tmp_path: Path) -> None:
    folder = saved(tmp_path, "roberta", tf.AutoModelForCausalLM, is_decoder=True)
    loaded = load(str(folder), head=True)
    assert loaded.head == "causal-lm"
    assert {a.group for a in capture(loaded, [[0, 5, 6, 2]])} == {"decoder"}


def test_drawn_head_leaves_the_rest_as_it_is_without(masked_lm: Path) -> None:
    before = torch.get_rng_state()
    loaded, same, other = (load(f"random:{masked_lm}", seed=s, head=True) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert (loaded.head, loaded.info.seed) == ("masked-lm", 3)
    state = loaded.model.state_dict()
    for name, value in load(f"random:{masked_lm}", seed=3).model.state_dict().items():
        assert torch.equal(state[f"roberta.{name}"], value)
    dense = "lm_head.dense.weight"
    assert torch.equal(state[dense], same.model.state_dict()[dense])
    assert not torch.equal(state[dense], other.model.state_dict()[dense])
    assert state["lm_head.decoder.weight"].data_ptr() == (
        state["roberta.embeddings.word_embeddings.weight"].data_ptr()
    )


def test_capture_is_the_same_with_a_head(masked_lm: Path) -> None:
    ids = [[0, 5, 6, 7, 2]]
    with_head, bare = (list(capture(load(str(masked_lm), head=h), ids)) for h in (True, False))
    assert [a.layer for a in with_head] == [a.layer for a in bare] == [0, 1, 2]
    for one, other in zip(with_head, bare, strict=True):
        assert (one.group, one.causal) == (other.group, other.causal)
        assert torch.equal(one.weights, other.weights)


def test_builtin_has_a_head_and_minilm_has_none(minilm: Any) -> None:
    loaded = load("builtin", head="required")
    assert (loaded.head, loaded.tokenizer.mask_id) == ("masked-lm", 4)  # type: ignore[attr-defined]
    assert loaded.info.missing == ()
    stored = load_file(BUILTIN_FOLDER / "model.safetensors")["lm_head.dense.weight"]
    assert torch.equal(loaded.model.state_dict()["lm_head.dense.weight"], stored.float())
    assert load("minilm", head=True).head is None
    assert minilm.tokenizer.mask_id == 103


def test_mask_token_is_known_where_there_is_one(masked_lm: Path) -> None:
    assert load(str(masked_lm)).tokenizer.mask_id is None  # type: ignore[attr-defined]
    from transformers import PreTrainedTokenizerFast

    whole = PreTrainedTokenizerFast.from_pretrained(masked_lm, mask_token="p")
    assert wrap(whole, "tiny").mask_id == 19
    assert hash_tokenizer(tf.RobertaConfig(**TINY)).mask_id == 49
    assert hash_tokenizer(tf.GPT2Config(vocab_size=50)).mask_id is None
    assert HashTokenizer(50).mask_id is None
