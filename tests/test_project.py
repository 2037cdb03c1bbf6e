"""The project itself: arrows of the imports, sizes of files, the facade, README and metadata."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rankscope
from conftest import ROOT

# from the bottom up; a module may import its own layer and those below
LAYERS = [
    {"exceptions", "status", "atomic", "labels", "callbacks"},
    {"linalg", "rank", "attention"},
    {"truncation", "errors"},
    {"approximations"},
    {"graphs"},
    {"text", "models"},
    {"capture"},
    {"intervene", "selection", "controls"},
    {"store"},
    {"engine", "summary", "revisit"},
    {"terminal"},
    {"plots", "tables", "report"},
    {"cli"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
SOURCES = sorted((ROOT / "rankscope").rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "rankscope").parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Parts of rankscope that a module imports, for types alone or anywhere in its functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rankscope":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankscope."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("rankscope.")
            }
    return found - {"__version__"}


def test_imports_point_one_way() -> None:
    seen = 0
    for path in SOURCES:
        here = layer_of(path)
        if here == "__init__":
            continue
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            seen += 1
            assert HEIGHT[name] <= HEIGHT[here], f"{path.name} ({here}) imports {name}"
            assert name != here or len(path.parts) > 1
    assert seen > 50


def test_arrow_check_sees_an_arrow_that_points_back() -> None:
    assert imported(ast.parse("def f():\n    from rankscope.plots import save")) == {"plots"}
    assert HEIGHT["plots"] > HEIGHT["linalg"]


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("matplotlib", {"plots"}),
        ("transformers", {"models", "capture"}),
        ("typer", {"cli"}),
        ("altair", {"report"}),
    ],
)
def test_libraries_have_one_user(library: str, allowed: set[str]) -> None:
    users = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if any(name.split(".")[0] == library for name in names):
                users.add(layer_of(path))
    # types alone do not count: the engine names none
    assert users == allowed


def test_no_file_outgrows_a_reader() -> None:
    folders = ("rankscope", "analyses", "figures", "tests")
    long = {
        str(path.relative_to(ROOT)): length
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if (length := len(path.read_text(encoding="utf-8").splitlines())) > 420
    }
    assert long == {}


def test_facade_names_what_it_promises() -> None:
    for name in rankscope.__all__:
        assert getattr(rankscope, name) is not None
        assert getattr(rankscope, name) is getattr(rankscope, name)
    assert set(rankscope.__all__) == {"__version__", *rankscope._PUBLIC}
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        rankscope.nothing_of_that_name  # noqa: B018


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert project["version"] == rankscope.__version__
    assert f"version: {rankscope.__version__}" in citation


def test_every_dependency_is_constrained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(one for extra in extras for one in extra)]
    names = {re.split(r"[<>=\[]", one)[0].lower().replace("_", "-") for one in wanted}
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert names - {"rankscope"} <= pinned


def readme_commands() -> list[list[str]]:
    """Lines of the README's shell blocks that call the command."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.split() for line in lines if line.startswith("rankscope ")]


def test_readme_uses_options_that_exist() -> None:
    commands = readme_commands()
    assert len(commands) >= 5
    for command in commands:
        named = command[1:3] if command[1] == "linformer" else command[1:2]
        shown = subprocess.run(
            [sys.executable, "-c", "from rankscope.cli import main; main()", *named, "--help"],
            capture_output=True,
            text=True,
            env={"COLUMNS": "200", "PATH": ""},
        ).stdout
        for word in command[2:]:
            if word.startswith("-"):
                assert re.search(rf"{re.escape(word)}\b", shown), f"{word} of {command}"


def test_readme_shows_pictures_that_are_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", text)
    assert len(links) >= 3
    for link in links:
        assert (ROOT / link).exists(), link
