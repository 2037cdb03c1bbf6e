"""Names for legends, tables and files: of methods, models, texts, and of controls beside models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from rankscope.exceptions import UsageError

_FILES = (".json", ".safetensors")
_CONTROL = re.compile(r"(random|rows|gaussian|tokens|padded-\d+|mean-\d+):(.+)", re.DOTALL)
_MEAN = re.compile(r"mean-([1-9]\d*)")


def control_of(name: str) -> tuple[str, str]:
    """The control that a model's name begins with, and the model itself.

    Parameters
    ----------
    name : str
        Name of a model in a run, such as ``minilm`` or ``rows:minilm``.

    Returns
    -------
    control, model : str
        The control is empty for a model as it was measured.

    Examples
    --------
    >>> control_of("rows:minilm"), control_of("random:org/base"), control_of("minilm")
    (('rows', 'minilm'), ('random', 'org/base'), ('', 'minilm'))
    >>> control_of("mean-8:random:org/base")
    ('mean-8', 'random:org/base')
    """
    found = _CONTROL.fullmatch(name)
    return (found[1], found[2]) if found else ("", name)


def group_size(control: str) -> int | None:
    """M of the control ``mean-M``, whose samples are groups of M windows.

    Parameters
    ----------
    control : str
        Name of a control, as :func:`control_of` gives it; may be empty.

    Returns
    -------
    int or None
        1 or more; None for a control whose samples are windows.

    Examples
    --------
    >>> group_size("mean-8"), group_size("rows"), group_size("")
    (8, None, None)
    """
    found = _MEAN.fullmatch(control)
    return int(found[1]) if found else None


def check_name(name: str, what: str) -> None:
    """Refuse a name that no result could carry, before anything is computed under it.

    Parameters
    ----------
    name : str
        As the command line or a folder gave it; what was not UTF-8 there is a lone surrogate here.
    what : str
        What it names, for the message.

    Raises
    ------
    UsageError
        If it cannot be written as UTF-8.

    Examples
    --------
    >>> check_name("b\\udcff.txt", "text")
    Traceback (most recent call last):
    ...
    rankscope.exceptions.UsageError: the name of the text, 'b\\udcff.txt', is not UTF-8 (rename \
it: results carry the name)
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the name of the {what}, {name!a}, is not UTF-8", "rename it: results carry the name"
        ) from error


def file_name(name: str) -> str:
    """A name as part of a file's name: no folder, nothing that a shell or a file system minds.

    Parameters
    ----------
    name : str
        Of a model, a text or a control.

    Returns
    -------
    str
        Letters and digits of any script, ``.``, ``_``, ``-``; ``/``, ``:`` and blanks become
        ``-``. Where anything else had to go, or the name is longer than 100 bytes, six hex
        digits of its SHA-256 follow, so that different names stay different.

    Examples
    --------
    >>> file_name("random:org/base"), file_name("текст"), file_name("a*b"), file_name("a?b")
    ('random-org-base', 'текст', 'a-b-15eb0a', 'a-b-c2a7b6')
    """
    plain = re.sub(r"[/:\s]+", "-", name)
    kept = re.sub(r"[^\w.-]+", "-", plain).encode()[:100].decode(errors="ignore").strip("-.")
    if kept and kept == plain:
        return kept
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{kept}-{digest}" if kept else digest


def short_labels(labels: Iterable[str], names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Labels for a legend: without the files that a method reads, if that stays unambiguous.

    Examples
    --------
    >>> short_labels(["linformer:projection=learned,file=out/e.safetensors", "truncated"])
    {'linformer:projection=learned,file=out/e.safetensors': 'linformer:projection=learned', \
'truncated': 'truncated'}
    >>> list(short_labels(["truncated:ranks=a/x.json", "truncated:ranks=b/y.json"]).values())
    ['truncated:ranks=x.json', 'truncated:ranks=y.json']
    """
    names = names or {}
    every = list(dict.fromkeys(labels))
    bare = [_without_files(label) for label in every]
    tails = [_file_tails(label) for label in every]
    shown = next((short for short in (bare, tails) if len(set(short)) == len(short)), every)
    # a name that was given early is a label by now, and stays as it is
    given = {**names, **{name: name for name in names.values()}}
    return {label: given.get(label, short) for label, short in zip(every, shown, strict=True)}


def _settings(label: str) -> tuple[str, list[str]]:
    name, _, rest = label.partition(":")
    return name, rest.split(",") if rest else []


def _without_files(label: str) -> str:
    name, settings = _settings(label)
    kept = [one for one in settings if not one.endswith(_FILES)]
    return f"{name}:{','.join(kept)}" if kept else name


def _file_tails(label: str) -> str:
    name, settings = _settings(label)
    parts = [one.partition("=") for one in settings]
    tails = [f"{key}={value.rsplit('/', 1)[-1]}" for key, _, value in parts]
    return f"{name}:{','.join(tails)}" if tails else name
