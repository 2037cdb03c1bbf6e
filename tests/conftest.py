"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance import pytest_generate_tests  # noqa: F401 a hook of pytest's
from disks import small_disk  # noqa: F401
from fault_runs import computed, whole  # noqa: F401

if TYPE_CHECKING:
    from rankscope.models import LoadedModel

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests of a family that none of its methods is about, such as those of seeds."""
    items[:] = [item for item in items if not item.name.endswith("[NOTSET]")]


ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the evaluation texts beside the checkout.

    In CI its absence is a failure: a check on real text must not vanish silently.
    """
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{folder} is missing: the checks on real text cannot run")
        pytest.skip(f"no evaluation texts at {folder}")
    return folder


@pytest.fixture(scope="session")
def minilm() -> LoadedModel:
    """The pretrained encoder of the extra `pretrained`, loaded once."""
    from rankscope.models import load

    return load("minilm")


@pytest.fixture
def windows_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short windows are computed and stored one by one, as long ones are."""
    monkeypatch.setattr("rankscope.engine.frame.BLOCK_TOKENS", 1)


@pytest.fixture
def masked_lm(tmp_path: Path) -> Path:
    """The tiny model of the field cases, saved as a masked language model."""
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    from folders import TINY, add_tokenizer

    folder = tmp_path / "tiny"
    torch.manual_seed(0)
    RobertaForMaskedLM(RobertaConfig(**TINY)).save_pretrained(folder)
    add_tokenizer(folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model's configuration and a text, as the current folder."""
    from tiny import tiny_config

    lines = (f"Paragraph {i} says word{i % 13} and word{i % 7} again." for i in range(80))
    tiny_config("roberta", initializer_range=0.25).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
