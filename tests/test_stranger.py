"""A stranger's path: a model folder and a text file → spectra → explorer → ranks → their loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankscope as rs
from commands import rankscope
from explorers import data_of, parsed
from rankscope.approximations.ranks import read_ranks
from rankscope.capture import capture

LENGTH, WINDOWS, MEAN_RANK = 16, 4, 6
SIZES = ["--length", str(LENGTH), "--windows", str(WINDOWS), "--workers", "1"]


@pytest.fixture
def there(masked_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for somebody's model and text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(masked_lm)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(masked_lm)
    place = tmp_path / "place"
    place.mkdir()
    masked_lm.rename(place / "my-model")
    letters = np.random.default_rng(0).choice(list("abcdefghijklmnop"), 400)
    (place / "my-text.txt").write_text(" ".join(letters), encoding="utf-8")
    monkeypatch.chdir(place)
    return place


def test_from_a_folder_and_a_text_to_ranks_and_their_loss(there: Path, capsys: Any) -> None:
    own = ["--model", "./my-model", "--corpus", "./my-text.txt"]
    ours = ["spectra", *own, *SIZES, "--controls", "rows", "--out", "run.nc"]
    assert rankscope(*ours) == 0
    assert rankscope("report", "run.nc", "run--rows.nc", "--out", "run.html") == 0
    line = [*own, *SIZES, "--mean-rank", str(MEAN_RANK), "--check", "2"]
    assert rankscope("choose-rank", *line, "--out", "ranks.json") == 0
    capsys.readouterr()
    methods = ["--method", "truncated:ranks=ranks.json", "--method", f"truncated:k={LENGTH}"]
    after = ["--skip", str(WINDOWS), "--out", "losses.nc"]
    assert rankscope("intervene", *own, *SIZES, *after, *methods) == 0
    shown = capsys.readouterr().out

    # the spectra are those of the model's own attention
    model = rs.load_model("./my-model", head=True)
    text = rs.load_corpus("./my-text.txt")
    (window,) = rs.windows(text, model.tokenizer, length=LENGTH, count=1)
    run = rs.load("run.nc").isel(model=0, corpus=0, sample=0)
    for attention in capture(model, [window]):
        expected = np.linalg.svd(attention.weights[0].numpy().astype(np.float64), compute_uv=False)
        found = run["singular_value"].sel(layer=attention.layer)
        np.testing.assert_allclose(found, expected, atol=1e-7)

    # the explorer holds every head with its control, and asks for nothing
    page = (there / "run.html").read_text(encoding="utf-8")
    assert [link for link in parsed(page).linked if not link.startswith(("#", "data:"))] == []
    (shown_model,) = data_of(page)
    assert shown_model["model"] == "my-model"
    assert "rows" in json.dumps(shown_model["controls"])

    # the ranks are this model's, and no more than the budget
    ranks = read_ranks(Path("ranks.json"))
    assert ranks.weights_sha256 == model.info.weights_sha256
    heads = model.info.n_layers * model.info.n_heads
    assert heads <= ranks.total <= MEAN_RANK * heads

    # the loss at these ranks is what Python says, and full rank loses nothing
    losses = rs.load("losses.nc").isel(model=0, corpus=0)["loss"].mean("sample")
    by_name = dict(zip(losses["method"].to_numpy().tolist(), losses.to_numpy(), strict=True))
    chosen = next(name for name in by_name if name.startswith("truncated:ranks"))
    sampling = rs.Sampling(length=LENGTH, windows=WINDOWS, skip=WINDOWS)
    again = rs.losses(model, text, [rs.method("truncated:ranks=ranks.json")], sampling)
    np.testing.assert_allclose(by_name[chosen], again["loss"].mean("sample")[0, 0, 1], rtol=1e-6)
    assert by_name[f"truncated:k={LENGTH}"] == pytest.approx(by_name["full"], abs=1e-5)
    assert by_name[chosen] != by_name["full"]
    assert "my-model on my-text, 4 windows of 16" in shown


def test_ranks_of_another_model_are_refused(there: Path, capsys: Any) -> None:
    own = ["--model", "./my-model", "--corpus", "./my-text.txt"]
    line = [*own, *SIZES, "--mean-rank", "4", "--check", "1", "--out", "ranks.json"]
    assert rankscope("choose-rank", *line) == 0
    capsys.readouterr()
    other = ["--model", "random:./my-model", "--corpus", "./my-text.txt"]
    command = ["intervene", *other, *SIZES, "--out", "losses.nc"]
    assert rankscope(*command, "--method", "truncated:ranks=ranks.json") == 17
    told = capsys.readouterr().err
    assert "remedy:" in told
    assert not Path("losses.nc").exists()
