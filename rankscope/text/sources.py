"""Where text comes from: files, folders, JSONL, hub data sets, the built-in documents."""

from __future__ import annotations

import codecs
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.exceptions import RankscopeError, TextError, UsageError

FOLDER_KINDS = (".txt", ".md", ".jsonl")


@dataclass(frozen=True)
class HubData:
    """A data set of the hub; its rows are documents, or the lines of one."""

    repository: str
    config: str | None
    splits: tuple[str, ...]
    rows_are_lines: bool


HUB = {
    "wikitext103": HubData(
        "Salesforce/wikitext", "wikitext-103-raw-v1", ("train", "validation", "test"), True
    ),
    "imdb": HubData("stanfordnlp/imdb", None, ("train", "test", "unsupervised"), False),
}


@dataclass(frozen=True)
class Source:
    """What was read: named documents in order, and what there is to say about the reading."""

    name: str
    origin: str
    documents: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def read_source(spec: str, *, field: str, split: str) -> Source:
    """Read what `spec` names; see :func:`rankscope.text.load_corpus` for the kinds.

    Raises
    ------
    TextError
        If it does not exist, cannot be read, or is not what it should be.
    UsageError
        If a hub data set has no such split.
    """
    if spec == "builtin":
        return _builtin()
    if spec in HUB:
        return _hub(spec, HUB[spec], field, split)
    path = Path(spec)
    try:
        kind = "folder" if path.is_dir() else "file" if path.is_file() else ""
        there = path.exists()
    except (OSError, ValueError) as error:
        raise TextError(f"cannot look at {spec!r}: {error}", "check the path") from error
    if not spec or not there:
        raise TextError(
            f"no corpus {spec!r}: not a known name ({', '.join(['builtin', *HUB])}), "
            "and no file or folder there",
            "give one of these names or the path of a file or folder that exists",
        )
    # the last part of "." or ".." is no name
    name = path.resolve().name if kind == "folder" else path.stem
    if kind == "folder":
        documents, notes = _folder(path, field)
    elif kind == "file":
        documents, notes = _file(path, field)
    else:
        raise TextError(f"{spec} is neither a file nor a folder", "give a file or folder of text")
    return Source(name or str(path), spec, tuple(documents), tuple(notes))


def _builtin() -> Source:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise TextError(
            "this Python comes without pydoc_data.topics, the built-in corpus",
            "install the full standard library, or name a text file",
        ) from error
    origin = f"pydoc_data.topics of Python {platform.python_version()}"
    return Source("builtin", origin, tuple(sorted(topics.items())))


def _folder(path: Path, field: str) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        entries = sorted(path.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise TextError(f"cannot list {path}: {error.strerror}", "check its permissions") from error
    taken = [entry for entry in entries if _is_taken(entry)]
    if not taken:
        raise TextError(
            f"no {', '.join(FOLDER_KINDS)} file in the folder {path} ({len(entries)} entries)",
            "give a folder with such files in it (folders below it are not searched)",
        )
    documents: list[tuple[str, str]] = []
    notes: list[str] = []
    for entry in taken:
        found, said = _file(entry, field)
        documents += found
        notes += said
    left = [entry.name + "/" * entry.is_dir() for entry in entries if not _is_taken(entry)]
    if left:
        more = f" and {len(left) - 8} more" if len(left) > 8 else ""
        notes.append(f"left out of the folder: {', '.join(left[:8])}{more}")
    return documents, notes


def _is_taken(entry: Path) -> bool:
    hidden = entry.name.startswith(".")
    return not hidden and entry.suffix.lower() in FOLDER_KINDS and entry.is_file()


def _file(path: Path, field: str) -> tuple[list[tuple[str, str]], list[str]]:
    text, marked = _decode(path)
    notes = [f"byte-order mark at the start of {path.name} left out"] if marked else []
    if path.suffix.lower() == ".jsonl":
        return list(_records(path, text, field)), notes
    return [(path.name, text)], notes


def _decode(path: Path) -> tuple[str, bool]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TextError(f"{path} is UTF-16 or UTF-32, not UTF-8", "save it as UTF-8")
    if data.startswith(b"version https://git-lfs.github.com/spec/"):
        raise TextError(
            f"{path} is a Git LFS pointer of {len(data)} bytes, not the text itself",
            "fetch the file with `git lfs pull`",
        )
    if (zero := data.find(b"\0")) >= 0:
        raise TextError(
            f"{path} is not text: a zero byte at offset {zero}", "give a UTF-8 text file"
        )
    marked = data.startswith(codecs.BOM_UTF8)
    start = len(codecs.BOM_UTF8) if marked else 0
    try:
        # bytes are decoded as a whole, so that line ends stay what they are
        return data[start:].decode("utf-8"), marked
    except UnicodeDecodeError as error:
        offset = start + error.start
        raise TextError(
            f"{path} is not UTF-8: byte 0x{data[offset]:02x} at offset {offset:,} ({error.reason})",
            "convert the file to UTF-8",
        ) from error


def _records(path: Path, text: str, field: str) -> Iterator[tuple[str, str]]:
    # only a line feed ends a record: JSON strings may hold U+2028 and the like
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise TextError(f"{path} has no records", "give a JSONL file with a JSON object a line")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = str(error) if line.strip() else "the line is blank"
            raise TextError(
                f"{path}, line {number}: not JSON: {what}", "a JSONL file has one object a line"
            ) from error
        if not isinstance(record, dict):
            raise TextError(
                f"{path}, line {number}: {_kind(record)}, not an object",
                "a JSONL file has one object a line",
            )
        value = _value(record, field, f"{path}, line {number}", list(record))
        yield f"{path.name}:{number}", value


def _value(record: dict[str, object], field: str, where: str, fields: list[str]) -> str:
    if field not in record:
        listed = ", ".join(repr(name) for name in fields[:20]) or "none"
        raise TextError(
            f"{where}: no field {field!r}; it has {listed}", "name the field that holds the text"
        )
    value = record[field]
    if not isinstance(value, str):
        raise TextError(
            f"{where}: the field {field!r} is {_kind(value)}, not a string",
            "name the field that holds the text",
        )
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, list):
        return "an array"
    return "an object" if isinstance(value, dict) else "a string"


def _hub(name: str, data: HubData, field: str, split: str) -> Source:
    if split not in data.splits:
        raise UsageError(
            f"{name} has no split {split!r}", f"its splits are {', '.join(data.splits)}"
        )
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise TextError(
            f"the hub data set {name} needs the package `datasets` ({error})",
            'pip install "rankscope[datasets]"',
        ) from error
    try:
        rows = load_dataset(data.repository, data.config, split=split)
        columns = list(rows.column_names)
        texts = list(rows[field]) if field in columns else []
    except Exception as error:
        # errors of half a dozen packages come out here, with tracebacks that point elsewhere
        raise _hub_fault(name, data, error) from error
    label = f"{name}-{split}"
    if field not in columns:
        _value({}, field, f"{name}, split {split}", columns)
    documents = [
        (f"{label}:{number}", _value({field: text}, field, f"{label}, row {number}", columns))
        for number, text in enumerate(texts, start=1)
    ]
    notes: tuple[str, ...] = ()
    if data.rows_are_lines:
        lines = [text for _, text in documents]
        blank = sum(not line for line in lines)
        documents = [(label, "".join(_hub_line(line) for line in lines))]
        if blank:
            notes = (f"{blank:,} empty rows of the hub's copy read as WikiText's blank lines",)
    config = f" {data.config}" if data.config else ""
    return Source(name, f"hub: {data.repository}{config}, split {split}", tuple(documents), notes)


def _hub_line(row: str) -> str:
    """Line of the original file for a row of the hub's copy, where a blank line is empty."""
    return row if row.endswith("\n") else (row or " ") + "\n"


def _hub_fault(name: str, data: HubData, error: Exception) -> RankscopeError:
    said = (str(error).strip().splitlines() or [""])[0]
    shown = f"{type(error).__name__}: {said}"
    elsewhere = "or name a local copy of the text (a .txt or .jsonl file)"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"ConnectionError", "ConnectError", "TimeoutError", "OfflineModeIsEnabled"}:
        return TextError(
            f"{name} ({data.repository}) is not cached here and the hub is out of reach ({shown})",
            "go online once without HF_HUB_OFFLINE, point HF_HOME at a cache that has it, "
            f"{elsewhere}",
        )
    if kinds & {"GatedRepoError", "DatasetNotFoundError", "HfHubHTTPError"}:
        return TextError(
            f"the hub refuses {name} ({data.repository}) ({shown})",
            f"log in with an account that may read it, {elsewhere}",
        )
    return TextError(
        f"{name} ({data.repository}) could not be loaded ({shown})",
        f"delete its folder in the `datasets` cache and load it again, {elsewhere}",
    )
