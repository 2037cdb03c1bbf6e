"""Files of ranks: what is written is read, and what was chosen for another model is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attentions import attention
from rankscope.approximations import Ranks, Shape, method, read_ranks
from rankscope.exceptions import MethodError, StoreError, UsageError
from rankscope.truncation import decompose

SHA = "5a" * 32
RANKS = Ranks("tiny", SHA, (0, 2), ((3, 24, 1), (600, 2, 5)), 24, {"budget": 635, "by": "head"})
SHAPE = Shape("tiny", SHA, (0, 2), 3, 24)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return RANKS.write(tmp_path / "folder" / "ranks.json")


def test_round_trip(file: Path) -> None:
    assert read_ranks(file) == RANKS
    tree = json.loads(file.read_text(encoding="utf-8"))
    assert tree["format"] == "rankscope ranks 1"
    assert tree["total"] == RANKS.total == 635
    drawn = replace(RANKS, weights_sha256=None, how={})
    assert read_ranks(drawn.write(file)) == drawn


def test_ranks_of_a_layer(file: Path) -> None:
    found = read_ranks(file)
    assert found.of(2) == (600, 2, 5)
    with pytest.raises(MethodError, match="layers 0, 2, not for layer 1"):
        found.of(1)


@pytest.mark.parametrize("ranks", [((3, 4),), ((3, 4), (5,)), ((3, 4), (5, 0)), ((3, 4), (5, -1))])
def test_ranks_that_are_none_are_refused(ranks: Any) -> None:
    with pytest.raises(UsageError):
        Ranks("tiny", SHA, (0, 1), ranks, 24)


def test_failed_write_leaves_the_old_file(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        replace(RANKS, how={"gap": float("nan")}).write(file)
    assert file.read_bytes() == before
    assert [one.name for one in file.parent.iterdir()] == ["ranks.json"]
    with pytest.raises(StoreError, match="cannot write"):
        RANKS.write(file / "below_a_file.json")


def test_changed_file_is_read_again(file: Path) -> None:
    assert read_ranks(file).of(0) == (3, 24, 1)
    replace(RANKS, ranks=((7, 7, 7), (8, 8, 8))).write(file)
    assert read_ranks(file).of(0) == (7, 7, 7)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "rankscope ranks 2"},
        {"ranks": [[1, 2, 3]]},
        {"ranks": [[1, 2, 3], [1, 2]]},
        {"ranks": [[1, 2, 3], [1, 2, 0]]},
        {"ranks": [[1, 2, 3], [1, 2, "many"]]},
        {"ranks": [[1, 2, 3], [1, 2, None]]},
        {"ranks": [[1.5, 2, 3], [600, 2, 5]]},
        {"ranks": [[True, 24, 1], [600, 2, 5]]},
        {"ranks": [[float("inf"), 24, 1], [600, 2, 5]]},
        {"ranks": ["333", "444"]},
        {"ranks": [[], []]},
        {"layers": [0, 0]},
        {"layers": [0.5, 2]},
        {"weights_sha256": 5},
        {"how": [1]},
        {"total": 99},
        {"ranks": 4},
        {"layers": None},
        {"length": "long"},
        *({key: ...} for key in ("format", "model", "weights_sha256", "layers", "ranks", "how")),
    ],
    ids=str,
)
def test_damaged_file_is_refused(file: Path, change: dict[str, Any]) -> None:
    tree = json.loads(file.read_text(encoding="utf-8")) | change
    tree = {key: value for key, value in tree.items() if value is not ...}
    file.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(MethodError, match=r"ranks\.json is no file of ranks.*choose-rank"):
        read_ranks(file)


def test_cut_foreign_and_missing_files_are_refused(file: Path) -> None:
    whole = file.read_bytes()
    for content in (
        whole[:-20],
        b"",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"null",
        b"PK\x03\x04",
        b"[" * 10**5,
    ):
        file.write_bytes(content)
        with pytest.raises(MethodError, match="is no file of ranks"):
            read_ranks(file)
    with pytest.raises(MethodError, match="cannot be read"):
        read_ranks(file.with_name("absent.json"))
    with pytest.raises(MethodError, match="cannot be read"):
        read_ranks(file.parent)


def test_another_model_is_refused_before_the_work(file: Path) -> None:
    truncated = method(f"truncated:ranks={file}")
    for good in (SHAPE, replace(SHAPE, layers=(2,)), replace(SHAPE, length=512, model="renamed")):
        RANKS.check(good)
        truncated.check(good)
    for bad, words in (
        (replace(SHAPE, weights_sha256="00" * 32), r"weights sha256 5a5a5a5a5a5a\).*000000000000"),
        (replace(SHAPE, weights_sha256=None), "drawn at random"),
        (replace(SHAPE, n_heads=4), "3 heads, tiny has 4"),
        (replace(SHAPE, layers=(0, 1, 2)), "not for layer 1"),
    ):
        for check in (RANKS.check, truncated.check):
            with pytest.raises(MethodError, match=words):
                check(bad)
    drawn = replace(RANKS, weights_sha256=None)
    drawn.check(replace(SHAPE, weights_sha256=None))
    with pytest.raises(MethodError, match=r"weights drawn at random\)"):
        drawn.check(SHAPE)


def test_every_head_is_truncated_at_its_own_rank(file: Path) -> None:
    """End to end: the file by its text, three heads, two layers, a rank above n in one."""
    truncated = method(f"truncated:ranks={file}")
    for layer, ranks in ((0, (3, 24, 1)), (2, (600, 2, 5))):
        given = replace(attention(24, heads=3, d_v=5), layer=layer)
        matrix, output = truncated.matrix(given), truncated.apply(given)
        for head, k in enumerate(ranks):
            # NumPy's SVD, cut by hand
            u, s, vh = np.linalg.svd(given.weights[:, head].numpy())
            low = torch.from_numpy((u[..., :k] * s[:, None, :k]) @ vh[:, :k])
            torch.testing.assert_close(matrix[:, head], low, rtol=0, atol=1e-10)
            torch.testing.assert_close(
                output[:, head], low @ given.values[:, head], rtol=0, atol=1e-10
            )
    # the same rank everywhere is the method without a file
    replace(RANKS, ranks=((4, 4, 4), (4, 4, 4))).write(file)
    given = attention(24, heads=3)
    torch.testing.assert_close(
        truncated.apply(given), method("truncated:k=4").apply(given), rtol=0, atol=0
    )
    clipped = method(f"truncated:ranks={file},rows=clipped").matrix(given)
    raw = decompose(given.weights).truncate(4).clamp_min(0)
    torch.testing.assert_close(clipped, raw / raw.sum(-1, keepdim=True), rtol=0, atol=1e-12)


def test_layers_and_heads_that_the_file_lacks_are_refused_at_work_too(file: Path) -> None:
    truncated = method(f"truncated:ranks={file}")
    with pytest.raises(MethodError, match="not for layer 1"):
        truncated.apply(replace(attention(24, heads=3), layer=1))


def test_settings_know_the_file_and_its_content(file: Path) -> None:
    truncated = method(f"truncated:ranks={file}")
    before = truncated.settings()
    assert before["ranks"] == file.name
    assert len(before["ranks_sha256"]) == 64
    replace(RANKS, ranks=((7, 7, 7), (8, 8, 8))).write(file)
    assert truncated.settings()["ranks_sha256"] != before["ranks_sha256"]
    with pytest.raises(UsageError, match="no single k"):
        truncated.at_budget(8)
    for text in ("truncated", f"truncated:k=4,ranks={file}"):
        with pytest.raises(UsageError, match="not both"):
            method(text)
