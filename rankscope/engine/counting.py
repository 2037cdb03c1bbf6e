"""How many windows a corpus has, without tokenising all of it: a sample, and an interval."""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rankscope.exceptions import TextError, UsageError
from rankscope.text import Corpus, Text

if TYPE_CHECKING:
    from rankscope.engine.recipe import Sampling
    from rankscope.text import Tokenizer

SMALL = 2**21
"""Characters up to which a corpus is tokenised whole."""

SAMPLE = 2**20
"""Characters of a larger one that are tokenised, about."""

PIECES = 64
"""Pieces that they are made of."""

_BLANK = re.compile(r"\s")
# characters within which a blank is looked for
_NEAR = 200


@dataclass(frozen=True)
class Count:
    """Windows of a run, and the tokens they are cut from.

    Attributes
    ----------
    windows, low, high : int
        Windows that the run takes: estimate, and its 95 % interval.
    tokens, tokens_low, tokens_high : int
        Tokens of the corpus, special tokens not counted.
    read : int
        Those of them that the run tokenises: as far as its windows need.
    exact : bool
        Whether `windows` was counted; its interval then is a single number.
    given : bool
        Whether the number of tokens was given, instead of the corpus's own.
    characters, longest, texts : int
        Characters of the corpus and of its longest text, and its texts; with a given number of
        tokens those of a corpus so large.
    sampled : int
        Characters that were tokenised to know.
    rate : float
        Tokens a second that the tokenizer gave.
    """

    windows: int
    low: int
    high: int
    tokens: int
    tokens_low: int
    tokens_high: int
    read: int
    exact: bool
    given: bool
    characters: int
    longest: int
    texts: int
    sampled: int
    rate: float


def count_windows(
    corpus: Corpus, tokenizer: Tokenizer, sampling: Sampling, tokens: int | None = None
) -> tuple[Count, Corpus]:
    """Count the windows of a run; of a large corpus from a sample, by its tokens a character.

    With m pieces of c_i characters and t_i tokens the ratio is r = Σt/Σc, its standard error
    √(Σ(t_i − r·c_i)² / (m(m − 1))) / c̄, and the corpus has r·C tokens.

    Parameters
    ----------
    corpus : Corpus
    tokenizer : Tokenizer
    sampling : Sampling
        Length, mode, overlap, and how many windows at most.
    tokens : int, optional
        Tokens of a corpus of this kind, in place of the given one's own number.

    Returns
    -------
    Count, Corpus
        The numbers, and what was tokenised: the corpus itself, or pieces spread over it.

    Raises
    ------
    UsageError, TextError
        For a length without room, and where the corpus has fewer windows than are asked for.

    References
    ----------
    W. G. Cochran, Sampling Techniques, 3rd ed., 1977, section 6.3 (the ratio estimate).
    """
    if tokens is not None and tokens < 1:
        raise UsageError(f"a corpus of {tokens} tokens has no window", "give 1 token or more")
    content = sampling.length - len(tokenizer.prefix) - len(tokenizer.suffix)
    if content < 1 or sampling.overlap >= content:
        raise UsageError(
            f"length {sampling.length} and overlap {sampling.overlap} leave no windows",
            "take a longer window, or less overlap",
        )
    sizes = np.array([len(text.text) for text in corpus.texts])
    whole = int(sizes.sum()) <= SMALL
    groups = [(text,) for text in corpus.texts] if whole else _pieces(corpus, sampling, content)
    began = time.perf_counter()
    found = [[len(tokenizer.encode(text.text)) for text in group] for group in groups]
    seconds = time.perf_counter() - began
    per_group = np.array([sum(group) for group in found], dtype=float)
    characters = np.array([sum(len(text.text) for text in group) for group in groups], dtype=float)
    ratio = float(per_group.sum() / max(1.0, characters.sum()))
    half = 0.0 if whole else _half_width(per_group, characters, ratio)
    bounds = np.array([ratio, max(ratio - half, 0.0), ratio + half])

    def lengths(rate: float) -> NDArray[np.float64]:
        return per_group if whole else rate * sizes

    has = [float(lengths(rate).sum()) for rate in bounds]
    cut = [_windows(lengths(rate), sampling, content) for rate in bounds]
    # where a text ends within its last window is a matter of chance
    ends = 0.0
    if not whole and sampling.mode == "overlap":
        ends = 1.96 * 0.5 * math.sqrt(int((lengths(ratio) > content).sum()))
    scale = 1.0
    if tokens is not None:
        scale = tokens / max(1.0, has[0])
        if sampling.mode == "packed":
            cut = [float(tokens // content)] * 3
        else:
            cut = [windows * tokens / max(1.0, one) for windows, one in zip(cut, has, strict=True)]
        has = [float(tokens)] * 3
    middle = int(cut[0])
    low = max(0, math.floor(min(cut) - scale * ends))
    high = math.ceil(max(cut) + scale * ends)
    one_text = len(corpus.texts) == 1
    count = Count(
        windows=middle,
        low=low,
        high=high,
        tokens=int(has[0]),
        tokens_low=math.floor(min(has)),
        tokens_high=math.ceil(max(has)),
        read=int(has[0]),
        exact=whole if tokens is None else sampling.mode == "packed",
        given=tokens is not None,
        characters=int(scale * sizes.sum()),
        longest=int((scale if one_text else 1.0) * sizes.max()),
        texts=len(sizes) if one_text else max(1, round(scale * len(sizes))),
        sampled=int(characters.sum()),
        rate=float(per_group.sum()) / max(seconds, 1e-9),
    )
    pieces = corpus if whole else _corpus_of(corpus, groups)
    return _taken(count, corpus, sampling), pieces


def _half_width(tokens: NDArray[np.float64], size: NDArray[np.float64], ratio: float) -> float:
    """Half of the 95 % interval of tokens a character."""
    m = len(tokens)
    if m < 2:
        return ratio
    spread = float(((tokens - ratio * size) ** 2).sum()) / (m * (m - 1))
    return float(stats.t.ppf(0.975, m - 1) * math.sqrt(spread) / size.mean())


def _windows(lengths: NDArray[np.float64], sampling: Sampling, content: int) -> float:
    """Windows of texts of so many tokens; the same cuts as `rankscope.text.windows` makes."""
    if sampling.mode == "packed":
        return float(int(lengths.sum()) // content)
    if sampling.mode == "document":
        return float(len(lengths))
    step = content - sampling.overlap
    return float((1 + np.maximum(0, np.ceil((lengths - content) / step))).sum())


def _taken(count: Count, corpus: Corpus, sampling: Sampling) -> Count:
    """What is left of the windows after those that are skipped, at most as many as are wanted."""
    wanted = sampling.windows
    if count.high - sampling.skip < max(1, wanted or 1):
        what = f"{count.windows:,} windows of {sampling.length} tokens"
        raise TextError(
            f"{corpus.name} has {'' if count.exact else 'about '}{what}, "
            f"{sampling.skip:,} are skipped and {'1' if wanted is None else f'{wanted:,}'} needed",
            "ask for fewer windows, take shorter ones, or give more text",
        )
    some = min(count.high, wanted if wanted is not None else count.high)

    def within(windows: int) -> int:
        return max(1, min(windows - sampling.skip, some))

    sizes = [within(one) for one in (count.windows, count.low, count.high)]
    settled = count.exact or sizes[1] == sizes[2]
    read = count.tokens
    if wanted is not None:
        read = min(read, math.ceil(read * (sampling.skip + wanted) / max(1, count.windows)))
    return replace(count, windows=sizes[0], low=sizes[1], high=sizes[2], read=read, exact=settled)


def _pieces(corpus: Corpus, sampling: Sampling, content: int) -> list[tuple[Text, ...]]:
    """Texts, or parts of texts, spread evenly over a corpus."""
    sizes = [len(text.text) for text in corpus.texts]
    total, many = sum(sizes), len(sizes)
    size = SAMPLE // PIECES
    mean = total / many
    if sampling.mode == "document" or (sampling.mode == "overlap" and mean < size):
        # one text is as likely as another; of a long one its beginning
        wanted = min(many, max(PIECES, int(SAMPLE / max(mean, 1.0))))
        limit = max(size, 16 * content)
        numbers = np.unique(np.linspace(0, many - 1, wanted).astype(int))
        texts = (corpus.texts[number] for number in numbers)
        return [(replace(text, text=text.text[:limit]),) for text in texts]
    size = max(size, 8 * content * 16 // PIECES)
    ends = np.cumsum(sizes).tolist()
    starts = np.linspace(0, max(0, total - size), PIECES).astype(int)
    return [tuple(_from(corpus, ends, int(start), size)) for start in starts]


def _from(corpus: Corpus, ends: Sequence[int], start: int, size: int) -> Iterator[Text]:
    """About `size` characters from `start` on, in as many parts as there are texts in them."""
    number = bisect_right(ends, start)
    while size > 0 and number < len(ends):
        text = corpus.texts[number]
        offset = max(0, start - (ends[number] - len(text.text)))
        begin = _blank(text.text, offset) if offset else 0
        part = text.text[begin : _blank(text.text, begin + size)]
        size -= len(part)
        number += 1
        yield replace(text, text=part)


def _blank(text: str, place: int) -> int:
    """The next blank near a place, so that no word is cut in two; the place itself without one."""
    found = _BLANK.search(text, place, place + _NEAR)
    return found.start() if found else place


def _corpus_of(corpus: Corpus, groups: Sequence[tuple[Text, ...]]) -> Corpus:
    texts = [text for group in groups for text in group]
    numbered = tuple(replace(text, id=number) for number, text in enumerate(texts))
    return replace(corpus, texts=numbered)
