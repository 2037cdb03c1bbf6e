"""Measurements of the claims are used again only if the same would come out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from analyses import _claims_kept as kept
from analyses import _claims_measure as measures
from analyses import claims, length, low_rank
from analyses._claims_places import Amounts, Place, Settings, checksum, places, tokens_checksum
from folders import add_tokenizer
from made_up import summary_of
from rankscope.exceptions import StoreError, UsageError
from rankscope.models import load
from rankscope.models.checkpoints import BUILTIN_SHA256
from rankscope.store.files import export
from rankscope.store.files import load as read
from rankscope.store.schema import canonical_json
from rankscope.text import load_corpus
from tiny import tiny

NEAR = ["near"]


def save(folder: Path, seed: int = 0, words: int = 50) -> Path:
    tiny("roberta", seed=seed).save_pretrained(folder)
    add_tokenizer(folder, words)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "letters.txt"
    path.write_text(" ".join("abcdefghijklmnop"[i % 7 + i % 5] for i in range(90)))
    return path


def place(spec: Path | str, text: Path | str, **changes: int) -> Place:
    settings = Settings(**({"length": 16, "windows": 2} | changes))
    return Place(str(spec), load_corpus(str(text)), settings)


def test_retrained_weights_in_the_same_folder_are_measured(tmp_path: Path, text: Path) -> None:
    folder = save(tmp_path / "run" / "ckpt")
    first = kept.measure(place(folder, text), tmp_path, NEAR)
    stamp = first.stat().st_mtime_ns
    assert kept.measure(place(folder, text), tmp_path, NEAR) == first
    assert first.stat().st_mtime_ns == stamp
    old = read(first)["near_mass"].to_numpy()
    save(folder, seed=1)
    second = kept.measure(place(folder, text), tmp_path, NEAR)
    assert second != first
    assert not np.allclose(read(second)["near_mass"].to_numpy(), old)


def models_in(folder: Path) -> list[str]:
    return [str(read(path).attrs["model"]) for path in sorted(folder.glob("claims--*.nc"))]


def test_folders_of_one_name_do_not_collide(tmp_path: Path, text: Path) -> None:
    specs = [save(tmp_path / parent / "ckpt", seed) for seed, parent in enumerate("ab")]
    made = [kept.measure(place(spec, text), tmp_path, NEAR) for spec in specs]
    assert made[0] != made[1]
    for spec, path in zip(specs, made, strict=True):
        assert path.name == f"claims--ckpt-{checksum(load(str(spec)))[:6]}--letters.nc"
    # the page tells them apart
    assert len(set(models_in(tmp_path))) == 2
    # no path of this machine, and what one types
    assert str(tmp_path) not in str(read(made[0]).attrs)
    assert "--model ckpt --corpus letters.txt" in str(read(made[0]).attrs["part_near"])


def test_drawn_weights_have_a_checksum_of_their_own(tmp_path: Path, text: Path) -> None:
    folder = save(tmp_path / "ckpt")
    drawn = place(f"random:{folder}", text)
    assert drawn.name == f"random:ckpt-{drawn.weights[:6]}"
    assert drawn.weights == checksum(load(f"random:{folder}"))
    assert drawn.weights != checksum(load(f"random:{folder}", seed=1))
    assert place("random:builtin", "builtin").name == "random:builtin"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights_sha256", "0" * 64),
        ("model", "another"),
        ("tokens_sha256", "0" * 64),
        ("corpus_sha256", "0" * 64),
        ("part_version", 0),
        ("widths", [1, 2]),
        ("shuffle_seed", 1),
        ("dtype", "float64"),
        ("n", 32),
        ("windows", 3),
    ],
)
def test_every_difference_is_seen(tmp_path: Path, name: str, value: object) -> None:
    one = place("builtin", "builtin")
    said = kept.described(one, "near")
    assert kept.differences(said, said | {"command": "another", "versions": {}}) == []
    assert name in said
    (found,) = kept.differences(said | {name: value}, said)
    assert found.startswith(f"{name} ")
    dataset = measures.PARTS["near"].find(one)
    dataset.attrs |= {"part_near": canonical_json(said | {name: value})}
    export(dataset, tmp_path / kept.data_file("builtin", "builtin"))
    with pytest.raises(UsageError, match=f"near of other settings: {name} "):
        kept.measure(one, tmp_path, NEAR)
    path = kept.measure(one, tmp_path, NEAR, overwrite=True)
    assert kept.part_settings(read(path), "near") == said


def test_files_without_an_identity_are_refused(tmp_path: Path) -> None:
    one = place("builtin", "builtin")
    dataset = measures.PARTS["near"].find(one)
    names = ("n", "windows", "corpus_sha256", "command", "versions")
    said = kept.described(one, "near")
    dataset.attrs |= {"part_near": canonical_json({name: said[name] for name in names})}
    export(dataset, tmp_path / kept.data_file("builtin", "builtin"))
    with pytest.raises(UsageError, match=f"weights_sha256 unknown, not {BUILTIN_SHA256[:12]}…"):
        kept.measure(one, tmp_path, NEAR)


def test_what_a_part_measures_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = place("builtin", "builtin")
    for part in ("errors", "losses"):
        methods = kept.described(one, part)["methods"]
        assert "truncated:k=4" in methods
        name = {"errors": "methods_of", "losses": "loss_methods"}[part]
        with monkeypatch.context() as change:
            shorter = getattr(measures, name)(one.windows(1)[0], 4)[:-1]
            change.setattr(measures, name, lambda *_, shorter=shorter: shorter)
            other = kept.described(one, part)["methods"]
        assert len(other) == len(methods) - 1
    spectra = kept.described(one, "spectra")
    assert spectra["random"] == "random:builtin, seed 0"
    assert spectra["random_sha256"] == checksum(load("random:builtin"))
    raised = {"near": replace(measures.PARTS["near"], version=2)}
    monkeypatch.setattr(kept, "PARTS", {**measures.PARTS, **raised})
    assert kept.described(one, "near")["part_version"] == 2


def test_tokens_go_by_the_tokenizer(tmp_path: Path, text: Path) -> None:
    # the same weights; letters beyond the sixth are unknown to the second tokenizer
    one = place(save(tmp_path / "a"), text)
    two = place(save(tmp_path / "b", words=10), text)
    assert one.weights == two.weights
    assert tokens_checksum(one.windows(2)) != tokens_checksum(two.windows(2))
    assert tokens_checksum(one.windows(2)) != tokens_checksum(one.windows(1))


def test_names_of_files() -> None:
    names = ["org/name", "random:org/name", "a b", "a*b", "a?b"]
    files = [kept.data_file(name, "text") for name in names]
    assert len(set(files)) == len(files)
    assert all(Path(file).name == file for file in files)


def test_other_analyses_name_their_files_likewise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = summary_of("org/name")
    low_rank._kept(summary, tmp_path)
    made = SimpleNamespace(info=SimpleNamespace(name="org/name"))
    monkeypatch.setattr(length, "load", lambda spec: made)
    monkeypatch.setattr(length, "over_lengths", lambda *_: xr.Dataset({"x": ("model", [1.0])}))
    monkeypatch.setattr(length, "_print", lambda found: None)
    length.main(["--out", str(tmp_path)])
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"low_rank--org-name--corpus.nc", "length--org-name--builtin.nc"}
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_the_size_of_a_part(tmp_path: Path) -> None:
    one = place("builtin", "builtin")
    path = kept.measure(one, tmp_path, NEAR)
    assert kept.size_of(read(path), "near") == 16
    with pytest.raises(StoreError, match="no spectra"):
        kept.size_of(read(path), "spectra")


@pytest.mark.parametrize(
    ("spec", "windows"),
    [
        ("builtin", (16, 16, 16)),
        ("minilm", (16, 16, 16)),
        ("random:roberta-base", (8, 4, 4)),
        ("random:roberta-large", (4, 2, 2)),
    ],
)
def test_defaults_go_by_the_number_of_heads(spec: str, windows: tuple[int, ...]) -> None:
    (one,) = places([spec], ["builtin"], Amounts())
    settings = one.settings
    assert (settings.windows, settings.error_windows, settings.loss_windows) == windows
    (one,) = places([spec], ["builtin"], Amounts(windows=3, loss_windows=5))
    assert (one.settings.windows, one.settings.loss_windows) == (3, 5)
    assert one.settings.error_windows == windows[1]


def test_the_committed_page_was_made_with_the_defaults() -> None:
    """The data are those that the command without amounts asks for, part by part."""
    paths = sorted((claims.FIGURES / "data").glob("claims--*.nc"))
    assert len(paths) == 11
    for path in paths:
        one = read(path)
        assert path.name == kept.data_file(one.attrs["model"], one.attrs["corpus"])
        heads = one.sizes["layer"] * one.sizes["head"]
        usual = 16 if heads <= 100 else 8 if heads <= 200 else 4
        replaced = usual // 2 if one.attrs["model"].startswith("random:") else usual
        for part, most in (("spectra", usual), ("near", usual), ("errors", replaced),
                           ("losses", replaced)):  # fmt: skip
            settings = kept.part_settings(one, part)
            assert settings is not None
            assert settings["windows"] == one.sizes[f"{part}_window"] == most, path.name
            assert settings["part_version"] == measures.PARTS[part].version
            assert len(settings["weights_sha256"]) == 64
            assert f"--windows {usual} " in settings["command"]


def test_the_committed_numbers_are_those_of_the_built_in_weights() -> None:
    one = place("builtin", "builtin", length=512, windows=16)
    path = claims.FIGURES / "data" / kept.data_file("builtin", "builtin")
    for part in measures.PARTS:
        there = kept.part_settings(read(path), part)
        assert there is not None
        assert kept.differences(there, kept.described(one, part)) == []
    # and what they say is what comes out: one window of the part that takes least
    again = measures.PARTS["near"].find(place("builtin", "builtin", length=512, windows=1))
    mass = read(path)["near_mass"].isel(near_window=[0])
    assert np.allclose(again["near_mass"], mass.transpose(*again["near_mass"].dims), atol=1e-4)
