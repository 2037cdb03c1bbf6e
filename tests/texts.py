"""Text files written for a test, read back as a corpus or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.exceptions import TextError
from rankscope.text import Corpus, TextOptions, load_corpus


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def texts_of(corpus: Corpus) -> list[str]:
    return [text.text for text in corpus.texts]


def refusal(spec: object, options: TextOptions | None = None) -> str:
    with pytest.raises(TextError) as caught:
        load_corpus(spec, options)
    assert caught.value.remedy
    return str(caught.value)
