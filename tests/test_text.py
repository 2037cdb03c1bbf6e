"""Windows: which tokens they hold, what is refused, how the work grows."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from words import Words, content_of, numbered

from rankscope.exceptions import RankscopeError, TextError, UsageError
from rankscope.text import Corpus, TextOptions, load_corpus, windows


class Untouchable(Words):
    def encode(self, text: str) -> list[int]:
        raise AssertionError("tokenised before the arguments were checked")


def test_f18_overlap_is_shared_tokens_and_not_the_step() -> None:
    corpus = Corpus.from_strings([numbered(14)])
    tokenizer = Words()
    found = windows(corpus, tokenizer, length=8, mode="overlap", overlap=2)
    words = [tokenizer.pieces(content_of(window)) for window in found]
    assert [list(map(int, line)) for line in words] == [
        [0, 1, 2, 3, 4, 5],
        [4, 5, 6, 7, 8, 9],
        [8, 9, 10, 11, 12, 13],
    ]
    assert [(w.text_id, w.number, w.start, w.end) for w in found] == [
        (0, 0, 0, 6),
        (0, 1, 4, 10),
        (0, 2, 8, 14),
    ]
    for window in found:
        assert window.ids[[0, -1]].tolist() == [0, 2]
        assert window.special.tolist() == [True] + [False] * 6 + [True]
        assert (window.ids.dtype, window.special.dtype) == (np.int64, np.bool_)
    with pytest.raises(UsageError, match=r"overlap=6 is not in 0 \.\.\. 5"):
        windows(corpus, Untouchable(), length=8, mode="overlap", overlap=6)


def test_f13_texts_without_tokens_keep_their_id(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n\n   \nb\n")
    corpus = load_corpus(path, TextOptions(unit="line"))
    for mode in ("document", "overlap"):
        found = windows(corpus, Words(), length=8, mode=mode)
        assert [window.text_id for window in found] == [0, 1, 2, 3]
        assert [window.n_tokens for window in found] == [3, 2, 2, 3]
        assert [bool(window.special.all()) for window in found] == [False, True, True, False]
        assert [(window.start, window.end) for window in found][1] == (0, 0)


def test_f03_no_window_is_longer_than_asked() -> None:
    corpus = Corpus.from_strings([numbered(1000), "a b", numbered(7)])
    for mode, overlap in (("packed", 0), ("document", 0), ("overlap", 3)):
        found = windows(corpus, Words(), length=16, mode=mode, overlap=overlap)
        assert max(window.n_tokens for window in found) == 16


def test_packed_text_id_is_that_of_the_first_token() -> None:
    corpus = Corpus.from_strings(["a b c", "", "d", "e f g h i j", "k"])
    found = windows(corpus, Words(), length=5)
    assert [content_of(window) for window in found] == [[10, 11, 12], [13, 14, 15], [16, 17, 18]]
    assert [(w.text_id, w.number, w.start, w.end) for w in found] == [
        (0, 0, 0, 3),
        (2, 1, 3, 6),
        (3, 2, 6, 9),
    ]


def test_document_cuts_each_text() -> None:
    corpus = Corpus.from_strings([numbered(9), "a b"])
    found = windows(corpus, Words(), length=6, mode="document")
    assert [(w.n_tokens, w.text_id, w.number, w.start, w.end) for w in found] == [
        (6, 0, 0, 0, 4),
        (4, 1, 0, 0, 2),
    ]


def test_overlap_of_nothing_lays_windows_side_by_side() -> None:
    corpus = Corpus.from_strings([numbered(6), numbered(7)])
    found = windows(corpus, Words(), length=5, mode="overlap")
    assert [(w.text_id, w.number, w.start, w.end) for w in found] == [
        (0, 0, 0, 3),
        (0, 1, 3, 6),
        (1, 0, 0, 3),
        (1, 1, 3, 6),
        (1, 2, 6, 7),
    ]


def test_tokenizer_without_special_tokens() -> None:
    corpus = Corpus.from_strings(["a b", ""])
    plain = Words(prefix=(), suffix=())
    assert [w.n_tokens for w in windows(corpus, plain, length=1)] == [1, 1]
    assert [w.n_tokens for w in windows(corpus, plain, length=4, mode="document")] == [2, 0]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"length": 2}, "length=2 leaves no room beside the 2 special tokens of words"),
        ({"length": 0}, "length=0"),
        ({"length": -5}, "length=-5"),
        ({"length": 8.0}, "length=8.0 is not a whole number"),
        ({"length": True}, "length=True is not a whole number"),
        ({"length": "8"}, "length='8' is not a whole number"),
        ({"length": 8, "mode": "sliding"}, "mode='sliding'"),
        ({"length": 8, "overlap": 2}, "overlap=2 has no meaning in mode 'packed'"),
        ({"length": 8, "mode": "document", "overlap": -1}, "overlap=-1 has no meaning"),
        ({"length": 8, "mode": "overlap", "overlap": -1}, "overlap=-1 is not in 0 ... 5"),
        ({"length": 8, "mode": "overlap", "overlap": 10**30}, "is not in 0 ... 5"),
        ({"length": 8, "mode": "overlap", "overlap": 1.5}, "overlap=1.5"),
        ({"length": 8, "count": 0}, "count=0"),
        ({"length": 8, "count": -1}, "count=-1"),
        ({"length": 8, "count": 1.0}, "count=1.0 is not a whole number"),
    ],
)
def test_f18_arguments_are_checked_before_tokenising(
    arguments: dict[str, object], part: str
) -> None:
    with pytest.raises(UsageError) as caught:
        windows(Corpus.from_strings([numbered(30)]), Untouchable(), **arguments)
    assert part in str(caught.value)


def test_whole_numbers_of_numpy_are_taken() -> None:
    corpus = Corpus.from_strings([numbered(30)])
    assert len(windows(corpus, Words(), length=np.int64(8), count=np.int32(2))) == 2


@pytest.mark.parametrize(
    ("mode", "length", "count", "parts"),
    [
        ("packed", 8, 6, ["has 5 packed windows of 8 tokens, 6 were asked for", "at most 5"]),
        ("packed", 64, None, ["has 0 packed windows", "fewer than 62 tokens"]),
        ("packed", 64, 2, ["has 0 packed windows", "fewer than 124 tokens"]),
        ("document", 8, 3, ["has 2 document windows", "3 were asked for", "2 texts", "at most 2"]),
        ("packed", 8, 10**30, ["has 5 packed windows"]),
        ("packed", 10**30, None, ["has 0 packed windows"]),
        ("overlap", 8, 7, ["has 6 overlap windows", "7 were asked for"]),
    ],
)
def test_too_little_text_says_how_much_there_is(
    mode: str, length: int, count: int | None, parts: list[str]
) -> None:
    corpus = Corpus.from_strings([numbered(13), numbered(17)])
    with pytest.raises(TextError) as caught:
        windows(corpus, Words(), length=length, count=count, mode=mode)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("strings", [[], ["", " "]])
def test_corpus_without_tokens_has_no_packed_window(strings: list[str]) -> None:
    with pytest.raises(RankscopeError, match="has 0 packed windows"):
        windows(Corpus.from_strings(strings), Words(), length=3)


@pytest.mark.parametrize(("mode", "needed"), [("packed", 3), ("document", 2), ("overlap", 2)])
def test_no_more_texts_are_tokenised_than_needed(mode: str, needed: int) -> None:
    corpus = Corpus.from_strings(["a b", "c d", "e f", "g h", "i j"])
    tokenizer = Words()
    found = windows(corpus, tokenizer, length=5, count=2, mode=mode)
    assert len(found) == 2
    assert tokenizer.encoded == ["a b", "c d", "e f"][:needed]


def test_many_texts_and_one_long_text_take_linear_time() -> None:
    short = Corpus.from_strings(["one two three"] * 100_000)
    long = Corpus.from_strings([numbered(90_000)])
    start = time.perf_counter()
    assert len(windows(short, Words(), length=12)) == 30_000
    assert len(windows(short, Words(), length=12, mode="document")) == 100_000
    assert len(windows(short, Words(), length=4, mode="overlap", overlap=1)) == 200_000
    assert len(windows(long, Words(), length=4)) == 45_000
    assert len(windows(long, Words(), length=5, mode="overlap", overlap=2)) == 89_998
    # moving the rest of the stream at every window would take many minutes
    assert time.perf_counter() - start < 60


def test_windows_of_real_text(shared_data: Path) -> None:
    corpus = load_corpus(shared_data / "wikitext103-test.txt", TextOptions(unit="article"))
    found = windows(corpus, Words(), length=512)
    # 241,211 words (README of the data), 510 a window
    assert len(found) == 241_211 // 510
    assert {window.n_tokens for window in found} == {512}
    ends = np.cumsum([len(text.text.split()) for text in corpus.texts])
    owners = np.searchsorted(ends, 510 * np.arange(len(found)), side="right")
    assert [window.text_id for window in found] == owners.tolist()
    reviews = load_corpus(shared_data / "imdb-test.jsonl")
    documents = windows(reviews, Words(), length=512, mode="document")
    assert [window.text_id for window in documents] == list(range(300))


token_counts = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def corpus_of(counts: list[int]) -> tuple[Corpus, list[list[str]]]:
    words = [[f"{text}.{i}" for i in range(count)] for text, count in enumerate(counts)]
    return Corpus.from_strings([" ".join(line) for line in words]), words


@given(counts=token_counts, content=st.integers(1, 9))
def test_packed_windows_put_together_are_the_stream(counts: list[int], content: int) -> None:
    corpus, words = corpus_of(counts)
    stream = [word for line in words for word in line]
    tokenizer = Words()
    if len(stream) < content:
        with pytest.raises(TextError):
            windows(corpus, tokenizer, length=content + 2)
        return
    found = windows(corpus, tokenizer, length=content + 2)
    pieces = [tokenizer.pieces(content_of(window)) for window in found]
    joined = [word for line in pieces for word in line]
    assert joined == stream[: len(stream) // content * content]
    for number, (window, line) in enumerate(zip(found, pieces, strict=True)):
        assert window.number == number
        assert stream[window.start : window.end] == line
        assert window.n_tokens == content + 2
        assert line[0].split(".")[0] == str(window.text_id)


@given(counts=token_counts, content=st.integers(1, 9), data=st.data())
def test_overlap_windows_cover_each_text(
    counts: list[int], content: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, content - 1))
    corpus, words = corpus_of(counts)
    tokenizer = Words()
    found = windows(corpus, tokenizer, length=content + 2, mode="overlap", overlap=overlap)
    assert [w.text_id for w in found] == sorted(w.text_id for w in found)
    for number, line in enumerate(words):
        mine = [window for window in found if window.text_id == number]
        assert [window.number for window in mine] == list(range(len(mine)))
        assert (mine[0].start, mine[-1].end) == (0, len(line))
        for window in mine:
            assert tokenizer.pieces(content_of(window)) == line[window.start : window.end]
            assert window.end - window.start == int((~window.special).sum())
        for before, after in pairwise(mine):
            assert before.end - after.start == overlap
            assert before.end - before.start == content
            assert after.end > before.end


@given(counts=token_counts, content=st.integers(1, 9), count=st.integers(1, 12))
def test_count_takes_the_first_windows_of_all(counts: list[int], content: int, count: int) -> None:
    corpus, _ = corpus_of(counts)
    for mode in ("document", "overlap"):
        every = windows(corpus, Words(), length=content + 2, mode=mode)
        if count > len(every):
            with pytest.raises(TextError, match=f"has {len(every)} {mode} windows"):
                windows(corpus, Words(), length=content + 2, mode=mode, count=count)
            continue
        some = windows(corpus, Words(), length=content + 2, mode=mode, count=count)
        assert [w.ids.tolist() for w in some] == [w.ids.tolist() for w in every[:count]]
