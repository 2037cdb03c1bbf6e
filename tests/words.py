"""A tokenizer of words, and texts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.text import Window


@dataclass
class Words:
    """Tokenizer of whitespace words; a word's id is its number of first appearance, from 10 on."""

    prefix: tuple[int, ...] = (0,)
    suffix: tuple[int, ...] = (2,)
    name: str = "words"
    pad_id: int | None = 1
    known: dict[str, int] = field(default_factory=dict)
    encoded: list[str] = field(default_factory=list)

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return [self.known.setdefault(word, len(self.known) + 10) for word in text.split()]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        back = {number: word for word, number in self.known.items()}
        return [back.get(number, "<special>") for number in ids]


def content_of(window: Window) -> list[int]:
    return window.ids[~window.special].tolist()


def numbered(count: int) -> str:
    return " ".join(str(number) for number in range(count))
