"""Corpora: checksum, built-in text, hub data sets."""

from __future__ import annotations

import hashlib
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from rankscope.exceptions import TextError, UsageError
from rankscope.text import Corpus, TextOptions, load_corpus
from texts import refusal, texts_of, write


@pytest.mark.parametrize("content", ["", "\n", " \t\r\n \n"])
@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_a_corpus_of_whitespace_is_refused(tmp_path: Path, content: str, unit: str) -> None:
    message = refusal(write(tmp_path / "blank.txt", content), TextOptions(unit=unit))
    assert "blank.txt" in message


def test_half_a_surrogate_pair_is_refused_before_any_tokenizer_sees_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n{"text": "ab\\ud83d"}\n')
    message = refusal(path)
    assert "a.jsonl:2" in message
    assert "U+D83D" in message


def test_checksum_is_of_lengths_and_texts() -> None:
    expected = hashlib.sha256()
    for data in (b"ab", "\u00e9".encode()):
        expected.update(len(data).to_bytes(8, "big") + data)
    assert Corpus.from_strings(["ab", "\u00e9"]).sha256 == expected.hexdigest()
    sums = {
        Corpus.from_strings(strings).sha256
        for strings in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], [])
    }
    assert len(sums) == 6


def test_checksum_ignores_where_the_text_came_from(tmp_path: Path) -> None:
    one = load_corpus(write(tmp_path / "a.txt", "one\ntwo\n"), TextOptions(unit="line"))
    assert one.sha256 == Corpus.from_strings(["one", "two"]).sha256
    assert one.sha256 != load_corpus(str(tmp_path / "a.txt")).sha256


def test_builtin_needs_no_file_and_is_sorted() -> None:
    corpus = load_corpus("builtin")
    names = [text.name for text in corpus.texts]
    assert names == sorted(names)
    assert len(names) >= 70
    assert sum(len(text.text) for text in corpus.texts) > 400_000
    assert "Python 3." in corpus.source
    assert corpus.sha256 == load_corpus("builtin").sha256


def test_python_without_topics_is_a_text_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "pydoc_data.topics" in refusal("builtin")


class Rows:
    def __init__(self, **columns: list[object]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name: str) -> list[object]:
        return self.columns[name]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], list[tuple[object, ...]]]:
    """Put a library `datasets` in place that answers every call alike; returns the calls made."""

    def install(answer: object) -> list[tuple[object, ...]]:
        calls: list[tuple[object, ...]] = []

        def load_dataset(path: str, name: str | None, split: str) -> object:
            calls.append((path, name, split))
            if isinstance(answer, Exception):
                raise answer
            return answer

        module = ModuleType("datasets")
        module.load_dataset = load_dataset
        monkeypatch.setitem(sys.modules, "datasets", module)
        return calls

    return install


Hub = Callable[[object], list[tuple[object, ...]]]


def test_hub_wikitext_is_the_original_file_again(shared_data: Path, hub: Hub) -> None:
    path = shared_data / "wikitext103-test.txt"
    lines = path.read_bytes().decode().split("\n")[:-1]
    calls = hub(Rows(text=[line + "\n" if line.strip() else "" for line in lines]))
    corpus = load_corpus("wikitext103", TextOptions(unit="article"))
    assert calls == [("Salesforce/wikitext", "wikitext-103-raw-v1", "test")]
    assert corpus.sha256 == load_corpus(path, TextOptions(unit="article")).sha256
    assert corpus.name == "wikitext103"
    assert "wikitext-103-raw-v1" in corpus.source
    assert any("empty rows" in note for note in corpus.notes)


def test_hub_rows_without_line_ends_stay_lines(hub: Hub) -> None:
    hub(Rows(text=["", " = T = ", "", " x "]))
    assert texts_of(load_corpus("wikitext103")) == [" \n = T = \n \n x \n"]


def test_hub_imdb_has_a_text_a_row(hub: Hub) -> None:
    calls = hub(Rows(text=["good<br />film", "bad"], label=[1, 0]))
    corpus = load_corpus("imdb", TextOptions(split="unsupervised", breaks="space"))
    assert calls == [("stanfordnlp/imdb", None, "unsupervised")]
    assert [(t.id, t.name, t.text) for t in corpus.texts] == [
        (0, "imdb-unsupervised:1", "good film"),
        (1, "imdb-unsupervised:2", "bad"),
    ]


def test_hub_field_must_be_there_and_hold_strings(hub: Hub) -> None:
    hub(Rows(text=["x", None], label=[1, 0]))
    assert "'text', 'label'" in refusal("imdb", TextOptions(field="body"))
    assert "imdb-test, row 2: the field 'text' is null" in refusal("imdb")


def test_hub_split_is_checked_before_anything_is_loaded(hub: Hub) -> None:
    calls = hub(Rows(text=["x"]))
    with pytest.raises(UsageError, match="imdb has no split 'validation'"):
        load_corpus("imdb", TextOptions(split="validation"))
    with pytest.raises(UsageError, match="wikitext103 has no split 'unsupervised'"):
        load_corpus("wikitext103", TextOptions(split="unsupervised"))
    assert calls == []


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TextError) as caught:
        load_corpus("imdb")
    assert caught.value.remedy == 'pip install "rankscope[datasets]"'


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionError("Couldn't reach 'x' on the Hub (OfflineModeIsEnabled)"), "not cached"),
        (TimeoutError("slow"), "not cached"),
        (type("DatasetNotFoundError", (FileNotFoundError,), {})("is gated"), "the hub refuses"),
        (ValueError("\nbad parquet\nsecond line"), "could not be loaded (ValueError: bad parquet)"),
        (RuntimeError(), "could not be loaded"),
    ],
)
def test_f17_hub_faults_are_told_apart(hub: Hub, error: Exception, cause: str) -> None:
    hub(error)
    start = time.perf_counter()
    message = refusal("imdb")
    assert time.perf_counter() - start < 5
    assert cause in message
    assert "stanfordnlp/imdb" in message
    assert "local copy" in message
    assert "\n" not in message


def test_reading_a_file_needs_no_hub_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert load_corpus(write(tmp_path / "a.txt", "x")).texts[0].text == "x"
    with pytest.raises(ImportError):
        importlib.import_module("datasets")
