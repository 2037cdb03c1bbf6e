"""Weights files: whole or refused, without reading them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rankscope.exceptions import FileDamaged
from rankscope.models.weights import Weights, locate, sha256, shard_names, stored_dtype, verify

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 497933648\n"


def whole(folder: Path, name: str = "model.safetensors", value: float = 1.0) -> Path:
    file = folder / name
    save_file({"a": np.full((3, 4), value, np.float32), "ids": np.arange(5)}, file)
    return file


def found(folder: Path) -> Weights:
    weights = locate(folder)
    assert weights is not None
    return weights


def sharded(folder: Path) -> Path:
    for i in (1, 2):
        whole(folder, f"model-0000{i}-of-00002.safetensors", i)
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps(
            {
                "metadata": {"total_size": 1},
                "weight_map": {
                    "b": "model-00002-of-00002.safetensors",
                    "a": "model-00001-of-00002.safetensors",
                    "c": "model-00002-of-00002.safetensors",
                },
            }
        )
    )
    return index


def test_safetensors_go_before_torch_files(tmp_path: Path) -> None:
    assert locate(tmp_path) is None
    torch.save({}, tmp_path / "pytorch_model.bin")
    assert found(tmp_path).kind == "torch"
    sharded(tmp_path)
    assert [file.name for file in found(tmp_path).files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    whole(tmp_path)
    assert [file.name for file in found(tmp_path).files] == ["model.safetensors"]


def test_whole_files_pass(tmp_path: Path) -> None:
    verify(Weights(whole(tmp_path), (whole(tmp_path),), "safetensors"))
    sharded(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    verify(found(tmp_path))


@pytest.mark.parametrize("cut", ["empty", "header length", "header", "half", "last byte"])
def test_f17_a_cut_file_is_named_with_both_sizes(tmp_path: Path, cut: str) -> None:
    file = whole(tmp_path)
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    keep = {
        "empty": 0,
        "header length": 5,
        "header": 40,
        "half": 8 + length + 20,
        "last byte": len(content) - 1,
    }[cut]
    file.write_bytes(content[:keep])
    with pytest.raises(FileDamaged) as caught:
        verify(found(tmp_path), "fetch it afresh")
    assert str(file) in caught.value.cause
    assert f"{keep} bytes" in caught.value.cause
    assert caught.value.remedy == "fetch it afresh"
    if cut in ("half", "last byte"):
        assert f"{len(content)} expected" in caught.value.cause


def test_f17_trailing_bytes_are_damage_too(tmp_path: Path) -> None:
    file = whole(tmp_path)
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(FileDamaged, match=f"longer than.*{size + 1} bytes, {size} expected"):
        verify(found(tmp_path))


def test_f17_a_pointer_text_is_named_with_the_size_it_stands_for(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(FileDamaged, match=r"pointer text of 74 bytes.*497933648 bytes") as caught:
        verify(found(tmp_path))
    assert "git lfs pull" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!doctype html><html><body>Sign in</body></html>" * 9, "no safetensors file"),
        ((20).to_bytes(8, "little") + b"{not json at all....", "unreadable safetensors header"),
        ((2).to_bytes(8, "little") + b"{}", "without tensors"),
        (
            (21).to_bytes(8, "little") + b'{"a":{"dtype":"F32"}}',
            "unreadable safetensors header",
        ),
    ],
)
def test_f17_other_files_in_disguise_are_refused(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FileDamaged, match=words):
        verify(found(tmp_path))


def test_f17_missing_shards_are_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert found(tmp_path).missing == ("model-00002-of-00002.safetensors",)
    with pytest.raises(FileDamaged, match=r"1 of the 2 shards .*: model-00002-of-00002"):
        verify(found(tmp_path))


def test_f17_a_cut_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(FileDamaged, match=r"model-00001-of-00002\.safetensors is cut short"):
        verify(found(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_f17_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(FileDamaged, match=r"model\.safetensors\.index\.json"):
        locate(tmp_path)


def test_an_index_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(FileDamaged, match="outside its own folder"):
        shard_names(index)


def test_f17_torch_files(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(3, dtype=torch.float16), "n": torch.ones(1).long()}, file)
    verify(found(tmp_path))
    assert stored_dtype(found(tmp_path)) == "float16"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(FileDamaged, match=rf"cut short.*\({len(content) // 2} bytes"):
        verify(found(tmp_path))
    file.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(FileDamaged, match="no torch file"):
        verify(found(tmp_path))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FileDamaged, match="a zip archive, but no torch file"):
        verify(found(tmp_path))


def test_f17_torch_files_of_the_old_format(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(300)}, file, _use_new_zipfile_serialization=False)
    verify(found(tmp_path))
    assert stored_dtype(found(tmp_path)) == "float32"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(FileDamaged, match=r"\(60 bytes\) cannot be read by torch"):
        stored_dtype(found(tmp_path))


def test_checksum_of_one_file_is_its_own(tmp_path: Path) -> None:
    file = whole(tmp_path)
    assert sha256(found(tmp_path)) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_checksum_of_shards_covers_names_and_contents(tmp_path: Path) -> None:
    sharded(tmp_path)
    lines = b""
    for i in (1, 2):
        name = f"model-0000{i}-of-00002.safetensors"
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        lines += f"{name} {digest}\n".encode()
    before = sha256(found(tmp_path))
    assert before == hashlib.sha256(lines).hexdigest()
    whole(tmp_path, "model-00002-of-00002.safetensors", 3.0)
    assert sha256(found(tmp_path)) != before


def test_f04_stored_type_is_read_from_the_header(tmp_path: Path) -> None:
    from safetensors.torch import save_file as save_torch

    file = tmp_path / "model.safetensors"
    save_torch({"a": torch.ones(3).half(), "n": torch.ones(9).long()}, file)
    assert stored_dtype(found(tmp_path)) == "float16"
    one = torch.ones(2)
    save_torch({"a": one.bfloat16(), "b": one.bfloat16() + 1, "c": one}, file)
    assert stored_dtype(found(tmp_path)) == "bfloat16+float32"
    save_torch({"n": torch.ones(9).long()}, file)
    assert stored_dtype(found(tmp_path)) == "none"
