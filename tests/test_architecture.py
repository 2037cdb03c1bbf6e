"""What a configuration promises, held against models that are really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import folders
from rankscope.exceptions import (
    FileDamaged,
    ModelError,
    NotAModelFolder,
    UnsupportedModel,
)
from rankscope.models.architecture import (
    POSITIONS_AFTER_PAD,
    SHAPES,
    build_config,
    quiet,
    read_config,
    shape,
    usable_length,
)

# what all families know; RoBERTa's single token type is its own
TINY = {name: value for name, value in folders.TINY.items() if name != "type_vocab_size"}


def config_of(family: str, **changes: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[family](**{**TINY, **changes})


def runs(config: Any, length: int) -> bool:
    """Whether a random model of this configuration takes a window of that length."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_config(config).eval()
    ids = torch.full((1, length), 7)
    more = {"decoder_input_ids": ids[:, :2]} if config.is_encoder_decoder else {}
    try:
        with torch.no_grad():
            model(ids, **more)
    except (IndexError, RuntimeError):
        return False
    return True


# Families without a bare text model of their own, or whose forward wants boxes or a language.
NOT_RUN = {"bridgetower_text_model", "clap_text_model", "layoutlmv3", "lilt", "xmod"}


@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize("family", sorted(POSITIONS_AFTER_PAD - NOT_RUN))
def test_f03_positions_after_the_pad_id(family: str, pad: int) -> None:
    small = {"luke": {"entity_vocab_size": 5, "entity_emb_size": 8}}
    config = config_of(family, pad_token_id=pad, **small.get(family, {}))
    limit = usable_length(config)
    assert limit == {1: 16, 3: 14}[pad]
    assert runs(config, limit)
    assert not runs(config, limit + 1)


@pytest.mark.parametrize("family", sorted(NOT_RUN))
def test_f03_families_that_cannot_be_run_bare_follow_the_same_rule(family: str) -> None:
    assert usable_length(config_of(family, pad_token_id=3)) == 14


@pytest.mark.parametrize("pad", [1, 3])
def test_f03_mpnet_numbers_positions_from_a_constant(pad: int) -> None:
    config = config_of("mpnet", pad_token_id=pad)
    assert usable_length(config) == 16
    assert runs(config, 16)
    assert not runs(config, 17)


@pytest.mark.parametrize(
    "family",
    ["bert", "distilbert", "electra", "albert", "gpt2", "bart", "opt", "deberta-v2", "mbart"],
)
def test_f03_other_families_use_all_their_positions(family: str) -> None:
    config = config_of(family)
    assert usable_length(config) == 18
    assert runs(config, 18)
    assert not runs(config, 19)


@pytest.mark.parametrize("family", ["llama", "modernbert", "eurobert"])
def test_f03_rotary_positions_have_the_length_that_the_model_was_made_for(family: str) -> None:
    assert usable_length(config_of(family)) == 18


def test_f03_relative_positions_have_no_limit() -> None:
    from transformers import BloomConfig, FunnelConfig, T5Config, XLNetConfig

    assert usable_length(T5Config(n_positions=512)) is None
    assert usable_length(BloomConfig()) is None
    assert usable_length(XLNetConfig()) is None
    assert usable_length(FunnelConfig()) is None


def test_usable_length_of_published_shapes() -> None:
    for name in SHAPES:
        assert usable_length(build_config(SHAPES[name], name)) == 512
    from transformers import LEDConfig, LongformerConfig

    assert usable_length(LEDConfig()) == 16384
    assert usable_length(LongformerConfig(max_position_embeddings=4098, pad_token_id=1)) == 4096


def test_published_roberta_shapes_have_the_published_number_of_parameters() -> None:
    # 124,645,632 and 355,359,744: RoBERTa's published weights, pooler included.
    import torch
    from transformers import AutoModel

    for name, expected in (("roberta-base", 124_645_632), ("roberta-large", 355_359_744)):
        with torch.device("meta"):
            model = AutoModel.from_config(build_config(SHAPES[name], name))
        assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_shape_of_one_and_of_two_stacks() -> None:
    from transformers import BartConfig, GPT2Config, LlamaConfig, T5Config, T5GemmaConfig

    bart = shape(
        BartConfig(
            encoder_layers=2, encoder_attention_heads=4, decoder_layers=3, decoder_attention_heads=2
        )
    )
    assert (bart.n_layers, bart.n_heads) == (2, 4)
    assert (bart.n_decoder_layers, bart.n_decoder_heads) == (3, 2)
    t5 = shape(T5Config(num_layers=2, num_decoder_layers=5, num_heads=4))
    assert (t5.n_layers, t5.n_heads, t5.n_decoder_layers, t5.n_decoder_heads) == (2, 4, 5, 4)
    gemma = shape(T5GemmaConfig())
    assert (gemma.n_layers, gemma.n_decoder_layers) == (26, 26)
    llama = shape(LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
    assert (llama.n_layers, llama.n_heads, llama.n_decoder_layers) == (2, 4, None)
    gpt2 = shape(GPT2Config(n_layer=2, n_head=4, n_positions=18))
    assert (gpt2.family, gpt2.n_layers, gpt2.n_heads, gpt2.max_tokens) == ("gpt2", 2, 4, 18)


def test_models_without_text_or_attention_are_unsupported() -> None:
    from transformers import FNetConfig, MambaConfig, ViTConfig

    for config in (MambaConfig(), FNetConfig()):
        with pytest.raises(UnsupportedModel, match="num_attention_heads"):
            shape(config)
    with pytest.raises(UnsupportedModel, match="vocab_size"):
        shape(ViTConfig())


def write(folder: Path, text: str) -> Path:
    (folder / "config.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"config.json \(0 bytes\) is no valid JSON"),
        ('{"model_type": "bert"', "no valid JSON"),
        ("[1, 2]", "names no model_type"),
        ('{"word_embedding_dimension": 384}', "names no model_type"),
    ],
)
def test_broken_configurations_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(NotAModelFolder, match=words):
        read_config(write(tmp_path, text))


def test_a_pointer_in_place_of_the_configuration_is_damage(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 612\n"
    with pytest.raises(FileDamaged, match="612 bytes"):
        read_config(write(tmp_path, pointer))


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    text = json.dumps({"model_type": "bert", "quantization_config": {"bits": 4}})
    with pytest.raises(UnsupportedModel, match="quantised"):
        read_config(write(tmp_path, text))


def test_unknown_families_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="does not know the family 'nosuch'") as caught:
        build_config({"model_type": "nosuch"}, "somewhere")
    assert "own code" not in str(caught.value)
    with pytest.raises(UnsupportedModel, match="own code, which is not run"):
        build_config({"model_type": "nosuch", "auto_map": {"AutoModel": "m.M"}}, "somewhere")
    tiny = {**TINY, "model_type": "bert"}
    pair = {"model_type": "encoder-decoder", "encoder": tiny, "decoder": tiny}
    with pytest.raises(UnsupportedModel, match="no base model for the family 'encoder-decoder'"):
        build_config(pair, "somewhere")


def test_own_code_beside_a_known_family_is_not_run() -> None:
    raw = {**TINY, "model_type": "roberta", "auto_map": {"AutoModel": "evil.Model"}}
    config = build_config(raw, "somewhere")
    assert type(config).__name__ == "RobertaConfig"
    assert not hasattr(config, "auto_map")


def test_values_that_transformers_refuses_are_named() -> None:
    with pytest.raises(ModelError, match=r"refuses the configuration.*num_hidden_layers"):
        build_config({"model_type": "roberta", "num_hidden_layers": "many"}, "somewhere")


@pytest.mark.parametrize("bars", [True, False])
def test_quiet_puts_everything_back_even_after_an_error(bars: bool) -> None:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    (enable_progress_bars if bars else disable_progress_bars)()
    try:
        with quiet():
            assert logging.get_verbosity() == logging.ERROR
            assert not logging.is_progress_bar_enabled()
        with pytest.raises(KeyError), quiet():
            raise KeyError
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled() is not bars
    finally:
        logging.set_verbosity(verbosity)
        enable_progress_bars()
