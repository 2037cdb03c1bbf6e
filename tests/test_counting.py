"""Windows of a corpus: counted where it is small, estimated within an interval where it is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rankscope.engine import Sampling
from rankscope.engine.counting import count_windows
from rankscope.exceptions import TextError, UsageError
from rankscope.models.tokenizers import HashTokenizer
from rankscope.text import Corpus, windows

TOKENIZER = HashTokenizer(1000, prefix=(0,), suffix=(1,), reserved=(0, 1))
MODES = [("packed", 0), ("document", 0), ("overlap", 3)]


def made_up_corpus(seed: int, texts: int, words: int) -> Corpus:
    """Words of 1 to 12 letters, whose mean length drifts; texts of very different lengths."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(texts):
        count = int(rng.integers(0, 2 * words)) if texts > 1 else words
        longest = 4 + 8 * (i + 1) // texts
        made.append(" ".join("a" * int(k) for k in rng.integers(1, longest + 1, count)))
    return Corpus.from_strings(made, "made up")


@pytest.mark.parametrize(("mode", "overlap"), MODES)
def test_small_corpus_is_counted(mode: str, overlap: int) -> None:
    corpus = made_up_corpus(0, 40, 30)
    cut = windows(corpus, TOKENIZER, length=12, mode=mode, overlap=overlap)
    sampling = Sampling(length=12, windows=None, mode=mode, overlap=overlap)
    count, pieces = count_windows(corpus, TOKENIZER, sampling)
    assert count.windows == count.low == count.high == len(cut) > 20
    assert count.exact
    assert pieces is corpus
    assert count.tokens == sum(len(TOKENIZER.encode(text.text)) for text in corpus.texts)
    assert count.sampled == count.characters == sum(len(text.text) for text in corpus.texts)
    few, _ = count_windows(corpus, TOKENIZER, replace(sampling, windows=7, skip=2))
    assert few.windows == 7
    # of 9 windows only the texts that they need are tokenised
    assert few.read == math.ceil(count.tokens * 9 / len(cut))
    rest, _ = count_windows(corpus, TOKENIZER, replace(sampling, skip=5))
    assert rest.windows == len(cut) - 5


@pytest.mark.parametrize(("mode", "overlap"), MODES)
@pytest.mark.parametrize(("texts", "words"), [(1, 40_000), (1000, 60), (12, 3000)])
def test_large_corpus_is_estimated_within_its_interval(
    mode: str, overlap: int, texts: int, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.engine.counting.SMALL", 10_000)
    monkeypatch.setattr("rankscope.engine.counting.SAMPLE", 40_000)
    sampling = Sampling(length=12, windows=None, mode=mode, overlap=overlap)
    inside = 0
    for seed in range(6):
        corpus = made_up_corpus(seed + 1, texts, words)
        truth = len(windows(corpus, TOKENIZER, length=12, mode=mode, overlap=overlap))
        count, pieces = count_windows(corpus, TOKENIZER, sampling)
        inside += count.low <= truth <= count.high
        assert count.low <= count.windows <= count.high
        assert count.sampled < count.characters
        assert count.sampled == sum(len(text.text) for text in pieces.texts)
        if mode == "document":
            assert count.windows == count.low == count.high == texts
            assert count.exact
            continue
        assert not count.exact
        # an interval as wide as the number itself would hold anything
        assert 0 < count.high - count.low < 0.15 * count.windows
        assert count.tokens_low < count.tokens < count.tokens_high
    assert inside >= 5


def test_sample_is_spread_over_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.engine.counting.SMALL", 100)
    monkeypatch.setattr("rankscope.engine.counting.SAMPLE", 64 * 50)
    parts = [f"{i:07d} " for i in range(10_000)]
    corpus = Corpus.from_strings(["".join(parts)])
    _, pieces = count_windows(corpus, TOKENIZER, Sampling(length=12, windows=None))
    numbers = [[int(word) for word in text.text.split()] for text in pieces.texts]
    assert len(numbers) == 64
    assert {len(piece) for piece in numbers} <= {6, 7}
    # no word is cut in two, and the steps are even
    assert all(np.all(np.diff(piece) == 1) for piece in numbers)
    steps = np.diff([piece[0] for piece in numbers])
    assert (np.abs(steps - 10_000 / 63) < 2).all()
    # where texts are short, a piece is several of them
    _, pieces = count_windows(
        Corpus.from_strings(parts), TOKENIZER, Sampling(length=12, windows=None)
    )
    assert len(pieces.texts) == pytest.approx(64 * 7, rel=0.15)
    assert [text.id for text in pieces.texts] == list(range(len(pieces.texts)))


def test_tokens_take_the_place_of_the_corpus_s_own() -> None:
    corpus = made_up_corpus(3, 40, 30)
    for mode, overlap in MODES:
        sampling = Sampling(length=12, windows=None, mode=mode, overlap=overlap)
        own, _ = count_windows(corpus, TOKENIZER, sampling)
        count, _ = count_windows(corpus, TOKENIZER, sampling, 10**8)
        assert count.tokens == 10**8
        assert count.given
        if mode == "packed":
            assert count.windows == count.low == count.high == 10**8 // 10
            assert count.exact
        else:
            assert count.windows == int(own.windows * 10**8 / own.tokens)
            assert not count.exact
        assert count.texts == round(40 * 10**8 / own.tokens)
        # there are more texts, but none is longer
        assert count.longest == own.longest
    one = Corpus.from_strings(["a b c d e f g h i j k l"])
    count, _ = count_windows(one, TOKENIZER, Sampling(length=5, windows=None), 1200)
    assert (count.windows, count.characters, count.longest) == (400, 2300, 2300)


def test_more_windows_than_there_are_are_refused() -> None:
    corpus = made_up_corpus(0, 10, 10)
    with pytest.raises(TextError, match="1,000,000 needed"):
        count_windows(corpus, TOKENIZER, Sampling(length=12, windows=10**6))
    with pytest.raises(TextError, match="skipped"):
        count_windows(corpus, TOKENIZER, Sampling(length=12, windows=None, skip=10**6))
    with pytest.raises(UsageError, match="0 tokens"):
        count_windows(corpus, TOKENIZER, Sampling(length=12), 0)
    with pytest.raises(UsageError, match="length 2"):
        count_windows(corpus, TOKENIZER, Sampling(length=2))
    assert count_windows(corpus, TOKENIZER, Sampling(length=12, windows=10**6), 10**8)
