"""Tokenizers: bare tokens of any text, special tokens found, nothing cut, nothing hidden."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankscope.exceptions import (
    FileDamaged,
    ModelError,
    NotAModelFolder,
    TextError,
    UsageError,
)
from rankscope.models.tokenizers import (
    HashTokenizer,
    check_fits,
    hash_tokenizer,
    load_tokenizer,
    refuse_tokenizer_files,
    wrap,
)

ROBERTA = HashTokenizer(50265, (0,), (2,), 1, (0, 1, 2, 3, 50264), 50264)
WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefghij"]


def tiny_tokenizer(*, special: bool = True, pad: bool = True, max_length: int | None = None) -> Any:
    """A tokenizer of ten one-letter words, RoBERTa's special tokens first."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>"}
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    if pad:
        names["pad_token"] = "<pad>"
    if max_length:
        backend.enable_truncation(max_length)
        backend.enable_padding(length=max_length, pad_id=1, pad_token="<pad>")
        names["model_max_length"] = max_length
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def save(tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    return folder


def test_hash_ids_are_the_same_on_every_machine_and_python() -> None:
    # The numbers come from coreutils: printf the | b2sum -l 64. 4 special ids lie below the words.
    import hashlib

    word = "naïve"
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    assert ROBERTA.encode(word) == [4 + int.from_bytes(digest, "little") % 50260]
    assert ROBERTA.encode("the cat") == [42034, 38523]
    code = (
        "from rankscope.models.tokenizers import HashTokenizer as H;"
        "print(H(50265, (0,), (2,), 1, (0, 1, 2, 3, 50264)).encode('the cat'))"
    )
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == "[42034, 38523]"


def test_hash_splits_words_numbers_and_marks() -> None:
    ids = ROBERTA.encode("Don't_stop: 3,14 über\n  Größe!")
    assert len(ids) == len(
        ["Don", "'", "t", "_", "stop", ":", "3", ",", "14", "über", "Größe", "!"]
    )
    assert ROBERTA.encode(" \n\t") == []
    assert ROBERTA.encode("a a b")[0] == ROBERTA.encode("a a b")[1] != ROBERTA.encode("a a b")[2]


def test_hash_never_gives_a_special_id_and_uses_all_the_others() -> None:
    small = HashTokenizer(12, (0,), (2,), 1, (0, 1, 2, 3, 11))
    ids = small.encode(
        " ".join(f"w{chr(97 + i)}{chr(97 + j)}" for i in range(26) for j in range(9))
    )
    assert set(ids) == {4, 5, 6, 7, 8, 9, 10}
    assert small.pieces([0, 5]) == ["<0>", "#5"]
    assert small.largest_id == 11


def test_hash_takes_a_lone_surrogate() -> None:
    assert len(ROBERTA.encode("a \ud800 b")) == 3


def test_hash_refuses_a_vocabulary_of_special_tokens_only() -> None:
    with pytest.raises(UsageError, match="vocabulary of 5 leaves no room"):
        HashTokenizer(5, reserved=(0, 1, 2, 3, 4))


def test_hash_tokenizer_of_a_configuration() -> None:
    from transformers import BertConfig, GPT2Config, RobertaConfig

    found = hash_tokenizer(RobertaConfig(vocab_size=50265))
    assert found == ROBERTA
    bert = hash_tokenizer(BertConfig(vocab_size=99, pad_token_id=0))
    assert (bert.prefix, bert.suffix, bert.pad_id, bert.reserved) == ((), (), 0, (0,))
    gpt2 = hash_tokenizer(GPT2Config(vocab_size=99, bos_token_id=98, eos_token_id=98))
    assert (gpt2.prefix, gpt2.suffix, gpt2.pad_id, gpt2.reserved) == ((), (), None, (98,))


def test_special_tokens_are_found_and_left_out(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(), tmp_path), "tiny")
    assert (tokenizer.name, tokenizer.prefix, tokenizer.suffix) == ("tiny", (0,), (2,))
    assert (tokenizer.pad_id, tokenizer.largest_id) == (1, 14)
    assert tokenizer.encode("a b j") == [5, 6, 14]
    assert tokenizer.pieces([0, 5, 14]) == ["<s>", "a", "j"]
    assert tokenizer.encode("") == []


def test_no_special_tokens_and_no_padding_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(special=False, pad=False), tmp_path), "t")
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id) == ((), (), None)
    assert tokenizer.encode("a b") == [5, 6]


def test_stored_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    folder = save(tiny_tokenizer(max_length=8), tmp_path)
    stored = json.loads((folder / "tokenizer.json").read_text())
    assert stored["truncation"]["max_length"] == 8
    assert stored["padding"] is not None
    tokenizer = load_tokenizer(folder, "tiny")
    assert tokenizer.encode("a") == [5]
    assert tokenizer.encode("a b " * 500) == [5, 6] * 500


def test_long_text_gives_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(max_length=8), tmp_path), "tiny")
    assert len(tokenizer.encode("a " * 1000)) == 1000
    captured = capfd.readouterr()
    assert captured.out + captured.err + caplog.text == ""


def test_a_special_tokens_literal_in_the_text_becomes_that_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(), tmp_path), "tiny")
    assert tokenizer.encode("a </s> b <unk>") == [5, 2, 6, 3]


def test_invalid_unicode_is_a_text_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(), tmp_path), "tiny")
    with pytest.raises(TextError, match="lone surrogate"):
        tokenizer.encode("a \ud800 b")


def test_tokenizers_without_a_rust_backend_work_too() -> None:
    class Slow:
        pad_token_id = 1

        def encode(self, text: str, add_special_tokens: bool, verbose: bool) -> list[int]:
            assert verbose is False
            ids = [10 + len(word) for word in text.split()]
            return [0, *ids, 2, 2] if add_special_tokens else ids

        def get_vocab(self) -> dict[str, int]:
            return {"a": 11, "b": 40}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [str(i) for i in ids]

    tokenizer = wrap(Slow(), "slow")
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.largest_id) == ((0,), (2, 2), 40)
    assert tokenizer.encode("ab abc") == [12, 13]


def test_a_tokenizer_that_gives_no_tokens_is_refused() -> None:
    class Empty:
        pad_token_id = None

        def encode(self, text: str, add_special_tokens: bool, verbose: bool) -> list[int]:
            return [0, 2] if add_special_tokens else []

        def get_vocab(self) -> dict[str, int]:
            return {"<s>": 0, "</s>": 2}

    with pytest.raises(ModelError, match="gives no tokens"):
        wrap(Empty(), "empty")


def test_a_tokenizer_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(), tmp_path), "tiny")
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("a b") == [5, 6]
    assert again == tokenizer


def test_ids_that_the_embedding_lacks_are_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tiny_tokenizer(), tmp_path), "tiny")
    check_fits(tokenizer, 15, "model")
    with pytest.raises(UsageError, match=r"ids up to 14, but model has only 14 token embeddings"):
        check_fits(tokenizer, 14, "model")


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    with pytest.raises(NotAModelFolder, match="holds no tokenizer"):
        load_tokenizer(tmp_path, "none")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "tokenizer.json is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4711\n", "4711 bytes"),
    ],
)
def test_empty_and_pointer_tokenizer_files_are_damaged(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(FileDamaged, match=words):
        refuse_tokenizer_files(tmp_path)


def test_an_unreadable_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = save(tiny_tokenizer(), tmp_path)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(folder, "broken")
