"""When a run stops by the width of its intervals, and what they cover then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from made_up import run_of
from made_up_windows import fed, random_run
from rankscope.exceptions import UsageError
from rankscope.summary import summarise, table
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
@pytest.mark.parametrize("length", [6, 16])
def test_the_widths_are_those_of_the_summary(texts: int, length: int) -> None:
    """Of windows of 2 to 6 tokens, all read at k = 1, and of 2 to 16, each at its own k."""
    run = random_run(sorted(place % texts for place in range(90)), 2, bad=0.1, length=length)
    rule = Precision(2, 3, width=0.1)
    seen = 0
    for end in (1, 20, 90):
        fed(run, rule, seen, end)
        seen = end
        summary = summarise(run.isel(sample=slice(0, end)))
        (row,) = table(summary)
        widths = rule.widths()
        layers = [high - low for low, high in row.layer_intervals]
        overall = row.interval[1] - row.interval[0]
        assert widths.overall == pytest.approx(overall, rel=1e-12, nan_ok=True)
        assert widths.layer == pytest.approx(max(layers), rel=1e-12, nan_ok=True)
        assert widths.windows == end
        assert widths.batch_windows == row.batch_windows
        assert widths.unit == row.interval_unit
        assert widths.units == summary["n_units"].item()
        assert widths.largest == row.n_max
    assert row.index == (1 if length == 6 else 0)
    assert widths.widest_layer == int(np.argmax(layers))
    assert widths.batch_windows == (2 if texts == 1 else 1)


@pytest.mark.parametrize("n", [8, 11])
def test_for_one_length_the_widths_are_those_at_a_quarter_of_it_bit_for_bit(n: int) -> None:
    rng = np.random.default_rng(n)
    run = run_of(np.sort(rng.random((50, 2, 11, n)))[..., ::-1])
    cell = fed(run, Accumulator(2, 11, n, fractions=np.zeros(0))).result()
    widths = fed(run, Precision(2, 11, width=0.1)).widths()
    assert widths.overall == cell["interval_high"][1][1] - cell["interval_low"][1][1]
    assert widths.layer == 2 * cell["layer_half_width"][1][:, 1].max()


def test_windows_together_are_windows_one_by_one() -> None:
    run = random_run([0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8], bad=0.2, length=12)
    alone = fed(run, Precision(2, 3, width=0.1)).widths()
    together = Precision(2, 3, width=0.1)
    pair = run.isel(model=0, corpus=0)
    names = ("text_id", "n_tokens", "status", "cumulative_ratio")
    for part in (slice(0, 4), slice(4, None)):
        together.add_many(**{name: pair[name].to_numpy()[part] for name in names})
    for name, value in vars(together.widths()).items():
        wanted = vars(alone)[name]
        assert value == (wanted if name == "unit" else pytest.approx(wanted, rel=1e-12)), name


def test_short_texts_are_not_known_before_they_are_looked_at() -> None:
    """At a quarter of the longest window all the others' ratios are 1, whatever they are."""
    rng = np.random.default_rng(0)
    n = rng.integers(2, 17, 81)
    n[-1] = 128
    spectra = rng.dirichlet(np.ones(128) / 4, (81, 1, 1))
    run = run_of(spectra, n_tokens=n.tolist())
    at_32 = run["cumulative_ratio"].sel(index=32).to_numpy().ravel()
    np.testing.assert_allclose(at_32[:80], 1, rtol=1e-12)
    rule = fed(run, Precision(1, 1, width=0.005, texts=81), 0, 8)
    assert rule.widths().overall > 0.05
    assert not rule.reached()
    fed(run, rule, 8)
    own = run["cumulative_ratio"].to_numpy()[0, 0, range(81), 0, 0, np.maximum(n // 4, 1) - 1]
    half = stats.t.ppf(0.975, 80) * own.std(ddof=1) / 9
    assert rule.widths().overall == pytest.approx(2 * half)


def ones(rule: Precision, n: int, texts: range) -> Precision:
    for text_id in texts:
        codes, ratio = np.zeros((1, 1), int), np.ones((1, 1, 8))
        rule.add(text_id=text_id, n_tokens=n, status=codes, cumulative_ratio=ratio)
    return rule


def test_intervals_without_a_width_say_why() -> None:
    rule = ones(Precision(1, 1, width=0.1), 1, range(20))
    assert rule.widths().widest == 0
    assert "a single token" in rule.widths().remark
    # what follows may be anything
    assert not rule.reached()
    ones(rule, 8, range(20, 21))
    # a matrix of rank one is a finding
    assert rule.reached()
    assert rule.widths().remark == "all ratios so far are 1, so that the intervals have no width"
    rule.add(
        text_id=21,
        n_tokens=8,
        status=np.zeros((1, 1), int),
        cumulative_ratio=np.full((1, 1, 8), 0.9),
    )
    assert rule.widths().remark == ""
    assert Precision(1, 1, width=0.1).widths().remark == ""


def test_widths_that_are_known_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = narrow(Precision(2, 1, width=0.1), [*range(LEAST_UNITS)])
    widths = rule.widths()
    monkeypatch.setattr(Accumulator, "result", lambda _: pytest.fail("computed again"))
    assert rule.reached(widths)
    assert not rule.reached(replace(widths, units=LEAST_UNITS - 1))


def narrow(
    rule: Precision, texts: list[int], status: np.ndarray | None = None, layers: int = 2
) -> Precision:
    """Feed windows whose means differ by little."""
    for place, text_id in enumerate(texts):
        ratio = np.full((layers, 1, 1), 0.5 + 1e-4 * (place % 3))
        codes = np.zeros((layers, 1), int) if status is None else status
        rule.add(text_id=text_id, n_tokens=4, status=codes, cumulative_ratio=ratio)
    return rule


def test_a_run_stops_with_eight_narrow_units_and_not_before() -> None:
    assert not narrow(Precision(2, 1, width=0.1), [*range(LEAST_UNITS - 1)]).reached()
    assert narrow(Precision(2, 1, width=0.1), [*range(LEAST_UNITS)]).reached()
    assert narrow(Precision(2, 1, width=0.1), [0] * LEAST_UNITS).reached()
    assert not narrow(Precision(2, 1, width=1e-5), [*range(50)]).reached()
    # windows of the first text say nothing about the others
    several = Precision(2, 1, width=0.1, texts=9)
    assert not narrow(several, [0] * 60).reached()
    assert not narrow(several, [1, 2, 3, 4, 5, 6]).reached()
    assert narrow(several, [7]).reached()


def test_one_wide_layer_holds_the_run_up() -> None:
    rule = Precision(2, 1, width=0.01)
    for text_id in range(40):
        ratio = np.array([0.5, 0.5 + 0.02 * (-1) ** text_id]).reshape(2, 1, 1)
        rule.add(
            text_id=text_id,
            n_tokens=4,
            status=np.zeros((2, 1), int),
            cumulative_ratio=ratio,
        )
    assert rule.widths().widest_layer == 1
    assert rule.widths().overall < 0.01 < rule.widths().layer
    assert not rule.reached()


def test_a_layer_without_a_matrix_holds_nothing_up_and_a_rare_one_does() -> None:
    gone = np.array([[CODES["ok"]], [CODES["non_finite"]]])
    rule = narrow(Precision(2, 1, width=0.1), [*range(20)], gone)
    assert rule.reached()
    assert rule.widths().widest_layer == 0
    narrow(rule, [20])
    assert np.isnan(rule.widths().layer)
    assert (rule.widths().widest_layer, rule.widths().units) == (1, 1)
    assert not rule.reached()
    assert not narrow(rule, [*range(21, 27)]).reached()
    assert narrow(rule, [27]).reached()
    nothing = np.full((2, 1), CODES["failed"])
    rule = narrow(Precision(2, 1, width=0.1), [*range(20)], nothing)
    assert (rule.widths().widest_layer, rule.reached()) == (-1, False)


@pytest.mark.parametrize("width", [0.0, -0.1, np.nan])
def test_a_rule_that_makes_no_sense_is_refused(width: float) -> None:
    with pytest.raises(UsageError, match="narrower than"):
        Precision(1, 1, width=width)


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
