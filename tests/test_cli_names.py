"""Names of models, texts and results: none is lost, doubled, or found out after the work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from commands import TINY, rankscope
from rankscope.exceptions import UsageError
from rankscope.labels import file_name
from rankscope.store.files import load

FEW = ["--length", "12", "--windows", "2", "--tokenizer", "hash"]


def test_two_folders_of_one_name_are_refused_before_anything_is_computed(
    place: Path, capsys: Any
) -> None:
    for parent in ("a", "b"):
        shutil.copytree("model", f"{parent}/model")
    words = ["-m", "random:a/model", "-m", "random:b/model", "-c", "text.txt"]
    assert rankscope("figure1", *words, *FEW) == UsageError.exit_code
    shown = capsys.readouterr().err
    assert "random:a/model on text" in shown
    assert "random:b/model on text" in shown
    assert list(Path("rankscope-out").iterdir()) == []


def test_texts_of_any_script_have_files_of_their_own(place: Path) -> None:
    for name in ("текст.txt", "данные.txt"):
        shutil.copy("text.txt", name)
    words = ["-m", "random:model", "-c", "текст.txt", "-c", "данные.txt"]
    assert rankscope("figure1", *words, *FEW, "--no-control") == 0
    made = {path.name for path in Path("rankscope-out").glob("*.nc")}
    assert made == {"random-model--текст.nc", "random-model--данные.nc"}


def test_control_that_is_also_listed_is_measured_once(place: Path, masked_lm: Path) -> None:
    words = ["-m", "tiny", "-m", "random:tiny", "-c", "text.txt"]
    assert rankscope("figure1", *words, "--length", "12", "--windows", "2") == 0
    made = {path.name for path in Path("rankscope-out").iterdir()}
    assert made == {
        "figure1.png",
        "figure1.svg",
        "tiny--text.nc",
        "random-tiny--text.nc",
    }
    assert load("rankscope-out/random-tiny--text.nc").model.item() == "random:tiny"


def test_random_weights_have_no_control_of_random_weights(place: Path, capsys: Any) -> None:
    words = ["spectra", *TINY, "--length", "12", "--windows", "2", "--controls", "random"]
    assert rankscope(*words) == UsageError.exit_code
    assert "has random weights already" in capsys.readouterr().err
    assert not Path("spectra.nc").exists()


@pytest.mark.parametrize("what", ["text", "model", "result"])
def test_names_that_are_not_utf8_are_refused(place: Path, what: str, capsys: Any) -> None:
    odd = "b\udcff"
    shutil.copy("text.txt", f"{odd}.txt")
    shutil.copytree("model", odd)
    words = {
        "model": f"random:{odd if what == 'model' else 'model'}",
        "corpus": f"{odd}.txt" if what == "text" else "text.txt",
        "out": f"{odd}.parquet" if what == "result" else "run.parquet",
    }
    given = [part for name, value in words.items() for part in (f"--{name}", value)]
    before = sorted(place.iterdir())
    assert rankscope("spectra", *given, *FEW) == UsageError.exit_code
    shown = capsys.readouterr().err
    assert f"the name of the {what}, '{'random:' * (what == 'model')}b\\udcff" in shown
    assert "rename it" in shown
    assert sorted(place.iterdir()) == before


def test_file_names_of_different_names_differ() -> None:
    names = ["a*b", "a?b", "a", "a" * 200, "a" * 201, "", ".", "..", "текст", "текс", "\udcff"]
    made = [file_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(0 < len(one.encode()) <= 107 and "/" not in one for one in made)
    assert file_name("random:FacebookAI/roberta-base") == "random-FacebookAI-roberta-base"


def test_reading_and_cutting_a_large_text_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("rankscope.cli.running.LARGE_TEXT", 100)
    assert rankscope("truncate", *TINY, "--length", "12", "--windows", "2", "--out", "t.nc") == 0
    shown = capsys.readouterr().err.splitlines()
    assert "reading text.txt" in shown
    assert "cutting text into windows: 0 million characters" in shown


def test_finished_result_of_other_settings_names_them(place: Path, capsys: Any) -> None:
    words = ["spectra", *TINY, "--length", "12", "--windows", "2", "--out", "run.nc"]
    assert rankscope(*words) == 0
    before = Path("run.nc").read_bytes()
    assert rankscope(*words, "--driver", "svd") == 30
    shown = capsys.readouterr().err
    assert "run.nc exists, and is of other settings" in shown
    assert "driver" in shown
    assert "allow to overwrite it" in shown
    assert Path("run.nc").read_bytes() == before


def test_overlapping_windows_come_with_a_word_on_their_intervals(place: Path, capsys: Any) -> None:
    words = ["spectra", *TINY, "--length", "12", "--windows", "2", "--out", "run.nc"]
    assert rankscope(*words, "--mode", "overlap", "--overlap", "6") == 0
    assert "windows share tokens" in capsys.readouterr().err
    assert rankscope(*words[:-1], "packed.nc") == 0
    assert "windows share tokens" not in capsys.readouterr().err
