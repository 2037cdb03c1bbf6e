"""Corpora, and the windows of n tokens that are cut from them.

:func:`load_corpus` turns a name or path into a :class:`Corpus` of numbered texts; :func:`windows`
turns it into :class:`Window` objects through anything that is a :class:`Tokenizer`. Nothing in a
text is repaired or normalised on the way: what :class:`TextOptions` does not ask for does not
happen.
"""

from __future__ import annotations

import operator
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.exceptions import TextError, UsageError
from rankscope.text.cleaning import TextOptions, check_choice
from rankscope.text.corpora import CORPORA, Corpus, Text, load_corpus
from rankscope.text.streaming import encode_in_parts

__all__ = [
    "CORPORA",
    "MODES",
    "Corpus",
    "Text",
    "TextOptions",
    "Tokenizer",
    "Window",
    "load_corpus",
    "windows",
]

MODES = ("packed", "document", "overlap")


class Tokenizer(Protocol):
    """What :func:`rankscope.windows` needs of a tokenizer."""

    @property
    def name(self) -> str:
        """For messages and results."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Special tokens before the text of every window."""

    @property
    def suffix(self) -> tuple[int, ...]:
        """Special tokens after it."""

    @property
    def pad_id(self) -> int | None:
        """The pad token, if there is one."""

    def encode(self, text: str) -> list[int]:
        """A whole text's tokens, without special tokens, truncation or warnings."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The strings of tokens."""


# arrays have no single truth value, so windows are compared by identity
@dataclass(frozen=True, eq=False)
class Window:
    """A run of tokens of one text (or of the packed stream) with the special tokens around it.

    Parameters
    ----------
    ids : ndarray, shape (n,), int64
        Token ids, special tokens included.
    special : ndarray, shape (n,), bool
        True where the token is one that the window added; never for a token of the text.
    text_id : int
        Id of the text; of a packed window, of the text in which it starts.
    number : int
        Number of the window in its text, or in the stream if packed: 0, 1, ...
    start, end : int
        Its content is the tokens [start, end) of the text, or of the stream if packed.
    """

    ids: NDArray[np.int64]
    special: NDArray[np.bool_]
    text_id: int
    number: int
    start: int
    end: int

    @property
    def n_tokens(self) -> int:
        """Number of tokens n, special tokens included."""
        return len(self.ids)


@dataclass(frozen=True)
class _Span:
    ids: list[int]
    text_id: int
    number: int
    start: int


def windows(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    length: int,
    count: int | None = None,
    mode: str = "packed",
    overlap: int = 0,
) -> list[Window]:
    """Cut a corpus into windows of tokens.

    Texts are tokenised one by one and only as far as `count` needs, long ones in parts whose tokens
    are those of the whole; the tokenizer's own truncation and stride are not used. With c =
    `length` minus the number of special tokens, m the tokens of a text:

    - ``packed``: the tokens of all texts joined in order, nothing between them, are one stream;
      window i is its [i·c, (i+1)·c). A rest shorter than c is left out: every window has exactly
      `length` tokens.
    - ``document``: [0, min(m, c)) of each text. A shorter text keeps its own length.
    - ``overlap``: [i·s, min(i·s + c, m)) of each text, s = c - `overlap`, up to the window that
      reaches m. Two neighbours share exactly `overlap` tokens; the last one keeps its own length.

    In the last two a text without tokens gives one window of special tokens only (of no token at
    all where the tokenizer adds none), so that every text keeps its id.

    Parameters
    ----------
    corpus : Corpus
        The texts.
    tokenizer : Tokenizer
        See :class:`Tokenizer`.
    length : int
        Tokens of a window, special tokens included; greater than their number.
    count : int, optional
        Number of windows, the first ones of the corpus; all if not given.
    mode : {"packed", "document", "overlap"}
        How the windows lie.
    overlap : int
        Content tokens that neighbours share, 0 <= overlap < c; for the mode ``overlap`` only.

    Returns
    -------
    list of Window
        In the order of the texts.

    Raises
    ------
    UsageError
        If an argument is out of its range; before anything is tokenised.
    TextError
        If the corpus has fewer windows than `count`, or none.

    Examples
    --------
    >>> class Letters:
    ...     name, prefix, suffix, pad_id = "letters", (0,), (1,), None
    ...     def encode(self, text):
    ...         return [ord(letter) for letter in text]
    ...     def pieces(self, ids):
    ...         return [chr(number) for number in ids]
    >>> corpus = Corpus.from_strings(["abcdefg"])
    >>> [(w.start, w.end) for w in windows(corpus, Letters(), length=5, mode="packed")]
    [(0, 3), (3, 6)]
    >>> [(w.start, w.end) for w in windows(corpus, Letters(), length=5, mode="overlap", overlap=1)]
    [(0, 3), (2, 5), (4, 7)]
    """
    check_choice("mode", mode, MODES)
    prefix, suffix = tuple(tokenizer.prefix), tuple(tokenizer.suffix)
    n_special = len(prefix) + len(suffix)
    length = _whole("length", length)
    overlap = _whole("overlap", overlap)
    content = length - n_special
    if content < 1:
        raise UsageError(
            f"length={length} leaves no room beside the {n_special} special tokens "
            f"of {tokenizer.name}",
            f"take a length of at least {n_special + 1}",
        )
    if overlap and mode != "overlap":
        raise UsageError(
            f"overlap={overlap} has no meaning in mode {mode!r}", "take mode='overlap'"
        )
    if not 0 <= overlap < content:
        raise UsageError(
            f"overlap={overlap} is not in 0 ... {content - 1}: a window of {length} tokens has "
            f"{content} beside its {n_special} special ones",
            "windows must move on by at least one token; overlap is what they share, not the step",
        )
    if count is not None and (count := _whole("count", count)) < 1:
        raise UsageError(f"count={count} asks for no window", "take a count of at least 1, or none")

    if mode == "packed":
        spans = _packed(corpus, tokenizer, content)
    else:
        step = content - overlap if mode == "overlap" else None
        spans = _per_text(corpus, tokenizer, content, step)
    # islice takes no number beyond the machine's
    wanted = None if count is None else min(count, sys.maxsize)
    found = [_window(span, prefix, suffix) for span in islice(spans, wanted)]
    if not found or (count is not None and len(found) < count):
        _refuse(corpus, found, length, content, count, mode)
    return found


def _whole(name: str, value: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r} is not a whole number", "give a whole number") from None


def _packed(corpus: Corpus, tokenizer: Tokenizer, content: int) -> Iterator[_Span]:
    pending: list[int] = []
    begins: list[int] = []
    owners: list[int] = []
    number = 0
    for text in corpus.texts:
        begun = False
        for tokens in encode_in_parts(tokenizer, text.text):
            if tokens and not begun:
                begins.append(number * content + len(pending))
                owners.append(text.id)
                begun = True
            pending += tokens
            full = len(pending) // content
            for cut in range(0, full * content, content):
                start = number * content
                owner = owners[bisect_right(begins, start) - 1]
                yield _Span(pending[cut : cut + content], owner, number, start)
                number += 1
            # once a part, not once a window: a long one would be moved again and again
            del pending[: full * content]


def _per_text(
    corpus: Corpus, tokenizer: Tokenizer, content: int, step: int | None
) -> Iterator[_Span]:
    for text in corpus.texts:
        pending: list[int] = []
        number = 0
        for tokens in encode_in_parts(tokenizer, text.text):
            pending += tokens
            if step is None:
                if len(pending) >= content:
                    break
                continue
            # windows that do not reach the end of the text, as far as one can know
            full = max(0, -(-(len(pending) - content) // step))
            for cut in range(0, full * step, step):
                yield _Span(pending[cut : cut + content], text.id, number, number * step)
                number += 1
            del pending[: full * step]
        yield _Span(pending[:content], text.id, number, number * (step or 0))


def _window(span: _Span, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Window:
    n_content = len(span.ids)
    ids = np.array([*prefix, *span.ids, *suffix], dtype=np.int64)
    special = np.ones(len(ids), dtype=np.bool_)
    special[len(prefix) : len(prefix) + n_content] = False
    return Window(ids, special, span.text_id, span.number, span.start, span.start + n_content)


def _refuse(
    corpus: Corpus, found: list[Window], length: int, content: int, count: int | None, mode: str
) -> None:
    asked = "at least one was needed" if count is None else f"{count:,} were asked for"
    cause = f"{corpus.name} has {len(found):,} {mode} windows of {length} tokens, {asked}"
    if mode == "packed":
        cause += f" (its texts hold fewer than {(count or 1) * content:,} tokens)"
    else:
        cause += f" ({len(corpus.texts):,} texts)"
    less = f"ask for at most {len(found):,} windows, " if found else ""
    shorter = "" if mode == "document" else "take shorter windows, "
    raise TextError(cause, f"{less}{shorter}or give more text")
