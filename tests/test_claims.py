"""The claims: rules, verdicts on made-up numbers, and counterexamples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyses import _claims_mathematics as mathematics
from analyses import _claims_methods as methods
from analyses import _claims_replaced as replaced
from analyses import _claims_spectra as spectra
from analyses._claims_rules import (
    Estimate,
    Rule,
    Verdict,
    estimate,
    of_the_model,
    paired,
    slopes,
    together,
)
from made_up import run_of
from made_up_claims import FIRST, TREND, TURN, WHOLE, made
from rankscope.exceptions import UsageError
from rankscope.summary.differences import PAIRING, difference

DATA = Path(__file__).parent.parent / "figures" / "data"
YES, NO, DEPENDS = Verdict.supported, Verdict.not_supported, Verdict.depends


def of(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 5, "windows")


@pytest.mark.parametrize(
    ("rule", "interval", "verdict", "words"),
    [
        (Rule((0.88, 0.92)), (0.89, 0.91), YES, ""),
        (Rule((0.88, 0.92)), (0.5, 0.88), NO, ""),
        (Rule((0.88, 0.92)), (0.93, 0.98), NO, ""),
        (Rule((0.88, 0.92)), (0.87, 0.90), DEPENDS, "the limit 0.88"),
        (Rule((0.88, 0.92)), (0.80, 0.99), DEPENDS, "the limit 0.88 and 0.92"),
        (Rule((0.5, math.inf), (0.0, math.inf)), (0.51, 0.7), YES, ""),
        (Rule((0.5, math.inf), (0.0, math.inf)), (-0.4, 0.0), NO, ""),
        (Rule((0.5, math.inf), (0.0, math.inf)), (0.1, 0.4), DEPENDS, "between"),
        (Rule((0.5, math.inf), (0.0, math.inf)), (-0.1, 0.4), DEPENDS, "more windows"),
        # an effect of exactly nothing is none
        (Rule((0.0, math.inf)), (0.0, 0.0), NO, ""),
        (Rule((0.0, math.inf)), (math.nan, math.nan), DEPENDS, "one gives no interval"),
    ],
)
def test_rules(rule: Rule, interval: tuple[float, float], verdict: Verdict, words: str) -> None:
    found, on = rule.judge(of(*interval), "between")
    assert found == verdict
    assert words in on
    assert bool(on) == (verdict == DEPENDS)


def test_a_rule_says_its_limits() -> None:
    words = str(Rule((0.88, 0.92)))
    assert "between 0.88 and 0.92" in words
    assert "at or below 0.88 or at or above 0.92" in words
    assert "above 0.5;" in str(Rule((0.5, math.inf), (0.0, math.inf), digits=1))


def test_several_verdicts_make_one() -> None:
    assert together([(YES, ""), (YES, "")], "on x") == (YES, "")
    assert together([(NO, ""), (NO, "")], "on x") == (NO, "")
    assert together([(YES, ""), (NO, "")], "on x") == (DEPENDS, "on x")
    assert together([(DEPENDS, "on y"), (DEPENDS, "on z")], "on x") == (DEPENDS, "on y")
    # what is not decided is no contradiction
    assert together([(YES, ""), (DEPENDS, "on z")], "on x") == (DEPENDS, "on z")
    assert together([(NO, ""), (DEPENDS, "on z")], "on x") == (DEPENDS, "on z")
    assert together([(YES, ""), (NO, ""), (DEPENDS, "on z")], "on x") == (DEPENDS, "on x")
    assert of_the_model((DEPENDS, "on z")) == (DEPENDS, "on z, in the model")
    assert of_the_model((NO, "")) == (NO, "")


def test_estimates() -> None:
    # two texts of means 2 and 5: t = 12.706, s = 3/√2
    found = estimate([1.0, 3.0, 5.0], [0, 0, 1])
    assert found.value == 3.5
    assert found.high - found.value == pytest.approx(12.7062 * 3 / np.sqrt(2) / np.sqrt(2), 1e-4)
    assert (found.units, found.unit) == (2, "texts")
    one = estimate([1.0, math.nan], [0, 0])
    assert (one.value, one.units) == (1.0, 1)
    assert math.isnan(one.low)
    assert str(one) == "1.000 [no interval]"
    assert str(estimate([math.nan], [0])) == "–"
    assert str(of(-0.25, -0.15)) == "−0.200 [−0.250, −0.150]"
    # as many digits as the interval is worth
    assert str(of(0.9, 0.9004)) == "0.9002 [0.9000, 0.9004]"
    assert str(of(-1e-5, 3e-5)) == "0.00001 [−0.00001, 0.00003]"
    assert str(of(0.5, 0.5 + 1e-12)) == "0.500 [0.500, 0.500]"
    many = estimate(np.arange(128) % 2, np.zeros(128))
    assert (many.value, many.units, many.unit) == (0.5, 32, "batches of windows")


@pytest.mark.parametrize("texts", [[0, 1, 2, 3], [0, 0, 1, 1], [7, 7, 7, 7]])
def test_paired_differences_are_those_of_the_package(texts: list[int]) -> None:
    rng = np.random.default_rng(0)
    one, other = (
        run_of(np.sort(rng.random((4, 2, 3, 8)))[..., ::-1], text_id=texts, model=name)
        for name in ("m", "rows:m")
    )
    one, other = (
        part.assign_coords({name: ("sample", range(4)) for name in PAIRING if name not in part})
        for part in (one, other)
    )
    theirs = difference(one, other, index=2)
    ours = paired(
        *(
            part["cumulative_ratio"].sel(index=2).mean(("layer", "head")).to_numpy().ravel()
            for part in (one, other)
        ),
        texts,
    )
    assert ours.value == pytest.approx(theirs.mean)
    assert (ours.low, ours.high) == pytest.approx(theirs.interval)
    assert ours.units == theirs.units


def test_slopes() -> None:
    y = np.array([[1.0, 5.0], [3.0, 4.0], [5.0, 3.0]])
    assert slopes([0, 1, 2], y).tolist() == [2.0, -1.0]


# counterexamples and graphs


def test_the_receptive_field_is_a_distance() -> None:
    proof = mathematics.receptive_field(DATA, n=65, layers=3)
    assert proof.finding.verdict == Verdict.mathematics
    (row,) = [one for one in proof.rows if one["pattern"] == "w = 8, dilation 2"]
    # 3 layers reach 3·2·8/2 = 24 tokens, and 3·8 + 1 are seen
    assert (row["reach to each side"], row["tokens that it has seen"]) == ("24", "25")


def test_full_rank_needs_no_orthogonal_rows() -> None:
    proof = mathematics.full_rank(DATA, n=6)
    assert proof.finding.verdict == Verdict.mathematics
    assert all(row["rank"] == "6 of 6" for row in proof.rows)
    for row in proof.rows:
        epsilon = float(row["ε"])
        # ⟨p_i, p_j⟩ = ε(2 − ε)/n and ‖p_i‖² = (1 − ε)² + ε(2 − ε)/n
        off = epsilon * (2 - epsilon) / 6
        assert float(row["cosine of two rows"]) == pytest.approx(
            off / ((1 - epsilon) ** 2 + off), abs=5e-4
        )
    assert proof.curves["ε = 0.5"][1] == pytest.approx([1.0, *[0.5] * 5])


def test_a_sparse_head_has_full_rank() -> None:
    proof = mathematics.sparse_and_full_rank(DATA, n=512)
    rows = {row["matrix"]: row for row in proof.rows}
    head = rows["previous-token head"]
    assert (head["entries a row"], head["rank"]) == ("1", "511")
    # σ₁ = √2 of the column that two rows share, and 510 values of 1
    assert head["σ in the first n/4"] == f"{(2**0.5 + 127) / (2**0.5 + 510):.3f}"
    assert head["σ² in the first n/4"] == f"{129 / 512:.3f}"
    assert rows["uniform attention"]["rank"] == "1"
    assert rows["identity"]["σ in the first n/4"] == "0.250"


def test_big_bird_is_a_small_world(tmp_path: Path) -> None:
    proof = mathematics.small_world(tmp_path, n=128, draws=2)
    assert proof.finding.verdict in (YES, DEPENDS)
    assert proof.points["Big Bird, 16 keys"].value > 1
    whole = proof.rows[-1]
    assert (whole["clustering"], whole["mean path length"]) == ("1.000", "1.000")


def test_complexities_are_read_and_counted(tmp_path: Path) -> None:
    proof = mathematics.complexities(DATA)
    rows = {row["method"]: row for row in proof.rows}
    assert rows["full attention"]["multiply-adds, counted"] == "2.000"
    assert rows["Linformer, k = 128"]["multiply-adds, counted"] == "1.000"
    with pytest.raises(UsageError, match="complexity"):
        mathematics.complexities(tmp_path)


def test_entries_for_equal_reach() -> None:
    proof = mathematics.equal_reach(DATA, n=129, w=16)
    assert proof.finding.verdict == DEPENDS
    rows = {row["pattern"].partition(",")[0]: row for row in proof.rows}
    # ⌈128/8⌉ layers of 129·17 − 8·9 entries
    assert rows["band"]["layers until all see all"] == "16"
    assert proof.points["band"].value == pytest.approx(16 * (129 * 17 - 72) / 129**2)
    assert proof.points["Longformer, 1 global token"].value < 0.5


FOUND = {**spectra.FOUND, **replaced.FOUND}


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        ("C1", {}, YES),
        ("C1", {"ratio": np.full((3, 2, 2), 0.95)}, NO),
        ("C1", {"ratio": np.array([0.80, 0.9, 0.99])[:, None, None] * np.ones((3, 2, 2))}, DEPENDS),
        ("C2", {}, YES),
        ("C2", {"ratio": np.array([[0.99, 0.5], [0.9, 0.9]]) * np.ones((3, 1, 1))}, NO),
        ("C3", {}, YES),
        ("C3", {"ratio": np.array([[0.9], [0.8]]) * np.ones((3, 1, 2))}, NO),
        ("C4", {}, YES),
        ("C4", {"relative": [0.3, 0.4, 0.5, 0.6]}, NO),
        ("C4", {"relative": [0.3, 0.3, 0.3, 0.3]}, NO),
        ("C4", {"relative": [0.315, 0.31, 0.305, 0.3]}, DEPENDS),
        ("C5", {}, YES),
        ("C5", {"mass": 0.1}, NO),
        ("C5", {"mass": 0.3}, DEPENDS),
        ("C6", {"errors": {"random:r=8": 0.2}}, YES),
        ("C6", {"errors": {"random:r=8": 0.4}}, NO),
        ("C8", {"losses": {TREND["rising"]: 0.1}}, YES),
        ("C8", {"losses": {TREND["rising"]: 0.3}}, NO),
        ("C10", {"errors": {(FIRST, "special"): 0.9, (WHOLE, "special"): 0.0},
                 "losses": {FIRST: 0.3}}, YES),
        ("C10", {"errors": {(FIRST, "special"): 0.9, (WHOLE, "special"): 0.0},
                 "losses": {FIRST: 0.1}}, DEPENDS),
        ("C10", {"errors": {(FIRST, "other"): 0.9}, "losses": {FIRST: 0.1}}, NO),
        ("C15", {"errors": {"truncated:k=16": 0.05}, "losses": {"truncated:k=16": 0.01}}, YES),
        ("C15", {"errors": {"truncated:k=16": 0.05}}, DEPENDS),
        ("C15", {}, NO),
        ("C15", {"errors": {"truncated:k=16": 0.05}, "measure": "hidden_error"}, DEPENDS),
    ],
)  # fmt: skip
def test_verdicts(claim: str, changes: dict[str, Any], verdict: Verdict) -> None:
    found = FOUND[claim](made(**changes))
    assert found.verdict == verdict, f"{found.number} {found.said()}"


@pytest.mark.parametrize(("turn", "verdict"), [(0.1, DEPENDS), (0.3, NO)])
def test_dilations_by_head(turn: float, verdict: Verdict) -> None:
    # no head gains by a dilation of its own; the turn through them may, or not
    found = replaced.dilation_by_head(made(losses={TURN: turn}))
    assert isinstance(found.number, Estimate)
    assert found.number.value == pytest.approx(0.0, abs=1e-12)
    assert found.verdict == verdict


def test_controls_stand_beside_the_number() -> None:
    cells = spectra.first_quarter(made()).cells
    assert isinstance(less := cells["less rows shuffled"], Estimate)
    assert (less.value, less.low) == pytest.approx((0.1, 0.1))
    assert isinstance(less := cells["less random weights"], Estimate)
    assert less.value == pytest.approx(-0.05)
    alone = made().drop_vars("spectra_ratio_random")
    assert "random weights" not in spectra.first_quarter(alone).cells


def test_a_model_without_special_tokens_has_no_claim_about_them() -> None:
    kept = made()
    names = [name for name in kept["errors_method"].to_numpy() if "longformer" not in str(name)]
    found = replaced.global_tokens(kept.sel(errors_method=names))
    assert found.verdict == DEPENDS
    assert "no special tokens" in found.on


def test_splits_of_windows_cost_the_same() -> None:
    for layers in (2, 4, 6, 12, 24):
        texts = methods.trends(512, layers)
        sums = [
            sum(methods.method(text).width(layer) for layer in range(layers))  # type: ignore[attr-defined]
            for text in texts.values()
        ]
        assert sums == [64 * layers] * 3
    assert methods.trends(512, 1) == {}
