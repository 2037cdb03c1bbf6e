"""Cost over n: fits of known exponents, what is measured, one tiny run, and its picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from analyses import _complexity_fit as fits
from analyses import _complexity_measure as measure
from analyses import _complexity_sides as parts
from analyses import complexity
from rankscope.approximations import METHODS
from rankscope.exceptions import UsageError
from rankscope.plots.complexity import cost_over_length
from rankscope.store.files import load

LENGTHS = np.array([256, 512, 1024, 2048, 4096, 8192, 16384])


def made_up() -> xr.Dataset:
    """Full attention ∝ n², the fused kernel with a memory ∝ n, two methods ∝ n^1.1 and n^1.3."""
    dense = parts.LEARNED.format(k=128)
    texts = ["full", "fused", "band:w=128", dense, "lsh:entries=128"]
    groups = ["full attention", "full attention", "sparse", "low rank", "hashing"]
    powers = {"time": [2.0, 2.0, 1.1, 1.0, 1.3], "memory": [2.0, 1.0, 1.0, 1.0, 1.1]}
    scale = LENGTHS / 1024
    seconds = np.stack([1e-2 * scale**p for p in powers["time"]])
    peak = np.stack([4e6 * scale**p for p in powers["memory"]])
    return xr.Dataset(
        {
            # the best of the repeats is the first
            "seconds": (("method", "n", "repeat"), seconds[..., None] * [1.0, 1.5, 3.0]),
            "peak_bytes": (("method", "n", "trial"), peak[..., None] * [1.0, 1.2]),
        },
        {"method": texts, "n": LENGTHS, "group": ("method", groups)},
        {"d": 64, "budget": 128, "device": "cpu", "fit_from": 1024},
    )


# ---- fits


@pytest.mark.parametrize("p", [0.5, 1.0, 1.2, 2.0])
def test_exponent_of_a_power_is_found_without_an_interval_to_speak_of(p: float) -> None:
    found = fits.exponent(LENGTHS, 3e-7 * LENGTHS**p)
    np.testing.assert_allclose(found.slope, p, rtol=1e-9)
    np.testing.assert_allclose(found, p, rtol=1e-6)


def test_interval_is_students_on_the_residuals() -> None:
    # residuals (1, -2, 1)·h of the logarithm over x = 0, 1, 2 leave the slope alone
    h = 0.01
    y = np.exp(1.5 * np.array([0.0, 1.0, 2.0]) + h * np.array([1.0, -2.0, 1.0]))
    found = fits.exponent(np.exp([0.0, 1.0, 2.0]), y)
    # one degree of freedom: s = √(6h²/1), standard error s/√2, t = 12.7062
    half = 12.706204736 * math.sqrt(6) * h / math.sqrt(2)
    np.testing.assert_allclose(found, (1.5, 1.5 - half, 1.5 + half), rtol=1e-9)


def test_interval_covers_the_exponent_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    n = LENGTHS[2:]
    covered = 0
    for _ in range(400):
        found = fits.exponent(n, n**1.1 * np.exp(0.05 * random.standard_normal(len(n))))
        covered += found.low <= 1.1 <= found.high
    assert 0.92 <= covered / 400 <= 0.98


def test_points_that_are_missing_or_zero_are_left_out() -> None:
    y = np.array([0.0, math.nan, math.inf, 1.0, 4.0, 16.0, -1.0])
    np.testing.assert_allclose(fits.exponent(LENGTHS, y), 2.0, rtol=1e-9)
    two = fits.exponent(LENGTHS[:2], [1.0, 2.0])
    assert two.slope == pytest.approx(1.0)
    assert math.isnan(two.low)
    assert math.isnan(two.high)
    assert all(map(math.isnan, fits.exponent(LENGTHS[:1], [1.0])))


def test_only_lengths_from_the_least_on_are_fitted_and_only_the_best_of_repeats() -> None:
    data = made_up()
    data["seconds"][:, :2] = 5.0
    fitted = fits.with_exponents(data, 1024)
    np.testing.assert_allclose(fitted["time_exponent"], [2.0, 2.0, 1.1, 1.0, 1.3], rtol=1e-9)
    np.testing.assert_allclose(fitted["memory_exponent"], [2.0, 1.0, 1.0, 1.0, 1.1], rtol=1e-9)
    assert float(fits.with_exponents(data, 256)["time_exponent"][0]) < 1.0


def test_what_misses_its_target_is_named() -> None:
    data = made_up()
    assert fits.missed(fits.with_exponents(data, 1024)) == []
    scale = data["n"] / 1024
    slow = data.assign(seconds=data["seconds"] * scale**0.15)
    (band,) = [one for one in fits.missed(fits.with_exponents(slow, 1024)) if "band" in one]
    assert band == "time of band:w=128: exponent 1.25, wanted at most 1.2"
    fast = data.assign(peak_bytes=data["peak_bytes"] / scale**0.5)
    # the fused kernel keeps no P, so that nothing is asked of its memory
    assert fits.missed(fits.with_exponents(fast, 1024)) == [
        "memory of full: exponent 1.50, wanted at least 1.8"
    ]


def test_ratios_to_full_attention_stand_beside_table_3() -> None:
    rows = {(k, n): four for k, n, four in fits.beside_published(made_up())}
    # full/method = n/1024 here; 256 is no row of the table, and 65,536 was not measured
    assert set(rows) == {(128, n) for n in (512, 1024, 2048, 4096, 8192, 16384)}
    np.testing.assert_allclose(rows[128, 4096], (4.0, 4.0, 3.4, 14.0))
    np.testing.assert_allclose(rows[128, 512], (0.5, 0.5, 1.5, 1.7))


def test_table_3_is_the_papers() -> None:
    for n, least, most in ((512, 1.3, 1.7), (65536, 18.0, 60.0)):
        every = [value for k in parts.TABLE_RANKS for value in parts.PUBLISHED[k][n]]
        assert (min(every), max(every)) == (least, most)
    for published in parts.PUBLISHED.values():
        assert list(published) == sorted(published)
        assert all(np.diff([one[0] for one in published.values()]) > 0)


# ---- what is measured


def test_every_method_is_measured_or_no_method_to_run(tmp_path: Path) -> None:
    found = parts.sides(128, 512, tmp_path)
    names = {side.method.name for side in found if side.method is not None}
    assert names | parts.NOT_TO_RUN == set(METHODS)
    assert not names & parts.NOT_TO_RUN
    assert [side.text for side in found[:2]] == ["full", "fused"]
    assert len({side.text for side in found}) == len(found)


def test_all_sides_give_outputs_and_the_references_the_same(tmp_path: Path) -> None:
    attention = parts.gaussian(64, 16, torch.device("cpu"))
    outputs = {side.text: side.run(attention) for side in parts.sides(16, 64, tmp_path)}
    for text, output in outputs.items():
        assert output.shape == (1, 1, 64, 16), text
        assert bool(torch.isfinite(output).all()), text
    torch.testing.assert_close(outputs["fused"], outputs["full"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs["full"], attention.output)
    assert not torch.allclose(outputs["band:w=16"], outputs["full"], atol=1e-2)


def test_budget_is_that_of_every_method(tmp_path: Path) -> None:
    for side in parts.sides(32, 64, tmp_path):
        if side.method is None or side.method.budget is None or "learned" in side.text:
            continue
        assert getattr(side.method, side.method.budget) == 32


def test_what_needs_too_much_memory_or_tokens_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = parts.sides(32, 1024, tmp_path)
    possible = complexity._possible(found, [16, 512, 1024], 64, 2**21)
    rows = {side.text: row.tolist() for side, row in zip(found, possible, strict=True)}
    # P of 1,024 tokens has 4 MiB
    assert rows["full"] == [True, True, False]
    assert rows["fused"] == rows["band:w=32"] == [True, True, True]
    assert rows["linformer:k=32"] == [False, True, True]
    told = capsys.readouterr().err
    assert "full stops before n = 1024: it needs 0.0 GiB at once" in told
    assert "linformer:k=32 is left out at n = 16" in told


def test_memory_of_a_process_sees_the_matrix_of_full_attention(tmp_path: Path) -> None:
    full, fused = parts.sides(32, 64, tmp_path)[:2]
    possible = np.array([[True, False], [True, False]])
    told: list[tuple[int, int]] = []
    peak = measure.peaks(
        [full, fused],
        [2048, 4096],
        possible,
        d=16,
        device=torch.device("cpu"),
        trials=1,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert np.isnan(peak[:, 1]).all()
    # P has 16 MiB; the fused kernel holds strips of it
    assert 16 < peak[0, 0, 0] / 2**20 < 20
    assert 0 < peak[1, 0, 0] / 2**20 < 8


def test_failure_in_a_process_is_no_missing_figure(tmp_path: Path) -> None:
    # a rank above n, which the method refuses
    side = next(one for one in parts.sides(64, 64, tmp_path) if one.text == "linformer:k=64")
    with pytest.raises(RuntimeError, match="linformer:k=64 failed at n = 32"):
        measure.peaks(
            [side],
            [32],
            np.array([[True]]),
            d=8,
            device=torch.device("cpu"),
            trials=1,
            progress=lambda done, total: None,
        )


# ---- the whole


def run(folder: Path, *options: str) -> xr.Dataset:
    target = folder / "complexity.nc"
    complexity.main(["--quick", "--out", str(target), *options])
    return load(target)


def test_tiny_run_gives_finite_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run(tmp_path, "--only", "fused", "linformer", "lsh", "linear")
    assert [str(text) for text in data["method"].to_numpy()] == [
        "full",
        "fused",
        "linformer:k=32",
        "linformer:k=128,projection=learned",
        "linformer:k=256,projection=learned",
        "linear",
        "lsh:entries=32",
    ]
    assert data["budget"].to_numpy().tolist() == [0, 0, 32, 128, 256, 0, 32]
    assert data["label"].to_numpy()[3] == "linformer:projection=learned"
    assert dict(data.sizes) == {"method": 7, "n": 3, "repeat": 2, "trial": 1}
    seconds = data["seconds"].to_numpy()
    there = np.isfinite(seconds).all(axis=-1)
    # a projection to k rows needs k tokens
    assert there.tolist() == [
        *[[True] * 3] * 3,
        [False, True, True],
        [False, False, True],
        *[[True] * 3] * 2,
    ]
    assert (seconds[there] > 0).all()
    assert np.isfinite(data["peak_bytes"].to_numpy()[there]).all()
    assert np.isfinite(data["time_exponent"].to_numpy()[[0, 1, 2, 5, 6]]).all()
    assert {"cores", "torch", "budget", "d", "device", "fit_from"} <= set(data.attrs)
    lines = capsys.readouterr().out.strip().splitlines()
    last = json.loads(lines[-1])
    assert set(last["exponents"]) == set(map(str, data["method"].to_numpy()))
    assert last["exponents"]["linformer:k=256,projection=learned"][0] is None
    assert any("table 3" in line for line in lines)
    assert str(tmp_path) not in "".join(lines)


def test_stopped_run_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "complexity.nc"
    target.write_bytes(b"before")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(complexity, "peaks", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "top"], "top is not measured here"),
        (["--trials", "0", "--out", "x.nc"], "trials below 1"),
        (["--lengths", "1"], "n = 1 is no text"),
    ],
)
def test_wrong_options_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    out = [] if "--out" in options else ["--out", str(tmp_path / "x.nc")]
    with pytest.raises(UsageError, match=message):
        complexity.main([*options, *out])


def test_device_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA device"):
        run(tmp_path, "--device", "cuda")


@pytest.mark.cuda
def test_gpu_measures_time_and_memory(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    data = run(tmp_path, "--device", "cuda", "--only", "band")
    assert np.isfinite(data["seconds"].to_numpy()).all()
    # P and the output at least
    assert (data["peak_bytes"].to_numpy()[0, -1] >= 4 * 256 * (256 + 64)).all()


# ---- the picture


def lines_of(ax: Any) -> list[Any]:
    return [line for line in ax.lines if line.get_marker() not in ("None", "", None)]


def test_picture_has_the_best_of_every_method_in_both_panels_and_its_exponents() -> None:
    data = fits.with_exponents(made_up(), 1024)
    figure = cost_over_length(data, names={"full": "full attention"})
    time, memory = figure.axes
    for ax in (time, memory):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert [tick.get_text() for tick in ax.get_xticklabels()] == [str(n) for n in LENGTHS]
        assert len(lines_of(ax)) == 5
    x, y = lines_of(time)[2].get_data()
    np.testing.assert_array_equal(x, LENGTHS)
    np.testing.assert_allclose(y, 10.0 * (LENGTHS / 1024) ** 1.1)
    np.testing.assert_allclose(
        lines_of(memory)[0].get_ydata(), 4e6 * (LENGTHS / 1024) ** 2.0 / 2**20
    )
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == [
        "full attention (2.00, 2.00)",
        "fused (2.00, 1.00)",
        "band:w=128 (1.10, 1.00)",
    ]
    assert "n = 1,024 … 16,384" in legend.get_title().get_text()


def test_groups_have_colours_and_their_methods_markers() -> None:
    figure = cost_over_length(fits.with_exponents(made_up(), 1024))
    lines = lines_of(figure.axes[0])
    assert lines[0].get_color() == lines[1].get_color() == "black"
    assert lines[0].get_marker() != lines[1].get_marker()
    assert len({line.get_color() for line in lines}) == 4
    named = {text.get_text(): text.get_color() for text in figure.axes[1].texts}
    assert named["hashing"] == lines[4].get_color()


def test_reference_lines_have_slopes_one_and_two_and_touch_no_curve() -> None:
    for ax in cost_over_length(fits.with_exponents(made_up(), 1024)).axes:
        plain = [line for line in ax.lines if line not in lines_of(ax)]
        slopes = []
        for line in plain:
            (x0, x1), (y0, y1) = line.get_data()
            slopes.append(math.log(y1 / y0) / math.log(x1 / x0))
            at = y0 * (LENGTHS / x0) ** slopes[-1]
            curves = np.stack([curve.get_ydata() for curve in lines_of(ax)])
            if len(slopes) == 1:
                assert (at < curves).all()
            else:
                assert (at > curves[0]).all()
        np.testing.assert_allclose(slopes, [1.0, 2.0])


def test_what_was_not_measured_leaves_a_gap() -> None:
    data = made_up()
    data["seconds"][0, -2:] = math.nan
    data["peak_bytes"][1] = math.nan
    data["peak_bytes"][2, 0] = 0.0
    figure = cost_over_length(fits.with_exponents(data, 1024))
    assert np.isnan(lines_of(figure.axes[0])[0].get_ydata()[-2:]).all()
    assert np.isnan(lines_of(figure.axes[1])[1].get_ydata()).all()
    assert np.isnan(lines_of(figure.axes[1])[2].get_ydata()[0])
    assert "fused (2.00, –)" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_picture_refuses_what_cannot_be_told_apart_or_drawn() -> None:
    data = fits.with_exponents(made_up(), 1024)
    with pytest.raises(UsageError, match="1 length"):
        cost_over_length(data.isel(n=[0]))
    with pytest.raises(UsageError, match="above 8 methods of sparse"):
        cost_over_length(data.isel(method=[0, *[2] * 9]))
    many = data.isel(method=[0] * 8).assign_coords(group=("method", list("abcdefgh")))
    with pytest.raises(UsageError, match="8 groups"):
        cost_over_length(many)
    nothing = data.assign(seconds=data["seconds"] * math.nan)
    with pytest.raises(UsageError, match="nothing to draw"):
        cost_over_length(nothing)
