"""Commands about approximations, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import SMALL, TINY, rankscope
from rankscope.approximations import METHODS, read_ranks
from rankscope.cli.methods import methods_of
from rankscope.exceptions import UsageError
from rankscope.store import working_path
from rankscope.store.files import load


def test_truncate_writes_every_rank_and_a_table(place: Path, capsys: Any) -> None:
    assert rankscope("truncate", *SMALL, "--ranks", "2,6", "--out", "run.nc") == 0
    found = load("run.nc")
    assert found.sizes["index"] == 12
    assert found["rank"].to_numpy().tolist() == [2, 6]
    shown = capsys.readouterr().out
    assert f"{float(found['output_error'].sel(index=6).mean()):.3f}" in shown
    assert "mean row alone" in shown


def test_compare_takes_methods_at_equal_budgets(place: Path, capsys: Any) -> None:
    methods = ["-M", "truncated", "-M", "best-output:k=3", "-M", "uniform"]
    assert rankscope("compare", *SMALL, *methods, "--at", "2,6", "--out", "run.nc") == 0
    found = load("run.nc")
    names = ["truncated:k=2", "truncated:k=6", "best-output:k=3", "uniform"]
    assert found["method"].to_numpy().tolist() == names
    shown = capsys.readouterr().out
    assert f"{float(found['output'].sel({'method': 'uniform'}).mean()):.3f}" in shown
    # P_low errs more at the smaller rank, and uniform attention most
    means = found["output"].mean([dim for dim in found["output"].dims if dim != "method"])
    assert float(means[1]) < float(means[0]) < float(means[3])


def test_intervene_measures_losses_or_hidden_states(place: Path, capsys: Any) -> None:
    assert rankscope("intervene", *SMALL, "-M", "uniform", "--out", "loss.nc") == 0
    shown = capsys.readouterr()
    assert "nats a predicted token" in shown.out
    found = load("loss.nc")
    assert found["method"].to_numpy().tolist() == ["full", "uniform"]
    assert np.isfinite(found["loss"]).all()
    heads = ["--heads", "0.1", "--mask-seed", "3", "--fraction", "0.5"]
    assert rankscope("intervene", *SMALL, "-M", "uniform", *heads, "-o", "one.nc") == 0
    other = load("one.nc")
    assert (other["masked_tokens"] == 5).all()
    kl = [float(run["kl"].sel({"method": "uniform"}).mean()) for run in (found, other)]
    assert 0 < kl[1] < kl[0]


@pytest.mark.parametrize(
    "command",
    [["truncate"], ["compare", "-M", "uniform"], ["intervene", "-M", "uniform"]],
)
def test_same_command_again_changes_nothing(place: Path, command: list[str]) -> None:
    line = [*command, *SMALL, "--out", "run.nc"]
    assert rankscope(*line) == 0
    before = (place / "run.nc").stat().st_mtime_ns
    assert rankscope(*line) == 0
    assert (place / "run.nc").stat().st_mtime_ns == before
    assert rankscope(*line, "--skip", "1") == 30
    assert (place / "run.nc").stat().st_mtime_ns == before


def test_choose_rank_writes_ranks_and_checks_them_on_other_windows(
    place: Path, capsys: Any
) -> None:
    line = ["choose-rank", *SMALL, "--mean-rank", "4", "--check", "2", "--out", "ranks.json"]
    assert rankscope(*line) == 0
    shown = capsys.readouterr()
    ranks = {name: read_ranks(Path(f"ranks{name}.json")) for name in ("", ".layer", ".uniform")}
    assert all(one.total <= 4 * 12 for one in ranks.values())
    assert ranks[".uniform"].ranks == ((4,) * 4,) * 3
    assert all(len(set(row)) == 1 for row in ranks[".layer"].ranks)
    errors = {name: one.how["predicted_error"] for name, one in ranks.items()}
    assert errors[""] <= errors[".layer"] <= errors[".uniform"]
    assert "nats a predicted token" in shown.out
    check = load("ranks.check.nc")
    curves = load("ranks.truncation.nc")
    # windows of the check are none of those of the choice
    assert int(check["token_start"].min()) >= int(curves["token_end"].max())
    # the file is taken by other commands, for this model only
    again = ["compare", *SMALL, "-M", "truncated:ranks=ranks.json", "-o", "c.nc"]
    assert rankscope(*again) == 0
    other = ["compare", *SMALL, "--seed", "0", "--model", "random:builtin"]
    assert rankscope(*other, "-M", "truncated:ranks=ranks.json", "-o", "d.nc") == 17
    # the same command again leaves everything as it is
    before = Path("ranks.json").stat().st_mtime_ns
    assert rankscope(*line) == 0
    assert Path("ranks.json").stat().st_mtime_ns == before


def test_choose_rank_by_tolerance_keeps_to_it(place: Path) -> None:
    line = ["choose-rank", *SMALL, "--tolerance", "0.2", "--check", "0", "-o", "ranks.json"]
    assert rankscope(*line) == 0
    found = read_ranks(Path("ranks.json"))
    curves = load("ranks.truncation.nc")["output_error"].mean("sample").isel(model=0, corpus=0)
    for layer, row in zip(found.layers, found.ranks, strict=True):
        for head, k in enumerate(row):
            curve = curves.sel(layer=layer).isel(head=head)
            assert float(curve.sel(index=k)) <= 0.2
            assert k == 1 or float(curve.sel(index=k - 1)) > 0.2
    assert json.loads(Path("ranks.json").read_text())["how"]["tolerance"] == 0.2


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["compare", *SMALL, "-M", "nothing"], 2, "unknown method"),
        (["compare", *SMALL, "-M", "truncated:q=3"], 2, "no parameter"),
        (["compare", *SMALL, "-M", "truncated:k=x"], 2, "whole number"),
        (["compare", *SMALL, "-M", "truncated", "--at", "a"], 2, "--at"),
        (["compare", *SMALL, "-M", "truncated:ranks=none.json"], 17, "none.json"),
        (["compare", *SMALL, "-M", "truncated:ranks=text.txt"], 17, "no file of ranks"),
        (["compare", *SMALL, "-M", "linformer:k=13"], 17, "13"),
        (["intervene", *SMALL, "--heads", "7", "-M", "uniform"], 2, "head 7"),
        (["intervene", *SMALL, "--heads", "x", "-M", "uniform"], 2, "list of heads"),
        (["intervene", *SMALL, "--fraction", "2", "-M", "uniform"], 2, "share"),
        (["intervene", *SMALL, "--special", "drop", "-M", "uniform"], 2, "special"),
        (["truncate", *SMALL, "--ranks", "13"], 2, "do not fit"),
        (["truncate", *TINY, "--length", "12", "--skip", "999"], 3, "packed windows"),
        (["choose-rank", *SMALL], 2, "exactly one"),
        (["choose-rank", *SMALL, "--budget", "9", "--tolerance", "0.1"], 2, "exactly one"),
        (["choose-rank", *SMALL, "--tolerance", "0.1", "--out", "r.txt"], 2, ".json"),
        (["choose-rank", *SMALL, "--tolerance", "0.1", "--by", "layer"], 2, "--by"),
        (["choose-rank", *SMALL, "--tolerance", "2"], 2, "tolerance of 2"),
        (["choose-rank", *SMALL, "--budget", "3"], 2, "12 … 144"),
        (["choose-rank", *SMALL, "--mean-rank", "13"], 2, "12 … 144"),
        (["choose-rank", *SMALL, "--mean-rank", "4", "--kind", "energy"], 2, "--kind"),
        (["choose-rank", *SMALL, "--tolerance", "0.1", "--minimum", "3"], 2, "--minimum"),
        (["choose-rank", *SMALL, "--mean-rank", "4", "--check", "999"], 3, "packed windows"),
        (["compare", *SMALL, "-M", f"truncated:k={10**20}"], 2, "beyond any window"),
        (["compare", *SMALL, "--special", "drop", "-M", "linformer:k=2"], 17, "special"),
        (["intervene", *SMALL, "--layers", "0", "--heads", "1.0", "-M", "uniform"], 2, "--layers"),
        (["intervene", *SMALL, "--mask-seed", "-1", "-M", "uniform"], 2, "seed -1"),
        (["linformer", "fit", *TINY, "--length", "12", "-k", "0"], 2, "k 0"),
        (
            ["linformer", "fit", *TINY, "-k", "4", "--projection", "svd", "--epochs", "3"],
            2,
            "leave",
        ),
    ],
)
def test_errors_name_cause_and_remedy_and_leave_nothing(
    place: Path, capsys: Any, arguments: list[str], status: int, words: str
) -> None:
    before = sorted(path.name for path in place.iterdir())
    assert rankscope(*arguments) == status
    shown = capsys.readouterr().err
    assert shown.count("error:") == 1
    assert words in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_damaged_file_is_named_in_a_few_words(place: Path, capsys: Any) -> None:
    (place / "ranks.json").write_bytes(b"\xff\xfe" * 20_000)
    line = ["compare", *SMALL, "-M", "truncated:ranks=ranks.json", "-o", "c.nc"]
    assert rankscope(*line) == 17
    shown = capsys.readouterr().err
    assert "it is no text" in shown
    assert len(shown) < 1000


def test_a_refused_method_does_not_block_the_corrected_command(place: Path) -> None:
    (place / "lines.txt").write_text("one\n" + "many words of a longer line here now " * 3)
    line = ["compare", *SMALL, "--corpus", "lines.txt", "--unit", "line", "--mode", "document"]
    line += ["--windows", "all", "--out", "c.nc"]
    # the short line has fewer tokens than rows
    assert rankscope(*line, "-M", "linformer:k=5") == 17
    assert not working_path("c.nc").exists()
    assert rankscope(*line, "-M", "linformer:k=3") == 0


def test_an_empty_text_is_no_failure(place: Path) -> None:
    (place / "lines.txt").write_text("one two three\n\nfour five six\n")
    line = ["truncate", *SMALL, "--corpus", "lines.txt", "--unit", "line", "--mode", "document"]
    assert rankscope(*line, "--windows", "all", "--special", "drop", "--out", "t.nc") == 0
    assert load("t.nc")["status"].isel(sample=1).to_numpy().tolist() == [[[[3] * 4] * 3]]


def test_plots_of_spectra_refuse_other_files(place: Path, capsys: Any) -> None:
    assert rankscope("truncate", *SMALL, "--out", "t.nc") == 0
    for kind in ("head", "spectra"):
        assert rankscope("plot", "t.nc", "--kind", kind, "--out", "p.png") == 30
        assert "rankscope spectra" in capsys.readouterr().err
    assert not (place / "p.png").exists()


def test_methods_lists_every_method_with_its_parameters(capsys: Any) -> None:
    assert rankscope("methods") == 0
    shown = capsys.readouterr().out
    for name in METHODS:
        assert name in shown
    assert "rows=raw" in shown


def test_budgets_go_to_methods_that_leave_theirs_out() -> None:
    found = [str(one) for one in methods_of(["truncated:rows=clipped", "uniform"], "2,4")]
    assert found == ["truncated:k=2,rows=clipped", "truncated:k=4,rows=clipped", "uniform"]
    assert [str(one) for one in methods_of(["truncated:k=3"], "2,4")] == ["truncated:k=3"]
    with pytest.raises(UsageError, match="truncated"):
        methods_of(["truncated"], None)


@pytest.mark.parametrize("kind", ["truncation", "comparison", "both", "loss", "ranks"])
def test_plot_chooses_what_suits_the_file(place: Path, kind: str) -> None:
    if kind in ("truncation", "both"):
        assert rankscope("truncate", *SMALL, "--out", "truncation.nc") == 0
    if kind in ("comparison", "both"):
        assert rankscope("compare", *SMALL, "--at", "2,6", "-M", "best-output", "-o", "c.nc") == 0
    if kind == "loss":
        assert rankscope("intervene", *SMALL, "--at", "2,6", "-M", "truncated", "-o", "l.nc") == 0
    if kind == "ranks":
        line = ["choose-rank", *SMALL, "--tolerance", "0.2", "--check", "0"]
        assert rankscope(*line) == 0
    files = {
        "truncation": ["truncation.nc"],
        "comparison": ["c.nc"],
        "both": ["truncation.nc", "c.nc"],
        "loss": ["l.nc"],
        "ranks": ["ranks.json"],
    }[kind]
    assert rankscope("plot", *files, "--out", "picture.png") == 0
    assert Path("picture.png").stat().st_size > 5000
