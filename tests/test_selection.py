"""Ranks for a tolerance, the errors that are summed, and choices from stored runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from attentions import attention
from matrices import closed_forms, stochastic
from rankscope import rank, selection
from rankscope.approximations import read_ranks
from rankscope.exceptions import StoreError, UsageError
from rankscope.selection import (
    Choice,
    RankRow,
    allocate,
    errors_at,
    from_dataset,
    lost,
    ranks_table,
    smallest_rank,
    total_error,
)
from rankscope.truncation import Curves, decompose, error_curves

CLOSE = 1e-12


def curves_of(matrices: np.ndarray) -> Curves:
    return error_curves(decompose(torch.as_tensor(matrices)))


def test_smallest_rank_by_hand() -> None:
    # σ = (4, 3, 2, 1): ratios .4 .7 .9 1, energy ratios 16/30 25/30 29/30 1
    curves = curves_of(np.diag([4.0, 3.0, 2.0, 1.0])[None, None])
    nuclear, frobenius = curves.nuclear.numpy(), curves.frobenius.numpy()
    wanted = {0.0: (4, 4), 0.05: (4, 3), 0.1: (3, 3), 0.2: (3, 2), 0.3: (2, 2), 1.0: (1, 1)}
    for tolerance, (cumulative, energy) in wanted.items():
        assert smallest_rank(nuclear, tolerance, "cumulative").tolist() == [[cumulative]]
        assert smallest_rank(frobenius, tolerance, "energy").tolist() == [[energy]]
    assert smallest_rank([[[0.5, 0.1, 0.0]]], 0.1).tolist() == [[2]]


@given(st.integers(2, 12), st.integers(0, 1000), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_smallest_rank_is_that_of_the_spectrum(n: int, seed: int, tolerance: float) -> None:
    """One window, σ-ratio: the k that `rank_at` reads off the singular values themselves."""
    matrices = np.stack([stochastic(n, seed), stochastic(n, seed + 1, sharpness=3.0)])[None]
    sigma = np.linalg.svd(matrices, compute_uv=False)
    found = smallest_rank(curves_of(matrices).nuclear.numpy(), tolerance, "cumulative")
    np.testing.assert_array_equal(found, rank.rank_at(sigma, 1 - tolerance))


def test_tolerances_at_both_ends_on_known_matrices() -> None:
    n = 8
    named = closed_forms(n)
    matrices = np.stack([named[name][0] for name in ("identity", "uniform", "sink", "mixture")])
    curves = curves_of(matrices[None])
    for kind, errors in (("cumulative", curves.nuclear), ("energy", curves.frobenius)):
        # rank one matrices need one value even for no loss, the others all
        assert smallest_rank(errors.numpy(), 0.0, kind).tolist() == [[n, 1, 1, n]]
        assert smallest_rank(errors.numpy(), 1.0, kind).tolist() == [[1, 1, 1, 1]]


def test_mean_over_windows_and_over_texts() -> None:
    curves = np.array([[0.9, 0.2, 0.0], [0.1, 0.0, 0.0], [0.1, 0.0, 0.0]])[:, None, None]
    np.testing.assert_allclose(lost(curves), [[[1.1 / 3, 0.2 / 3, 0.0]]], atol=CLOSE)
    np.testing.assert_allclose(lost(curves, texts=[7, 4, 4]), [[[0.5, 0.1, 0.0]]], atol=CLOSE)
    assert smallest_rank(curves, 0.07).tolist() == [[2]]
    assert smallest_rank(curves, 0.07, texts=[7, 4, 4]).tolist() == [[3]]
    # the energy that is lost is a mean of squares, not the square of a mean
    np.testing.assert_allclose(lost(curves, "energy")[0, 0, 0], (0.81 + 0.02) / 3, atol=CLOSE)


def test_quantile_is_on_the_safe_side() -> None:
    errors = np.linspace(0.1, 1.0, 10)[:, None, None, None] * [1.0, 0.5, 0.0]
    assert smallest_rank(errors, 0.5).tolist() == [[2]]
    assert smallest_rank(errors, 0.45, quantile=0.9).tolist() == [[2]]
    assert smallest_rank(errors, 0.45, quantile=1.0).tolist() == [[3]]
    np.testing.assert_allclose(lost(errors, quantile=0.7)[0, 0], [0.7, 0.35, 0.0], atol=CLOSE)
    np.testing.assert_allclose(lost(errors, quantile=0.01)[0, 0, 0], 0.1, atol=CLOSE)


@given(st.integers(0, 10**6), st.integers(1, 9), st.floats(0.01, 1.0), st.floats(0, 1))
@settings(deadline=None)
def test_quantile_keeps_its_share_of_the_windows(
    seed: int, windows: int, share: float, tolerance: float
) -> None:
    curves = np.sort(np.random.default_rng(seed).random((windows, 1, 2, 6)))[..., ::-1].copy()
    curves[..., -1] = 0.0
    chosen = smallest_rank(curves, tolerance, quantile=share).astype(int)
    for head in range(2):
        k = chosen[0, head]
        within = (curves[:, 0, head] <= tolerance).mean(axis=0)
        assert within[k - 1] >= share - 1e-9
        assert k == 1 or within[k - 2] < share


def test_heads_without_a_result_are_nan_and_bad_windows_are_left_out() -> None:
    curves = np.tile(np.array([0.4, 0.2, 0.0]), (2, 1, 3, 1))
    curves[0, 0, 1] = np.nan
    curves[1, 0, 1] = [0.9, 0.8, 0.0]
    curves[:, 0, 2, 1] = np.nan  # one missing value is enough
    for quantile in (None, 1.0):
        found = smallest_rank(curves, 0.3, quantile=quantile)
        np.testing.assert_array_equal(found, [[2, 3, np.nan]])
    np.testing.assert_array_equal(np.isnan(total_error(curves)).all(-1), [[False, False, True]])


def test_rank_that_is_never_reached_is_the_last() -> None:
    assert smallest_rank([[[0.9, 0.8, 0.7]]], 0.1).tolist() == [[3]]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: smallest_rank(c, 1.1), r"\[0, 1\]"),
        (lambda c: smallest_rank(c, -0.1), r"\[0, 1\]"),
        (lambda c: smallest_rank(c, float("nan")), r"\[0, 1\]"),
        (lambda c: smallest_rank(c, 0.1, "sigma"), "cumulative, energy, output"),
        (lambda c: smallest_rank(c, 0.1, quantile=0.0), r"\(0, 1\]"),
        (lambda c: smallest_rank(c[0], 0.1, quantile=0.5), "no windows"),
        (lambda c: smallest_rank(c[0, 0], 0.1), "shape"),
        (lambda c: smallest_rank(-c, 0.1), "below 0"),
        (lambda c: smallest_rank(c, 0.1, texts=[1]), "one text each"),
        (lambda c: total_error(c, objective="sum"), "relative-squared"),
        (lambda c: total_error(c, objective="absolute"), "norms"),
        (lambda c: total_error(c, np.ones((1, 1)), "layer"), "do not belong"),
        (lambda c: errors_at(c[0], [[0, 1]]), "1 or more"),
        (lambda c: errors_at(c[0], [[1]]), "shape"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        call(np.full((2, 1, 2, 3), 0.5))


@pytest.mark.parametrize("objective", selection.OBJECTIVES)
def test_objectives_are_what_truncation_does_to_the_output(objective: str) -> None:
    """Independent computation: P_k built, the outputs of a layer put side by side."""
    given = attention(16, heads=3, batch=2, seed=3)
    whole = decompose(given.weights)
    curves = error_curves(whole, given.values)
    assert curves.output is not None
    assert curves.output_norm is not None
    # each window of the batch as a window, one layer
    found = total_error(
        curves.output.numpy()[:, None], curves.output_norm.numpy()[:, None], objective
    )
    for k in (1, 5, 16):
        distance = (whole.truncate(k) - given.weights) @ given.values
        squares, energy = (y.square().sum((-2, -1)).numpy() for y in (distance, given.output))
        per_head = {
            "relative": np.sqrt(squares / energy),
            "relative-squared": squares / energy,
            "absolute": squares,
            "layer": squares / energy.sum(-1, keepdims=True),
        }[objective]
        np.testing.assert_allclose(found[0, :, k - 1], per_head.mean(0), rtol=1e-9, atol=CLOSE)
        if objective == "layer":
            joint = distance.flatten(1).norm(dim=1) / given.output.flatten(1).norm(dim=1)
            assert found[0, :, k - 1].sum() == pytest.approx(float(joint.square().mean()))


def test_a_layer_lacks_the_window_in_which_one_of_its_heads_is_missing() -> None:
    curves, norms = np.full((2, 1, 2, 3), 0.5), np.full((2, 1, 2), 2.0)
    norms[1] = [300.0, 100.0]
    curves[1, 0, 0] = np.nan
    np.testing.assert_allclose(total_error(curves, norms, "layer"), np.full((1, 2, 3), 0.125))
    np.testing.assert_allclose(
        total_error(curves, norms, "absolute")[0, :, 0], [1.0, (1.0 + 2500.0) / 2]
    )


def run_of(curves: np.ndarray, **changes: Any) -> xr.Dataset:
    """A run of truncations whose output errors (sample, layer, head, index) are given."""
    samples, layers, heads, n = curves.shape
    matrix = ("model", "corpus", "sample", "layer", "head")
    given = {"text_id": range(samples), "tokens": [n] * samples, "status": 0, "norms": 1.0}
    given |= changes
    full = np.broadcast_to(given["status"], curves.shape[:3]).astype(np.int8)
    norms = np.broadcast_to(given["norms"], curves.shape[:3]).astype(np.float64)
    return xr.Dataset(
        {
            "output_error": ((*matrix, "index"), curves[None, None]),
            "nuclear_error": ((*matrix, "index"), curves[None, None] ** 2),
            "frobenius_error": ((*matrix, "index"), curves[None, None] / 2),
            "output_norm": (matrix, norms[None, None]),
            "status": (matrix, full[None, None]),
            "n_tokens": (matrix[:3], np.array(given["tokens"], np.int32)[None, None]),
        },
        {
            "model": ["m"],
            "corpus": ["c"],
            "sample": np.arange(samples),
            "layer": np.arange(layers) * 2 + 3,
            "head": np.arange(heads),
            "index": np.arange(1, n + 1),
            "text_id": ("sample", np.array(given["text_id"])),
        },
    )


def falling(samples: int = 4, layers: int = 2, heads: int = 3, n: int = 8) -> np.ndarray:
    drawn = np.random.default_rng(0).random((samples, layers, heads, n))
    curves = np.sort(drawn)[..., ::-1].copy()
    curves[..., -1] = 0.0
    return curves


@pytest.mark.parametrize("kind", selection.KINDS)
@pytest.mark.parametrize("quantile", [None, 0.75])
def test_run_gives_what_its_arrays_give(kind: str, quantile: float | None) -> None:
    curves, texts = falling(), [0, 0, 0, 5]
    stored = {"output": curves, "cumulative": curves**2, "energy": curves / 2}[kind]
    choice = from_dataset(
        run_of(curves, text_id=texts), tolerance=0.2, kind=kind, quantile=quantile
    )
    wanted = smallest_rank(stored, 0.2, kind, quantile=quantile, texts=texts)
    assert choice.ranks.dtype == np.int64
    np.testing.assert_array_equal(choice.ranks, wanted)
    assert (choice.errors <= 0.2).all()
    asked = {"kind": kind, "tolerance": 0.2, "quantile": quantile}
    origin = {"corpus": "c", "windows": 4, "texts": 2, "left_out": 0}
    assert dict(choice.how) == asked | origin


@pytest.mark.parametrize("objective", selection.OBJECTIVES)
def test_run_is_allocated_as_its_arrays_are(objective: str) -> None:
    curves, texts = falling(), [0, 0, 0, 5]
    norms = np.random.default_rng(1).random((4, 2, 3)) + 0.5
    run = run_of(curves, text_id=texts, norms=norms)
    choice = from_dataset(run, budget=20, objective=objective, by="head")
    wanted = allocate(total_error(curves, norms, objective, texts=texts), 20)
    np.testing.assert_array_equal(choice.ranks, wanted.ranks)
    assert choice.error == pytest.approx(wanted.error)
    assert choice.how["objective"] == objective
    assert choice.how["budget"] == 20
    # stored in whatever order, read the same
    turned = run.transpose(*reversed(list(run.sizes)))
    np.testing.assert_array_equal(
        from_dataset(turned, budget=20, objective=objective).ranks, choice.ranks
    )


def test_short_windows_have_no_error_beyond_their_size() -> None:
    curves = falling(samples=2)
    for beyond in (np.nan, 0.7):
        run = run_of(np.where(np.arange(8) < 5, curves, [beyond]), tokens=[8, 5])
        run["output_error"][0, 0, 0] = curves[0]
        made = from_dataset(run, budget=24)
        wanted = curves.copy()
        wanted[1, ..., 5:] = 0.0
        assert made.error == pytest.approx(allocate(total_error(wanted), 24).error)
        assert made.how["left_out"] == 0


def test_bad_matrices_are_left_out_counted_and_never_guessed() -> None:
    curves, status = falling(), np.zeros((4, 2, 3))
    status[1, 0, 1], status[2, 1, 2] = 5, 6
    made = from_dataset(run_of(curves, status=status), tolerance=0.3)
    assert made.how["left_out"] == 2
    known = np.where(status[..., None] > 2, np.nan, curves)
    np.testing.assert_array_equal(made.ranks, smallest_rank(known, 0.3))
    status[:, 1, 2] = -1
    for asked in ({"tolerance": 0.3}, {"budget": 20}):
        with pytest.raises(UsageError, match="layer 5 head 2 "):
            from_dataset(run_of(curves, status=status), **asked)  # type: ignore[arg-type]


def test_other_datasets_are_refused_by_name() -> None:
    run = run_of(falling())
    for other, words in (
        (run.drop_vars("output_norm"), "output_norm"),
        (run.drop_vars("output_error").assign(singular_value=run["output_error"]), "spectra"),
        (run.rename(index="method"), "compare"),
        (run.rename(index="method").assign(loss=run["n_tokens"]), "intervene"),
        (run.isel(sample=0).rename(output_error="mean_ratio"), "summary"),
        (xr.Dataset(), "another dataset"),
        (run.isel(index=slice(1, None)), "1 … n"),
        (run.isel(sample=[]), "empty"),
    ):
        with pytest.raises(StoreError, match=words):
            from_dataset(other, budget=20)
    two = xr.concat([run, run.assign_coords(corpus=["d"])], "corpus")
    with pytest.raises(UsageError, match="2 of dimension corpus"):
        from_dataset(two, budget=20)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"tolerance": 0.1, "budget": 20},
        {"tolerance": 0.1, "kind": "x"},
        {"budget": 20, "objective": "x"},
        {"budget": 20, "by": "x"},
        {"budget": 5},
    ],
)
def test_unclear_questions_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        from_dataset(run_of(falling()), **asked)


def test_choice_becomes_a_file_of_ranks(tmp_path: Any) -> None:
    choice = from_dataset(run_of(falling()), budget=np.int64(20))  # type: ignore[arg-type]
    file = choice.to_ranks("m", "ab" * 32, np.array([3, 5]), 8).write(tmp_path / "ranks.json")
    found = read_ranks(file)
    assert (found.model, found.layers, found.length) == ("m", (3, 5), 8)
    assert found.ranks == tuple(map(tuple, choice.ranks.tolist()))
    assert found.total == choice.total == 20
    assert found.how == {**choice.how, "predicted_error": choice.error}
    with pytest.raises(UsageError):
        choice.to_ranks("m", None, [3], 8)
    with pytest.raises(UsageError, match="every layer and head"):
        Choice(choice.ranks, choice.errors[:1])


def test_table_of_choices() -> None:
    choice = Choice(np.array([[1, 2], [3, 6]]), np.array([[0.5, 0.25], [0.0, 0.125]]))
    assert ranks_table(choice, [3, 5]) == [
        RankRow("", 3, 2, 1.5, 1, 2, 3, 0.75),
        RankRow("", 5, 2, 4.5, 3, 6, 9, 0.125),
        RankRow("", None, 4, 3.0, 1, 6, 12, 0.875),
    ]
    rows = ranks_table({"a": choice, "b": choice})
    assert [(row.choice, row.layer) for row in rows] == [
        (name, layer) for name in "ab" for layer in (0, 1, None)
    ]
    with pytest.raises(UsageError, match="3 layers"):
        ranks_table(choice, [1, 2, 3])
