"""Analyses run from end to end, small; what they find at full size is in figures/data."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.store.files import load


def run(name: str, *arguments: str) -> None:
    importlib.import_module(f"analyses.{name}").main(arguments)


def test_projections(tmp_path: Path, capsys: Any) -> None:
    sizes = ["--length", "32", "--k", "8", "--fit-windows", "4", "--held-out", "2"]
    line = ["--model", "builtin", *sizes, "--windows", "2", "--out", str(tmp_path)]
    run("projections", *line)
    shown = capsys.readouterr().out
    errors = load(tmp_path / "projections--builtin--layers.nc")["output_error"]
    assert errors.sizes == {"rank": 1, "method": 4, "split": 2, "layer": 4}
    assert np.isfinite(errors).all()
    means = errors.sel({"split": "test"}).mean(("rank", "layer"))
    assert float(means.sel({"method": "P_low"})) < float(means.sel({"method": "mean pooling"}))
    kept = load(tmp_path / "projections--builtin--subspaces.nc")["kept_energy"]
    own, one = (kept.sel(subspace=name) for name in ("P's own", "one a head"))
    assert bool((own >= one - 1e-9).all())
    assert "√(n/k) = 1.414" in shown
    # run again, it finds its files and says the same
    run("projections", *line)
    assert capsys.readouterr().out == shown


def test_loss_over_rank(tmp_path: Path, capsys: Any) -> None:
    sizes = ["--length", "32", "--k", "4", "32", "--fit-windows", "4", "--windows", "2"]
    run("loss_over_rank", *sizes, "--choice-windows", "2", "--out", str(tmp_path))
    found = load(tmp_path / "loss--builtin--over-k.nc").isel(model=0, corpus=0)
    losses = dict(zip(found["method"].to_numpy().tolist(), found["loss"].to_numpy(), strict=True))
    # at k = n nothing is lost, by truncation or by pooling
    for name in ("truncated:k=32", "linformer:k=32"):
        assert abs(losses[name] - losses["full"]) < 1e-4
    assert losses["uniform"] != losses["full"]
    assert all("/" not in name for name in losses)
    budgets = load(tmp_path / "loss--builtin--budgets.nc")
    ranks = budgets["rank"].sum(("layer", "head"))
    assert bool((ranks <= 16 * budgets["mean_rank"]).all())
    assert "loss at equal total rank" in capsys.readouterr().out


def test_benchmark_truncation_ends_with_json(capsys: Any) -> None:
    run("benchmark_truncation", "--model", "builtin", "--length", "48", "--repeats", "1")
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["largest_difference"] < 1e-9
    assert figures["n"] == 48


def test_benchmark_gpu_runs_on_a_cpu(capsys: Any) -> None:
    line = ["--device", "cpu", "--lengths", "128", "--shapes", "roberta-base", "--repeats", "2"]
    run("benchmark_gpu", *line, "--length", "32", "--windows", "2")
    shown = capsys.readouterr().out
    figures = json.loads(shown.splitlines()[-1])
    assert figures["device"] == "cpu"
    assert figures["gpu_measured"] is False
    assert "no GPU was measured" in shown
    assert max(figures["largest_difference"].values()) == 0.0
    assert figures["chunk_by_free_memory"] == 4
    assert set(figures["chunks"]) == {"chunks of 1", "chunks of 2", "by free memory"}
    for name in ("svd_over_gram", "overlap_gain", "cpu_over_device"):
        best, low, high = figures[name]
        assert 0 < low <= high
        assert best > 0
    for stage in ("forward pass and P", "Gram, one layer", "eigenvalues, one layer"):
        assert figures["stages"][stage].keys() == {"ms", "spread"}
    (row,) = figures["rows"]
    assert {"attention", "spectra", "truncation", "linformer:k=128"} <= row.keys()


def test_families(tmp_path: Path, capsys: Any) -> None:
    sizes = ["--length", "32", "--budget", "8", "--windows", "1", "--loss-windows", "1"]
    run("families", *sizes, "--out", str(tmp_path))
    found = load(tmp_path / "families--builtin--builtin.nc")
    errors = dict(
        zip(found["method"].to_numpy().tolist(), found["output_mean"].to_numpy(), strict=True)
    )
    # every family is there, and nothing that looks at P is worse than what does not
    families = importlib.import_module("analyses.families")
    assert {families.family_of(name) for name in errors} == set(families.FAMILIES)
    assert errors["top:w=8"] < errors["uniform"]
    assert errors["truncated:k=8"] < errors["projected:k=8"]
    assert np.isfinite(found["loss"]).all()
    assert found["output_by_layer"].dims == ("at", "series", "layer")
    assert found.attrs["refused"] == {}
    assert "uniform" in capsys.readouterr().out


def test_families_lists_what_a_model_refuses() -> None:
    families = importlib.import_module("analyses.families")
    names = {text.partition(":")[0] for group in families.FAMILIES.values() for text in group}
    assert len(families.methods_at("linear", [8, 16])) == 1
    assert [str(one) for one in families.methods_at("band:{b}", [8, 16])] == [
        "band:w=8",
        "band:w=16",
    ]
    assert {"truncated", "linformer", "lsh", "performer", "nystrom", "bigbird"} <= names
