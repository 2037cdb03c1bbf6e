"""Models: exactly what was asked for is loaded, or the run stops and says why."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from folders import QUERY, TINY, add_tokenizer
from rankscope import models
from rankscope.exceptions import FileDamaged, ModelError, UsageError
from rankscope.models import DEFAULT_MODEL, check, check_length, checkpoints, known_models, load


def test_random_weights_follow_the_seed_alone(masked_lm: Path) -> None:
    (masked_lm / "model.safetensors").unlink()
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    one, same, other = (load(f"random:{masked_lm}", seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    a, b, c = (m.model.state_dict() for m in (one, same, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a[QUERY], c[QUERY])
    assert a[QUERY].std().item() == pytest.approx(0.02, rel=0.1)
    assert (one.info.seed, one.info.source, one.info.stored_dtype) == (0, "random", None)
    assert one.info.weights_sha256 is None
    assert not one.model.training


def test_the_random_state_is_untouched_by_loading(masked_lm: Path) -> None:
    before = torch.random.get_rng_state()
    load(str(masked_lm))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_random_roberta_base_needs_no_file() -> None:
    loaded = load("random:roberta-base", seed=1)
    assert sum(p.numel() for p in loaded.model.parameters()) == 124_645_632 - 768 * 769
    info = loaded.info
    assert (info.n_layers, info.n_heads, info.max_tokens, info.seed) == (12, 12, 512, 1)
    assert (info.tokenizer, info.family, info.revision) == ("hash:50265", "roberta", None)
    assert (loaded.tokenizer.prefix, loaded.tokenizer.suffix) == ((0,), (2,))
    assert loaded.model.embeddings.position_embeddings.weight.shape == (514, 768)
    assert len(loaded.tokenizer.encode("one two three " * 170)) == 510


def test_minilm_is_the_pretrained_model() -> None:
    loaded = load("minilm")
    info = loaded.info
    assert (info.n_layers, info.n_heads, info.max_tokens, info.family) == (6, 12, 512, "bert")
    assert info.weights_sha256 == checkpoints.MINILM_SHA256
    assert (info.source, info.stored_dtype, info.dtype) == ("extra", "float32", "float32")
    assert (info.missing, info.seed) == ((), None)
    assert (loaded.tokenizer.prefix, loaded.tokenizer.suffix) == ((101,), (102,))
    assert loaded.tokenizer.pad_id == 0
    assert loaded.tokenizer.pieces(loaded.tokenizer.encode("Attention is low rank")) == [
        "attention",
        "is",
        "low",
        "rank",
    ]
    # its tokenizer.json asks for 128 tokens, padded
    assert len(loaded.tokenizer.encode("rank " * 1000)) == 1000
    assert len(loaded.tokenizer.encode("rank")) == 1
    assert DEFAULT_MODEL == "builtin"
    with torch.no_grad():
        hidden = loaded.model(torch.tensor([[101, 4176, 102]])).last_hidden_state
    assert hidden.shape == (1, 3, 384)


def test_random_minilm_has_its_shape_and_other_weights() -> None:
    drawn, trained = load("random:minilm"), load("minilm")
    assert drawn.info.n_heads == trained.info.n_heads
    assert drawn.tokenizer.encode("low rank") == trained.tokenizer.encode("low rank")
    assert drawn.model.state_dict().keys() == trained.model.state_dict().keys()
    assert not torch.equal(drawn.model.state_dict()[QUERY], trained.model.state_dict()[QUERY])


def test_minilm_with_another_checksum_is_damaged(
    masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "minilm_folder", lambda: masked_lm)
    with pytest.raises(FileDamaged, match=f"{checkpoints.MINILM_SHA256} expected"):
        load("minilm")


def families() -> dict[str, tuple[Any, tuple[int, int, int | None, int | None]]]:
    import transformers as t

    two = {
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 37,
        "decoder_layers": 3,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 37,
        "d_model": 32,
    }
    small = {k: v for k, v in TINY.items() if k != "type_vocab_size"}
    plain = {k: small[k] for k in small if k not in ("hidden_size", "num_hidden_layers")}
    return {
        "bart": (t.BartConfig(**plain | two), (2, 4, 3, 2)),
        "t5": (
            t.T5Config(
                vocab_size=50,
                d_model=32,
                d_kv=8,
                d_ff=37,
                num_layers=2,
                num_heads=4,
                pad_token_id=1,
            ),
            (2, 4, 2, 4),
        ),
        "gpt2": (t.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4), (2, 4, None, None)),
        "llama": (t.LlamaConfig(**small, num_key_value_heads=2), (3, 4, None, None)),
        "distilbert": (
            t.DistilBertConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=37),
            (2, 4, None, None),
        ),
        "mpnet": (t.MPNetConfig(**small), (3, 4, None, None)),
        "electra": (t.ElectraConfig(**TINY, embedding_size=8), (3, 4, None, None)),
        "modernbert": (t.ModernBertConfig(**small), (3, 4, None, None)),
        "xlm-roberta": (t.XLMRobertaConfig(**TINY), (3, 4, None, None)),
    }


@pytest.mark.parametrize(
    "family",
    [
        "bart",
        "t5",
        "gpt2",
        "llama",
        "distilbert",
        "mpnet",
        "electra",
        "modernbert",
        "xlm-roberta",
    ],
)
def test_families_load_with_every_weight(tmp_path: Path, family: str) -> None:
    from transformers import AutoModel

    config, expected = families()[family]
    original = AutoModel.from_config(config)
    original.save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    loaded = load(str(tmp_path))
    info = loaded.info
    assert info.family == family
    assert (info.n_layers, info.n_heads, info.n_decoder_layers, info.n_decoder_heads) == expected
    assert info.missing == ()
    state = original.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in loaded.model.state_dict().items())
    assert load(f"random:{tmp_path}").info.n_layers == expected[0]


def test_shards_and_torch_files_load(masked_lm: Path) -> None:
    whole = load(str(masked_lm))
    state = load_file(masked_lm / "model.safetensors")
    (masked_lm / "model.safetensors").unlink()
    torch.save(state, masked_lm / "pytorch_model.bin")
    binary = load(str(masked_lm))
    assert binary.info.stored_dtype == "float32"
    names = sorted(state)
    weight_map = {}
    for i, part in enumerate((names[:30], names[30:])):
        save_file({k: state[k] for k in part}, masked_lm / f"s{i}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(part, f"s{i}.safetensors")
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (masked_lm / "model.safetensors.index.json").write_text(json.dumps(index))
    shards = load(str(masked_lm))
    for other in (binary, shards):
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[name])
    sums = {loaded.info.weights_sha256 for loaded in (whole, binary, shards)}
    assert len(sums) == 3


def test_check_tells_the_same_as_load_without_reading_weights(
    masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(str(masked_lm))
    for name in ("read", "draw", "sha256"):
        monkeypatch.setattr(models, name, lambda *_, **__: pytest.fail("weights were read"))
    info = check(str(masked_lm))
    assert info == dataclasses.replace(loaded.info, weights_sha256=None, missing=(), unexpected=())
    assert (info.max_tokens, info.stored_dtype) == (16, "float32")
    assert check("random:roberta-large").n_layers == 24


def test_f03_one_token_too_many_is_refused_naming_the_limit(masked_lm: Path) -> None:
    info = check(str(masked_lm))
    check_length(info, 16)
    with pytest.raises(UsageError, match=r"tiny takes at most 16 tokens.*17 were asked for"):
        check_length(info, 17)
    config = load(str(masked_lm)).model.config
    config.pad_token_id = 3
    check_length(config, 14)
    with pytest.raises(UsageError, match="roberta takes at most 14 tokens"):
        check_length(config, 15)
    check_length(dataclasses.replace(info, max_tokens=None), 10**6)
    with pytest.raises(UsageError, match="0 tokens is no window"):
        check_length(info, 0)


def test_loading_makes_no_network_call_even_with_the_network_on(
    masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    def refuse(*args: object, **_: object) -> None:
        raise AssertionError(f"a network call: {args}")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for spec in (str(masked_lm), f"random:{masked_lm}", "minilm", "random:roberta-base"):
        assert load(spec).info.spec == spec


def test_a_file_that_may_not_be_read_is_named(
    masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = masked_lm / "model.safetensors"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(checkpoints, "verify", refuse)
    with pytest.raises(ModelError, match=f"{file} cannot be read: Permission denied"):
        check(str(masked_lm))


def test_info_survives_json(masked_lm: Path) -> None:
    info = load(str(masked_lm)).info
    again = json.loads(json.dumps(info.as_dict()))
    assert again == info.as_dict()
    assert again["name"] == "tiny"
    assert again["missing"] == []
    assert again["n_decoder_layers"] is None


def test_another_tokenizer_can_be_named(masked_lm: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    add_tokenizer(other, size=30)
    loaded = load(str(masked_lm), tokenizer=str(other))
    assert loaded.info.tokenizer == loaded.tokenizer.name == "other"
    assert loaded.tokenizer.encode("z") == [29]
    hashed = load(str(masked_lm), tokenizer="hash")
    assert (hashed.info.tokenizer, hashed.tokenizer.prefix) == ("hash:50", (0,))
    assert load("random:roberta-base", tokenizer="minilm").info.tokenizer == "minilm"


def test_a_tokenizer_with_too_many_ids_is_refused(masked_lm: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"minilm has ids up to 30521, but tiny has only 50"):
        load(str(masked_lm), tokenizer="minilm")
    add_tokenizer(masked_lm, size=51)
    with pytest.raises(UsageError, match="ids up to 50, but tiny has only 50"):
        check(str(masked_lm))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"dtype": "torch.float32"}, "use one of float32"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "meta"}, "'meta' is not supported"),
        ({"seed": -1}, "seed -1 is out of range"),
        ({"seed": 2**63}, "out of range"),
    ],
)
def test_options_out_of_their_range(options: dict[str, Any], words: str) -> None:
    for call in (load, check):
        with pytest.raises(UsageError, match=words):
            call("random:roberta-base", **options)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="finds no CUDA device"):
        check("minilm", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="'cuda:1' is not there: torch finds 1"):
        check("minilm", device="cuda:1")


def test_what_transformers_cannot_read_is_one_clear_error(masked_lm: Path) -> None:
    (masked_lm / "model.safetensors").unlink()
    torch.save({"a": {1: object}}, masked_lm / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        load(str(masked_lm))


def test_known_models_are_listed_without_torch() -> None:
    code = (
        "import sys, rankscope.models as m\n"
        "rows = m.known_models()\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "print(*(row.name for row in rows))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    rows = {row.name: row for row in known_models()}
    assert out.split() == list(rows)
    assert rows["minilm"].available
    assert (rows["minilm"].layers, rows["minilm"].heads) == (6, 12)
    assert rows["random:roberta-large"].available
    assert rows["FacebookAI/roberta-large"].layers == 24


def test_known_models_see_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(checkpoints, "MINILM_PACKAGE", "no_such_package_here")
    rows = {row.name: row for row in known_models()}
    assert not rows["minilm"].available
    assert "rankscope[pretrained]" in rows["minilm"].how
    assert not rows["FacebookAI/roberta-base"].available
    assert rows["random:roberta-base"].available
