"""What was measured for the claims, kept by model and text: one file, part by part.

A part that is there is measured again only if something else would come out: it is kept with the
checksums of weights and tokens, with what was done, and with the version of the measurement.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import rankscope
from analyses._claims_measure import PARTS
from analyses._claims_places import Place, tokens_checksum
from rankscope import terminal
from rankscope.exceptions import StoreError, UsageError
from rankscope.labels import file_name
from rankscope.linalg import one_blas_thread
from rankscope.store.files import export
from rankscope.store.files import load as read
from rankscope.store.schema import canonical_json

_BESIDE = ("command", "versions")


def measure(place: Place, folder: Path, parts: Sequence[str], overwrite: bool = False) -> Path:
    """Measure what is missing, part by part, and keep it.

    Parameters
    ----------
    place : Place
    folder : Path
        Where ``claims--MODEL--CORPUS.nc`` stands or will stand.
    parts : sequence of str
        Of :data:`analyses._claims_measure.PARTS`.
    overwrite : bool
        Whether parts of other weights or settings are replaced.

    Returns
    -------
    Path

    Raises
    ------
    UsageError
        If a part was measured on other weights, or otherwise, and `overwrite` is not set.
    """
    path = folder / data_file(place.name, place.corpus.name)
    kept = read(path) if path.exists() else None
    for part in parts:
        wanted = described(place, part)
        there = part_settings(kept, part)
        if there is not None and not (other := differences(there, wanted)):
            continue
        if there is not None and not overwrite:
            raise UsageError(
                f"{path.name} holds {part} of other settings: {'; '.join(other)}",
                "give --overwrite to measure it again",
            )
        terminal.note(f"{place.name} on {place.corpus.name}: {part}")
        with one_blas_thread():
            found = PARTS[part].find(place)
        found.attrs |= {f"part_{part}": canonical_json(wanted)}
        kept = _joined(kept, found, part)
        kept.attrs |= {"model": place.name, "corpus": place.corpus.name}
        export(kept, path, overwrite=True)
    return path


def data_file(model: str, corpus: str) -> str:
    """File of a model on a text.

    Examples
    --------
    >>> data_file("random:roberta-base", "imdb-test"), data_file("org/name", "a b")
    ('claims--random-roberta-base--imdb-test.nc', 'claims--org-name--a-b.nc')
    """
    return f"claims--{file_name(model)}--{file_name(corpus)}.nc"


def part_settings(kept: xr.Dataset | None, part: str) -> dict[str, Any] | None:
    """What a part is of, and how it was measured; None if it was not."""
    if kept is None or f"part_{part}" not in kept.attrs:
        return None
    found: dict[str, Any] = json.loads(kept.attrs[f"part_{part}"])
    return found


def size_of(kept: xr.Dataset, part: str) -> int:
    """n, the tokens of the windows of a part.

    Raises
    ------
    StoreError
        If it was not measured.
    """
    settings = part_settings(kept, part)
    if settings is None:
        raise StoreError(f"no {part} were measured", "run python -m analyses claims")
    return int(settings["n"])


def described(place: Place, part: str) -> dict[str, Any]:
    """All that decides the numbers of a part; beside it, with what they came about."""
    one = PARTS[part]
    windows = place.windows(one.windows(place))
    info = place.model.info
    return {
        "part_version": one.version,
        "n": place.settings.length,
        "windows": len(windows),
        "model": info.identity,
        "weights_sha256": place.weights,
        "dtype": info.dtype,
        "tokenizer": info.tokenizer,
        "corpus_sha256": place.corpus.sha256,
        "tokens_sha256": tokens_checksum(windows),
        **one.says(place),
        "command": place.command,
        "versions": {
            "rankscope": rankscope.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def differences(there: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """In what two parts differ, but for what does not touch their numbers.

    Examples
    --------
    >>> differences({"n": 512, "command": "a"}, {"n": 256, "command": "b"})
    ['n 512, not 256']
    """
    names = [name for name in (there | wanted) if name not in _BESIDE]
    return [
        f"{name} {_short(there.get(name))}, not {_short(wanted.get(name))}"
        for name in names
        if there.get(name) != wanted.get(name)
    ]


def _short(value: Any) -> str:
    if value is None:
        return "unknown"
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}…"


def _joined(kept: xr.Dataset | None, found: xr.Dataset, part: str) -> xr.Dataset:
    """All parts in one dataset; their dimensions begin with their names."""
    own = [str(name) for name in [*found.data_vars, *found.coords]]
    if bad := [name for name in own if name not in ("layer", "head") and part not in name]:
        raise StoreError(f"{', '.join(bad)} of the part {part} may be of another", "rename it")
    if kept is None:
        return found
    attrs = {key: value for key, value in kept.attrs.items() if key != f"part_{part}"}
    old = [name for name in kept.variables if str(name).startswith(f"{part}_")]
    merged = xr.merge([kept.drop_vars(old), found], combine_attrs="drop", join="exact")
    merged.attrs = attrs | found.attrs
    return merged
