"""The tokens of a long text, part by part: the same as of the whole text, in little memory.

A library's tokenizer keeps some 500 bytes for every token of a text that it is given at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.text import Tokenizer

PART = 2**18
"""Characters of a part, about."""

CONTEXT = 1000
"""Characters behind a seam that are looked at."""

# a blank behind a word: most tokenizers begin a token there
_SEAM = re.compile(r"(?<=\S)\s")
_CANDIDATES = 16


def encode_in_parts(tokenizer: Tokenizer, text: str) -> Iterator[list[int]]:
    """Tokens of a text, a part at a time.

    A text is parted at a blank s where ``encode(text[a:s + c])`` is ``encode(text[a:s])`` followed
    by ``encode(text[s:s + c])``, a being where the part begins and c `CONTEXT`: where what follows
    the blank does not change the tokens before it, nor the other way round. A tokenizer that has no
    such places, such as one that puts a mark at the beginning of every text, gets the rest at once.

    Parameters
    ----------
    tokenizer : Tokenizer
    text : str

    Yields
    ------
    list of int
        Token ids; joined, those of ``tokenizer.encode(text)``. Nothing beyond a part is tokenised
        before it is asked for.
    """
    start = 0
    while len(text) - start > PART + CONTEXT:
        found = _part(tokenizer, text, start)
        if found is None:
            break
        tokens, start = found
        yield tokens
    yield tokenizer.encode(text[start:])


def has_seams(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a tokenizer can be given a text of this kind in parts.

    Parameters
    ----------
    tokenizer : Tokenizer
    text : str
        Its middle is looked at.
    """
    middle = len(text) // 2
    return next(_seams(tokenizer, text, max(0, middle - CONTEXT), middle), None) is not None


def _part(tokenizer: Tokenizer, text: str, start: int) -> tuple[list[int], int] | None:
    """Tokens from `start` to a seam, and the seam."""
    for seam in _seams(tokenizer, text, start, start + PART):
        after = tokenizer.encode(text[seam : seam + CONTEXT])
        both = tokenizer.encode(text[start : seam + CONTEXT])
        # the whole part, since a token's place may follow from any token before it
        if after and both[-len(after) :] == after:
            return both[: -len(after)], seam
    return None


def _seams(tokenizer: Tokenizer, text: str, start: int, near: int) -> Iterator[int]:
    """Blanks behind a place at which the neighbourhood falls apart, one after another."""
    for match in islice(_SEAM.finditer(text, near), _CANDIDATES):
        seam = match.start()
        before = text[max(start, seam - CONTEXT) : seam]
        after = text[seam : seam + CONTEXT]
        parted = tokenizer.encode(before) + tokenizer.encode(after)
        if parted == tokenizer.encode(before + after):
            yield seam
