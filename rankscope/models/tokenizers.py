"""From text to token ids: a model's own tokenizer, or a hash where no vocabulary can be had.

Both fulfil the protocol :class:`rankscope.text.Tokenizer`: ``encode`` gives the bare tokens of a
text of any length; the special tokens around a window are ``prefix`` and ``suffix``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.exceptions import (
    FileDamaged,
    ModelError,
    NotAModelFolder,
    TextError,
    UsageError,
)
from rankscope.models.architecture import POSITIONS_AFTER_PAD, quiet
from rankscope.models.hub import TOKENIZER_EXTRAS, VOCABULARIES, has_vocabulary
from rankscope.models.weights import refuse_pointer

# Runs of letters, runs of digits, and every other visible character by itself.
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")
# Texts to find the special tokens with; a tiny vocabulary may not know the first ones.
_PROBES = ("a", "the", "1", ".", "A")


@dataclass(frozen=True)
class HashTokenizer:
    """Tokens without a vocabulary: words, numbers and marks, numbered by a hash.

    A word w gets the id h(w) mod m counted over the m ids that are not special, with h the first
    8 bytes of BLAKE2b of w in UTF-8: the same on every machine and in every Python. With random
    embeddings only the *equality* of tokens matters, not which id a word has; two words share an
    id with a chance of about 1/m.

    Parameters
    ----------
    vocab_size : int
        Rows of the token embedding.
    prefix, suffix : tuple of int
        Special tokens before and after a window.
    pad_id : int or None
        Padding token.
    reserved : tuple of int
        All special ids; no word gets one of them.
    mask_id : int or None
        Token that hides another from a masked-LM head.

    Examples
    --------
    >>> tokens = HashTokenizer(50265, (0,), (2,), 1, (0, 1, 2, 3, 50264))
    >>> ids = tokens.encode("To be, or not to be")
    >>> len(ids), ids[1] == ids[6], ids[0] == ids[5]
    (7, True, False)
    >>> tokens.encode("be")
    [43219]
    """

    vocab_size: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    pad_id: int | None = None
    reserved: tuple[int, ...] = ()
    mask_id: int | None = None

    def __post_init__(self) -> None:
        if self.vocab_size <= len(set(self.reserved)):
            raise UsageError(
                f"a vocabulary of {self.vocab_size} leaves no room for words "
                f"beside {len(set(self.reserved))} special tokens"
            )

    @property
    def name(self) -> str:
        """Name that is recorded with every result."""
        return f"hash:{self.vocab_size}"

    @property
    def largest_id(self) -> int:
        """Largest id that can come out."""
        return self.vocab_size - 1

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens.

        Parameters
        ----------
        text : str
            Text of any length.

        Returns
        -------
        list of int
            In [0, vocab_size), none of them special.
        """
        known: dict[str, int] = {}
        ids = []
        for word in _WORD.findall(text):
            if word not in known:
                known[word] = self._number(word)
            ids.append(known[word])
        return ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Readable stand-ins of tokens: ``<0>`` for a special one, ``#123`` for a hashed word."""
        return [f"<{i}>" if i in self.reserved else f"#{i}" for i in ids]

    def _number(self, word: str) -> int:
        special = sorted(set(self.reserved))
        # A lone surrogate has no UTF-8 of its own, but must not stop a run with random weights.
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        number = int.from_bytes(digest, "little") % (self.vocab_size - len(special))
        for taken in special:
            number += number >= taken
        return number


def hash_tokenizer(config: Any) -> HashTokenizer:
    """The :class:`HashTokenizer` that fits a configuration.

    RoBERTa and its relatives get their ``<s>`` … ``</s>`` around every window; for the other
    families the configuration does not say what stands there, and nothing does.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration of the model.
    """
    text = config.get_text_config()
    bos, eos, pad = (
        value if isinstance(value := getattr(text, f"{kind}_token_id", None), int) else None
        for kind in ("bos", "eos", "pad")
    )
    special = {i for i in (bos, eos, pad) if i is not None and i < text.vocab_size}
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    mask = None
    if text.model_type in POSITIONS_AFTER_PAD and bos is not None and eos is not None:
        prefix, suffix = (bos,), (eos,)
        # RoBERTa's vocabulary: <s> <pad> </s> <unk> first, <mask> last.
        mask = text.vocab_size - 1
        special |= {3, mask}
    return HashTokenizer(text.vocab_size, prefix, suffix, pad, tuple(sorted(special)), mask)


@dataclass(frozen=True)
class VocabularyTokenizer:
    """A model's own tokenizer behind the interface that windows need.

    Truncation and padding that a ``tokenizer.json`` may ask for are switched off. A special
    token's literal in the text (``</s>``, ``[SEP]`` …) becomes that special token, as the
    tokenizer does by default; such a token counts as text, not as one that the window added.

    Parameters
    ----------
    name : str
        Name that is recorded: the model's or folder's.
    prefix, suffix : tuple of int
        Special tokens that the tokenizer puts before and after a single text; empty for GPT-2.
    pad_id : int or None
        Padding token, None where the tokenizer has none.
    largest_id : int
        Largest id of the vocabulary, added tokens included.
    mask_id : int or None
        Token that hides another from a masked-LM head, None where the tokenizer has none.
    """

    name: str
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int | None
    largest_id: int
    mask_id: int | None
    _tokenizer: Any = field(repr=False, compare=False)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text of any length: no special tokens added, nothing cut, no warning.

        Parameters
        ----------
        text : str
            Text of any length.

        Returns
        -------
        list of int

        Raises
        ------
        TextError
            If the text is no valid Unicode (a lone surrogate).
        """
        try:
            return _encode(self._tokenizer, text, special=False)
        except (TypeError, UnicodeError) as error:
            raise TextError(
                f"the tokenizer {self.name} cannot read the text: {error}",
                "the text holds characters that are no valid Unicode, such as a lone surrogate",
            ) from error

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary spells them, e.g. ``##ing`` or ``Ġthe``."""
        return list(self._tokenizer.convert_ids_to_tokens([int(i) for i in ids]))


def refuse_tokenizer_files(folder: Path) -> None:
    """Refuse a folder whose tokenizer files are absent, empty or pointers; reads only their start.

    Raises
    ------
    NotAModelFolder
        If there is no vocabulary.
    FileDamaged
        If a tokenizer file is empty or a git-lfs pointer text.
    """
    if not has_vocabulary(folder):
        raise NotAModelFolder(
            f"{folder} holds no tokenizer (looked for {', '.join(VOCABULARIES)})",
            "add the model's tokenizer files, or name another tokenizer "
            "(a folder, a model, or `hash`)",
        )
    for name in (*VOCABULARIES, *TOKENIZER_EXTRAS):
        file = folder / name
        if not file.is_file():
            continue
        refuse_pointer(file)
        if file.stat().st_size == 0:
            raise FileDamaged(f"{file} is empty (0 bytes)", "download the file again")


def load_tokenizer(folder: Path, name: str) -> VocabularyTokenizer:
    """Load the tokenizer of a model folder; no network, no code of the folder is run.

    Parameters
    ----------
    folder : pathlib.Path
        Folder with tokenizer files.
    name : str
        Name to record.

    Returns
    -------
    VocabularyTokenizer

    Raises
    ------
    NotAModelFolder, FileDamaged
        As :func:`refuse_tokenizer_files`.
    ModelError
        If the files cannot be understood, or the special tokens cannot be found.
    """
    refuse_tokenizer_files(folder)
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise ModelError(
            f"the tokenizer in {folder} cannot be loaded: {str(error).strip() or error!r}",
            "save it again with save_pretrained, or name another tokenizer",
        ) from error
    return wrap(tokenizer, name)


def wrap(tokenizer: Any, name: str) -> VocabularyTokenizer:
    """Wrap a transformers tokenizer.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        Any tokenizer of transformers; its truncation and padding are switched off.
    name : str
        Name to record.

    Returns
    -------
    VocabularyTokenizer
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    prefix, suffix = _around(tokenizer, name)
    pad, mask = tokenizer.pad_token_id, getattr(tokenizer, "mask_token_id", None)
    return VocabularyTokenizer(
        name=name,
        prefix=prefix,
        suffix=suffix,
        pad_id=None if pad is None else int(pad),
        largest_id=max(tokenizer.get_vocab().values()),
        mask_id=None if mask is None else int(mask),
        _tokenizer=tokenizer,
    )


def _encode(tokenizer: Any, text: str, special: bool) -> list[int]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # The wrapper around it would warn of long texts and switch truncation back on.
        return list(backend.encode(text, add_special_tokens=special).ids)
    return list(tokenizer.encode(text, add_special_tokens=special, verbose=False))


def _around(tokenizer: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens before and after a text, from one text encoded with and without them."""
    for probe in _PROBES:
        bare, whole = (_encode(tokenizer, probe, special) for special in (False, True))
        if not bare:
            continue
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    raise ModelError(
        f"the tokenizer {name} gives no tokens for {', '.join(map(repr, _PROBES))}, or changes "
        "them when it adds special tokens",
        "name another tokenizer",
    )


def check_fits(tokenizer: HashTokenizer | VocabularyTokenizer, vocab_size: int, model: str) -> None:
    """Refuse a tokenizer whose ids the model's embedding does not have.

    Raises
    ------
    UsageError
        Naming the largest id and the size of the vocabulary.
    """
    if tokenizer.largest_id >= vocab_size:
        raise UsageError(
            f"the tokenizer {tokenizer.name} has ids up to {tokenizer.largest_id}, "
            f"but {model} has only {vocab_size} token embeddings",
            "name the tokenizer that the model was made with",
        )
