"""When a run stops by the width of its intervals, and what they cover then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from made_up_windows import fed, random_run
from rankscope.exceptions import UsageError
from rankscope.summary import summarise
from rankscope.summary.accumulate import CODES, Accumulator
from rankscope.summary.precision import LEAST_UNITS, Precision, looks


def test_looks_grow_by_a_quarter() -> None:
    assert list(looks(130)) == [8, 10, 13, 16, 20, 25, 32, 40, 51, 64, 81, 102, 128, 130]
    assert list(looks(8)) == [8]
    assert list(looks(3)) == [3]
    assert list(looks(0)) == []
    assert list(looks(6, 1)) == [1, 2, 3, 4, 5, 6]
    every = list(looks(100_000))
    steps = np.divide(every[1:-1], every[:-2])
    assert steps.min() > 1.2
    assert steps.max() < 1.31
    with pytest.raises(UsageError, match="first look"):
        list(looks(8, 0))


@pytest.mark.parametrize("texts", [1, 12])
def test_the_widths_are_those_of_the_summary(texts: int) -> None:
    run = random_run(sorted(place % texts for place in range(90)), seed=2, bad=0.1)
    rule = Precision(2, 3, 6, index=2, width=0.1)
    seen = 0
    for end in (1, 20, 90):
        fed(run, rule, seen, end)
        seen = end
        summary = summarise(run.isel(sample=slice(0, end)), index=2)
        widths = rule.widths()
        at = summary.sel(index=2)
        overall = float(at["interval_high"].item() - at["interval_low"].item())
        layers = (summary["layer_mean_high"] - summary["layer_mean_low"]).to_numpy().ravel()
        assert widths.overall == pytest.approx(overall, rel=1e-12, nan_ok=True)
        assert widths.layer == pytest.approx(layers.max(), rel=1e-12, nan_ok=True)
        assert widths.windows == end
        assert widths.batch_windows == summary["batch_windows"].item()
        assert widths.unit == summary["interval_unit"].item()
        assert widths.units == summary["n_units"].item()
    assert widths.widest_layer == layers.argmax()
    assert widths.batch_windows == (2 if texts == 1 else 1)


def narrow(
    rule: Precision, texts: list[int], status: np.ndarray | None = None, layers: int = 2
) -> Precision:
    """Feed windows whose means differ by little."""
    for place, text_id in enumerate(texts):
        ratio = np.full((layers, 1, 1), 0.5 + 1e-4 * (place % 3))
        codes = np.zeros((layers, 1), int) if status is None else status
        rule.add(
            text_id=text_id, n_tokens=1, status=codes, cumulative_ratio=ratio, energy_ratio=ratio
        )
    return rule


def test_a_run_stops_with_eight_narrow_units_and_not_before() -> None:
    assert not narrow(Precision(2, 1, 1, index=1, width=0.1), [*range(LEAST_UNITS - 1)]).reached()
    assert narrow(Precision(2, 1, 1, index=1, width=0.1), [*range(LEAST_UNITS)]).reached()
    assert narrow(Precision(2, 1, 1, index=1, width=0.1), [0] * LEAST_UNITS).reached()
    assert not narrow(Precision(2, 1, 1, index=1, width=1e-5), [*range(50)]).reached()
    # windows of the first text say nothing about the others
    several = Precision(2, 1, 1, index=1, width=0.1, texts=9)
    assert not narrow(several, [0] * 60).reached()
    assert not narrow(several, [1, 2, 3, 4, 5, 6]).reached()
    assert narrow(several, [7]).reached()


def test_one_wide_layer_holds_the_run_up() -> None:
    rule = Precision(2, 1, 1, index=1, width=0.01)
    for text_id in range(40):
        ratio = np.array([0.5, 0.5 + 0.02 * (-1) ** text_id]).reshape(2, 1, 1)
        rule.add(
            text_id=text_id,
            n_tokens=1,
            status=np.zeros((2, 1), int),
            cumulative_ratio=ratio,
            energy_ratio=ratio,
        )
    assert rule.widths().widest_layer == 1
    assert rule.widths().overall < 0.01 < rule.widths().layer
    assert not rule.reached()


def test_a_layer_without_a_matrix_holds_nothing_up_and_a_rare_one_does() -> None:
    gone = np.array([[CODES["ok"]], [CODES["non_finite"]]])
    rule = narrow(Precision(2, 1, 1, index=1, width=0.1), [*range(20)], gone)
    assert rule.reached()
    assert rule.widths().widest_layer == 0
    narrow(rule, [20])
    assert np.isnan(rule.widths().layer)
    assert (rule.widths().widest_layer, rule.widths().units) == (1, 1)
    assert not rule.reached()
    assert not narrow(rule, [*range(21, 27)]).reached()
    assert narrow(rule, [27]).reached()
    nothing = np.full((2, 1), CODES["failed"])
    rule = narrow(Precision(2, 1, 1, index=1, width=0.1), [*range(20)], nothing)
    assert (rule.widths().widest_layer, rule.reached()) == (-1, False)


@pytest.mark.parametrize("wrong", [{"width": 0.0}, {"width": np.nan}, {"index": 0}, {"index": 9}])
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Precision(1, 1, 8, **({"index": 2, "width": 0.1} | wrong))


@pytest.mark.parametrize("needed", [6, 16, 40])
def test_an_interval_still_covers_where_the_run_stopped_by_it(needed: int) -> None:
    runs, limit = 4000, 256
    values = np.random.default_rng(needed).normal(size=(limit, runs))
    # the width that takes so many windows when the variance is known
    width = 2 * 1.96 / np.sqrt(needed)
    accumulator = Accumulator(runs, 1, 1, fractions=np.zeros(0))
    stopped, covered, seen = np.zeros(runs, bool), np.zeros(runs, bool), 0
    for look in looks(limit):
        part = values[seen:look, :, None, None]
        accumulator.add_many(
            text_id=np.arange(seen, look),
            n_tokens=np.ones(look - seen, int),
            status=np.zeros((look - seen, runs, 1), int),
            cumulative_ratio=part,
            energy_ratio=part,
        )
        seen = look
        half = accumulator.result()["layer_half_width"][1][:, 0]
        now = ~stopped & ((2 * half < width) | (look == limit))
        covered[now] = (np.abs(values[:look].mean(0)) < half)[now]
        stopped |= now
        if stopped.all():
            break
    assert stopped.all()
    assert seen <= 4 * max(needed, LEAST_UNITS)
    assert 0.915 < covered.mean() < 0.96
