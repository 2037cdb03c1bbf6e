"""The command `report`: which file is what, windows without a P, names without bytes, controls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import SMALL, rankscope
from explorers import data_of, placed, spectra
from made_up import run_of
from made_up_methods import compare_run
from rankscope import report
from rankscope.exceptions import UsageError
from rankscope.store.files import export
from rankscope.summary import summarise
from rankscope.summary.differences import difference

LINES = "\n\nfirst words of all\n\nwords and more words\n"


def page(path: str | Path) -> list[dict[str, Any]]:
    return data_of(Path(path).read_text(encoding="utf-8"))


def stored(name: str, model: str, seed: int = 0) -> None:
    export(placed(run_of(spectra(seed, 2, 2, 16), model=model)), name)


@pytest.mark.parametrize(
    "order",
    [["run.nc", "rows.nc", "random.nc"], ["random.nc", "run.nc", "rows.nc"]],
    ids=["measured first", "control first"],
)
def test_a_control_is_one_whatever_the_order(place: Path, order: list[str]) -> None:
    stored("run.nc", "m")
    stored("rows.nc", "rows:m", 1)
    stored("random.nc", "random:m", 2)
    assert rankscope("report", *order, "--no-pictures") == 0
    (shown,) = page("run.html")
    assert shown["model"] == "m"
    assert {one["name"] for one in shown["controls"]} == {"rows:m", "random:m"}
    assert not (place / "random.html").exists()


def test_random_weights_alone_are_what_is_looked_at(place: Path, capsys: Any) -> None:
    stored("random.nc", "random:m")
    stored("rows.nc", "rows:random:m", 1)
    assert rankscope("report", "random.nc", "--no-pictures") == 0
    assert [one["model"] for one in page("random.html")] == ["random:m"]
    assert rankscope("report", "rows.nc", "random.nc", "--no-pictures") == 0
    (shown,) = page("random.html")
    assert (shown["model"], [one["name"] for one in shown["controls"]]) == (
        *("random:m", ["rows:random:m"]),
    )
    assert shown["controls"][0]["sameHeads"]
    assert rankscope("report", "rows.nc", "rows.nc", "--no-pictures") == 2
    assert "two runs of model 'rows:random:m'" in capsys.readouterr().err


def test_a_first_window_without_a_token_is_passed_over(place: Path, capsys: Any) -> None:
    (place / "lines.txt").write_text(LINES, encoding="utf-8")
    arguments = [
        "spectra", "--model", "random:model", "--tokenizer", "hash", "--corpus", "lines.txt",
        "--unit", "line", "--mode", "document", "--special", "drop", "--length", "12",
        "--windows", "all", "--workers", "1",
    ]  # fmt: skip
    assert rankscope(*arguments, "--out", "run.nc") == 0
    capsys.readouterr()
    assert rankscope("report", "run.nc") == 0
    (shown,) = page("run.html")
    assert "window 0 of text 2" in shown["pictures"]["caption"]
    assert len(shown["pictures"]["heads"]) == 12
    assert rankscope("report", "run.nc", "--sample", "3", "--out", "other.html") == 2
    said = capsys.readouterr().err
    assert "error: window 3 of the run has no token, and so no P" in said
    assert "the first that has one is window 2" in said
    assert not (place / "other.html").exists()
    # what is not drawn need not exist
    assert rankscope("report", "run.nc", "--sample", "3", "--no-pictures") == 0


def test_a_model_that_is_gone_costs_the_pictures_and_not_the_page(place: Path, capsys: Any) -> None:
    assert rankscope("spectra", *SMALL, "--out", "run.nc") == 0
    (place / "model").rename(place / "away")
    capsys.readouterr()
    assert rankscope("report", "run.nc") == 0
    assert "no picture of P of random:model" in capsys.readouterr().err
    (shown,) = page("run.html")
    assert shown["pictures"] is None
    assert shown["windows"] == 3


def test_a_summary_has_a_page_without_pictures(place: Path, capsys: Any) -> None:
    export(summarise(run_of(spectra(0, 2, 2, 16))), "mean.nc")
    assert rankscope("report", "mean.nc") == 0
    assert "a summary does not say of which window" in capsys.readouterr().err
    assert page("mean.html")[0]["pictures"] is None


def test_a_window_without_a_token_is_no_picture() -> None:
    from rankscope.models import load
    from rankscope.text import Corpus, windows

    model, corpus = load("builtin"), Corpus.from_strings(["", "some words"], "two")
    empty = windows(corpus, model.tokenizer, length=12, mode="document")[0]
    with pytest.raises(UsageError, match="window 0 of text 0 has no token"):
        report.pictures(model, empty, special="drop")


LOST = "b\udcff"
"""A byte of a file's name that is no UTF-8, as Python has it."""


@pytest.mark.parametrize("what", ["model", "text", "control", "method", "fact"])
def test_a_name_without_bytes_is_one_clear_error(tmp_path: Path, what: str) -> None:
    run = placed(run_of(spectra(0, 2, 2, 16)))
    options: dict[str, Any] = {}
    if what in ("model", "text"):
        name = "model" if what == "model" else "corpus"
        run = run.assign_coords({name: [LOST]})
    elif what == "control":
        options["controls"] = run.assign_coords(model=[f"rows:{LOST}"])
    elif what == "method":
        values = {"output": np.ones((2, 2, 2, 1))}
        options["errors"] = [compare_run(values, (f"linformer:k=4,projection={LOST}",))]
    else:
        run = run.assign_attrs(settings_hash=LOST)
    with pytest.raises(UsageError, match="not UTF-8") as caught:
        report.write_report(tmp_path / "run.html", run, **options)
    assert r"b\udcff" in str(caught.value)
    assert os.listdir(tmp_path) == []


# ---- differences


def test_the_difference_of_a_control_and_its_interval_are_in_the_page() -> None:
    run = placed(run_of(spectra(0, 2, 3, 16)))
    rows, random = (
        placed(run_of(spectra(seed, 2, 3, 16), model=name))
        for seed, name in ((1, "rows:m"), (2, "random:m"))
    )
    (shown,) = data_of(report.explorer(run, controls=[rows, random]))
    assert [one["sameHeads"] for one in shown["controls"]] == [True, False]
    for one, control in zip(shown["controls"], (rows, random), strict=True):
        found = difference(run, control)
        gap = one["gap"]
        assert (gap["measured"], gap["control"]) == (found.measured, found.control_mean)
        assert (gap["mean"], gap["low"], gap["high"]) == (found.mean, *found.interval)
        assert (gap["place"], gap["units"]) == ("4", "2 texts")
        assert gap["low"] < gap["mean"] < gap["high"]


def test_what_an_interval_is_over_is_said() -> None:
    def units(texts: list[int]) -> str:
        count = len(texts)
        decay = np.random.default_rng(0).uniform(1, 3, (count, 1, 1, 1))
        run, rows = (
            placed(run_of(np.exp(-scale * decay * np.arange(8)), text_id=texts, model=name))
            for scale, name in ((1, "m"), (2, "rows:m"))
        )
        (shown,) = data_of(report.explorer(run, controls=rows))
        assert ("place", "2") in shown["controls"][0]["gap"].items()
        return str(shown["controls"][0]["gap"]["units"])

    assert units([0, 0, 1]) == "2 texts"
    assert units([0, 0, 0]) == "3 windows"
    assert units([0]) == "1 window"
    assert units([0] * 70) == "35 batches of windows"


def test_one_unit_has_no_interval_and_other_windows_no_difference() -> None:
    one, rows = (placed(run_of(spectra(0, 2, 3, 16)[:1], model=name)) for name in ("m", "rows:m"))
    (shown,) = data_of(report.explorer(one, controls=rows))
    assert (shown["controls"][0]["gap"]["low"], shown["controls"][0]["gap"]["high"]) == (None, None)
    moved = rows.assign_coords(window=("sample", [7]))
    (shown,) = data_of(report.explorer(one, controls=moved))
    assert shown["controls"][0]["gap"] == {
        "why": "the control was measured on another window than the run"
    }
    (shown,) = data_of(report.explorer(one, controls=rows.drop_vars("token_start")))
    assert "without token_start" in shown["controls"][0]["gap"]["why"]


def test_summaries_show_the_difference_that_they_carry() -> None:
    run = placed(run_of(spectra(0, 2, 3, 16)))
    rows = placed(run_of(spectra(1, 2, 3, 16), model="rows:m"))
    found = difference(run, rows)
    carried = summarise(rows).assign_attrs(found.attrs())
    (shown,) = data_of(report.explorer(summarise(run), controls=carried))
    gap = shown["controls"][0]["gap"]
    assert (gap["mean"], gap["low"], gap["high"]) == (found.mean, *found.interval)
    assert (gap["measured"], gap["control"]) == pytest.approx((found.measured, found.control_mean))
    (shown,) = data_of(report.explorer(summarise(run), controls=summarise(rows)))
    assert set(shown["controls"][0]["gap"]) == {"why"}


def test_windows_of_several_lengths_are_compared_at_a_quarter_of_each() -> None:
    sizes = [16, 5]
    run, rows = (
        placed(run_of(spectra(seed, 2, 3, 16), model=name, n_tokens=sizes))
        for seed, name in ((0, "m"), (1, "rows:m"))
    )
    (shown,) = data_of(report.explorer(run, controls=rows))
    gap = shown["controls"][0]["gap"]
    ratio = run["cumulative_ratio"].to_numpy()[0, 0]
    own = (ratio[0, ..., 3].mean() + ratio[1, ..., 0].mean()) / 2
    assert gap["place"] == "n/4 of each window"
    assert gap["measured"] == pytest.approx(own)
    kept = summarise(rows).assign_attrs(difference(run, rows).attrs())
    (shown,) = data_of(report.explorer(summarise(run), controls=kept))
    assert shown["controls"][0]["gap"]["measured"] == pytest.approx(own)
