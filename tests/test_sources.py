"""What is read from files, folders and JSONL, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.text import TextOptions, load_corpus
from texts import refusal, texts_of, write


def test_defaults_change_no_character(tmp_path: Path) -> None:
    odd = "a  b\r\nc\rd\n\n\x0c = T = \n @-@ <br /> \u2028e\u0301 \ufeff end  "
    corpus = load_corpus(write(tmp_path / "odd.txt", odd))
    assert texts_of(corpus) == [odd]
    assert (corpus.name, corpus.texts[0].name) == ("odd", "odd.txt")
    assert corpus.source == str(tmp_path / "odd.txt")


def test_path_object_is_a_spec(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "words")
    assert texts_of(load_corpus(tmp_path / "a.txt")) == ["words"]


def test_byte_order_mark_is_left_out_and_noted(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path / "a.txt", b"\xef\xbb\xbfone"))
    assert texts_of(corpus) == ["one"]
    assert corpus.notes == ("byte-order mark at the start of a.txt left out",)


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"caf\xe9", "0xe9 at offset 3"),
        (b"\xef\xbb\xbfab\xff", "0xff at offset 5"),
        (b"a\n" * 1000 + b"\xc3(", "0xc3 at offset 2,000"),
    ],
)
def test_other_encodings_are_refused_with_the_offset(
    tmp_path: Path, content: bytes, offset: str
) -> None:
    message = refusal(write(tmp_path / "latin.txt", content))
    assert "latin.txt" in message
    assert offset in message


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("text".encode("utf-16"), "UTF-16"),
        ("text".encode("utf-16-le"), "zero byte at offset 1"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "pointer"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, content: bytes, cause: str) -> None:
    assert cause in refusal(write(tmp_path / "a.txt", content))


@pytest.mark.parametrize("spec", ["nowhere/at/all.txt", "wikitext2", "", "a\0b", "x" * 5000])
def test_unknown_spec_says_what_was_tried(spec: str) -> None:
    message = refusal(spec)
    assert repr(spec)[:40] in message


def test_unknown_spec_lists_the_known_names() -> None:
    message = refusal("wikitext2")
    assert all(name in message for name in ("builtin", "wikitext103", "imdb"))


def test_unreadable_file_is_a_text_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.txt", "text")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "Permission denied" in refusal(path)


def test_known_names_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "builtin", "a local file")
    monkeypatch.chdir(tmp_path)
    assert load_corpus("builtin").texts[0].name == "assert"
    assert texts_of(load_corpus("./builtin")) == ["a local file"]


def test_folder_is_read_by_name_and_says_what_it_left_out(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "second")
    write(tmp_path / "B.TXT", "first: capitals sort before small letters")
    write(tmp_path / "c.jsonl", '{"text": "third"}\n{"text": "fourth"}\n')
    write(tmp_path / "d.md", "fifth")
    write(tmp_path / ".hidden.txt", "hidden")
    write(tmp_path / "picture.png", b"\x89PNG\0")
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "e.txt", "below")
    corpus = load_corpus(str(tmp_path))
    assert texts_of(corpus)[1:] == ["second", "third", "fourth", "fifth"]
    assert [text.name for text in corpus.texts] == [
        "B.TXT",
        "b.txt",
        "c.jsonl:1",
        "c.jsonl:2",
        "d.md",
    ]
    assert [text.id for text in corpus.texts] == [0, 1, 2, 3, 4]
    assert corpus.name == tmp_path.name
    assert corpus.notes == ("left out of the folder: .hidden.txt, below/, picture.png",)


def test_folder_named_by_a_dot_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.txt", "one")
    monkeypatch.chdir(tmp_path)
    assert load_corpus(".").name == tmp_path.name


@pytest.mark.parametrize("others", [[], [".hidden.txt", "a.pdf"]])
def test_folder_without_text_is_refused(tmp_path: Path, others: list[str]) -> None:
    for name in others:
        write(tmp_path / name, "x")
    message = refusal(str(tmp_path))
    assert f"({len(others)} entries)" in message


def test_fault_in_a_folder_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "fine")
    write(tmp_path / "b.md", b"\xff")
    assert "b.md" in refusal(str(tmp_path))


def test_f33_words_that_look_missing_stay_texts(tmp_path: Path) -> None:
    words = ["NA", "null", "nan", "a,b", '"', "\n", "", "None", "#", "\u2028x\x85y"]
    lines = "".join(json.dumps({"body": w}, ensure_ascii=False) + "\r\n" for w in words)
    corpus = load_corpus(write(tmp_path / "a.jsonl", lines), TextOptions(field="body"))
    assert texts_of(corpus) == words
    assert [text.name for text in corpus.texts][:2] == ["a.jsonl:1", "a.jsonl:2"]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"body": "x", "id": 3}', ["no field 'text'", "'body', 'id'"]),
        ("{}", ["no field 'text'", "none"]),
        ('{"text": null}', ["'text' is null"]),
        ('{"text": 3}', ["'text' is a number"]),
        ('{"text": false}', ["'text' is a truth value"]),
        ('{"text": ["x"]}', ["'text' is an array"]),
        ('{"text": {"x": 1}}', ["'text' is an object"]),
        ('["text"]', ["an array, not an object"]),
        ('"text"', ["a string, not an object"]),
        ('{"text": "x"', ["not JSON"]),
        ("", ["not JSON", "blank"]),
        ("[" * 200_000, ["not JSON"]),
        ('{"text": "x", "n": ' + "9" * 5000 + "}", ["not JSON"]),
    ],
)
def test_faulty_records_name_file_line_and_cause(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "good"}\n' + line + '\n{"text": "good"}\n')
    message = refusal(path)
    for part in ["a.jsonl, line 2", *parts]:
        assert part in message


def test_empty_jsonl_is_refused(tmp_path: Path) -> None:
    assert "no records" in refusal(write(tmp_path / "a.jsonl", ""))
