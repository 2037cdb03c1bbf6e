"""Means of many windows at once, and what an infinite value does to them."""

from __future__ import annotations

import numpy as np
import pytest

from made_up_methods import compare_run
from rankscope.summary.accumulate import ABSENT, CODES
from rankscope.summary.averages import Census, Measure, cuts
from rankscope.summary.methods import errors_by_layer, summarise_methods

SHAPE = (2, 3, 4)


def windows(seed: int, texts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Values of some windows, not all finite, and which of their matrices are usable."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(len(texts), *SHAPE))
    values[rng.random(values.shape) < 0.1] = np.nan
    values[2, 1, 1, 1], values[3, 0, 0, 0] = np.inf, -np.inf
    good = rng.random((len(texts), *SHAPE[:2], 1)) < 0.7
    # windows, and a text, of which nothing is usable
    good[rng.random(len(texts)) < 0.1] = False
    good[np.array(texts) == texts[-1]] = False
    good[2, 1, 1] = good[3, 0, 0] = True
    return values, good


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    "texts",
    [
        [*range(40)],
        np.repeat(range(12), np.random.default_rng(0).integers(1, 9, 12)).tolist(),
        [5] * 150 + [6],
        [3] * 20 + [*range(10, 30)] + [40] * 30,
    ],
    ids=["a window a text", "some", "one text", "all kinds"],
)
def test_windows_together_are_windows_one_by_one(step: int, texts: list[int]) -> None:
    values, good = windows(step, texts)
    alone, together = Measure(SHAPE), Measure(SHAPE)
    for place, text in enumerate(texts):
        if place and text != texts[place - 1]:
            alone.close_text()
        alone.add(values[place], good[place])
    for start in range(0, len(texts), step):
        part = slice(start, start + step)
        together.add_many(values[part], good[part], np.array(texts[part]))
    assert together.unit == alone.unit == ("window" if len(set(texts)) == 2 else "text")
    found, wanted = together.result(together.unit), alone.result(alone.unit)
    assert wanted[""][1, 1, 1] == wanted["_mean"][1] == np.inf
    assert wanted["_undefined"][0] > 0
    assert np.isfinite(wanted["_high"]).any()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-11, atol=1e-13, err_msg=name)


def test_a_mean_of_one_head_over_texts_is_worked_out_by_hand() -> None:
    measure = Measure((1, 1))
    values = np.array([0.5, 0.7, 0.9, 0.1, 0.3, 0.2]).reshape(-1, 1, 1)
    measure.add_many(values[:2], np.ones((2, 1, 1), bool), np.array([4, 4]))
    measure.add_many(values[2:], np.ones((4, 1, 1), bool), np.array([4, 9, 7, 7]))
    found = measure.result(measure.unit)
    # texts 0.7, 0.1 and 0.25
    assert found[""][0, 0] == pytest.approx(0.35)
    half = 4.302653 * np.std([0.7, 0.1, 0.25], ddof=1) / np.sqrt(3)
    assert found["_high"] - 0.35 == pytest.approx(half, rel=1e-6)
    assert measure.unit == "text"
    assert int(found["_units"]) == 3
    assert found["_count"].tolist() == [[6]]


def test_windows_are_counted_together_as_one_by_one() -> None:
    rng = np.random.default_rng(1)
    codes = rng.choice([*CODES.values()], (60, 2, 3))
    codes[rng.random(60) < 0.3] = ABSENT
    texts, sizes = np.repeat(range(20), 3), rng.integers(0, 9, 60)
    alone, together = Census(), Census()
    counted = [alone.add(int(t), int(n), c) for t, n, c in zip(texts, sizes, codes, strict=True)]
    for part in (slice(0, 7), slice(7, 60)):
        there = together.add_many(texts[part], sizes[part], codes[part])
        assert there.tolist() == counted[part]
    for name, (_, array) in alone.result().items():
        np.testing.assert_array_equal(together.result()[name][1], array, err_msg=name)
    assert int(alone.result()["n_windows"][1]) == sum(counted)
    assert alone.result()["n_tokens_max"][1] == sizes[counted].max()


def test_no_window_is_no_mean() -> None:
    measure = Measure((1, 2))
    measure.add_many(np.zeros((0, 1, 2)), np.zeros((0, 1, 2), bool), np.zeros(0, int))
    assert np.isnan(measure.result(measure.unit)["_mean"])
    assert [*cuts(np.zeros(0, int), 8)] == []


def test_an_infinite_head_makes_the_mean_of_its_layer_infinite() -> None:
    values = np.ones((2, 2, 2, 1))
    values[1, 0, 1] = np.inf
    summary = summarise_methods(compare_run({"kl": values}, ("truncated:k=1",)))
    layers = errors_by_layer({"all": summary}, "kl", names={"truncated": "P_low"})
    assert layers.to_numpy().ravel().tolist() == [np.inf, 1.0]
