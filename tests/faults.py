"""Faults around a run, for tests: interrupts, damage, and what must be said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands import TINY, rankscope
from rankscope.cli.running import INTERRUPTED
from rankscope.exceptions import StoreError
from rankscope.store import RunStore

SIX = ["spectra", *TINY, "--length", "12", "--windows", "6", "--workers", "1"]
STORE = StoreError.exit_code


def refused(shown: str, *words: str) -> None:
    """One message with cause and remedy, no traceback."""
    assert shown.count("error:") == 1, shown
    assert "remedy:" in shown
    assert "Traceback" not in shown
    for word in words:
        assert word in shown


def stopped_after(count: int, *arguments: str) -> None:
    """Run the command, and interrupt it when so many windows are stored."""
    real, left = RunStore.write_block, [count]

    def write_block(self: RunStore, start: int, fields: Any) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self, start, fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunStore, "write_block", write_block)
        assert rankscope(*arguments) == INTERRUPTED


def files_of(folder: Path) -> dict[Path, bytes]:
    """Content of every file."""
    return {one.relative_to(folder): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def chunks_of(folder: Path, *, states: bool = True) -> list[Path]:
    """Files of the windows in a store of six, one by one, by window and name."""
    found = [one for one in folder.rglob("c.0.0.*") if states or one.parent.name != "state"]
    return sorted(found, key=lambda one: (one.name, one.parent.name))


def window_of(chunk: Path) -> int:
    """Window that a chunk belongs to."""
    return int(chunk.name.split(".")[3])


def cut(file: Path) -> None:
    """Leave half of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
