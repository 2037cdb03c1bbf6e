"""Every command and every block of Python in the README, in order, in one folder.

What cannot be had in a test is replaced by something of the same kind: sizes by small ones, the
hub's models by a folder, its texts by files, the GPU by the CPU, a cluster by this machine. The two
commands that make an environment are run by CI itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import rankscope
from conftest import ROOT

REPLACED = {
    "FacebookAI/roberta-base": "./my-model",
    "FacebookAI/roberta-large": "./my-model",
    "random:roberta-base": "random:./my-model",
    "wikitext103": "./my-text.txt",
    "imdb": "./train.txt",
    "cuda": "cpu",
    "--scheduler": "--workers",
    "tcp://10.0.0.1:8786": "1",
}
SMALL = {
    "--length": "16",
    "--windows": "2",
    "--workers": "1",
    "--tokens": "1k",
    "--precision": "0.9",
    "--mean-rank": "6",
    "--at": "4,8",
    "-k": "4",
}
SIZED = {
    "figure1",
    "spectra",
    "truncate",
    "choose-rank",
    "intervene",
    "compare",
    "fit",
    "evaluate",
    "plan",
}
"""Commands that take a length, and windows but for plan, whether the README names them or not."""


def blocks() -> Iterator[tuple[str, str]]:
    """Language and text of the README's blocks, but those with a mark, which are CI's."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for mark, language, body in re.findall(
        r"(<!-- \w+ -->\n)?```(\w+)\n(.*?)```", text, flags=re.DOTALL
    ):
        if not mark:
            yield language, body


def small(line: str) -> list[str]:
    """The words of a command after `rankscope`, with what a test has."""
    words = [REPLACED.get(word, word) for word in shlex.split(line)[1:]]
    if SIZED & {*words[:2]}:
        # a precision is reached with as many windows as it takes
        free = words[0] == "plan" or "--precision" in words
        sizes = ("--length",) if free else ("--length", "--windows")
        words += [one for name in sizes if name not in words for one in (name, "")]
    if words[0] == "figure1":
        # two commands of the README may draw one model on one text, with other settings
        words.append("--overwrite")
    after = ["", *words[:-1]]
    return [SMALL.get(before, word) for before, word in zip(after, words, strict=True)]


@pytest.fixture
def there(masked_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model folder and the texts that the README names."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(masked_lm)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(masked_lm)
    place = tmp_path / "place"
    place.mkdir()
    masked_lm.rename(place / "my-model")
    random = np.random.default_rng(0)
    for name in ("my-text", "train", "test"):
        letters = random.choice(list("abcdefghijklmnop"), 1200)
        (place / f"{name}.txt").write_text(" ".join(letters), encoding="utf-8")
    monkeypatch.chdir(place)
    return place


def test_every_command_of_the_readme_works(there: Path, capsys: Any) -> None:
    names: dict[str, Any] = {}
    commands = 0
    # the same tasks once more, which leave files of the same names
    (there / "python").mkdir()
    for language, body in blocks():
        if language == "python":
            with chdir(there / "python"):
                exec(compile(body, "README.md", "exec"), names)
            continue
        assert language == "bash", language
        for line in body.strip().split("\n"):
            assert line.startswith("rankscope "), line
            words = small(line)
            status = rankscope(*words)
            shown = capsys.readouterr()
            assert status == 0, f"{line}\n{shlex.join(words)}\n{shown.out}{shown.err}"
            commands += 1
            for option in ("--out", "-o"):
                if option in words:
                    assert Path(words[words.index(option) + 1]).exists(), line
    assert commands >= 15
    assert {"run", "choice", "attention"} <= names.keys()
    assert Path("python/figure1.png").exists()


def test_what_is_replaced_is_in_the_readme() -> None:
    words = {
        word
        for language, body in blocks()
        if language == "bash"
        for line in body.split("\n")
        for word in shlex.split(line)
    }
    assert {*REPLACED} <= words
    assert {*SMALL} <= words
