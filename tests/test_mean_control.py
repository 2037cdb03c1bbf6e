"""The control mean-M: spectra of the mean P of groups of windows, and what they stand beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import AutoModel

from commands import SMALL, rankscope
from rankscope.attention import Attention
from rankscope.engine import Recipe, Resources, SpectraPlan, execute, spectra
from rankscope.engine.machine import hidden_states
from rankscope.exceptions import MemoryLimit, UsageError
from rankscope.labels import control_of, group_size
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.status import State, Status
from rankscope.store.files import load
from rankscope.summary.differences import difference
from rankscope.summary.groups import beside_groups
from rankscope.text import Corpus, windows
from run_stores import assert_bits_equal
from tiny import tiny_config
from tolerances import ATOL

RECIPE = Recipe(length=12, windows=11, skip=1, control="mean-4")
EXACT = {"rtol": 1e-12, "atol": 1e-12}
T3 = 3.182446305284263  # t(3) at .975


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose weights are in a file."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(0)
    AutoModel.from_config(tiny_config("roberta", initializer_range=0.25)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder), tokenizer="hash")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_strings([" ".join(f"word{i % 37} of{i % 11}" for i in range(300))], "words")


def hard(*permutations: list[int]) -> torch.Tensor:
    """Queries (row, head, n, n) that give, with unit keys, permutations in each of 4 heads."""
    rows = [1000 * torch.eye(len(one))[one] for one in permutations]
    return torch.stack([row.expand(4, -1, -1) for row in rows])


def captured(monkeypatch: pytest.MonkeyPatch, queries: torch.Tensor) -> None:
    """From now on windows 0, 1 … have these queries (window, head, n, n), and unit keys."""
    n = queries.shape[-1]

    def capture(_model: Any, given: Any, *, batch_size: int, **_: Any) -> Iterator[Attention]:
        for start in range(0, len(given), batch_size):
            own = queries[start : start + batch_size]
            yield Attention(
                query=own,
                key=torch.eye(n).expand_as(own),
                value=None,
                scale=1.0,
                bias=None,
                layer=0,
                tokens=torch.zeros(len(own), n, dtype=torch.int64),
                samples=tuple(range(start, start + len(own))),
            )

    monkeypatch.setattr("rankscope.engine.frame.capture", capture)


def test_f07_spectrum_of_the_mean_against_mean_of_the_spectra(
    model: LoadedModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, swap = [0, 1], [1, 0]
    captured(monkeypatch, hard(same, swap, swap, same))
    recipe = Recipe(length=4, windows=4, special="drop", layers=(0,))
    measured = spectra(model, corpus, recipe)
    np.testing.assert_array_equal(measured["singular_value"], np.ones((1, 1, 4, 1, 4, 2)))
    np.testing.assert_array_equal(measured["cumulative_ratio"].sel(index=1), 0.5)
    control = spectra(model, corpus, replace(recipe, control="mean-2"))
    assert control.sizes["sample"] == 2
    values = control["singular_value"].to_numpy()
    np.testing.assert_allclose(values[..., 0], 1.0, **EXACT)
    np.testing.assert_allclose(values[..., 1], 0.0, atol=1e-8)
    np.testing.assert_allclose(control["cumulative_ratio"].sel(index=1), 1.0, atol=1e-8)
    np.testing.assert_array_equal(control["numerical_rank"], 1.0)
    np.testing.assert_allclose(control["row_entropy"], np.log(2.0), **EXACT)
    found = difference(measured, control)
    assert (found.control, found.index, found.units) == ("mean-2", 1, 2)
    np.testing.assert_allclose([found.measured, found.control_mean], [0.5, 1.0], atol=1e-8)
    np.testing.assert_allclose([found.mean, *found.interval], -0.5, atol=1e-8)


def own_matrices(folder: Path, model: LoadedModel, corpus: Corpus) -> np.ndarray:
    """P (window, layer, head, n, n) of windows 1 to 11, as the model itself gives it."""
    cut = windows(corpus, model.tokenizer, length=12, count=12)[1:]
    own = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    found = []
    with torch.no_grad():
        for window in cut:
            out = own(torch.from_numpy(window.ids)[None], output_attentions=True)
            found.append(torch.stack(out.attentions)[:, 0].double().numpy())
    return np.stack(found)


@pytest.mark.parametrize("special", ["keep", "drop"])
def test_groups_against_the_model_and_numpy(
    folder: Path, model: LoadedModel, corpus: Corpus, special: str
) -> None:
    found = spectra(model, corpus, replace(RECIPE, special=special, centred=True))
    every = own_matrices(folder, model, corpus)
    if special == "drop":
        every = every[..., 1:-1, 1:-1]
    means = np.stack([every[start : start + 4].mean(axis=0) for start in (0, 4)])
    values = np.linalg.svd(means, compute_uv=False)
    sums = values.cumsum(-1) / values.sum(-1, keepdims=True)
    ratios = found["cumulative_ratio"].to_numpy()[0, 0]
    np.testing.assert_allclose(ratios, sums, atol=ATOL["float32"])
    np.testing.assert_allclose(found["singular_value"].to_numpy()[0, 0], values, atol=1e-6)
    centred = np.linalg.svd(means - means.mean(axis=-2, keepdims=True), compute_uv=False)
    np.testing.assert_allclose(found["centred_singular_value"].to_numpy()[0, 0], centred, atol=1e-6)
    entropy = -(means * np.log(means)).sum(axis=(-2, -1)) / means.shape[-1]
    np.testing.assert_allclose(found["row_entropy"].to_numpy()[0, 0], entropy, atol=1e-5)
    # and it is not the mean of the spectra
    each = np.linalg.svd(every[:4], compute_uv=False)
    each = (each.cumsum(-1) / each.sum(-1, keepdims=True)).mean(axis=0)
    assert np.abs(ratios[0] - each).max() > 0.01


def test_a_group_says_where_it_is_and_what_it_is(model: LoadedModel, corpus: Corpus) -> None:
    found = spectra(model, corpus, RECIPE)
    cut = windows(corpus, model.tokenizer, length=12, count=12)[1:]
    assert str(found["model"].item()) == "mean-4:model"
    assert control_of("mean-4:random:a/b") == ("mean-4", "random:a/b")
    assert found.attrs["control"] == "mean-4"
    assert "means of 4" in found.attrs["title"]
    # 11 windows are two groups of 4, and 3 are left over
    for name, whose, wanted in (
        ("text_id", 0, "text_id"),
        ("window", 0, "number"),
        ("token_start", 0, "start"),
        ("token_end", 3, "end"),
    ):
        assert found[name].to_numpy().tolist() == [
            getattr(cut[first + whose], wanted) for first in (0, 4)
        ]
    assert found["n_tokens"].to_numpy().ravel().tolist() == [12, 12]
    assert found["index"].to_numpy().tolist() == list(range(1, 13))
    other = SpectraPlan(model, corpus, replace(RECIPE, control="mean-3"))
    assert other.n_samples == 3
    assert other.settings_hash != found.attrs["settings_hash"]


def test_result_depends_neither_on_workers_nor_on_blocks(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(RECIPE, control="mean-2")
    one = load(execute(SpectraPlan(model, corpus, recipe), model, tmp_path / "one.nc"))
    monkeypatch.setattr("rankscope.engine.frame.BLOCK_TOKENS", 50)
    plan = SpectraPlan(model, corpus, recipe)
    assert (plan.n_samples, plan.schema.block) == (5, 2)
    two = load(execute(plan, model, tmp_path / "two.nc", Resources(workers=2, threads=2)))
    assert_bits_equal(one, two)


@pytest.mark.usefixtures("windows_by_themselves")
def test_interrupted_run_goes_on_with_the_groups_that_are_left(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, computed: list[int]
) -> None:
    plan = SpectraPlan(model, corpus, replace(RECIPE, control="mean-2"))

    def stop(done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    target = tmp_path / "run.nc"
    with pytest.raises(KeyboardInterrupt):
        execute(plan, model, target, progress=stop)
    assert not target.exists()
    computed.clear()
    execute(plan, model, target)
    assert computed == [2, 3, 4]
    assert_bits_equal(load(target), load(execute(plan, model, tmp_path / "whole.nc")))


def test_a_window_that_is_not_finite_spoils_its_head_of_its_group(
    model: LoadedModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = hard(*[[0, 1, 2], [1, 2, 0], [2, 0, 1]] * 2)
    queries[4, 2] = torch.nan
    captured(monkeypatch, queries)
    recipe = Recipe(length=5, windows=6, special="drop", layers=(0,))
    control = spectra(model, corpus, replace(recipe, control="mean-3"))
    status = control["status"].to_numpy()[0, 0, :, 0]
    bad = np.zeros((2, 4), dtype=bool)
    bad[1, 2] = True
    np.testing.assert_array_equal(status, np.where(bad, Status.non_finite, status[0, 0]))
    assert status[0, 0] in (Status.ok, Status.refined)
    assert control["state"].to_numpy().ravel().tolist() == [State.ok, State.bad]
    ratio = control["cumulative_ratio"].sel(index=1).to_numpy()[0, 0, :, 0]
    np.testing.assert_allclose(ratio[~bad], 1.0, atol=1e-7)
    assert np.isnan(ratio[bad]).all()
    assert np.isnan(control["row_entropy"].to_numpy()[0, 0, 1, 0, 2])
    # nor has the measured side of that group this head
    measured = spectra(model, corpus, recipe)
    beside = beside_groups(
        measured.isel(model=0, corpus=0), control.isel(model=0, corpus=0), index=1
    )
    np.testing.assert_array_equal(
        beside["status"].to_numpy()[:, 0], np.where(bad, Status.non_finite, Status.ok)
    )
    np.testing.assert_allclose(
        beside["cumulative_ratio"].to_numpy()[:, 0, :, 0], np.where(bad, np.nan, 1 / 3), **EXACT
    )
    found = difference(measured, control)
    np.testing.assert_allclose(found.by_head, -2 / 3, atol=1e-7)
    assert found.units == 2


def test_difference_is_paired_by_group(model: LoadedModel, corpus: Corpus) -> None:
    plain = replace(RECIPE, windows=14, control=None)
    measured = spectra(model, corpus, plain)
    control = spectra(model, corpus, replace(plain, control="mean-3"))
    found = difference(measured, control, index=4)
    ratios = measured["cumulative_ratio"].sel(index=4).to_numpy()[0, 0]
    # 14 windows are four groups of 3, and 2 are left over
    ratios = ratios[:12].reshape(4, 3, 3, 4).mean(axis=1)
    gaps = ratios - control["cumulative_ratio"].sel(index=4).to_numpy()[0, 0]
    by_group = gaps.mean(axis=(1, 2))
    half = T3 * by_group.std(ddof=1) / 2
    np.testing.assert_allclose(found.mean, by_group.mean(), rtol=1e-12)
    wanted = (by_group.mean() - half, by_group.mean() + half)
    np.testing.assert_allclose(found.interval, wanted, rtol=1e-9)
    np.testing.assert_allclose(found.measured, ratios.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.by_head, gaps.mean(axis=0), rtol=1e-12)
    assert (found.model, found.control, found.units) == ("model", "mean-3", 4)
    energy = difference(measured, control, index=4, ratio="energy_ratio")
    own = measured["energy_ratio"].sel(index=4).to_numpy()[0, 0, :12].mean()
    np.testing.assert_allclose(energy.measured, own, rtol=1e-12)
    assert difference(measured, control).index == 3
    # groups of other windows are not paired
    for changes in ({"skip": 2}, {"windows": 11}):
        other = spectra(model, corpus, replace(plain, control="mean-3", **changes))
        with pytest.raises(UsageError, match="another"):
            difference(measured, other)
    with pytest.raises(UsageError, match="index 13"):
        difference(measured, control, index=13)


def test_groups_are_the_same_read_in_parts(
    model: LoadedModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = spectra(model, corpus, replace(RECIPE, control=None)).isel(model=0, corpus=0)
    named = xr.Dataset(coords={"model": "mean-3:model"})
    whole = beside_groups(measured, named, 4)
    assert whole.sizes == {"sample": 3, "layer": 3, "head": 4, "index": 1}
    monkeypatch.setattr("rankscope.summary.groups.BLOCK_BYTES", 1)
    xr.testing.assert_identical(beside_groups(measured, named, 4), whole)
    assert beside_groups(measured, named, 40).sizes["index"] == 0
    for name in ("rows:model", "model", "random:mean-3"):
        assert beside_groups(measured, xr.Dataset(coords={"model": name}), 4) is measured
    # more windows in a group than there are
    few = beside_groups(measured, xr.Dataset(coords={"model": "mean-12:model"}), 4)
    assert few.sizes["sample"] == 0


def test_windows_of_several_lengths_are_refused_before_anything_is_measured(
    model: LoadedModel, tmp_path: Path
) -> None:
    texts = ["one two three four five six", "one two", "one two three"]
    mixed = Corpus.from_strings(texts, "mixed")
    recipe = Recipe(length=12, windows=None, mode="document")
    with pytest.raises(UsageError, match="4 to 8 tokens") as caught:
        SpectraPlan(model, mixed, replace(recipe, control="mean-2"))
    assert "packed" in caught.value.remedy
    plan = SpectraPlan(model, mixed, recipe)
    plan.check_control("rows")
    for control, cause in (("mean-2", "4 to 8 tokens"), ("mean-4", "no group of 4")):
        with pytest.raises(UsageError, match=cause):
            plan.check_control(control)
    # a rest of another length is left out, as any rest is
    texts[1:] = [texts[0], "one two three four five six seven eight nine ten"]
    plan = SpectraPlan(model, Corpus.from_strings(texts), replace(recipe, control="mean-2"))
    assert plan.n_samples == 1
    assert plan.frame.length == 8
    target = tmp_path / "run.nc"
    result = load(execute(plan, model, target))
    assert np.isfinite(result["singular_value"].to_numpy()).all()


@pytest.mark.parametrize("control", ["mean-0", "mean-1", "mean", "mean-", "mean-12"])
def test_means_that_are_none_are_refused(control: str) -> None:
    with pytest.raises(UsageError):
        replace(RECIPE, control=control)
    assert replace(RECIPE, control="mean-11").mean == 11
    assert (group_size("mean-11"), group_size("mean-011"), group_size("padded-11")) == (
        11,
        None,
        None,
    )


def test_memory_of_a_group_is_counted(model: LoadedModel, corpus: Corpus, tmp_path: Path) -> None:
    plain = SpectraPlan(model, corpus, replace(RECIPE, control=None))
    plan = SpectraPlan(model, corpus, RECIPE)
    more = plan.estimate(model, 2) - plain.estimate(model, 2)
    assert more == 2 * 16 * 12**2 + 3 * hidden_states(model, 12)
    with pytest.raises(MemoryLimit):
        execute(plan, model, tmp_path / "run.nc", memory_limit=plain.estimate(model, 1))


def test_command_measures_means_beside_the_run(place: Path, capsys: Any) -> None:
    assert rankscope("spectra", *SMALL, "--controls", "mean-3", "--out", "run.nc") == 0
    shown = capsys.readouterr().out
    assert "measured less control" in shown
    assert "mean-3" in shown
    assert {path.name for path in place.glob("*.nc")} == {"run.nc", "run--mean-3.nc"}
    found = load("run--mean-3.nc")
    assert found.attrs["control"] == "mean-3"
    assert found.sizes["sample"] == 1
    assert rankscope("report", "run.nc", "run--mean-3.nc", "--no-pictures") == 0
    assert "mean-3" in (place / "run.html").read_text(encoding="utf-8")
    assert rankscope("spectra", *SMALL, "--controls", "mean-0", "--out", "x.nc") == 2
    assert "mean-M" in capsys.readouterr().err


def test_command_refuses_a_control_before_it_measures(place: Path, capsys: Any) -> None:
    lines = "one two three four five six\none two\none two three\n"
    (place / "lines.txt").write_text(lines, encoding="utf-8")
    by_line = ["--corpus", "lines.txt", "--mode", "document", "--unit", "line"]
    for options, cause in (
        (["--controls", "mean-4"], "no group of 4"),
        (["--controls", "padded-13"], "padded to 12"),
        ([*by_line, "--controls", "rows,mean-2"], "4 to 8 tokens"),
    ):
        assert rankscope("spectra", *SMALL, *options, "--out", "x.nc") == 2
        shown = capsys.readouterr()
        assert cause in shown.err
        assert "remedy:" in shown.err
        assert list(place.glob("x*")) == []
