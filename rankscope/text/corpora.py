"""Corpora: numbered texts with their checksum, their options and where they come from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.exceptions import TextError
from rankscope.labels import check_name
from rankscope.text.cleaning import TextOptions, describe, prepare
from rankscope.text.sources import HUB, read_source

CORPORA = ("builtin", *HUB)


@dataclass(frozen=True)
class Text:
    """One text of a corpus: its number (0, 1, ...), a name for people, and its characters."""

    id: int
    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Prepared texts in a fixed order, with where they come from.

    Parameters
    ----------
    name : str
        Short name: the known name, the folder's, or the file's without its suffix.
    texts : tuple of Text
        The texts; ``texts[i].id == i``.
    sha256 : str
        Checksum of the prepared texts: of each text's length in UTF-8 bytes (8 bytes, big-endian)
        followed by those bytes, so that the same characters cut otherwise are another corpus. Names
        are not in it.
    options : TextOptions
        How the texts were prepared.
    source : str
        What was read: the path as given, the hub's repository, or the Python version of the
        built-in text.
    notes : tuple of str
        What a person should know about the reading: conventions of the text that were seen and
        kept, files of a folder left out, a byte-order mark left out.
    """

    name: str
    texts: tuple[Text, ...]
    sha256: str
    options: TextOptions
    source: str
    notes: tuple[str, ...] = ()

    @classmethod
    def from_strings(cls, strings: Iterable[str], name: str = "strings") -> Corpus:
        """Corpus of the given strings, each one text as it is.

        Raises
        ------
        TextError
            If a string cannot be written as UTF-8 (it holds half of a surrogate pair).

        Examples
        --------
        >>> Corpus.from_strings(["ab", "c"]).sha256 == Corpus.from_strings(["a", "bc"]).sha256
        False
        """
        named = [(f"{name}:{number}", text) for number, text in enumerate(strings, start=1)]
        return cls(name, *_number(named), TextOptions(), name)


def _number(named: Sequence[tuple[str, str]]) -> tuple[tuple[Text, ...], str]:
    digest = hashlib.sha256()
    for name, text in named:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TextError(
                f"{name}: half of a surrogate pair (U+{ord(text[error.start]):04X}) "
                f"at character {error.start:,}",
                "write the character in full; no tokenizer can read half of one",
            ) from error
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    texts = tuple(Text(number, *pair) for number, pair in enumerate(named))
    return texts, digest.hexdigest()


def load_corpus(spec: str | Path, options: TextOptions | None = None) -> Corpus:
    """Read a corpus and cut it into texts.

    UTF-8 only; a byte-order mark is left out (and noted), line ends stay what they are.

    Parameters
    ----------
    spec : str or Path
        One of:

        - ``"builtin"``: the documentation topics of the standard library (``pydoc_data.topics``),
          each a text, sorted by name. No file, no network. They differ by Python version: compare
          `sha256`.
        - ``"wikitext103"``, ``"imdb"``: data sets of the hub (Salesforce/wikitext,
          wikitext-103-raw-v1; stanfordnlp/imdb), by the optional package ``datasets``, the split
          given by the options. WikiText's rows, which are lines, are put together to the original
          file, blank lines (stored as nothing on the hub) included; a row of IMDB is one document.
        - the path of a ``.jsonl`` file: each record's field is a document.
        - the path of any other file: text, one document.
        - the path of a folder: its ``.txt``, ``.md`` and ``.jsonl`` files sorted by name (code
          points), hidden ones and folders below it left out.

        A known name is never a path: write ``./imdb`` for a file or folder called so.
    options : TextOptions, optional
        What of a document is one text and which conventions are undone; the default changes
        nothing.

    Returns
    -------
    Corpus
        The texts, numbered from 0; blank ones keep their number.

    Raises
    ------
    TextError
        If it is not there, cannot be read, is not UTF-8 or not JSONL, has no such field, or has no
        text in it but whitespace; if the hub or the package ``datasets`` is out of reach.
    UsageError
        If a hub data set has no such split, or the path is not UTF-8.

    Examples
    --------
    >>> corpus = load_corpus("builtin")
    >>> corpus.name, corpus.texts[0].id, corpus.texts[0].name
    ('builtin', 0, 'assert')
    """
    check_name(str(spec), "text")
    options = TextOptions() if options is None else options
    source = read_source(str(spec), field=options.field, split=options.split)
    named: list[tuple[str, str]] = []
    tally: Counter[str] = Counter()
    for name, document in source.documents:
        pieces, seen = prepare(name, document, options)
        named += pieces
        tally += seen
    texts, sha256 = _number(named)
    if not any(text.text.strip() for text in texts):
        raise TextError(
            f"no text in {spec}: {len(texts)} texts, nothing but whitespace in them",
            "check the file and the text options",
        )
    notes = (*source.notes, *describe(tally))
    return Corpus(source.name, texts, sha256, options, source.origin, notes)
