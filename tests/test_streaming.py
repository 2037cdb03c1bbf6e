"""Long texts in parts: the tokens of the whole, no more than is needed, in little memory."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from words import Words, content_of, numbered

from rankscope.models import LoadedModel, load
from rankscope.models.tokenizers import VocabularyTokenizer, wrap
from rankscope.text import Corpus, Tokenizer, streaming, windows
from rankscope.text.streaming import encode_in_parts, has_seams


def joined(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(chain.from_iterable(encode_in_parts(tokenizer, text)))


def small_parts(monkeypatch: pytest.MonkeyPatch, part: int, context: int) -> None:
    monkeypatch.setattr(streaming, "PART", part)
    monkeypatch.setattr(streaming, "CONTEXT", context)


@pytest.mark.parametrize("name", ["builtin", "minilm", "hash"])
@pytest.mark.parametrize("part", [3000, streaming.PART])
def test_parts_of_real_text_are_the_whole(
    name: str, part: int, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load("random:builtin" if name == "hash" else name, **_hashed(name)).tokenizer
    text = (shared_data / "wikitext103-test.txt").read_text(encoding="utf-8")
    monkeypatch.setattr(streaming, "PART", part)
    parts = list(encode_in_parts(tokenizer, text))
    assert list(chain.from_iterable(parts)) == tokenizer.encode(text)
    assert len(parts) >= len(text) // (part + 1000)
    assert has_seams(tokenizer, text)


def _hashed(name: str) -> dict[str, str]:
    return {"tokenizer": "hash"} if name == "hash" else {}


@pytest.fixture(scope="module")
def builtin() -> LoadedModel:
    return load("builtin")


NASTY = st.text(
    st.sampled_from("ab Z9\n\t .,'\"</s>maskédé́ß漢字\u200d👩\u3000\xa0-_"), max_size=300
)


@given(NASTY)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_of_any_text_are_the_whole(
    builtin: LoadedModel, minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    small_parts(monkeypatch, 20, 20)
    for tokenizer in (builtin.tokenizer, minilm.tokenizer):
        assert joined(tokenizer, text) == tokenizer.encode(text)


def spelled(*, prepend: bool, split: bool) -> VocabularyTokenizer:
    """A tokenizer of pieces as SentencePiece's: a mark for every blank, merges across words."""
    letters = "▁abcdefghijklmnopqrstuvwxyz\n."
    vocabulary = {"<unk>": 0, "<pad>": 1}
    merges = [("▁", "t"), ("t", "h"), ("h", "e"), ("th", "e"), ("▁", "the"), ("e", "▁"), ("a", "n")]
    for piece in (*letters, *("".join(pair) for pair in merges)):
        vocabulary.setdefault(piece, len(vocabulary))
    library = Library(models.BPE(vocabulary, merges, unk_token="<unk>"))
    marks = normalizers.Replace(" ", "▁")
    library.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), marks]) if prepend else marks
    )
    if split:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    fast = PreTrainedTokenizerFast(tokenizer_object=library, unk_token="<unk>", pad_token="<pad>")
    return wrap(fast, "spelled")


@pytest.mark.parametrize("prepend", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_tokenizers_that_mark_beginnings_and_merge_over_blanks(
    prepend: bool, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = spelled(prepend=prepend, split=split)
    text = "the man then ate the bean.\nthe hen  and the ant\n\n" * 30
    small_parts(monkeypatch, 200, 100)
    parts = list(encode_in_parts(tokenizer, text))
    assert list(chain.from_iterable(parts)) == tokenizer.encode(text)
    # a mark at the beginning of every text stands at no seam
    assert (len(parts) > 1) == (not prepend) == has_seams(tokenizer, text)


def test_text_without_blanks_is_tokenised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch, 100, 50)
    tokenizer = Words()
    assert [len(part) for part in encode_in_parts(tokenizer, "x" * 1000)] == [1]
    assert not has_seams(tokenizer, "x" * 1000)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(3, 9),
    st.sampled_from(["packed", "document", "overlap"]),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_windows_do_not_depend_on_parts(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], length: int, mode: str
) -> None:
    corpus = Corpus.from_strings([numbered(count) for count in [*counts, 20]])
    overlap = (length - 3) // 2 if mode == "overlap" else 0
    tokenizer = Words()
    whole = windows(corpus, tokenizer, length=length, mode=mode, overlap=overlap)
    small_parts(monkeypatch, 7, 5)
    tokenizer.encoded.clear()
    parted = windows(corpus, tokenizer, length=length, mode=mode, overlap=overlap)
    monkeypatch.undo()
    assert tokenizer.encoded != [text.text for text in corpus.texts]

    for one, other in zip(parted, whole, strict=True):
        assert content_of(one) == content_of(other)
        assert (one.text_id, one.number) == (other.text_id, other.number)
        assert (one.start, one.end) == (other.start, other.end)


@pytest.mark.parametrize("mode", ["packed", "document", "overlap"])
def test_no_more_of_a_long_text_is_tokenised_than_needed(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch, 400, 50)
    tokenizer = Words()
    windows(Corpus.from_strings([numbered(5000)]), tokenizer, length=12, count=1, mode=mode)
    assert sum(map(len, tokenizer.encoded)) < 1500


MEMORY = """
import resource, sys
from rankscope.models import load
from rankscope.text import Corpus, windows
tokenizer = load("builtin").tokenizer
text = open(sys.argv[1], encoding="utf-8").read()
corpus = Corpus.from_strings([text * (10_000_000 // len(text))])
windows(corpus, tokenizer, length=512, count=100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = windows(corpus, tokenizer, length=512)
print(len(found), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_that_of_the_windows(shared_data: Path) -> None:
    place = str(shared_data / "wikitext103-test.txt")
    run = subprocess.run([sys.executable, "-c", MEMORY, place], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    count, grown = map(int, run.stdout.split())
    assert count > 4000
    # 4.5 KiB of ids a window; given at once, the text took 165 bytes a character: 1.6 GB
    assert grown < 100 * 1024
