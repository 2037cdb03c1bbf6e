"""Runs of truncations, comparisons and interventions: right values, resumed, refused in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from rankscope import engine
from rankscope.approximations import method
from rankscope.capture import capture
from rankscope.engine import (
    ComparisonPlan,
    InterventionPlan,
    Resources,
    Sampling,
    TruncationPlan,
    execute,
)
from rankscope.engine.measure_losses import parsed_heads
from rankscope.engine.measure_methods import label_of
from rankscope.errors import matrix_errors, output_errors
from rankscope.exceptions import MethodError, RankscopeError, UsageError
from rankscope.models import LoadedModel, load
from rankscope.status import Status
from rankscope.store import working_path
from rankscope.store.files import load as read
from rankscope.text import Corpus
from tiny import tiny_config

SHORT = Sampling(length=12, windows=3)
METHODS = [method(text) for text in ("truncated:k=4", "best-output:k=2", "uniform", "mean-row")]


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    folder = tmp_path / "model"
    tiny_config("roberta", initializer_range=0.25).save_pretrained(folder)
    return load(f"random:{folder}", tokenizer="hash", head=True)


@pytest.fixture
def corpus() -> Corpus:
    words = " ".join(f"word{i % 11}" for i in range(200))
    return Corpus.from_strings([words], "words")


def stopping(after: int) -> engine.Progress:
    def progress(done: int, _: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return progress


def plans(model: LoadedModel, corpus: Corpus) -> dict[str, engine.Plan]:
    return {
        "truncation": TruncationPlan(model, corpus, SHORT, (2, 6)),
        "comparison": ComparisonPlan(model, corpus, SHORT, METHODS),
        "intervention": InterventionPlan(model, corpus, SHORT, METHODS, pseudo=4),
    }


@pytest.mark.usefixtures("windows_by_themselves")
@pytest.mark.parametrize("kind", ["truncation", "comparison", "intervention"])
def test_stopped_and_resumed_equals_uninterrupted(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, kind: str
) -> None:
    whole = execute(plans(model, corpus)[kind], model, tmp_path / "whole.nc")
    target = tmp_path / "run.nc"
    with pytest.raises(KeyboardInterrupt):
        execute(plans(model, corpus)[kind], model, target, progress=stopping(2))
    assert not target.exists()
    assert working_path(target).is_dir()
    seen: list[int] = []
    execute(
        plans(model, corpus)[kind],
        model,
        target,
        Resources(threads=2),
        progress=lambda at, _: seen.append(at),
    )
    assert seen == [2, 3]
    xr.testing.assert_identical(read(target), read(whole))
    assert not bool(read(target)["status"].any())


def test_truncation_holds_the_curves_of_every_head(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    plan = TruncationPlan(model, corpus, SHORT, (2, 6))
    found = read(execute(plan, model, tmp_path / "run.nc")).isel(model=0, corpus=0)
    assert found.sizes["index"] == 12
    window = plan.frame.windows[1]
    for attention in capture(model, [window]):
        here = found.isel(sample=1).sel(layer=attention.layer)
        weights, values = attention.weights[0].double(), attention.values[0].double()
        u, sigma, vh = torch.linalg.svd(weights)
        for k in (1, 2, 6, 12):
            low = (u[:, :, :k] * sigma[:, None, :k]) @ vh[:, :k]
            expected = matrix_errors(weights, low)
            at = here.sel(index=k)
            np.testing.assert_allclose(at["frobenius_error"], expected["frobenius"], atol=1e-9)
            np.testing.assert_allclose(at["spectral_error"], expected["spectral"], atol=1e-8)
            output = output_errors(weights @ values, low @ values)["output"]
            np.testing.assert_allclose(at["output_error"], output, atol=1e-9)
            if k in (2, 6):
                side = here.sel(rank=k)
                np.testing.assert_allclose(side["negative_mass"], expected["negative_mass"])
                np.testing.assert_allclose(side["row_sum_drift"], expected["row_sum_drift"])
        cumulative = sigma.cumsum(-1) / sigma.sum(-1, keepdim=True)
        np.testing.assert_allclose(1 - here["nuclear_error"], cumulative, atol=1e-9)
        norm = torch.linalg.matrix_norm(weights @ values)
        np.testing.assert_allclose(here["output_norm"], norm, rtol=1e-9)


def test_comparison_holds_the_errors_of_every_method(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    plan = ComparisonPlan(model, corpus, SHORT, METHODS)
    found = read(execute(plan, model, tmp_path / "run.nc", Resources(threads=2))).isel(
        model=0, corpus=0
    )
    assert found["method"].to_numpy().tolist() == [str(one) for one in METHODS]
    assert found["family"].to_numpy().tolist() == [one.name for one in METHODS]
    assert found["budget"].to_numpy().tolist() == [4, 2, 0, 0]
    assert found["label"].to_numpy().tolist() == ["truncated", "best-output", "uniform", "mean-row"]
    for attention in capture(model, [plan.frame.windows[2]]):
        here = found.isel(sample=2).sel(layer=attention.layer)
        for one in METHODS:
            errors = matrix_errors(attention.weights, one.matrix(attention))
            errors |= output_errors(attention.output, one.apply(attention))
            for name, values in errors.items():
                stored = here[name].sel({"method": str(one)})
                np.testing.assert_allclose(stored, values[0], rtol=1e-6, atol=1e-9, err_msg=name)


def test_a_nan_weight_spoils_its_own_head_only(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    """FIELD F11: bad heads have a status and NaN, the others their numbers."""
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if name.endswith("layer.0.attention.self.query.weight"):
                weight[0, 0] = torch.nan
    sampling = Sampling(length=12, windows=1, layers=(0,))
    for plan in (
        TruncationPlan(model, corpus, sampling, (2,)),
        ComparisonPlan(model, corpus, sampling, METHODS),
    ):
        target = tmp_path / f"{type(plan).__name__}.nc"
        found = read(execute(plan, model, target)).isel(model=0, corpus=0, sample=0, layer=0)
        assert found["status"].to_numpy().tolist() == [Status.non_finite, 0, 0, 0]
        name = "output_error" if "index" in found.dims else "output"
        assert np.isnan(found[name].isel(head=0)).all()
        assert np.isfinite(found[name].isel(head=slice(1, None))).all()


def test_shorter_windows_have_no_error_beyond_their_own_size(
    model: LoadedModel, tmp_path: Path
) -> None:
    corpus = Corpus.from_strings(["word1 word2 word3", " ".join(["word4 word5"] * 10)], "two")
    sampling = Sampling(length=12, windows=None, mode="document")
    plan = TruncationPlan(model, corpus, sampling, (2,))
    found = read(execute(plan, model, tmp_path / "run.nc")).isel(model=0, corpus=0)
    n = int(found["n_tokens"][0])
    assert n < 12
    beyond = found["output_error"].isel(sample=0).sel(index=slice(n, None))
    assert float(abs(beyond).max()) < 1e-6
    assert float(found["output_error"].isel(sample=0).sel(index=n - 2).min()) > 1e-6


def test_losses_put_full_attention_first(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    plan = InterventionPlan(model, corpus, SHORT, [method("full"), *METHODS], heads=(1,))
    found = read(execute(plan, model, tmp_path / "run.nc")).isel(model=0, corpus=0)
    assert found["method"].to_numpy()[0] == "full"
    assert found.sizes["method"] == 1 + len(METHODS)
    assert float(abs(found["kl"].sel({"method": "full"})).max()) == 0.0
    assert float(found["top1_agreement"].sel({"method": "full"}).min()) == 1.0
    assert float(found["kl"].sel({"method": "uniform"}).min()) > 1e-6
    assert (found["masked_tokens"] == 2).all()
    again = Sampling(length=12, windows=1, skip=2)
    other = InterventionPlan(model, corpus, again, METHODS, heads=(1,))
    last = read(execute(other, model, tmp_path / "last.nc")).isel(model=0, corpus=0)
    # the window is the same, and so are its hidden tokens
    np.testing.assert_array_equal(last["loss"].isel(sample=0), found["loss"].isel(sample=2))


def test_layers_are_replaced_where_they_were_asked_for(
    model: LoadedModel, corpus: Corpus, tmp_path: Path
) -> None:
    uniform = [method("uniform")]
    losses = {}
    for name, layers, heads in (
        ("all", None, None),
        ("one", (1,), None),
        ("pairs", None, ((1, 0), (1, 1), (1, 2), (1, 3))),
    ):
        sampling = Sampling(length=12, windows=1, layers=layers)
        plan = InterventionPlan(model, corpus, sampling, uniform, heads=heads)
        found = read(execute(plan, model, tmp_path / f"{name}.nc"))
        losses[name] = found["loss"].sel({"method": found["method"][1]}).item()
    assert losses["one"] == losses["pairs"] != losses["all"]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda m, c: TruncationPlan(m, c, SHORT, (2, 13)), "do not fit"),
        (lambda m, c: TruncationPlan(m, c, SHORT, (0,)), "do not fit"),
        (lambda m, c: ComparisonPlan(m, c, SHORT, []), "no method"),
        (lambda m, c: InterventionPlan(m, c, SHORT, METHODS, fraction=0.0), "share"),
        (lambda m, c: InterventionPlan(m, c, SHORT, METHODS, heads=(9,)), "head 9"),
        (
            lambda m, c: InterventionPlan(m, c, Sampling(length=12, special="drop"), METHODS),
            "special",
        ),
        (lambda m, c: ComparisonPlan(m, c, Sampling(length=12, skip=99), METHODS), "window"),
    ],
)
def test_refused_before_anything_is_written(
    model: LoadedModel, corpus: Corpus, tmp_path: Path, make: object, cause: str
) -> None:
    target = tmp_path / "run.nc"
    with pytest.raises(RankscopeError, match=cause):
        execute(make(model, corpus), model, target)  # type: ignore[operator]
    assert not target.exists()
    assert not working_path(target).exists()


def test_another_method_is_another_run(model: LoadedModel, corpus: Corpus) -> None:
    hashes = {
        ComparisonPlan(model, corpus, SHORT, [method(text)]).settings_hash
        for text in ("truncated:k=4", "truncated:k=5", "truncated:k=4,rows=clipped")
    }
    assert len(hashes) == 3
    skipped = Sampling(length=12, windows=3, skip=1)
    assert (
        ComparisonPlan(model, corpus, skipped, METHODS).settings_hash
        != ComparisonPlan(model, corpus, SHORT, METHODS).settings_hash
    )


def test_words_for_heads_and_labels() -> None:
    assert parsed_heads("0, 3") == (0, 3)
    assert parsed_heads("1.0,2.11") == ((1, 0), (2, 11))
    for wrong in ("a", "1.2.3", "1.0,2"):
        with pytest.raises(UsageError):
            parsed_heads(wrong)
    assert label_of(method("truncated:k=8,rows=clipped")) == "truncated:rows=clipped"
    assert label_of(method("uniform")) == "uniform"


def test_causal_models_refuse_what_looks_ahead(tmp_path: Path, corpus: Corpus) -> None:
    """FIELD F29: a loss that saw the future would look better than it is."""
    folder = tmp_path / "causal"
    tiny_config("gpt2").save_pretrained(folder)
    gpt = load(f"random:{folder}", tokenizer="hash", head=True)
    with pytest.raises(MethodError, match="causal"):
        InterventionPlan(gpt, corpus, SHORT, [method("truncated:k=4")])
