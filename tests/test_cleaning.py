"""Text options: how documents are cut, what is undone, what is only counted."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.exceptions import TextError, UsageError
from rankscope.text import TextOptions, load_corpus
from rankscope.text.cleaning import prepare
from texts import refusal, texts_of, write


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit": "sentence"},
        {"unit": ["file"]},
        {"headings": "Drop"},
        {"marks": True},
        {"breaks": ""},
        {"split": "dev"},
        {"field": ""},
        {"field": 3},
    ],
)
def test_unknown_options_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        TextOptions(**wrong)
    assert next(iter(wrong)) in str(caught.value)


def test_options_are_recorded_and_frozen() -> None:
    options = TextOptions(unit="article", marks="join")
    assert options.as_dict() == {
        "unit": "article",
        "headings": "keep",
        "marks": "join",
        "breaks": "keep",
        "field": "text",
        "split": "test",
    }
    assert json.loads(json.dumps(options.as_dict())) == options.as_dict()
    with pytest.raises(FrozenInstanceError):
        options.unit = "line"


WIKI = (
    " \n = First one = \n \n Some @-@ text , 1 @,@ 000 or 0 @.@ 5 \n \n = = Part = = \n \n"
    " More . \n = stray = \n \n = Second = \n \n End . \n"
)


def test_lines_keep_blank_ones_and_any_line_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a\r\n\r\n   \nb\rc\x0cd\u2028e")
    corpus = load_corpus(path, TextOptions(unit="line"))
    assert texts_of(corpus) == ["a", "", "   ", "b", "c\x0cd\u2028e"]
    assert corpus.texts[3].name == "a.txt:4"
    assert texts_of(load_corpus(write(tmp_path / "b.txt", "a\n"), TextOptions(unit="line"))) == [
        "a"
    ]


def test_paragraphs_are_runs_of_lines_that_are_not_blank(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n one\ntwo \n \n\n\nthree\n")
    corpus = load_corpus(path, TextOptions(unit="paragraph"))
    assert [(t.name, t.text) for t in corpus.texts] == [
        ("a.txt:2", " one\ntwo "),
        ("a.txt:7", "three"),
    ]


def test_articles_begin_at_titles_between_blank_lines(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path / "w.txt", WIKI), TextOptions(unit="article"))
    assert [text.name for text in corpus.texts] == ["First one", "Second"]
    assert texts_of(corpus)[1] == " = Second = \n \n End . \n"
    assert "".join(texts_of(corpus)) == WIKI


def test_text_before_the_first_title_is_kept(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path / "w.txt", "Hello\n" + WIKI), TextOptions(unit="article"))
    assert [text.name for text in corpus.texts] == [
        "w.txt (before the first title)",
        "First one",
        "Second",
    ]
    assert "".join(texts_of(corpus)) == "Hello\n" + WIKI


def test_title_may_be_the_first_and_the_last_line(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt", " = A = \r\n\r\nx\r\n\r\n = B = ")
    corpus = load_corpus(path, TextOptions(unit="article"))
    assert [text.name for text in corpus.texts] == ["A", "B"]


def test_articles_without_titles_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", " = Title = \nno blank line after it\n")
    assert "no article title" in refusal(path, TextOptions(unit="article"))


def test_headings_of_all_levels_are_dropped_and_stray_ones_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt", WIKI)
    dropped = texts_of(load_corpus(path, TextOptions(headings="drop")))[0]
    expected = WIKI.replace(" = First one = \n", "").replace(" = = Part = = \n", "")
    assert dropped == expected.replace(" = Second = \n", "")
    assert " = stray = " in dropped
    articles = load_corpus(path, TextOptions(unit="article", headings="drop"))
    assert [text.name for text in articles.texts] == ["First one", "Second"]
    assert "".join(texts_of(articles)) == dropped
    lines = load_corpus(path, TextOptions(unit="line", headings="drop"))
    assert "\n".join(texts_of(lines)) + "\n" == dropped


def test_marks_are_joined(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path / "w.txt", WIKI), TextOptions(marks="join"))
    assert " Some-text , 1,000 or 0.5 \n" in texts_of(corpus)[0]
    assert "@" not in texts_of(corpus)[0]


@pytest.mark.parametrize(
    ("breaks", "expected"), [("newline", "a\n\nb\nc\nd"), ("space", "a  b c d")]
)
def test_breaks_are_replaced_each_on_its_own(tmp_path: Path, breaks: str, expected: str) -> None:
    path = write(tmp_path / "a.txt", "a<br /><br />b<br/>c<BR>d")
    assert texts_of(load_corpus(path, TextOptions(breaks=breaks))) == [expected]


def test_records_are_cut_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one<br />two"}\n{"text": "three"}\n')
    corpus = load_corpus(path, TextOptions(unit="line", breaks="newline"))
    assert [(t.name, t.text) for t in corpus.texts] == [
        ("a.jsonl:1:1", "one"),
        ("a.jsonl:1:2", "two"),
        ("a.jsonl:2:1", "three"),
    ]


def test_notes_count_what_was_seen_and_not_handled(tmp_path: Path) -> None:
    path = write(tmp_path / "w.txt", WIKI + "<br /> <unk> x@-@y \ufffd \r\n")
    assert load_corpus(path).notes == (
        "3 WikiText heading lines kept; headings='drop' leaves them out",
        "3 WikiText marks (`@-@`, `@,@`, `@.@`) kept; marks='join' rejoins them",
        "1 `<br />` tags kept; breaks='newline' or 'space' replaces them",
        "1 `<unk>` kept: a tokenizer may read them as its own unknown token",
        "1 CRLF line ends kept as they are",
        "1 replacement characters (U+FFFD): this text was damaged before it came here",
    )
    handled = TextOptions(headings="drop", marks="join", breaks="space")
    assert [note[:7] for note in load_corpus(path, handled).notes] == [
        "1 `<unk",
        "1 CRLF ",
        "1 repla",
    ]


line_texts = st.sampled_from(["", " ", " x ", " = T = ", " = = S = = ", " = A = B = ", " = = U = "])
line_ends = st.sampled_from(["\n", "\n", "\r\n", "\r"])


@given(
    lines=st.lists(st.tuples(line_texts, line_ends), max_size=12),
    rest=line_texts,
    headings=st.sampled_from(["keep", "drop"]),
)
def test_units_lose_no_character_but_line_ends(
    lines: list[tuple[str, str]], rest: str, headings: str
) -> None:
    text = "".join(line + end for line, end in lines) + rest

    def cut(unit: str) -> list[str]:
        return [t for _, t in prepare("t", text, TextOptions(unit=unit, headings=headings))[0]]

    whole = "".join(cut("file"))
    if headings == "keep":
        assert whole == text
    assert "".join(cut("line")) == whole.replace("\r", "").replace("\n", "")
    assert "".join("".join(cut("paragraph")).split()) == "".join(whole.split())
    bare = ["", *re.split(r"\r\n|\r|\n", text), ""]
    if any(
        re.fullmatch(r" = [^=]+ = ", line) and not before.strip() and not after.strip()
        for before, line, after in zip(bare, bare[1:], bare[2:], strict=False)
    ):
        assert "".join(cut("article")) == whole
    else:
        with pytest.raises(TextError, match="no article title"):
            cut("article")


def test_wikitext_test_split(shared_data: Path) -> None:
    path = shared_data / "wikitext103-test.txt"
    whole = load_corpus(path)
    assert hashlib.sha256(whole.texts[0].text.encode()).hexdigest() == (
        "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"
    )
    assert whole.notes == (
        "704 WikiText heading lines kept; headings='drop' leaves them out",
        "3,017 WikiText marks (`@-@`, `@,@`, `@.@`) kept; marks='join' rejoins them",
    )
    articles = load_corpus(path, TextOptions(unit="article"))
    assert len(articles.texts) == 60
    assert articles.texts[0].name == "Robert Boulter"
    assert "".join(texts_of(articles)) == whole.texts[0].text
    assert len(load_corpus(path, TextOptions(unit="line")).texts) == 4358
    clean = load_corpus(path, TextOptions(unit="article", headings="drop", marks="join"))
    assert clean.notes == ()
    assert len(clean.texts) == 60
    assert "guest-starring" in clean.texts[0].text
    # lines of a formula and of a table that only look like headings
    assert "".join(texts_of(clean)).count("\n = ") == 4


def test_other_wikitext_files(shared_data: Path) -> None:
    articles = TextOptions(unit="article")
    assert len(load_corpus(shared_data / "wikitext103-valid.txt", articles).texts) == 60
    part = load_corpus(shared_data / "wikitext2-train-part.txt", articles)
    assert len(part.texts) == 340
    assert any(note.startswith("29,852 `<unk>` kept") for note in part.notes)


def test_imdb_reviews(shared_data: Path) -> None:
    path = shared_data / "imdb-test.jsonl"
    corpus = load_corpus(path)
    assert [text.id for text in corpus.texts] == list(range(300))
    assert corpus.notes == ("3,054 `<br />` tags kept; breaks='newline' or 'space' replaces them",)
    clean = load_corpus(path, TextOptions(breaks="newline"))
    assert clean.notes == ()
    assert sum(text.text.count("\n") for text in clean.texts) == 3054
    message = refusal(path, TextOptions(field="review"))
    assert "imdb-test.jsonl, line 1: no field 'review'; it has 'id', 'label', 'text'" in message
