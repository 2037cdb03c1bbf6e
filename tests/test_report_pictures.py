"""Pictures of P in the explorer: small PNG files of a model and its window."""

from __future__ import annotations

import base64
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from explorers import data_of
from made_up import run_of
from rankscope import report
from rankscope.exceptions import UsageError
from rankscope.report.images import FLOOR, LEVELS, levels_of, palette, picture_of


def png_levels(png: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Colour numbers and palette of an indexed PNG, checksums checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(png):
        (size,) = struct.unpack_from(">I", png, place)
        name, content = png[place + 4 : place + 8], png[place + 8 : place + 8 + size]
        (check,) = struct.unpack_from(">I", png, place + 8 + size)
        assert check == zlib.crc32(name + content)
        chunks[name] = content
        place += 12 + size
    width, height, depth, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert (depth, colour) == (8, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:], np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)


def test_a_picture_shows_the_largest_weight_of_every_block() -> None:
    matrix = np.full((5, 5), 1e-7)
    matrix[4, 4], matrix[1, 2], matrix[0, 4] = 1.0, 1e-3, np.nan
    picture = picture_of(matrix, 2)
    found, colours = png_levels(picture.png)
    middle = round(1 + (1 - 3 / 5) * (LEVELS - 1))
    np.testing.assert_array_equal(found, [[1, middle, 0], [1, 1, 1], [1, 1, LEVELS]])
    np.testing.assert_array_equal(colours, palette())
    assert picture.largest == 1.0
    assert np.isnan(picture_of(np.full((2, 2), np.nan)).largest)
    with pytest.raises(UsageError, match="shape"):
        picture_of(np.zeros((0, 0)))


def test_the_colour_scale_is_even_in_the_logarithm() -> None:
    weights = np.geomspace(FLOOR, 1, LEVELS)
    np.testing.assert_array_equal(levels_of(weights), np.arange(1, LEVELS + 1))
    # light enough apart to be seen: brightness rises all along
    brightness = palette()[1:].astype(float) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > 0).all()


def test_matplotlib_reads_the_pictures() -> None:
    from matplotlib.image import imread

    matrix = np.array([[1.0, 0.0], [np.nan, 1e-2]])
    image = imread(BytesIO(picture_of(matrix).png), format="png")[..., :3]
    np.testing.assert_allclose(image * 255, palette()[levels_of(matrix)], atol=0.6)


def test_pictures_are_of_the_model_and_its_window(tmp_path: Path) -> None:
    from rankscope.capture import capture
    from rankscope.engine import Recipe, spectra
    from rankscope.models import load
    from rankscope.text import load_corpus, windows

    model, corpus = load("builtin"), load_corpus("builtin")
    window = windows(corpus, model.tokenizer, length=40, count=1)[0]
    drawn = report.pictures(model, window, corpus=corpus.name, size=16)
    assert (drawn.n, drawn.block) == (40, 3)
    assert "3 × 3" in drawn.caption
    for attention in capture(model, [window]):
        weights = attention.weights[0].numpy()
        for head, matrix in enumerate(weights):
            picture = drawn.heads[attention.layer, head]
            assert picture.largest == pytest.approx(float(matrix.max()), abs=1e-6)
            found, _ = png_levels(picture.png)
            padded = np.pad(matrix, ((0, 2), (0, 2))).reshape(14, 3, 14, 3).max((1, 3))
            assert np.abs(found - levels_of(padded).astype(int)).max() <= 1
    run = spectra(model, corpus, Recipe(length=40, windows=1))
    path = report.write_report(tmp_path / "run.html", run, pictures=drawn)
    (shown,) = data_of(path.read_text(encoding="utf-8"))
    assert base64.b64decode(shown["pictures"]["heads"]["3,1"]["png"]) == drawn.heads[3, 1].png
    assert len(shown["pictures"]["heads"]) == 16
    assert model.info.weights_sha256 is not None
    assert dict(shown["facts"])["weights"] == f"sha256 {model.info.weights_sha256[:12]}"
    assert set(shown["scalars"]) == {
        *("k90", "mean_effective_rank", "mean_stable_rank", "mean_row_entropy"),
    }
    with pytest.raises(UsageError, match="pictures of 'builtin'"):
        report.explorer(run_of(np.ones((1, 2, 3, 4))), pictures=drawn)
    with pytest.raises(UsageError, match="two windows"):
        report.explorer(run, pictures=[drawn, drawn])
