"""The page of claims, its pictures, and the command from end to end."""

from __future__ import annotations

import math
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyses import _claims_mathematics as mathematics
from analyses import claims
from analyses._claims_kept import data_file
from analyses._claims_page import page, table
from analyses._claims_places import Amounts, Settings, places
from analyses._claims_results import gather
from analyses._claims_texts import CLAIMS, chosen
from figures import claims as drawing
from made_up import texts_of
from made_up_claims import made
from rankscope.exceptions import RankscopeError, UsageError
from rankscope.plots.claims import curves, interval_rows
from rankscope.store.files import export, load

DATA = Path(__file__).parent.parent / "figures" / "data"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mathematics of small size."""
    small = {
        "C7": partial(mathematics.receptive_field, n=65, layers=2),
        "C11": partial(mathematics.small_world, n=80, draws=2),
        "C16": partial(mathematics.equal_reach, n=65, w=16),
    }
    monkeypatch.setattr(mathematics, "FOUND", {**mathematics.FOUND, **small})


def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir(parents=True)
    for name in ("complexity.nc", "graphs.nc"):
        shutil.copy(DATA / name, data / name)
    return data


def test_the_page(tmp_path: Path, quick: None) -> None:
    data = folder(tmp_path)
    export(made(), data / data_file("builtin", "builtin"))
    rest = made(ratio=np.full((3, 2, 2), 0.95)).assign_attrs(model="random:new", corpus="imdb-test")
    rest.attrs.pop("part_losses")
    rest.attrs["part_near"] = rest.attrs["part_near"].replace('"c"', '"d"')
    export(rest, data / data_file("random:new", "imdb-test"))
    results = gather(data)
    text = page(results, "pictures", {"C1"})
    assert text.startswith("<!-- written by `python -m analyses claims`; do not edit -->")
    for claim in CLAIMS.values():
        assert f"## {claim.id}: {claim.says}" in text
        assert claim.rule in text
    lines = text.splitlines()
    (summary,) = [line for line in lines if line.startswith("| [C1](#c1)") and "supported" in line
                  and "not" not in line]  # fmt: skip
    assert "0.900 [0.898, 0.902]<br>**supported**" in summary
    assert any("0.950" in line and "**not supported**" in line for line in lines)
    assert any(line.startswith("| [C15]") and "not run" in line for line in lines)
    # parts that were measured by other commands say so
    assert "| 3 / 3 / 3 / – | `c`; `d` | x 1 |" in text
    assert "| 3 / 3 / 3 / 3 | `c` | x 1 |" in text
    assert '<img src="pictures/C1.png"' in text
    assert "pictures/C2.png" not in text
    assert "- MiniLM (6 × 12) on IMDB: all of it" in text
    assert "RoBERTa's own weights: never loaded here" in text
    assert "--model FacebookAI/roberta-base" in text
    # one paragraph is no table, and every row has as many cells as its head
    for line, after in pairwise(lines):
        if line.startswith("|") and after.startswith("|"):
            assert line.replace("\\|", "").count("|") == after.replace("\\|", "").count("|")


def test_tables() -> None:
    assert table([{"a": "x"}]).splitlines() == ["| a |", "| --- |", "| x |"]


def test_the_command_from_end_to_end(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    few = {name: drawing.PICTURES[name] for name in ("figure1", "C4")}
    monkeypatch.setattr(drawing, "PICTURES", few)
    data, target = folder(tmp_path), tmp_path / "out" / "claims.md"
    line = ["--length", "32", "--windows", "2", "--error-windows", "2", "--loss-windows", "2"]
    line += ["--data", str(data), "--page", str(target)]
    claims.main(line)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == len(CLAIMS)
    kept = load(data / "claims--builtin--builtin.nc")
    for name, variable in kept.data_vars.items():
        assert np.isfinite(variable).all(), name
    assert np.allclose(kept["spectra_length_ratio"].sel(spectra_length=32), kept["spectra_ratio"])
    # a wider band holds more, and all of it is at most 1
    mass = kept["near_mass"].transpose(..., "near_w").to_numpy()
    assert bool((np.diff(mass, axis=-1) > -1e-6).all())
    assert 0 < mass.min() <= mass.max() <= 1 + 1e-5
    # rows that see all have no error
    special = kept["errors_output"].sel(errors_rows="special")
    (name,) = [one for one in kept["errors_method"].to_numpy() if "ids=" in str(one)]
    assert float(special.sel(errors_method=name).max()) < 1e-5
    assert "ids=0/2" in str(name)
    assert str(tmp_path) not in str(kept.attrs)
    pictures = {one.name for one in (tmp_path / "out" / "claims").iterdir()}
    assert pictures == {f"{one}.{end}" for one in few for end in ("png", "svg")}
    # again, it measures nothing and writes the same page
    before, stamp = target.read_bytes(), (data / "claims--builtin--builtin.nc").stat().st_mtime_ns
    claims.main([*line, "--measure-only"])
    assert (data / "claims--builtin--builtin.nc").stat().st_mtime_ns == stamp
    assert capsys.readouterr().out == ""
    with pytest.raises(UsageError, match="other settings"):
        claims.main([*line, "--windows", "3", "--claim", "C5", "--measure-only"])
    claims.main([*line, "--windows", "3", "--claim", "C5", "--measure-only", "--overwrite"])
    again = load(data / "claims--builtin--builtin.nc")
    assert (again.sizes["near_window"], again.sizes["spectra_window"]) == (3, 2)
    assert target.read_bytes() == before


def test_every_claim_has_a_picture(tmp_path: Path, quick: None) -> None:
    data = folder(tmp_path)
    export(made(), data / data_file("builtin", "builtin"))
    results = gather(data)
    assert {*drawing.PICTURES} == {*CLAIMS, "figure1"}
    for name, make in drawing.PICTURES.items():
        figure = make(results)
        assert figure is not None, name
        # about 9 cm wide, and every axis has its name
        assert figure.get_size_inches()[0] == pytest.approx(3.4)
        assert all(ax.get_xlabel() for ax in figure.axes)
    nothing = gather(folder(tmp_path / "none"))
    without = {name for name, make in drawing.PICTURES.items() if make(nothing) is None}
    assert without == {"figure1", *(one.id for one in CLAIMS.values() if one.by_model)}
    assert "Nothing yet." in page(nothing, "claims", set())


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown claim C17"):
        claims.main(["--claim", "C17"])
    with pytest.raises(RankscopeError, match="no-such-model"):
        claims.main(["--model", str(tmp_path / "no-such-model"), "--data", str(tmp_path)])
    with pytest.raises(UsageError, match="neither"):
        claims.main(["--page-only", "--measure-only"])
    with pytest.raises(UsageError, match="measure nothing"):
        Settings(windows=0)
    with pytest.raises(UsageError, match="too short"):
        Settings(length=8)
    with pytest.raises(RankscopeError, match="4096"):
        list(places(["builtin"], ["builtin"], Amounts(length=4096)))
    assert [one.id for one in chosen(["c3", "C3", "C1"])] == ["C3", "C1"]


def test_pictures_of_numbers_and_curves() -> None:
    nothing = (math.nan, math.nan, math.nan)
    figure = interval_rows(
        ["a", "b"], {"x": [(0.5, 0.4, 0.6), nothing], "y": [nothing] * 2}, label="z (nats)"
    )
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlabel() == "z (nats)"
    assert {"x", "y"} <= {text.get_text() for text in texts_of(figure)}
    # the first row stands on top
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    with pytest.raises(UsageError, match="nothing to draw"):
        interval_rows(["a"], {"x": [nothing]}, label="z")
    with pytest.raises(UsageError, match="too many"):
        interval_rows(["a"] * 25, {"x": [(0.5, 0.4, 0.6)] * 25}, label="z")
    lines = {"m": (np.array([1.0, 2, 4]), np.array([0.1, 0.2, 0.3]))}
    drawn = curves(lines, x="k", y="error", doublings=True, limit=0.1)
    assert drawn.axes[0].get_xscale() == "log"
    assert not drawn.legends
    with pytest.raises(UsageError, match="no curve"):
        curves({}, x="k", y="error")
