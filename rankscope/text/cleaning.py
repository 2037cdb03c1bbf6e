"""Cutting documents into texts, and the conventions of well-known corpora, by named options.

Nothing here is guessed from the text: with the default options a document passes unchanged, and
what was seen but not handled is counted (:func:`describe`), so that a run can say so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, pairwise

from rankscope.exceptions import TextError, UsageError

UNITS = ("file", "line", "paragraph", "article")
HEADINGS = ("keep", "drop")
MARKS = ("keep", "join")
BREAKS = ("keep", "newline", "space")
SPLITS = ("train", "validation", "test", "unsupervised")

_BREAK_TEXT = {"newline": "\n", "space": " "}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_JOINT = re.compile(r" @([-,.])@ ")
_MARK = re.compile(r"(?<!\S)@[-,.]@(?!\S)")
# str.splitlines would also cut at form feeds and at U+2028, which are characters of a text here
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_HEADING = re.compile(r" (=(?: =)*) [^=]+ \1 ")


@dataclass(frozen=True)
class TextOptions:
    """What is one text, and which conventions of a corpus are undone; the defaults change nothing.

    Parameters
    ----------
    unit : {"file", "line", "paragraph", "article"}
        What of a document (a file, a JSONL record, a row of a hub data set, a built-in topic) is
        one text: all of it; each line, without its line end, blank ones included; each run of lines
        that are not blank, without the last line end; each WikiText article, which begins at a line
        ``^ = [^=]+ = $`` with a blank line (or the document's edge) before and after. Articles put
        together again are the document; anything before the first title that is not blank is a text
        of its own.
    headings : {"keep", "drop"}
        Leave out WikiText headings of every level (``= Title =``, ``= = Section = =``, a blank on
        either side), found by the same rule; the blank lines around them stay.
    marks : {"keep", "join"}
        Turn WikiText's ``@-@``, ``@,@`` and ``@.@``, with the blanks around them, into ``-``,
        ``,`` and ``.``.
    breaks : {"keep", "newline", "space"}
        Turn the HTML line breaks of IMDB (``<br />``, ``<br/>``, ``<br>``) into a line feed or a
        space, each on its own, before texts are cut.
    field : str
        Field of a JSONL record, or column of a hub data set, that holds the text.
    split : {"train", "validation", "test", "unsupervised"}
        Split of a hub data set; local files have none.

    Raises
    ------
    UsageError
        If a value is none of those.

    Examples
    --------
    >>> TextOptions(unit="line").as_dict()["unit"]
    'line'
    >>> TextOptions(marks="glue")
    Traceback (most recent call last):
        ...
    rankscope.exceptions.UsageError: marks='glue' is not known (choose keep or join)
    """

    unit: str = "file"
    headings: str = "keep"
    marks: str = "keep"
    breaks: str = "keep"
    field: str = "text"
    split: str = "test"

    def __post_init__(self) -> None:
        for name, known in (
            ("unit", UNITS),
            ("headings", HEADINGS),
            ("marks", MARKS),
            ("breaks", BREAKS),
            ("split", SPLITS),
        ):
            check_choice(name, getattr(self, name), known)
        if not isinstance(self.field, str) or not self.field:
            raise UsageError(f"field={self.field!r} is not a name", "give the name of a JSON field")

    def as_dict(self) -> dict[str, str]:
        """All options by name, ready for JSON."""
        return asdict(self)


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a named option that has none of its known values.

    Raises
    ------
    UsageError
        If `value` is not among `known`.
    """
    if value not in known:
        listed = ", ".join(known[:-1]) + " or " + known[-1]
        raise UsageError(f"{name}={value!r} is not known", f"choose {listed}")


@dataclass(frozen=True)
class _Line:
    number: int
    text: str
    level: int

    @property
    def blank(self) -> bool:
        return not self.text.strip()


def prepare(
    name: str, document: str, options: TextOptions
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Cut one document into texts, and count the conventions left in them.

    Line breaks and marks come first, then texts are cut, then headings are left out.

    Parameters
    ----------
    name : str
        Name of the document; a line or paragraph is called ``NAME:N`` with the number of its
        (first) line, an article by its title.
    document : str
        The whole text.
    options : TextOptions
        What to do.

    Returns
    -------
    pieces : list of (str, str)
        Name and content of each text, in order.
    tally : Counter
        How often each convention that :func:`describe` knows occurs in them.

    Raises
    ------
    TextError
        If articles are asked for and there is no title.

    Examples
    --------
    >>> prepare("a.txt", "one\\n\\ntwo\\n", TextOptions(unit="paragraph"))[0]
    [('a.txt:1', 'one'), ('a.txt:3', 'two')]
    """
    if options.breaks != "keep":
        document = _BREAK.sub(_BREAK_TEXT[options.breaks], document)
    if options.marks == "join":
        document = _JOINT.sub(r"\1", document)
    drop = options.headings == "drop"
    if options.unit == "file" and not drop:
        # nothing is cut: of a large text no line need be kept
        tally = _count(document)
        tally["heading"] = sum(line.level > 0 for line in _lines(document))
        return [(name, document)], tally
    pieces = []
    tally = Counter()
    for piece_name, lines in _cut(name, list(_lines(document)), options.unit):
        kept = [line for line in lines if not (drop and line.level)]
        if lines and not kept and options.unit in ("line", "paragraph"):
            continue
        text = "".join(line.text for line in kept)
        if options.unit in ("line", "paragraph"):
            text = text.rstrip("\r\n")
        pieces.append((piece_name, text))
        tally += _count(text)
        tally["heading"] += sum(line.level > 0 for line in kept)
    return pieces, tally


def _lines(document: str) -> Iterator[_Line]:
    texts = (found[0] for found in _LINE.finditer(document))
    neighbours = pairwise(chain(texts, [""]))
    before_blank = True
    for number, (text, after) in enumerate(neighbours, start=1):
        bare = text.rstrip("\r\n")
        # stray pieces of WikiText's tables look like headings, but stand inside a paragraph
        alone = before_blank and not after.strip()
        found = _HEADING.fullmatch(bare) if alone else None
        yield _Line(number, text, found[1].count("=") if found else 0)
        before_blank = not bare.strip()


def _cut(name: str, lines: list[_Line], unit: str) -> Iterator[tuple[str, list[_Line]]]:
    if unit == "file":
        yield name, lines
    elif unit == "line":
        for line in lines:
            yield f"{name}:{line.number}", [line]
    elif unit == "paragraph":
        paragraph: list[_Line] = []
        for line in [*lines, _Line(0, "", 0)]:
            if not line.blank:
                paragraph.append(line)
            elif paragraph:
                yield f"{name}:{paragraph[0].number}", paragraph
                paragraph = []
    else:
        yield from _articles(name, lines)


def _articles(name: str, lines: list[_Line]) -> Iterator[tuple[str, list[_Line]]]:
    starts = [index for index, line in enumerate(lines) if line.level == 1]
    if not starts:
        raise TextError(
            f"no article title (` = Title = ` between blank lines) in {name}",
            "unit='article' is for WikiText; take unit='file', 'paragraph' or 'line'",
        )
    titles = [lines[index].text.strip()[1:-1].strip() for index in starts]
    if all(line.blank for line in lines[: starts[0]]):
        starts[0] = 0
    else:
        yield f"{name} (before the first title)", lines[: starts[0]]
    for title, start, end in zip(titles, starts, [*starts[1:], len(lines)], strict=True):
        yield title, lines[start:end]


def _count(text: str) -> Counter[str]:
    tally: Counter[str] = Counter()
    if "@" in text:
        tally["mark"] = len(_MARK.findall(text))
    if "<" in text:
        tally["break"] = len(_BREAK.findall(text))
        tally["unknown"] = text.count("<unk>")
    tally["crlf"] = text.count("\r\n")
    tally["replacement"] = text.count("\ufffd")
    return tally


_REMARKS = {
    "heading": "WikiText heading lines kept; headings='drop' leaves them out",
    "mark": "WikiText marks (`@-@`, `@,@`, `@.@`) kept; marks='join' rejoins them",
    "break": "`<br />` tags kept; breaks='newline' or 'space' replaces them",
    "unknown": "`<unk>` kept: a tokenizer may read them as its own unknown token",
    "crlf": "CRLF line ends kept as they are",
    "replacement": "replacement characters (U+FFFD): this text was damaged before it came here",
}


def describe(tally: Counter[str]) -> tuple[str, ...]:
    """Say what :func:`prepare` counted, with the option that handles it where there is one.

    Examples
    --------
    >>> describe(Counter(crlf=1200))
    ('1,200 CRLF line ends kept as they are',)
    """
    return tuple(f"{tally[key]:,} {remark}" for key, remark in _REMARKS.items() if tally[key])
