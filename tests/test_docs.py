"""The API reference: every public name is in it and says what it is; broken references are told."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import rankscope
from conftest import ROOT

DOCS = ROOT / ".docs"
FACADE = sorted({*rankscope.__all__} - {"__version__"})


def public_modules() -> Iterator[str]:
    """Modules that programs may import; the command is documented by its own --help."""
    for module in pkgutil.walk_packages(rankscope.__path__, "rankscope."):
        if not module.name.startswith("rankscope.cli"):
            yield module.name


def public_names(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Functions, classes and methods that a module defines."""
    for name, found in vars(module).items():
        if name.startswith("_") or getattr(found, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(found):
            yield f"{module.__name__}.{name}", found
        elif inspect.isclass(found):
            yield f"{module.__name__}.{name}", found
            for method, value in vars(found).items():
                if method.startswith("_"):
                    continue
                if inspect.isfunction(value) or isinstance(value, property | classmethod):
                    yield f"{module.__name__}.{name}.{method}", getattr(found, method)


def test_every_module_is_on_one_page() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.rst"))
    shown = Counter(re.findall(r"automodule:: (\S+)", pages))
    assert shown == Counter(["rankscope", *public_modules()])
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    assert {path.stem for path in DOCS.glob("*.rst")} - {"index"} == set(
        re.findall(r"^   (\w+)$", index, re.MULTILINE)
    )


def test_first_page_has_the_names_of_the_package() -> None:
    text = (DOCS / "facade.rst").read_text(encoding="utf-8")
    shown = re.findall(r"auto(class|function):: rankscope\.(\w+)", text)
    assert sorted(name for _, name in shown) == FACADE
    for kind, name in shown:
        assert (kind == "class") == inspect.isclass(getattr(rankscope, name)), name


def test_every_public_name_has_a_docstring() -> None:
    seen, silent = 0, []
    for path in public_modules():
        module = importlib.import_module(path)
        assert module.__doc__, path
        if "Private to" in module.__doc__:
            continue
        for name, found in public_names(module):
            seen += 1
            if not inspect.getdoc(found):
                silent.append(name)
    assert silent == []
    assert seen > 500


@pytest.mark.parametrize("name", FACADE)
def test_names_of_the_package_say_what_they_take_and_give(name: str) -> None:
    found = getattr(rankscope, name)
    wanted = {"GL08", "SS01", "PR02"}
    if not inspect.isclass(found):
        wanted |= {"PR01", "RT01", "YD01"}
    errors = [error for error in validate(f"rankscope.{name}")["errors"] if error[0] in wanted]
    assert errors == []
    if inspect.isclass(found) and hasattr(found, "__dataclass_fields__"):
        sections = NumpyDocString(inspect.getdoc(found) or "")
        told = [*sections["Parameters"], *sections["Attributes"]]
        for base in found.__mro__[1:-1]:
            told += NumpyDocString(inspect.getdoc(base) or "")["Attributes"]
        names = {one for entry in told for one in entry.name.split(", ")}
        assert {f for f in found.__dataclass_fields__ if not f.startswith("_")} <= names


def test_no_docstring_names_a_parameter_that_is_gone() -> None:
    gone = {}
    for path in public_modules():
        for name, found in public_names(importlib.import_module(path)):
            if inspect.isfunction(found) and "Parameters\n" in (found.__doc__ or ""):
                errors = [error for error in validate(name)["errors"] if error[0] == "PR02"]
                if errors:
                    gone[name] = errors
    assert gone == {}


def test_build_tells_a_reference_that_is_broken(tmp_path: Path) -> None:
    """The build itself is a step of CI; here, that it would fail."""
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "conf.py").write_text((DOCS / "conf.py").read_text(encoding="utf-8"), encoding="utf-8")
    (pages / "index.rst").write_text(
        "Page\n====\n\n.. automodule:: rankscope.rank\n.. automodule:: rankscope.linalg.results\n"
        ".. automodule:: rankscope.status\n\n"
        ":func:`rank_at`, :class:`rankscope.linalg.Spectrum`, :func:`no_such_name`\n",
        encoding="utf-8",
    )
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", pages, tmp_path / "out"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert built.returncode == 1, built.stderr
    # what a user imports elsewhere than it is defined is found, and only the rest is told
    assert re.findall(r"target not found: (\S+)", built.stderr) == ["no_such_name"]
    assert 'href="#rankscope.linalg.results.Spectrum"' in (tmp_path / "out/index.html").read_text()


# ---- what lies in the folders of analyses and figures


def table_rows(folder: str) -> dict[str, str]:
    """Rows of the tables of a folder's README, by the file that each is about."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def sources(folder: str) -> set[str]:
    return {
        path.name
        for pattern in ("*.py", "*.ipynb")
        for path in (ROOT / folder).glob(pattern)
        if not path.name.startswith("__")
    }


def test_every_analysis_is_listed_with_its_question() -> None:
    from analyses.__main__ import names

    rows = table_rows("analyses")
    assert {*rows} == sources("analyses")
    for name in names():
        assert "?" in rows[f"{name}.py"]
        assert f"`python -m analyses {name}`" in rows[f"{name}.py"]


def test_every_figure_is_listed_with_its_pictures_and_data() -> None:
    from analyses.__main__ import names as analyses
    from figures.__main__ import names

    rows = table_rows("figures")
    assert {*rows} == sources("figures") - {"_data.py"} == {f"{name}.py" for name in names()}
    folder = ROOT / "figures"
    text = (folder / "README.md").read_text(encoding="utf-8")
    for row in rows.values():
        (command,) = re.findall(r"`python -m analyses (\w+)`", row)
        assert command in analyses()
        files = re.findall(r"`([^` ]+\.(?:png|md|csv))`", row)
        for file in files:
            assert (folder / file).exists() or (ROOT / file).exists(), file
    listed = {*re.findall(r"`([^` ]+\.(?:png|md))`", text)}
    drawn = {path.name for pattern in ("*.png", "*.md") for path in folder.glob(pattern)}
    assert listed == drawn - {"README.md"}
    assert {path.stem for path in folder.glob("*.svg")} == {
        Path(one).stem for one in listed if one.endswith(".png")
    }
    patterns = {*re.findall(r"`([^` ]+\.nc)`", text)}
    data = [path.name for path in (folder / "data").iterdir()]
    for pattern in patterns:
        assert any(fnmatch(name, pattern) for name in data), pattern
    assert [name for name in data if not any(fnmatch(name, one) for one in patterns)] == []
