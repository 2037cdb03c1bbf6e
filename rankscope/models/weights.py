"""Weights files on disk: which ones a folder holds, whether they are whole, their checksum.

Nothing here reads a tensor or imports torch at import time: a cut file, a pointer text or a
missing shard is refused from file sizes and headers alone, in milliseconds.

References
----------
The safetensors format (8-byte little-endian header length, JSON header, data):
https://huggingface.co/docs/safetensors/index#format. Git LFS pointer files:
https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankscope.exceptions import FileDamaged

# In the order of preference: safetensors cannot run code and can be checked from its header.
SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
CANDIDATES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

_POINTER_START = b"version https://git-lfs"
# The first bytes of torch's file format before 1.6: a pickled magic number, protocol 2.
_LEGACY_TORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# The format's own limit; a longer "header" means that the file is something else.
_LONGEST_HEADER = 100_000_000
_SAFETENSORS_FLOATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


@dataclass(frozen=True)
class Weights:
    """The weights of one checkpoint: a file, or the shards that its index names.

    Parameters
    ----------
    entry : pathlib.Path
        ``model.safetensors``, ``pytorch_model.bin`` or the index of either.
    files : tuple of pathlib.Path
        The files that hold the tensors, sorted by name; equal to ``(entry,)`` without an index.
    kind : {"safetensors", "torch"}
        Their format.
    """

    entry: Path
    files: tuple[Path, ...]
    kind: Literal["safetensors", "torch"]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of shards that the index promises and the folder lacks."""
        return tuple(file.name for file in self.files if not file.is_file())


def locate(folder: Path) -> Weights | None:
    """Find the weights of a model folder, safetensors before torch files.

    Parameters
    ----------
    folder : pathlib.Path
        Model folder.

    Returns
    -------
    Weights or None
        None where the folder has no weights under the usual names.

    Raises
    ------
    FileDamaged
        If an index of shards cannot be read.
    """
    for name in CANDIDATES:
        entry = folder / name
        if not entry.exists():
            continue
        kind: Literal["safetensors", "torch"] = "safetensors" if "safetensors" in name else "torch"
        if name in SINGLE_FILES:
            return Weights(entry, (entry,), kind)
        return Weights(entry, tuple(folder / shard for shard in shard_names(entry)), kind)
    return None


def shard_names(index: Path) -> list[str]:
    """Names of the shards that an index file lists, sorted, each once.

    Raises
    ------
    FileDamaged
        If the index is no JSON object with a ``weight_map``, or names a file outside its folder.
    """
    refuse_pointer(index)
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileDamaged(
            f"{index} is {index.stat().st_size} bytes long and no index of weights: {error!r}",
            "download the file again",
        ) from error
    if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise FileDamaged(
            f"{index} names no shards, or some outside its own folder", "download the file again"
        )
    return names


def refuse_pointer(file: Path) -> None:
    """Refuse a git-lfs pointer text that stands where the file itself should be.

    Raises
    ------
    FileDamaged
        Naming the file, its size and the size that the pointer promises.
    """
    with file.open("rb") as stream:
        start = stream.read(1024)
    if not start.startswith(_POINTER_START):
        return
    promised = re.search(rb"^size (\d+)", start, re.MULTILINE)
    size = f"{int(promised.group(1))} bytes" if promised else "an unknown size"
    raise FileDamaged(
        f"{file} is a git-lfs pointer text of {file.stat().st_size} bytes; "
        f"the file that it stands for has {size}",
        f"run `git lfs pull` in {file.parent}, or download the file itself",
    )


def verify(weights: Weights, remedy: str = "download the file again") -> None:
    """Refuse weights files that are not whole, without reading their tensors.

    Parameters
    ----------
    weights : Weights
        What :func:`locate` found.
    remedy : str
        What the message tells the user to do.

    Raises
    ------
    FileDamaged
        For a missing shard, an empty file, a git-lfs pointer, a file shorter or longer than its
        header promises, or one of another format; names the file, its size and the expected one.
    """
    if weights.missing:
        shown = ", ".join(weights.missing[:6])
        raise FileDamaged(
            f"{len(weights.missing)} of the {len(weights.files)} shards that "
            f"{weights.entry} lists are missing: {shown}",
            remedy,
        )
    for file in weights.files:
        if file.stat().st_size == 0:
            raise FileDamaged(f"{file} is empty (0 bytes)", remedy)
        refuse_pointer(file)
        if weights.kind == "safetensors":
            safetensors_header(file, remedy)
        else:
            _verify_torch_file(file, remedy)


def safetensors_header(file: Path, remedy: str = "download the file again") -> dict[str, Any]:
    """Read and check the header of a safetensors file against the file's size.

    Returns
    -------
    dict
        Tensor name to ``{"dtype", "shape", "data_offsets"}``; the free ``__metadata__`` left out.

    Raises
    ------
    FileDamaged
        If the size is not 8 bytes + header + last data offset, or the header is no JSON.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if size < 8 or (length <= _LONGEST_HEADER and size < 8 + length):
            expected = "at least 8" if size < 8 else f"more than {8 + length}"
            raise FileDamaged(
                f"{file} is cut short within its header: {size} bytes, {expected} expected", remedy
            )
        if length > _LONGEST_HEADER:
            raise FileDamaged(
                f"{file} ({size} bytes) is no safetensors file; it starts with {start!r}", remedy
            )
        raw = stream.read(length)
    try:
        header = json.loads(raw)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FileDamaged(
            f"{file} ({size} bytes) has an unreadable safetensors header: {error}", remedy
        ) from error
    if not tensors:
        raise FileDamaged(f"{file} ({size} bytes) is a safetensors file without tensors", remedy)
    expected_size = 8 + length + end
    if size != expected_size:
        fault = "is cut short" if size < expected_size else "is longer than its header says"
        raise FileDamaged(f"{file} {fault}: {size} bytes, {expected_size} expected", remedy)
    return tensors


def _verify_torch_file(file: Path, remedy: str) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(len(_LEGACY_TORCH_START))
    if start == _LEGACY_TORCH_START:
        # No length is written in the old format: torch itself finds a cut when it loads.
        return
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        fault = (
            "is cut short: the archive's closing record is missing"
            if start.startswith(b"PK")
            else f"is no torch file; it starts with {start[:8]!r}"
        )
        raise FileDamaged(
            f"{file} {fault} ({size} bytes, more expected; the format does not say how many)",
            remedy,
        ) from error
    if not any(name.endswith("data.pkl") for name in names):
        raise FileDamaged(f"{file} ({size} bytes) is a zip archive, but no torch file", remedy)


def sha256(weights: Weights) -> str:
    """Checksum of the weights, the identity that is recorded with every result.

    One file: its own sha256, as ``sha256sum`` prints it. Several shards: the sha256 of the lines
    ``NAME SHA256`` of the shards, sorted by name, each ended by a newline.

    Parameters
    ----------
    weights : Weights
        Files to read; all of them are read once.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    sums = {}
    for file in weights.files:
        with file.open("rb") as stream:
            sums[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    if len(sums) == 1:
        return next(iter(sums.values()))
    lines = "".join(f"{name} {sums[name]}\n" for name in sorted(sums))
    return hashlib.sha256(lines.encode()).hexdigest()


def stored_dtype(weights: Weights) -> str:
    """Floating-point type in which the weights are stored.

    Parameters
    ----------
    weights : Weights
        Verified weights.

    Returns
    -------
    str
        ``"float32"``, ``"float16"`` …; several are joined with ``+``, the most frequent first.
        Integer buffers, such as position ids, do not count.
    """
    counts: Counter[str] = Counter()
    for file in weights.files:
        if weights.kind == "safetensors":
            found = [
                _SAFETENSORS_FLOATS.get(entry["dtype"])
                for entry in safetensors_header(file).values()
            ]
        else:
            found = _torch_dtypes(file)
        counts.update(name for name in found if name)
    return "+".join(name for name, _ in counts.most_common()) or "none"


def _torch_dtypes(file: Path) -> list[str | None]:
    import torch

    try:
        state = torch.load(file, map_location="meta", weights_only=True)
    except Exception as error:
        raise FileDamaged(
            f"{file} ({file.stat().st_size} bytes) cannot be read by torch: "
            f"{str(error).strip().partition(chr(10))[0] or error!r}",
            "download the file again, or convert it to safetensors",
        ) from error
    return [
        str(tensor.dtype).removeprefix("torch.")
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    ]
