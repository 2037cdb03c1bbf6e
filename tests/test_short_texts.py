"""Very many very short texts: right, quick, and in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModel

from commands import rankscope
from faults import stopped_after
from rankscope.linalg import FEW, SMALL, Workers, singular_values
from rankscope.models import load as load_model
from rankscope.status import State, Status
from rankscope.store import RunStore, working_path
from rankscope.store.files import load
from run_stores import assert_bits_equal, schema, window
from tiny import tiny_config
from tolerances import GRAM_RATIO

MANY = 100_000
GROWTH = 80 * 2**20
"""Bytes that a run may need more at its end than after a tenth of it."""

COMMAND = [
    "spectra", "--model", "random:model", "--tokenizer", "hash", "--unit", "line",
    "--mode", "document", "--windows", "all", "--length", "8",
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the smallest of models, as the current folder."""
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    tiny_config("roberta", initializer_range=0.25, **sizes).save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(number: int) -> str:
    """Text of this number: one to three words, each of two tokens."""
    return " ".join(f"w{number * factor % 31}" for factor in range(1, 2 + number % 3))


def write_texts(count: int, *, blank_every: int = 0) -> Path:
    """A file with a text a line, some of them blank."""
    lines = ("" if blank_every and i % blank_every == 0 else words(i) for i in range(count))
    path = Path("texts.txt")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def attentions(texts: Iterator[str]) -> Iterator[np.ndarray]:
    """P of every text (head, n, n), by transformers' own eager attention."""
    loaded = load_model("random:model", tokenizer="hash")
    eager = AutoModel.from_config(loaded.model.config, attn_implementation="eager").eval()
    lacking = eager.load_state_dict(loaded.model.state_dict(), strict=False)
    assert lacking.unexpected_keys == []
    # what comes after the attention, and is not loaded for it
    assert all(name.startswith("pooler.") for name in lacking.missing_keys)
    for text in texts:
        ids = torch.tensor(
            [[*loaded.tokenizer.prefix, *loaded.tokenizer.encode(text), *loaded.tokenizer.suffix]]
        )
        with torch.no_grad():
            (found,) = eager(ids, output_attentions=True).attentions
        yield found[0].double().numpy()


def test_a_hundred_thousand_short_texts(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = write_texts(MANY)
    resident: dict[int, int] = {}
    real, process = RunStore.write_block, psutil.Process()

    def write_block(self: RunStore, start: int, fields: Any) -> None:
        real(self, start, fields)
        if start // len(fields) % 20 == 0:
            resident[start] = process.memory_info().rss

    monkeypatch.setattr(RunStore, "write_block", write_block)
    arguments = [*COMMAND, "--corpus", str(path), "--threads", "1", "--out", "run.nc"]
    assert rankscope(*arguments) == 0
    resident[MANY] = process.memory_info().rss
    assert f"{MANY}" in capsys.readouterr().out
    after_a_tenth = next(rss for start, rss in resident.items() if start >= MANY // 10)
    assert max(resident.values()) - after_a_tenth < GROWTH
    with load("run.nc", lazy=True) as lazy:
        assert lazy.sizes["sample"] == MANY
        assert np.bincount(lazy["state"].to_numpy().ravel()).tolist() == [MANY]
        sizes = lazy["n_tokens"].to_numpy().ravel()
        assert sizes.tolist() == [4 + 2 * (i % 3) for i in range(MANY)]
        assert (lazy["text_id"].to_numpy() == np.arange(MANY)).all()
        # of the first and last blocks, and some between them
        chosen = [*range(5), *range(4321, MANY, 1999), *range(MANY - 40, MANY)]
        part = lazy.isel(model=0, corpus=0, layer=0, sample=chosen).load()
    for row, weights in enumerate(attentions(words(i) for i in chosen)):
        n = weights.shape[-1]
        one = part.isel(sample=row)
        sigma = np.linalg.svd(weights, compute_uv=False)
        np.testing.assert_allclose(one["singular_value"][:, :n], sigma, atol=1e-6)
        ratio = np.cumsum(sigma, axis=1) / sigma.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(one["cumulative_ratio"][:, :n], ratio, atol=1e-6)
        assert np.isnan(one["singular_value"][:, n:]).all()
        assert (one["cumulative_ratio"][:, n:] == 1).all()
        plain = np.log(np.where(weights > 0, weights, 1))
        np.testing.assert_allclose(
            one["row_entropy"], -(weights * plain).sum(axis=2).mean(axis=1), atol=1e-6
        )


def test_blank_lines_among_many_are_counted_and_cost_no_neighbour(place: Path) -> None:
    path = write_texts(1000, blank_every=7)
    arguments = [*COMMAND, "--corpus", str(path), "--special", "drop", "--threads", "1"]
    assert rankscope(*arguments, "--out", "run.nc") == 0
    states = load("run.nc")["state"].to_numpy().ravel()
    assert np.flatnonzero(states == State.empty).tolist() == [*range(0, 1000, 7)]
    assert np.bincount(states).tolist() == [857, 0, 143]


def test_workers_and_interrupts_give_the_same_stop_and_the_same_bits(
    place: Path, capsys: Any
) -> None:
    path = write_texts(900, blank_every=11)
    arguments = [*COMMAND, "--corpus", str(path), "--precision", "0.012"]
    assert rankscope(*arguments, "--workers", "1", "--out", "whole.nc") == 0
    whole = load("whole.nc")
    assert 64 <= whole.sizes["sample"] < 900
    assert whole.attrs["precision_reached"]
    stopped_after(1, *arguments, "--workers", "1", "--out", "run.nc")
    assert working_path("run.nc").is_dir()
    assert rankscope(*arguments, "--workers", "2", "--out", "run.nc") == 0
    assert "were there already" in capsys.readouterr().err
    assert_bits_equal(load("run.nc"), whole)


# --- the quick ways, against the long ones -------------------------------------------------------


def stack(count: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Softmax of Gaussian logits, some of them sharp."""
    generator = torch.Generator().manual_seed(count * n)
    logits = torch.randn(count, n, n, generator=generator, dtype=torch.float64)
    sharp = torch.linspace(1, 8, count, dtype=torch.float64)[:, None, None]
    return torch.softmax(logits * sharp, dim=2).to(dtype)


@pytest.mark.parametrize("n", [1, 2, 5, SMALL])
@pytest.mark.parametrize("centred", [False, True])
def test_small_matrices_together_are_as_right_as_one_by_one(n: int, centred: bool) -> None:
    batch = stack(FEW + 9, n)
    together = singular_values(batch, centred=centred)
    wide = batch.double().numpy()
    direct = wide - wide.mean(axis=1, keepdims=True) if centred else wide
    expected = np.linalg.svd(direct, compute_uv=False)
    np.testing.assert_allclose(together.singular_values, expected, atol=2e-8)
    for i in range(0, len(batch), 5):
        alone = singular_values(batch[i], centred=centred)
        np.testing.assert_allclose(together.singular_values[i], alone.singular_values, atol=2e-8)
    if not centred:
        ratios = [np.cumsum(one, 1) / one.sum(1, keepdims=True) for one in (
            together.singular_values, expected)]  # fmt: skip
        assert np.abs(ratios[0] - ratios[1]).max() <= GRAM_RATIO


def test_small_matrices_together_do_not_depend_on_threads_or_neighbours() -> None:
    batch = stack(100, 6)
    found = singular_values(batch, workers=1)
    assert (singular_values(batch, workers=3).singular_values == found.singular_values).all()
    part = singular_values(batch[30:60])
    assert (part.singular_values == found.singular_values[30:60]).all()


def test_bad_small_matrices_are_told_apart() -> None:
    batch = stack(FEW + 4, 4, torch.float64)
    batch[1, 0, 0] = torch.nan
    batch[2, 3, 3] = torch.inf
    batch[3] = 0
    batch[4] = 0.25
    found = singular_values(batch)
    assert found.status[:6].tolist() == [
        Status.ok, Status.non_finite, Status.non_finite, Status.zero, Status.refined, Status.ok,
    ]  # fmt: skip
    assert np.isnan(found.singular_values[1:3]).all()
    assert (found.singular_values[3] == 0).all()
    np.testing.assert_allclose(found.singular_values[4], [1, 0, 0, 0], atol=1e-15)


def test_an_error_while_small_matrices_are_loaded_is_raised() -> None:
    def load_one(number: int) -> torch.Tensor:
        raise RuntimeError(f"matrix {number} cannot be had")

    with Workers(2) as workers, pytest.raises(RuntimeError, match="cannot be had"):
        workers.decompose(load_one, FEW + 1, (4, 4))


@pytest.mark.parametrize(("count", "block"), [(3, 1), (10, 4), (8, 4)])
def test_chunks_are_what_zarr_would_write_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, block: int
) -> None:
    run = schema(count, block=block)

    def write(name: str) -> dict[Path, bytes]:
        store = RunStore.create(tmp_path / name, run)
        for start in range(0, count, block):
            samples = range(start, min(start + block, count))
            store.write_block(start, [window(run, one) for one in samples])
        root = tmp_path / name
        return {one.relative_to(root): one.read_bytes() for one in root.rglob("*") if one.is_file()}

    def by_zarr(_path: Path, array: Any, first: int, values: np.ndarray, _fill: Any) -> None:
        array[:, :, first : first + values.shape[2]] = values

    ours = write("ours")
    monkeypatch.setattr("rankscope.store.put_windows", by_zarr)
    assert write("zarrs") == ours
    assert sum(path.name.startswith("c.") for path in ours) > 20
