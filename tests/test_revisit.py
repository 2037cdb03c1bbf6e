"""A window of a stored run again: the one that was asked for, and the first that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from commands import rankscope
from made_up import run_of
from rankscope.exceptions import StoreError, UsageError
from rankscope.linalg import singular_values
from rankscope.revisit import check_window, first_window, head_of, window_of
from rankscope.store.files import load

LINES = "\n\nfirst words of all\n\nwords and more words\n"
"""Texts 0, 1 and 3 are blank."""

COMMAND = [
    "spectra", "--model", "random:model", "--tokenizer", "hash", "--corpus", "lines.txt",
    "--unit", "line", "--mode", "document", "--special", "drop", "--length", "12",
    "--workers", "1",
]  # fmt: skip


@pytest.fixture
def run(place: Path) -> xr.Dataset:
    """Windows of lines of which the first two and one in the middle have no token."""
    (place / "lines.txt").write_text(LINES, encoding="utf-8")
    assert rankscope(*COMMAND, "--windows", "all", "--out", "run.nc") == 0
    found = load("run.nc")
    assert (found["n_tokens"].to_numpy().ravel() > 0).tolist() == [False, False, True, False, True]
    return found


def test_the_first_window_is_one_that_has_a_token(run: xr.Dataset) -> None:
    assert first_window(run) == 2
    assert first_window(run.isel(sample=[3, 4])) == 4
    with pytest.raises(UsageError, match="no window of the run has a token"):
        first_window(run.isel(sample=[0, 1, 3]))
    with pytest.raises(StoreError, match="not a run of spectra"):
        first_window(run.isel(sample=2))


def test_a_head_without_a_window_named_is_of_the_first_that_there_is(run: xr.Dataset) -> None:
    found = head_of(run, layer=1, head=2)
    assert "window 2, layer 1, head 2" in found.title
    n = int(run["n_tokens"].isel(sample=2).item())
    assert found.matrix.shape == (n, n)
    np.testing.assert_allclose(
        singular_values(found.matrix).singular_values, found.singular_values, atol=1e-6
    )
    last = head_of(run, sample=4, layer=1, head=2)
    np.testing.assert_allclose(
        singular_values(last.matrix).singular_values, last.singular_values, atol=1e-6
    )


@pytest.mark.parametrize("sample", [0, 1, 3])
def test_a_window_without_a_token_is_refused_by_name(run: xr.Dataset, sample: int) -> None:
    for refused in (
        lambda: check_window(run, sample),
        lambda: window_of(run, sample),
        lambda: head_of(run, sample=sample, layer=0, head=0),
    ):
        with pytest.raises(UsageError, match=f"window {sample} of the run has no token") as caught:
            refused()
        assert "window 2" in caught.value.remedy
    with pytest.raises(UsageError, match="no sample 5"):
        check_window(run, 5)


def test_only_as_many_texts_as_are_needed_are_cut(
    run: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankscope import text

    asked: list[int | None] = []
    real = text.windows

    def watched(*arguments: Any, count: int | None, **options: Any) -> Any:
        asked.append(count)
        return real(*arguments, count=count, **options)

    monkeypatch.setattr(text, "windows", watched)
    assert window_of(run, 2).window.text_id == 2
    assert asked == [3]


def test_a_control_and_a_summary_have_no_window_to_draw() -> None:
    with pytest.raises(StoreError, match="no run"):
        window_of(run_of(np.ones((1, 1, 1, 4))).drop_attrs(), 0)
