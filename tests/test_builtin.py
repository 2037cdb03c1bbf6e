"""The model that the project ships: whole, really trained, usable without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import ROOT
from rankscope.exceptions import FileDamaged
from rankscope.models import checkpoints, load

NO_NETWORK = """
import socket
def refuse(*arguments, **options):
    raise OSError("this machine has no network")
socket.socket.connect = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse
"""


def test_builtin_is_a_roberta_with_its_tokenizer() -> None:
    loaded = load("builtin")
    info = loaded.info
    assert (info.family, info.n_layers, info.n_heads, info.max_tokens) == ("roberta", 4, 4, 512)
    assert (info.source, info.stored_dtype, info.dtype) == ("builtin", "float16", "float32")
    assert info.weights_sha256 == checkpoints.BUILTIN_SHA256
    assert info.missing == ()
    assert loaded.tokenizer.prefix == (0,)
    assert loaded.tokenizer.suffix == (2,)
    ids = loaded.tokenizer.encode("The beagle sailed.")
    assert 4 < len(ids) < 20
    assert max(ids) < 1024


def test_one_changed_byte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "assets"
    shutil.copytree(checkpoints.BUILTIN_FOLDER, folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    monkeypatch.setattr(checkpoints, "BUILTIN_FOLDER", folder)
    with pytest.raises(FileDamaged, match="sha256"):
        load("builtin")


def test_first_command_of_the_readme_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    done = subprocess.run(
        [sys.executable, "-c", "from rankscope.cli import main; main()", "figure1"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "builtin" in done.stdout
    assert "random:builtin" in done.stdout
    assert (tmp_path / "rankscope-out" / "figure1.png").stat().st_size > 10_000


def masked_lm_loss(windows: torch.Tensor, seed: int = 1) -> tuple[float, np.ndarray]:
    """Mean loss of the pieces under the mask, and those pieces."""
    from transformers import RobertaForMaskedLM

    model = RobertaForMaskedLM.from_pretrained(checkpoints.BUILTIN_FOLDER, dtype=torch.float32)
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.rand(windows.shape, generator=generator) < 0.15
    hidden[:, [0, -1]] = False
    with torch.no_grad():
        logits = model(windows.masked_fill(hidden, 4)).logits
    targets = windows[hidden]
    loss = torch.nn.functional.cross_entropy(logits[hidden], targets)
    return float(loss), targets.numpy()


def test_builtin_is_trained_and_uses_its_attention(shared_data: Path) -> None:
    from rankscope.text import load_corpus
    from rankscope.text import windows as cut

    text = load_corpus(str(shared_data / "wikitext103-valid.txt"))
    tokenizer = load("builtin").tokenizer
    whole = cut(text, tokenizer, length=512)
    counts = np.bincount(np.concatenate([window.ids for window in whole]), minlength=1024) + 1.0
    some = torch.from_numpy(np.stack([window.ids for window in whole[:6]]))
    loss, targets = masked_lm_loss(some)
    unigram = -np.log(counts / counts.sum())[targets].mean()
    assert loss < unigram - 2.7
    order = torch.randperm(510, generator=torch.Generator().manual_seed(0)) + 1
    shuffled = torch.cat([some[:, :1], some[:, order], some[:, -1:]], dim=1)
    assert masked_lm_loss(shuffled)[0] > loss + 1.0


def test_wheel_and_sdist_carry_the_model(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        inside = {info.filename: info.file_size for info in archive.infolist()}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
        assert f"rankscope/assets/{name}" in inside
    assert wheel.stat().st_size < 15e6
    assert sum(inside.values()) < 15e6
    import tarfile

    with tarfile.open(sdist) as archive_:
        assert any(
            name.endswith("rankscope/assets/model.safetensors") for name in archive_.getnames()
        )
