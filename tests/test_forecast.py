"""What a run would take: closed forms of time and memory, and the sizes of real stores."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from commands import TINY, rankscope
from rankscope import linalg
from rankscope.engine import Recipe, Resources, SpectraPlan, forecast, run
from rankscope.engine import calibration as calibrating
from rankscope.engine.calibration import Calibration, calibrate
from rankscope.engine.counting import Count
from rankscope.engine.execution import WORKER_BYTES
from rankscope.engine.forecast import TOKENISING_BYTES, Forecast
from rankscope.engine.machine import weights_bytes
from rankscope.exceptions import TextError, UsageError
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.models.tokenizers import HashTokenizer
from rankscope.text import Corpus, windows
from tiny import tiny_config

TOKENIZER = HashTokenizer(1000, prefix=(0,), suffix=(1,), reserved=(0, 1))
SMALL_RUN = Recipe(length=12, windows=None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    linalg.warm_up()
    return load_model(f"random:{folder}", tokenizer="hash")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_strings([" ".join(f"word{i % 37} of{i % 11}" for i in range(300))], "words")


def made_up(
    seconds: tuple[float, ...] = (1.0, 2.0, 3.0, 2.0),
    *,
    workers: int = 4,
    cores: int = 4,
    busy: float = 2.0,
    writing: float = 0.01,
    block: int = 1,
    windows: int = 1000,
    **changes: Any,
) -> Forecast:
    """A forecast from numbers that were never measured."""
    count = Count(
        windows=windows, low=windows - 100, high=windows + 100, tokens=510_000,
        tokens_low=500_000, tokens_high=520_000, read=500_000, exact=False, given=False,
        characters=2_000_000, longest=1_000_000, texts=3, sampled=100_000, rate=100_000.0,
    )  # fmt: skip
    calibration = Calibration(
        seconds=seconds, busy=busy, writing=writing, finishing=0.002, block=block, warm_up=9.0,
        folder_bytes=1e6, folder_entries=11.0, folder_base=5000, folder_base_entries=40,
        file_bytes=9e5, file_base=7000.0, window_bytes=900.0,
    )  # fmt: skip
    whole = Forecast(
        model="m", corpus="c", length=512, workers=workers, cores=cores, format="nc", count=count,
        calibration=calibration, loading=6.0, model_bytes=10**8, worker_bytes=10**9,
        own_bytes=10**7, tokenised=10**6, text_bytes=10**8, memory_free=10**11,
        disk_free=10**11, entries_free=None,
    )  # fmt: skip
    return replace(whole, **changes)


def test_time_in_closed_form() -> None:
    found = made_up()
    # 6 s of loading, 5 s of tokenising; a window 2 s, .01 s to write, .002 s to finish
    assert found.seconds(1) == pytest.approx(11 + 1000 * 2.01 + 2)
    # workers load too; the cores do the writing beside the windows
    assert found.seconds() == pytest.approx(17 + 1000 * 2.01 / 4 + 2)
    # cores to spare: the windows themselves decide
    assert made_up(cores=8).seconds() == pytest.approx(17 + 1000 * 2 / 4 + 2)
    # a hundred workers, a core each: 20 ms of computing and 1000 × 10 ms of writing
    assert made_up(workers=100).seconds() == pytest.approx(17 + 1000 * 2.01 / 100 + 2)
    # more workers than the writer can follow
    assert made_up(workers=1000).seconds() == pytest.approx(17 + 1000 * 0.01 + 2)
    # threads that share the window's work: no more is done than there are cores for
    assert made_up(workers=2, cores=2, busy=3.0).seconds() == pytest.approx(17 + 1505 + 2)
    # the last round is not full: 5 windows on 4 workers take two
    few = made_up(windows=5, cores=8)
    assert few.running(4) == pytest.approx(4.0)
    assert few.running(1) == pytest.approx(5 * 2.01)
    # blocks of 64: 65 windows are two blocks, however many workers
    assert made_up(windows=65, block=64, cores=8).running(4) == pytest.approx(64 * 2.0)
    assert found.seconds(1, windows=10) == pytest.approx(11 + 20.1 + 0.02)
    assert replace(found, loading=None).seconds(1) == pytest.approx(5 + 2010 + 2)


def test_interval_is_student_s_and_counts_the_windows_too() -> None:
    found = made_up(cores=8)
    seconds = np.array(found.calibration.seconds)
    low, high = stats.t.interval(0.95, 3, seconds.mean(), stats.sem(seconds))
    assert found.calibration.interval == pytest.approx((low, high))
    assert found.interval(1) == pytest.approx(
        (11 + 900 * (low + 0.012), 11 + 1100 * (high + 0.012))
    )
    assert found.interval(1)[0] < found.seconds(1) < found.interval(1)[1]
    alone = made_up((2.0,))
    assert all(map(math.isnan, alone.interval()))
    assert any("no interval" in note for note in alone.notes())


def test_memory_disk_and_what_is_said_of_them() -> None:
    found = made_up(busy=2.0)
    assert found.notes() == []
    assert found.main_bytes == WORKER_BYTES + 2 * 10**8
    assert found.memory == found.main_bytes + 4 * 10**9
    alone = made_up(workers=1)
    assert alone.memory == alone.main_bytes == WORKER_BYTES + 2 * 10**8 + 10**7
    assert found.folder_bytes == 5000 + 10**9
    assert found.file_bytes == 7000 + 9 * 10**8
    # the file is made while the folder is there; a Zarr result is that folder
    assert found.disk == 12_000 + 19 * 10**8
    assert replace(found, format="zarr").disk == found.folder_bytes
    assert found.entries == 11_040

    def said(**changes: Any) -> str:
        (note,) = replace(found, **changes).notes()
        return note

    assert said(memory_free=10**9).startswith("memory: more than is free")
    assert said(disk_free=10**9).startswith("disk: more than is free")
    assert said(entries_free=11_039).startswith("disk: more files")
    assert "have a core each; there are 2" in said(cores=2)
    assert "1.3 times its processor time" in "".join(made_up(busy=1.55).notes())
    assert any(note.startswith("time") for note in made_up(windows=10**8, disk_free=1).notes())


def test_calibration_and_disk_against_a_real_run(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, windows_by_themselves: None
) -> None:
    recipe = replace(SMALL_RUN, windows=30)
    found = forecast.forecast(
        model, corpus, recipe, workers=2, calibrate=5, folder=tmp_path, loading=1.0
    )
    assert list(tmp_path.iterdir()) == []
    cal = found.calibration
    assert len(cal.seconds) == cal.windows == 5
    assert min(cal.seconds) > 0
    assert min(cal.busy, cal.writing, cal.finishing, cal.warm_up) > 0
    assert found.count.windows == 30
    target = tmp_path / "run.nc"
    # a Zarr result is the working folder, moved
    folder = run(model, corpus, recipe, tmp_path / "run.zarr")
    inside = [
        Path(top) / name for top, *names in os.walk(folder) for name in [*names[0], *names[1]]
    ]
    taken = sum(max(path.stat().st_blocks * 512, path.stat().st_size) for path in inside)
    assert found.folder_bytes == pytest.approx(taken, rel=0.03)
    # of the states, one file holds many windows
    assert found.entries == pytest.approx(len(inside), abs=2)
    run(model, corpus, recipe, target)
    assert found.file_bytes == pytest.approx(target.stat().st_size, rel=0.1)


def test_memory_is_that_of_the_run(model: LoadedModel, corpus: Corpus) -> None:
    found = forecast.forecast(model, corpus, SMALL_RUN, workers=3, calibrate=2)
    plan = SpectraPlan(model, corpus, SMALL_RUN)
    assert 3 * found.worker_bytes == Resources(workers=3).memory(plan, model)
    assert found.own_bytes == Resources().memory(plan, model)
    assert found.model_bytes == weights_bytes(model)
    text = len(corpus.texts[0].text)
    arrays = 120 * 12 * (8 + 1)
    held = found.text_bytes - text * (1 + TOKENISING_BYTES["hash"])
    assert arrays < held < arrays + 120 * 1200


def test_windows_are_timed_in_whole_blocks(model: LoadedModel, corpus: Corpus) -> None:
    many = Corpus.from_strings([corpus.texts[0].text * 10], "more")
    cal = calibrate(model, many, SMALL_RUN, windows=50)
    assert cal.block == 512 // 12 == 42
    assert (len(cal.seconds), cal.windows) == (2, 84)
    # one block alone is there: it warms up, and is timed again
    alone = calibrate(model, corpus, replace(SMALL_RUN, precision=0.1), windows=50, format="zarr")
    assert len(alone.seconds) == 1
    assert math.isnan(alone.standard_error)
    assert alone.file_bytes == alone.folder_bytes
    with pytest.raises(UsageError, match="0 windows"):
        calibrate(model, corpus, SMALL_RUN, windows=0)


@pytest.mark.usefixtures("windows_by_themselves")
def test_calibration_stops_by_itself(
    model: LoadedModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "SECONDS", 1e-9)
    assert calibrate(model, corpus, SMALL_RUN).windows == calibrating.FEWEST
    monkeypatch.setattr(calibrating, "SECONDS", 1e9)
    monkeypatch.setattr(calibrating, "MOST", 6)
    assert calibrate(model, corpus, SMALL_RUN).windows == 6
    # of five windows one warms up
    few = Corpus.from_strings([corpus.texts[0].text[:130]])
    assert calibrate(model, few, SMALL_RUN, windows=99).windows == 4


def test_every_beginning_of_the_calibration_is_spread() -> None:
    order = calibrating._spread(1000, 65)
    assert len(set(order)) == 65
    for count in (3, 5, 17, 65):
        gaps = np.diff([0, *sorted(order[:count]), 1000])
        assert gaps.max() <= 2 * 1000 / count
    assert sorted(calibrating._spread(10, 65)) == list(range(10))
    assert calibrating._spread(1, 65) == [0, 0]


def test_estimate_in_time_is_of_the_run_s_kind(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    """Twice the tokens take twice the time beyond loading, and twice the disk beyond its base."""
    one, two = (
        forecast.forecast(model, corpus, SMALL_RUN, workers=1, tokens=tokens, calibrate=3)
        for tokens in (10**6, 2 * 10**6)
    )
    for found, windows_ in ((one, 10**5), (two, 2 * 10**5)):
        cal = found.calibration
        each = cal.mean + cal.writing + cal.finishing
        assert found.count.windows == windows_
        tokenising = found.count.tokens / found.count.rate
        assert found.seconds() == pytest.approx(windows_ * each + tokenising)
        assert found.disk == pytest.approx(
            cal.folder_base + cal.file_base + windows_ * (cal.folder_bytes + cal.file_bytes)
        )


def test_command_says_it_in_lines_and_in_json(place: Path, capsys: Any) -> None:
    words = ["plan", *TINY, "--length", "12", "--calibrate", "3", "--workers", "2"]
    before = sorted(place.iterdir())
    assert rankscope(*words, "--tokens", "100M") == 0
    shown = capsys.readouterr().out
    assert "10,000,000 of 12 tokens in a corpus of 100,000,000 tokens" in shown
    assert "An estimate from" in shown
    assert "a cluster of other machines differs" in shown
    for name in ("a window", "start-up", "time, 1 worker ", "time, 2 workers", "memory", "disk"):
        assert f"\n  {name}" in shown
    assert rankscope(*words, "--json", "--format", ".zarr") == 0
    found = json.loads(capsys.readouterr().out)
    cut = windows(
        Corpus.from_strings([(place / "text.txt").read_text(encoding="utf-8")]),
        TOKENIZER,
        length=12,
    )
    assert found["count"]["windows"] == len(cut)
    assert found["count"]["exact"] is True
    assert found["disk"]["at_once"] == found["disk"]["working_folder"]
    assert found["loading"] > 0
    assert found["seconds"]["1"] > found["start_up"]["1"] > found["loading"]
    assert found["memory"]["all"] == found["memory"]["main"] + 2 * found["memory"]["worker"]
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize(
    "wrong",
    [
        ["--tokens", "many"],
        ["--tokens", "0"],
        ["--tokens", "1.5"],
        ["--tokens", "-5"],
        ["--format", ".csv"],
        ["--workers", "0"],
        ["--calibrate", "0"],
        ["--windows", "0"],
        ["--length", "2"],
    ],
)
def test_wrong_options_are_refused(place: Path, wrong: list[str], capsys: Any) -> None:
    assert (
        rankscope("plan", *TINY, *(["--length", "12"] if wrong[0] != "--length" else []), *wrong)
        == 2
    )
    shown = capsys.readouterr()
    assert "error: " in shown.err
    assert "remedy: " in shown.err
    assert shown.out == ""


def test_other_faults_have_their_own_status(place: Path) -> None:
    words = ["plan", *TINY, "--length", "12"]
    assert rankscope(*words, "--folder", "nowhere") == 30
    assert rankscope(*words, "--windows", "100000") == TextError.exit_code
    assert rankscope("plan", "--model", "nothing-here", "--corpus", "text.txt") not in (0, 1, 2)
