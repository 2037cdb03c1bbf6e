"""The command as a user types it: results, exit statuses, and errors that name the remedy."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from commands import SMALL, TINY, process, rankscope
from rankscope import cli, exceptions
from rankscope.cli import measuring
from rankscope.cli.running import BAD_HEADS, INTERRUPTED
from rankscope.store import working_path
from rankscope.store.files import load
from tiny import tiny_config


def test_spectra_writes_a_file_and_a_table(place: Path, capsys: Any) -> None:
    assert rankscope("spectra", *SMALL, "--out", "run.nc") == 0
    shown = capsys.readouterr()
    assert "cumulative ratio of σ at k = 3" in shown.out
    assert "layer means:" in shown.out
    assert "k for 90 %" in shown.out
    assert "3 of 3 windows" in shown.err
    found = load("run.nc")
    assert dict(found.sizes) == dict(model=1, corpus=1, sample=3, layer=3, head=4, index=12)
    mean = float(found["cumulative_ratio"].sel(index=3).mean())
    assert f"{mean:.3f}" in shown.out


def test_same_command_again_changes_nothing(place: Path) -> None:
    assert rankscope("spectra", *SMALL, "--out", "run.nc") == 0
    before = (place / "run.nc").stat().st_mtime_ns
    assert rankscope("spectra", *SMALL, "--out", "run.nc") == 0
    assert (place / "run.nc").stat().st_mtime_ns == before


def test_figure1_draws_model_and_control(place: Path, capsys: Any) -> None:
    tiny_config("roberta", initializer_range=0.25, num_hidden_layers=2).save_pretrained("other")
    arguments = [*SMALL, "--model", "random:other", "--no-control", "--out", "out"]
    assert rankscope("figure1", *arguments) == 0
    names = sorted(path.name for path in (place / "out").iterdir())
    assert names == [
        "figure1.png", "figure1.svg", "random-model--text.nc", "random-other--text.nc",
    ]  # fmt: skip
    assert (place / "out" / "figure1.png").stat().st_size > 10_000
    assert "random:other" in capsys.readouterr().out


def test_export_and_plot_from_the_file(place: Path) -> None:
    assert rankscope("spectra", *SMALL, "--out", "run.nc") == 0
    for suffix in ("zarr", "csv", "parquet"):
        assert rankscope("export", "run.nc", f"copy.{suffix}") == 0
        assert load(f"copy.{suffix}").identical(load("run.nc"))
    for kind in ("figure1", "head", "spectra"):
        picture = f"{kind}.png"
        options = ["--layer", "1", "--head", "2", "--sample", "1"] if kind == "head" else []
        assert rankscope("plot", "run.nc", "--kind", kind, *options, "--out", picture) == 0
        assert (place / picture).stat().st_size > 1000
    assert rankscope("plot", "run.nc", "--quantity", "energy", "--out", "energy.svg") == 0


def test_plotted_head_is_the_head_of_the_run(place: Path) -> None:
    from rankscope.linalg import singular_values
    from rankscope.revisit import head_of

    assert rankscope("spectra", *SMALL, "--out", "run.nc") == 0
    run = load("run.nc")
    found = head_of(run, sample=2, layer=1, head=3)
    np.testing.assert_allclose(
        singular_values(found.matrix).singular_values, found.singular_values, atol=1e-6
    )
    with (place / "text.txt").open("a", encoding="utf-8") as file:
        file.write(" More.")
    with pytest.raises(exceptions.StoreError, match="text is no longer that of the run"):
        head_of(run, sample=2, layer=1, head=3)


def test_f11_bad_heads_finish_with_their_own_status(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    real = measuring.load_model

    def broken(*arguments: Any) -> Any:
        loaded = real(*arguments)
        with torch.no_grad():
            loaded.model.encoder.layer[2].attention.self.query.weight[0, 0] = torch.nan
        return loaded

    monkeypatch.setattr(measuring, "load_model", broken)
    assert rankscope("spectra", *SMALL, "--out", "run.nc") == BAD_HEADS
    shown = capsys.readouterr()
    assert "matrices left out: 3 non_finite" in shown.out
    assert "some matrices have no spectrum" in shown.err
    assert (load("run.nc")["status"] == 5).sum() == 3


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["spectra", *SMALL[:-4], "--length", "17"], 2, "at most 16 tokens"),
        (["spectra", *SMALL, "--layers", "0,9"], 2, "no layer 9"),
        (["spectra", *SMALL, "--layers", "5-2"], 2, "runs backwards"),
        (["spectra", *SMALL, "--layers", "x"], 2, "no list of numbers"),
        (["spectra", *SMALL, "--windows", "0"], 2, "no number of windows"),
        (["spectra", *SMALL, "--windows", "9999"], 3, "has 80 packed windows"),
        (["spectra", *SMALL, "--out", "run.xyz"], 2, ".parquet"),
        (["spectra", *SMALL, "--dtype", "int8"], 2, "int8"),
        (["spectra", *SMALL, "--device", "cuda:7"], 2, "cuda"),
        (["spectra", *SMALL, "--workers", "0"], 2, "0 workers"),
        (["spectra", *SMALL, "--memory-limit", "0"], 21, "are allowed"),
        (["spectra", *SMALL, "--group", "cross"], 2, "no cross attention"),
        (["spectra", *SMALL, "--group", "middle"], 2, "encoder, decoder or cross"),
        (["spectra", *SMALL, "--unit", "verse"], 2, "verse"),
        (["spectra", *SMALL, "--mode", "overlap", "--overlap", "10"], 2, "overlap"),
        (["spectra", "--corpus", "none.txt"], 3, "none.txt"),
        (["spectra", *SMALL, "--model", "empty"], 14, "empty"),
        (["spectra", "--model", "nobody/nothing"], 11, "nobody/nothing"),
        (["plot", "none.nc"], 30, "none.nc"),
        (["plot", "text.txt"], 30, "text.txt"),
        (["plot", "text.txt", "--out", "picture.doc"], 2, "picture.doc"),
        (["export", "text.txt", "copy.nc"], 30, "text.txt"),
    ],
)
def test_errors_name_cause_and_remedy_and_leave_nothing(
    place: Path, capsys: Any, arguments: list[str], status: int, words: str
) -> None:
    (place / "empty").mkdir()
    before = sorted(path.name for path in place.iterdir())
    assert rankscope(*arguments) == status
    shown = capsys.readouterr().err
    assert shown.count("error:") == 1
    assert words in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in place.iterdir()) == before


def test_every_error_has_an_exit_status() -> None:
    kinds = [
        kind
        for kind in vars(exceptions).values()
        if isinstance(kind, type) and issubclass(kind, exceptions.RankscopeError)
    ]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes) > 10
    assert 0 not in codes
    assert {BAD_HEADS, INTERRUPTED}.isdisjoint(codes)


def test_f17_damaged_weights_are_refused_within_seconds(place: Path) -> None:
    from rankscope.models import load as load_model

    loaded = load_model("random:model", tokenizer="hash")
    loaded.model.save_pretrained(place / "cut")
    weights = place / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    began = time.monotonic()
    done = process("spectra", "--model", "cut", "--tokenizer", "hash", "--out", "run.nc")
    assert time.monotonic() - began < 30
    assert done.returncode == exceptions.FileDamaged.exit_code
    assert "model.safetensors" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "run.nc").exists()


def test_f15_a_notebooks_backend_does_not_matter(place: Path) -> None:
    backend = "module://matplotlib_inline.backend_inline"
    assert process("models", MPLBACKEND=backend).returncode == 0
    done = process("figure1", *SMALL, "--out", "out", MPLBACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert (place / "out" / "figure1.png").stat().st_size > 1000


def test_help_and_import_load_nothing_heavy() -> None:
    code = (
        "import sys, rankscope, rankscope.cli; sys.argv = ['rankscope', '--help']\n"
        "try:\n    rankscope.cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'numba', 'xarray', 'scipy', 'pandas'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "LOADED []" in done.stdout
    assert "figure1" in done.stdout


@pytest.mark.usefixtures("windows_by_themselves")
def test_interrupted_run_goes_on(place: Path) -> None:
    arguments = ["spectra", *TINY, "--length", "12", "--windows", "80", "--out", "run.nc"]
    start = (
        # whoever started the tests may have the signal ignored, which children inherit
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rankscope.engine import frame; frame.BLOCK_TOKENS = 1\n"
        "from rankscope.cli import main; main()"
    )
    command = [sys.executable, "-c", start, *arguments]
    # on a machine that stalls the run may be over before it is stopped: then once more
    for _ in range(5):
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as running:
            status = working_path("run.nc") / "status"
            while running.poll() is None:
                if sum(path.is_file() for path in status.rglob("c.*")) >= 3:
                    break
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
            _, shown = running.communicate(timeout=100)
        if running.returncode != 0:
            break
        Path("run.nc").unlink()
    assert running.returncode == INTERRUPTED, shown
    assert "the same command goes on from run.nc.partial" in shown
    assert not Path("run.nc").exists()
    assert rankscope(*arguments) == 0
    assert rankscope(*arguments[:-1], "whole.nc") == 0
    xr.testing.assert_identical(load("run.nc"), load("whole.nc"))


def test_models_lists_names_and_families(capsys: Any) -> None:
    assert rankscope("models") == 0
    shown = capsys.readouterr().out
    for word in ("minilm", "random:roberta-base", "24 × 16", "longformer", "mpnet"):
        assert word in shown


def test_version(capsys: Any) -> None:
    assert rankscope("--version") == 0
    assert capsys.readouterr().out.strip() == cli.__version__
