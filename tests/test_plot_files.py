"""Files of pictures, and what making them leaves behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from made_up import summary_of
from rankscope import plots
from rankscope.exceptions import StoreError, UsageError

PNG = b"\x89PNG\r\n\x1a\n"


def test_save_writes_png_and_svg_that_can_be_read(tmp_path: Path) -> None:
    from matplotlib.image import imread

    targets = [tmp_path / "new" / "figure.png", tmp_path / "new" / "figure.svg"]
    summary = summary_of("a-model", "a-corpus")
    assert plots.save(plots.figure1(summary), targets) == targets
    png, svg = targets
    assert png.read_bytes().startswith(PNG)
    assert png.stat().st_size > 1000
    picture = imread(png)
    assert picture.shape[1] == 7.0 * 200
    assert picture[..., :3].std() > 0.05
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join("".join(node.itertext()) for node in root.iter(f"{root.tag[:-3]}text"))
    assert "a-model" in words
    assert "a-corpus" in words
    assert sorted(path.name for path in targets[0].parent.iterdir()) == ["figure.png", "figure.svg"]


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plots.save(
            plots.figure1(summary_of()), [tmp_path / f"{name}{s}" for s in (".png", ".svg", ".pdf")]
        )
    for suffix in (".png", ".svg", ".pdf"):
        one, two = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_save_replaces_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(b"old")
    figure = plots.figure1(summary_of())

    def broken(file: Path, **_: Any) -> None:
        file.write_bytes(b"half")
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(figure, "savefig", broken)
        with pytest.raises(RuntimeError, match="power cut"):
            plots.save(figure, target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    plots.save(figure, str(target))
    assert target.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [target]


def test_save_says_what_is_wrong(tmp_path: Path) -> None:
    figure = plots.figure1(summary_of())
    with pytest.raises(UsageError, match=r"figure\.bmp"):
        plots.save(figure, [tmp_path / "fine.png", tmp_path / "figure.bmp"])
    with pytest.raises(UsageError, match="pixels"):
        plots.save(figure, tmp_path / "figure.png", dpi=5000)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        plots.save(figure, tmp_path / "file" / "figure.png")


def test_pages_are_numbered_unless_there_is_one(tmp_path: Path) -> None:
    many = plots.save_pages(plots.head_grid(np.ones((20, 16, 4))), tmp_path / "all.png")
    assert [path.name for path in many] == ["all-1.png", "all-2.png"]
    assert all(path.read_bytes().startswith(PNG) for path in many)
    one = plots.save_pages(plots.head_grid(np.ones((1, 2, 4))), str(tmp_path / "one.png"))
    assert one == [tmp_path / "one.png"]
    with pytest.raises(UsageError, match="pages"):
        plots.save_pages([], tmp_path / "pages")
    with pytest.raises(UsageError, match="pages"):
        plots.check_picture("pages")
    plots.check_picture("pages.SVG")


def test_f30_nothing_stays_open_after_25_figures(tmp_path: Path) -> None:
    from matplotlib._pylab_helpers import Gcf

    kept = []
    for number in range(25):
        (figure,) = plots.head_grid(np.ones((1, 1, 4)))
        plots.save(figure, tmp_path / f"{number}.png")
        kept.append(weakref.ref(figure))
    assert len(list(tmp_path.glob("*.png"))) == 25
    assert Gcf.get_all_fig_managers() == []
    del figure
    gc.collect()
    assert [reference for reference in kept if reference() is not None] == []


# ---- the environment

DRAW = """
import importlib.metadata, sys
real = importlib.metadata.entry_points
# as on a machine where the package of the backend is not installed
importlib.metadata.entry_points = lambda **chosen: [
    point for point in real(**chosen) if "matplotlib" not in str(chosen)
]
{code}
"""


def run_python(code: str, folder: Path, backend: str) -> subprocess.CompletedProcess[str]:
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", DRAW.format(code=code)],
        cwd=folder,
        env={**environment, "MPLBACKEND": backend},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "no-such-one"])
def test_f15_figures_are_drawn_whatever_the_backend_is_called(tmp_path: Path, backend: str) -> None:
    raw = run_python("import matplotlib", tmp_path, backend)
    assert raw.returncode != 0
    assert "ValueError" in raw.stderr
    code = (
        "import os, numpy as np\n"
        "from rankscope import plots\n"
        "figure = plots.head_figure(np.eye(4), np.ones(4))\n"
        "plots.save(figure, ['x.png', 'x.svg'])\n"
        f"assert os.environ['MPLBACKEND'] == {backend!r}\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = run_python(code, tmp_path, backend)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_f15_a_usable_backend_is_left_to_its_owner(tmp_path: Path) -> None:
    code = (
        "from rankscope import plots\n"
        "plots.new_figure(1, 1)\n"
        "import matplotlib\n"
        "assert matplotlib.rcParams['backend'].lower() == 'svg'\n"
    )
    done = run_python(code, tmp_path, "svg")
    assert done.returncode == 0, done.stderr


def test_f15_importing_plots_does_not_load_matplotlib(tmp_path: Path) -> None:
    code = "import rankscope.plots\nassert not any(n.startswith('matplotlib') for n in sys.modules)"
    done = run_python(code, tmp_path, "no-such-one")
    assert done.returncode == 0, done.stderr
