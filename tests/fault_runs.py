"""Fixtures of runs that meet faults, made known by `conftest`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from commands import rankscope
from faults import SIX
from rankscope.store.files import load


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch, windows_by_themselves: None) -> list[int]:
    """Windows in the order in which they were computed, since the list was last cleared."""
    # not before the environment says that there is no network
    from rankscope.engine import SpectraPlan

    found: list[int] = []
    real = SpectraPlan.add

    def add(self: Any, results: Any, place: int, *rest: Any) -> Any:
        if place == 0:
            found.extend(result.sample for result in results)
        return real(self, results, place, *rest)

    monkeypatch.setattr(SpectraPlan, "add", add)
    return found


@pytest.fixture
def whole(place: Path, windows_by_themselves: None) -> xr.Dataset:
    """The result that nothing happened to."""
    assert rankscope(*SIX, "--out", "whole.nc") == 0
    return load("whole.nc")
