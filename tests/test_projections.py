"""Fixed projections, and the file of fitted ones: round trip, damage, and what does not belong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from attentions import attention
from rankscope.approximations import Shape
from rankscope.approximations.fitted import Projections, read_projections
from rankscope.approximations.linformer import Linformer, linformer_attention
from rankscope.approximations.projected import Projected
from rankscope.approximations.projections import (
    gaussian,
    pool_max,
    pooling,
    segments,
    stride,
    strided,
    uniform_kernel,
)
from rankscope.exceptions import MethodError, StoreError, UsageError

SHAPE = Shape("mini", "ab" * 32, layers=(0, 2), n_heads=3, length=24)


def fitted(kind: str = "learned", sharing: str = "headwise", k: int = 4, **changes: Any) -> Any:
    """Made-up projections of layers 0 and 2 for 24 tokens and three heads."""
    heads = 3 if sharing == "none" else 1
    generator = torch.Generator().manual_seed(0)

    def side() -> dict[int, torch.Tensor]:
        shape = (heads, math.ceil(24 / k)) if kind == "learned-conv" else (heads, k, 24)
        drawn = {layer: torch.randn(shape, generator=generator) for layer in (0, 2)}
        if kind == "svd":
            drawn = {layer: torch.linalg.qr(one.mT).Q.mT for layer, one in drawn.items()}
        return dict.fromkeys(drawn, drawn[0]) if sharing == "layerwise" else drawn

    split = kind != "svd" and sharing in ("none", "headwise")
    values: dict[str, Any] = dict(
        kind=kind,
        sharing=sharing,
        length=24,
        n_heads=3,
        e=side(),
        f=side() if split else None,
        model="mini",
        weights_sha256="ab" * 32,
        text="some text",
        text_sha256="cd" * 32,
        windows=30,
        training_error={0: 0.25, 2: 0.5},
        validation_error={0: 0.375, 2: 0.625},
        how={"seed": 7, "learning_rate": 2e-4},
    )
    return Projections(**(values | changes))


@given(n=st.integers(1, 60), k=st.integers(1, 60))
@settings(deadline=None)
def test_segments_cover_every_token_once(n: int, k: int) -> None:
    k = min(n, k)
    edges = torch.tensor(segments(n, k))
    assert (edges[0], edges[-1], len(edges)) == (0, n, k + 1)
    lengths = edges.diff()
    assert 1 <= int(lengths.min()) >= int(lengths.max()) - 1
    matrix = pooling(n, k)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(k).double(), rtol=1e-12, atol=0)
    assert bool(((matrix > 0).sum(dim=0) == 1).all())


def test_pooling_known_values() -> None:
    rows = torch.tensor([[1.0, 8.0], [3.0, 2.0], [5.0, 4.0], [7.0, -6.0]])
    assert (pooling(4, 2).float() @ rows).tolist() == [[2.0, 5.0], [6.0, -1.0]]
    assert pool_max(rows, 2).tolist() == [[3.0, 8.0], [7.0, 4.0]]
    assert pool_max(-rows.expand(2, 3, 4, 2), 1)[1, 2].tolist() == [[-1.0, 6.0]]
    assert torch.equal(pooling(5, 5), torch.eye(5).double())


def test_strided_is_a_convolution() -> None:
    kernel = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    rows = torch.randn(16, 5, generator=torch.Generator().manual_seed(1))
    for one, matrix in zip(kernel, strided(kernel, 16), strict=True):
        channels = rows.T[:, None]
        expected = torch.nn.functional.conv1d(channels, one[None, None], stride=4)[:, 0].T
        torch.testing.assert_close(matrix @ rows, expected, rtol=1e-5, atol=1e-6)
    assert strided(kernel, 14).shape == (3, 4, 14)
    assert torch.equal(strided(torch.full((4,), 0.25).double(), 16), pooling(16, 4))
    assert [stride(512, k) for k in (64, 100, 512)] == [8, 6, 1]


def test_draws_depend_on_seed_and_place_alone() -> None:
    first = gaussian(3, 40, 0, 1, 2)
    assert torch.equal(first[:, :7], gaussian(3, 7, 0, 1, 2))
    torch.manual_seed(0)
    assert torch.equal(first, gaussian(3, 40, 0, 1, 2))
    others = (gaussian(3, 40, 1, 1, 2), gaussian(3, 40, 0, 2, 1), gaussian(3, 40, 0, 1))
    assert not any(torch.equal(first, one) for one in others)
    kernel = uniform_kernel(400, 0, 1)
    assert 0.045 < float(kernel.abs().max()) <= 0.05
    assert float(kernel.var()) == pytest.approx(0.05**2 / 3, rel=0.2)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value", "layerwise"])
@pytest.mark.parametrize("kind", ["svd", "learned", "learned-conv"])
def test_file_round_trip(kind: str, sharing: str, tmp_path: Path) -> None:
    written = fitted(kind, sharing)
    path = written.write(tmp_path / "deep" / "p.safetensors")
    read = read_projections(path)
    for side in ("e", "f"):
        ours, theirs = getattr(written, side), getattr(read, side)
        assert (ours is None) == (theirs is None)
        assert all(torch.equal(ours[layer], theirs[layer]) for layer in ours or ())
    for name in written.__dataclass_fields__:
        if name not in ("e", "f"):
            assert getattr(read, name) == getattr(written, name), name
    assert (read.layers, read.k(2)) == ((0, 2), 4)
    first = path.read_bytes()
    assert written.write(path).read_bytes() == first


def test_what_is_shared_is_stored_once(tmp_path: Path) -> None:
    sizes = [
        fitted(sharing=sharing).write(tmp_path / sharing).stat().st_size
        for sharing in ("layerwise", "key-value", "headwise", "none")
    ]
    # 1, 2, 4 and 12 matrices of 4 × 24 numbers
    matrices = [round((size - sizes[0]) / (4 * 4 * 24) + 1, 0) for size in sizes]
    assert matrices[:3] == [1, 2, 4]
    assert 12 <= matrices[3] <= 13


def test_methods_use_the_file(tmp_path: Path) -> None:
    given = replace(attention(), layer=2)
    for kind, sharing in (
        ("learned", "none"),
        ("learned", "headwise"),
        ("learned-conv", "key-value"),
    ):
        stored = fitted(kind, sharing)
        path = stored.write(tmp_path / f"{kind}-{sharing}")
        made = Linformer(k=4, projection="learned", sharing=sharing, file=path)  # type: ignore[arg-type]
        made.check(SHAPE)
        e, f = (one.double() for one in stored.of(2, 24))
        expected = linformer_attention(given.query, given.key, given.values, e, f, given.scale)
        torch.testing.assert_close(made.apply(given), expected, rtol=1e-12, atol=1e-12)
        product = made.matrix(given) @ given.values
        torch.testing.assert_close(product, expected, rtol=1e-10, atol=1e-10)
        assert made.settings()["file_sha256"]
        # F29: the first columns, and nothing for a longer window
        short = replace(attention(9), layer=2)
        e, f = (one.double() for one in stored.of(2, 9))
        expected = linformer_attention(short.query, short.key, short.values, e, f, short.scale)
        torch.testing.assert_close(made.apply(short), expected, rtol=1e-12, atol=1e-12)
        if kind == "learned":
            assert torch.equal(stored.of(2, 9)[0], stored.e[2][..., :9])
        with pytest.raises(MethodError, match=r"24 tokens .* n = 25"):
            made.apply(replace(attention(25), layer=2))
        with pytest.raises(MethodError, match=r"24 tokens .* n = 25"):
            made.check(replace(SHAPE, length=25))


def test_a_convolution_drops_the_rows_that_a_short_window_does_not_reach() -> None:
    stored = fitted("learned-conv", "key-value", k=4)
    assert stored.of(0, 24)[0].shape == (1, 4, 24)
    # kernels of six tokens: a row of zeros would draw weight away from the others
    assert stored.of(0, 9)[0].shape == (1, 2, 9)


def test_projected_by_singular_vectors(tmp_path: Path) -> None:
    given = replace(attention(), layer=2)
    for sharing in ("none", "headwise"):
        stored = fitted("svd", sharing)
        made = Projected(
            k=4, projection="svd", sharing=sharing, file=stored.write(tmp_path / sharing)
        )  # type: ignore[arg-type]
        made.check(SHAPE)
        rows = stored.e[2].double()
        expected = given.weights @ rows.mT @ rows
        torch.testing.assert_close(made.matrix(given), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            made.apply(given), made.matrix(given) @ given.values, rtol=1e-10, atol=1e-10
        )
        # of a shorter window a projector again
        short = replace(attention(9), layer=2)
        right = torch.linalg.lstsq(short.weights, made.matrix(short)).solution
        torch.testing.assert_close(right @ right, right, rtol=1e-6, atol=1e-6)
    # for singular vectors, headwise and key-value are one
    Linformer(k=4, projection="svd", sharing="key-value", file=tmp_path / "headwise").check(SHAPE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(weights_sha256=None), "drawn at random"),
        (dict(weights_sha256="ef" * 32), "sha256 efefefefefef"),
        (dict(layers=(0, 1)), "not to layer 1"),
        (dict(n_heads=4), "3 heads, not to 4"),
        (dict(length=30), "n = 30"),
        (dict(causal=True), "causal"),
    ],
)
def test_another_model_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    learned = fitted().write(tmp_path / "learned")
    svd = fitted("svd").write(tmp_path / "svd")
    for made in (
        Linformer(k=4, projection="learned", file=learned),
        Projected(k=4, projection="svd", sharing="headwise", file=svd),
    ):
        made.check(SHAPE)
        with pytest.raises(MethodError, match=words):
            made.check(replace(SHAPE, **changes))


def test_parameters_must_be_the_file_s(tmp_path: Path) -> None:
    learned = fitted().write(tmp_path / "learned")
    svd = fitted("svd").write(tmp_path / "svd")
    for made, words in (
        (Linformer(k=8, projection="learned", file=learned), "use k=4"),
        (Linformer(k=(4, 4, 8), projection="learned", file=learned), "k = 8 is not the 4"),
        (Linformer(k=4, projection="svd", file=learned), "projection=learned"),
        (Linformer(k=4, projection="learned", file=svd), "projection=svd"),
        (Linformer(k=4, projection="learned", sharing="none", file=learned), "sharing=headwise"),
        (Projected(k=5, projection="svd", sharing="headwise", file=svd), "use k=4"),
        (Projected(k=4, projection="svd", file=svd), "sharing=headwise"),
        (Projected(k=4, projection="svd", sharing="headwise", file=learned), "projection=learned"),
    ):
        with pytest.raises(MethodError, match=words):
            made.check(SHAPE)
        with pytest.raises(MethodError, match=words):
            made.apply(replace(attention(), layer=2))
    with pytest.raises(MethodError, match="not to layer 1"):
        Linformer(k=4, projection="learned", file=learned).apply(replace(attention(), layer=1))
    each = fitted(sharing="none").write(tmp_path / "each")
    with pytest.raises(MethodError, match="3 heads, not to 2"):
        Linformer(k=4, projection="learned", sharing="none", file=each).apply(attention(heads=2))


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = fitted().write(tmp_path / "p")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
    for content in (b"", whole[:-1], whole[: len(whole) // 2], bytes(flipped), pointer, b"{}"):
        path.write_bytes(content)
        with pytest.raises(MethodError, match="no file of projections"):
            read_projections(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(MethodError, match="no file of projections"):
        read_projections(path)
    save_file({"a": torch.zeros(2)}, path, metadata={"rankscope": '{"format": "other"}'})
    with pytest.raises(MethodError, match="other"):
        read_projections(path)
    with pytest.raises(MethodError, match="cannot be read"):
        read_projections(tmp_path / "absent")
    with pytest.raises(MethodError):
        read_projections(tmp_path)


def test_a_write_that_is_stopped_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fitted().write(tmp_path / "p")
    before = path.read_bytes()

    def stopped(tensors: Any, file: Path, metadata: Any) -> None:
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", stopped)
    with pytest.raises(KeyboardInterrupt):
        fitted(k=6).write(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["p"]
    monkeypatch.undo()
    with pytest.raises(StoreError):
        fitted().write(path / "below-a-file")


@pytest.mark.parametrize(
    "changes",
    [
        dict(f=None),
        dict(sharing="key-value", f={0: torch.zeros(1, 4, 24), 2: torch.zeros(1, 4, 24)}),
        dict(kind="pooled"),
        dict(e={}),
        dict(e={0: torch.zeros(1, 4, 24)}),
        dict(length=20),
        dict(e={0: torch.zeros(1, 4, 24), 2: torch.zeros(3, 4, 24)}),
        dict(e={0: torch.zeros(1, 4, 24), 2: torch.full((1, 4, 24), float("nan"))}),
        dict(validation_error={0: float("nan")}),
    ],
)
def test_what_does_not_fit_together_is_no_projection(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        fitted(**changes)


def test_layers_that_share_one_projection_have_the_same() -> None:
    differing = {0: torch.zeros(1, 4, 24), 2: torch.ones(1, 4, 24)}
    with pytest.raises(UsageError, match="same in every layer"):
        fitted(sharing="layerwise", e=differing)
