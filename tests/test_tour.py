"""The notebook tour runs in a fresh kernel and shows what its words say."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import nbformat
import pytest

import rankscope
from conftest import ROOT

TOUR = ROOT / "analyses" / "tour.ipynb"


@pytest.fixture(scope="module")
def tour() -> Any:
    return nbformat.read(TOUR, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook with its outputs, run in a process and a folder of its own."""
    folder = tmp_path_factory.mktemp("tour")
    done = folder / "tour.ipynb"
    shutil.copy(TOUR, done)
    command = "from nbclient.cli import main; main()"
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            command,
            "--inplace",
            "--timeout=600",
            "--startup_timeout=300",
            done,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(folder),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": str(ROOT),
        },
    )
    assert ran.returncode == 0, ran.stderr
    return nbformat.read(done, as_version=4)


def code(notebook: Any) -> str:
    """All code of a notebook, without the lines that only IPython knows."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(line for text in cells for line in text.split("\n") if line[:1] != "%")


def test_tour_is_committed_without_outputs(tour: Any) -> None:
    nbformat.validate(tour)
    for cell in tour.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    assert len({cell.id for cell in tour.cells}) == len(tour.cells)
    # a sentence or two about every step
    told = [cell.source for cell in tour.cells if cell.cell_type == "markdown"]
    assert len(told) >= 10


def test_tour_takes_the_names_of_the_package_where_there_are_some(tour: Any) -> None:
    tree = ast.parse(code(tour))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "rs"
    }
    assert used <= {*rankscope.__all__}
    assert {"spectra", "difference", "choose_ranks", "losses", "write_report"} <= used
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankscope")
        for alias in node.names
    }
    assert not imported & {*rankscope.__all__}
    assert not any(name.startswith("_") for name in imported)


def test_tour_runs_and_shows_what_its_words_say(executed: Any) -> None:
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    text = "\n".join(
        str(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 7
    # every cell that ran has its number, in order
    counts = [cell.execution_count for cell in executed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))

    def number(pattern: str) -> float:
        (found,) = re.findall(pattern, text)
        return float(found)

    share, energy = number(r"([\d.]+) of Σσ\n"), number(r"([\d.]+) of Σσ²")
    assert share < energy
    assert number(r"takes (\d+) of 128 values") > 100
    assert number(r"random +([\d.]+) ") == number(r"rows +([\d.]+) ")
    assert number(r"random +[\d.]+ +([\d.]+)") > number(r"random +([\d.]+) ")
    assert number(r"band:w=32 +([\d.]+)") < number(r"truncated:k=32 +([\d.]+)")
    full, shared, equal, uniform = (
        number(rf"{label} +([\d.]+)")
        for label in ("full attention", "shared out", "P_low, 32 each", "uniform(?=.*\ndtype)")
    )
    assert full < shared < equal < uniform
    assert number(r"explorer.html: ([\d.]+) MiB") < 10


def test_tour_has_nothing_to_warn_of(executed: Any) -> None:
    told = [
        output.text
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stderr"
    ]
    # tqdm, which the hub's client imports, misses the widgets of notebooks that it could draw with
    rest = [text for text in told if "TqdmWarning: IProgress not found" not in text]
    assert rest == []
