"""Runs from windows to files: right numbers, bad heads apart, stopped and resumed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import xarray as xr

from rankscope import engine
from rankscope.engine import Recipe, run, spectra
from rankscope.exceptions import MemoryLimit, StoreError, UsageError
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.status import Status
from rankscope.store import working_path
from rankscope.store.files import load
from rankscope.text import Corpus, TextOptions, load_corpus, windows
from tiny import tiny_config
from tolerances import GRAM_RATIO

WORDS = " ".join(f"word{i % 37} of{i % 11}" for i in range(300))
SHORT = Recipe(length=12, windows=3)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_strings([WORDS], "words")


def tiny_loaded(folder: Path, family: str = "roberta", **changes: Any) -> LoadedModel:
    """A tiny model with random weights and hashed words, loaded as a user's folder would be."""
    tiny_config(family, initializer_range=0.25, **changes).save_pretrained(folder)
    return load_model(f"random:{folder}", tokenizer="hash")


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return tiny_loaded(tmp_path / "model")


def test_real_window_agrees_with_an_independent_check(
    minilm: LoadedModel, shared_data: Path
) -> None:
    """transformers' own eager attentions and numpy's SVD in float64, nothing of ours."""
    text = load_corpus(str(shared_data / "wikitext103-test.txt"))
    found = spectra(minilm, text, Recipe(length=512, windows=1))
    from transformers import AutoModel, AutoTokenizer

    folder = minilm.model.config.name_or_path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    eager = AutoModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    raw = (shared_data / "wikitext103-test.txt").read_text(encoding="utf-8")[:20_000]
    content = tokenizer(raw, add_special_tokens=False, verbose=False)["input_ids"][:510]
    ids = torch.tensor([[tokenizer.cls_token_id, *content, tokenizer.sep_token_id]])
    with torch.no_grad():
        attentions = eager(ids, output_attentions=True).attentions
    weights = torch.cat(attentions).double().numpy()
    values = np.linalg.svd(weights, compute_uv=False)
    sigma = np.cumsum(values, axis=-1) / values.sum(axis=-1, keepdims=True)
    energy = np.cumsum(values**2, axis=-1) / (values**2).sum(axis=-1, keepdims=True)
    ours = found.isel(model=0, corpus=0, sample=0)
    assert sigma.shape == (6, 12, 512)
    assert np.abs(ours["cumulative_ratio"].to_numpy() - sigma).max() < 1e-6
    assert np.abs(ours["energy_ratio"].to_numpy() - energy).max() < 1e-6
    # the bound means something: the spectrum is far from that of a uniform or rank-one matrix
    assert sigma[..., 127].max() < 0.995
    assert 0.8 < float(ours["cumulative_ratio"].sel(index=128).mean()) < 0.9


def test_dataset_says_what_it_is(model: LoadedModel, corpus: Corpus) -> None:
    found = spectra(model, corpus, SHORT)
    assert dict(found.sizes) == dict(model=1, corpus=1, sample=3, layer=3, head=4, index=12)
    assert found["index"].to_numpy().tolist() == list(range(1, 13))
    assert found.attrs["spectrum_dtype"] == "float64"
    assert (found["status"] == Status.ok).all()
    assert found["n_tokens"].to_numpy().ravel().tolist() == [12, 12, 12]
    assert found["token_start"].to_numpy().tolist() == [0, 10, 20]
    np.testing.assert_allclose(found["cumulative_ratio"].sel(index=12), 1)
    entropy = found["row_entropy"]
    assert (entropy > 0).all()
    assert (entropy <= np.log(12)).all()


def test_f04_types_are_written_down(tmp_path: Path, corpus: Corpus) -> None:
    tiny_config("roberta").save_pretrained(tmp_path / "half")
    half = load_model(f"random:{tmp_path / 'half'}", tokenizer="hash", dtype="float16")
    found = spectra(half, corpus, SHORT)
    kept = ("model_dtype", "matrix_dtype", "spectrum_dtype")
    assert [found.attrs[name] for name in kept] == ["float16", "float32", "float64"]
    assert np.isfinite(found["singular_value"]).all()


def test_threads_do_not_matter(model: LoadedModel, corpus: Corpus) -> None:
    xr.testing.assert_identical(
        spectra(model, corpus, SHORT, threads=1), spectra(model, corpus, SHORT, threads=3)
    )


def test_drivers_agree(model: LoadedModel, corpus: Corpus) -> None:
    gram = spectra(model, corpus, SHORT)["cumulative_ratio"]
    svd = spectra(model, corpus, Recipe(length=12, windows=3, driver="svd"))["cumulative_ratio"]
    assert float(np.abs(gram - svd).max()) <= GRAM_RATIO


def test_f11_one_bad_head_never_spoils_its_neighbours(model: LoadedModel, corpus: Corpus) -> None:
    clean = spectra(model, corpus, SHORT)
    with torch.no_grad():
        model.model.encoder.layer[0].attention.self.query.weight[0, 0] = torch.nan
    found = spectra(model, corpus, SHORT)
    status = found["status"].isel(model=0, corpus=0, sample=0).to_numpy()
    assert status[0].tolist() == [Status.non_finite, 0, 0, 0]
    assert (status[1:] == Status.non_finite).all()
    xr.testing.assert_equal(
        found["singular_value"].isel(layer=0, head=slice(1, None)),
        clean["singular_value"].isel(layer=0, head=slice(1, None)),
    )
    bad = found.isel(layer=0, head=0)
    for name in ("singular_value", "cumulative_ratio", "energy_ratio", "row_entropy", "rank_90"):
        assert np.isnan(bad[name]).all(), name


def test_f13_blank_lines_keep_their_place(model: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a\n\n   \nb\n", encoding="utf-8")
    lines = load_corpus(str(file), TextOptions(unit="line"))
    recipe = Recipe(length=12, windows=None, mode="document", special="drop")
    found = spectra(model, lines, recipe)
    assert found["text_id"].to_numpy().tolist() == [0, 1, 2, 3]
    empty = (found["status"] == Status.empty).all(("model", "corpus", "layer", "head"))
    assert empty.to_numpy().tolist() == [False, True, True, False]
    assert found["n_tokens"].to_numpy().ravel().tolist() == [1, 0, 0, 1]
    assert np.isnan(found["cumulative_ratio"].isel(sample=1)).all()
    np.testing.assert_allclose(found["cumulative_ratio"].isel(sample=0), 1)


def test_f14_shorter_texts_keep_their_own_length(model: LoadedModel) -> None:
    texts = Corpus.from_strings(["one two", "one two three four five six"], "two")
    found = spectra(model, texts, Recipe(length=12, windows=None, mode="document"))
    assert found["n_tokens"].to_numpy().ravel().tolist() == [4, 8]
    short = found.isel(sample=0)
    assert np.isnan(short["singular_value"].sel(index=slice(5, None))).all()
    np.testing.assert_array_equal(short["cumulative_ratio"].sel(index=slice(4, None)), 1)


def test_special_tokens_and_centring_are_recorded(model: LoadedModel, corpus: Corpus) -> None:
    recipe = Recipe(length=12, windows=2, special="renormalise", centred=True)
    found = spectra(model, corpus, recipe)
    assert found.sizes["index"] == 10
    assert '"special":"renormalise"' in found.attrs["recipe_json"]
    centred, raw = found["centred_singular_value"], found["singular_value"]
    assert float(centred.isel(index=-1).max()) < 1e-6
    assert (centred.isel(index=0) < raw.isel(index=0)).all()


@pytest.mark.parametrize(
    ("group", "layers", "heads"), [("encoder", 2, 4), ("decoder", 3, 2), ("cross", 3, 2)]
)
def test_f36_groups_have_their_own_layers_and_heads(
    tmp_path: Path, corpus: Corpus, group: str, layers: int, heads: int
) -> None:
    bart = tiny_loaded(tmp_path, "bart", init_std=0.25)
    found = spectra(bart, corpus, Recipe(length=12, windows=1, group=group))
    assert (found.sizes["layer"], found.sizes["head"]) == (layers, heads)
    assert (found["status"] == Status.ok).all()


def test_f36_local_layers_are_labelled(tmp_path: Path, corpus: Corpus) -> None:
    found = spectra(tiny_loaded(tmp_path, "modernbert"), corpus, SHORT)
    assert found["attention"].to_numpy().tolist() == ["global", "local", "local"]


def test_layers_are_chosen_by_number(model: LoadedModel, corpus: Corpus) -> None:
    whole = spectra(model, corpus, SHORT)
    some = spectra(model, corpus, Recipe(length=12, windows=3, layers=(2, 0)))
    assert some["layer"].to_numpy().tolist() == [0, 2]
    xr.testing.assert_equal(some["singular_value"], whole["singular_value"].sel(layer=[0, 2]))


class Stopped(Exception):
    """Stands for whatever ends a run in the middle."""


def stop_after(windows_done: int) -> engine.Progress:
    def progress(done: int, _total: int) -> None:
        if done >= windows_done:
            raise Stopped

    return progress


@pytest.mark.usefixtures("windows_by_themselves")
@pytest.mark.parametrize("suffix", [".nc", ".zarr", ".parquet"])
def test_stopped_and_resumed_equals_uninterrupted(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, suffix: str
) -> None:
    whole, stopped = tmp_path / f"whole{suffix}", tmp_path / f"stopped{suffix}"
    run(model, corpus, SHORT, whole)
    with pytest.raises(Stopped):
        run(model, corpus, SHORT, stopped, progress=stop_after(2))
    assert not stopped.exists()
    assert working_path(stopped).is_dir()
    seen: list[tuple[int, int]] = []
    run(model, corpus, SHORT, stopped, progress=lambda *at: seen.append(at))
    assert seen == [(2, 3), (3, 3)]
    assert not working_path(stopped).exists()
    xr.testing.assert_identical(load(whole), load(stopped))


def test_another_recipe_neither_resumes_nor_replaces(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    target = tmp_path / "run.nc"
    with pytest.raises(Stopped):
        run(model, corpus, SHORT, target, progress=stop_after(1))
    other = Recipe(length=10, windows=3)
    with pytest.raises(StoreError, match="length"):
        run(model, corpus, other, target)
    run(model, corpus, other, tmp_path / "elsewhere.nc")
    run(model, corpus, SHORT, target)
    before = target.read_bytes()
    with pytest.raises(StoreError, match="exists"):
        run(model, corpus, other, target)
    assert target.read_bytes() == before
    run(model, corpus, SHORT, target, progress=lambda *_: pytest.fail("computed again"))
    run(model, corpus, other, target, overwrite=True)
    assert load(target).sizes["index"] == 10
    with pytest.raises(Stopped):
        run(model, corpus, SHORT, target, overwrite=True, progress=stop_after(1))
    assert load(target).sizes["index"] == 10
    run(model, corpus, Recipe(length=8, windows=2), target, overwrite=True)
    assert load(target).sizes["index"] == 8


def test_f06_memory_is_estimated_and_limited(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    needed = engine.estimate(model, SHORT, 1)
    assert needed < engine.estimate(model, Recipe(length=16), 1)
    assert needed < engine.estimate(model, SHORT, 4)
    with pytest.raises(MemoryLimit, match="are allowed"):
        run(model, corpus, SHORT, tmp_path / "run.nc", memory_limit=needed - 1)
    assert list(tmp_path.glob("run*")) == []


def test_f06_memory_does_not_grow_with_the_number_of_windows(
    model: LoadedModel, tmp_path: Path
) -> None:
    many = Corpus.from_strings([f"word{i} " * 20 for i in range(300)], "many")
    resident: dict[int, int] = {}

    def progress(done: int, _total: int) -> None:
        if done:
            resident[done] = psutil.Process().memory_info().rss

    recipe = Recipe(length=16, windows=None, mode="document", layers=(0,))
    run(model, many, recipe, tmp_path / "run.nc", progress=progress)
    assert resident[300] - min(resident.values()) < 50 * 2**20
    assert len(resident) > 5


@pytest.mark.parametrize(
    ("recipe", "cause"),
    [
        (Recipe(length=17), "at most 16 tokens"),
        (Recipe(length=12, layers=(3,)), "no layer 3"),
        (Recipe(length=12, group="cross"), "no cross attention"),
        (Recipe(length=12, mode="overlap", overlap=10), "overlap"),
    ],
)
def test_refused_before_anything_is_written(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, recipe: Recipe, cause: str
) -> None:
    with pytest.raises(UsageError, match=cause):
        run(model, corpus, recipe, tmp_path / "run.nc")
    assert list(tmp_path.glob("run*")) == []


@pytest.mark.parametrize("field", ["driver", "special"])
def test_recipe_checks_its_words(field: str) -> None:
    with pytest.raises(UsageError, match="unknown"):
        Recipe(**{field: "other"})  # type: ignore[arg-type]


def test_f18_overlapping_windows_know_their_span(model: LoadedModel) -> None:
    words = Corpus.from_strings([" ".join(f"w{i}" for i in range(14))], "w")
    cut = windows(words, model.tokenizer, length=8, mode="overlap", overlap=2)
    spans = [(one.text_id, one.start, one.end) for one in cut]
    per_word = len(model.tokenizer.encode("w1"))
    assert spans[0][1:] == (0, 6)
    assert [b[1] - a[1] for a, b in pairwise(spans)] == [4] * (len(spans) - 1)
    assert {text for text, _, _ in spans} == {0}
    assert spans[-1][2] == 14 * per_word
