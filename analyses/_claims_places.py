"""Which model on which text, and how much of it: what the measurements of the claims start from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from rankscope import engine
from rankscope.engine.frame import Frame
from rankscope.exceptions import UsageError
from rankscope.models import LoadedModel, ModelInfo, check, check_length, load
from rankscope.store.schema import canonical_json
from rankscope.text import Corpus, Window, load_corpus

DRAWN = "random:"
"""What the name of a model with fresh weights begins with."""

WINDOWS = ((100, 16), (200, 8))
"""Windows by default, up to so many heads; beyond these, :data:`FEWEST`."""

FEWEST = 4


@dataclass(frozen=True)
class Settings:
    """How much is measured; what a part depends on is kept with it.

    Attributes
    ----------
    length : int
        n, tokens of a window.
    windows : int
        For spectra and for attention mass.
    error_windows, loss_windows : int
    """

    length: int = 512
    windows: int = 16
    error_windows: int = 16
    loss_windows: int = 16

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise UsageError(f"{name} of {value} measure nothing", "use 1 or more")
        if self.length < 16:
            raise UsageError(f"n = {self.length} is too short for shares of n", "use 16 or more")

    @property
    def lengths(self) -> tuple[int, ...]:
        """n/8, n/4, n/2 and n."""
        return tuple(self.length // part for part in (8, 4, 2, 1))


@dataclass(frozen=True)
class Amounts:
    """What a user asks for; what is None goes by the number of the model's heads.

    Attributes
    ----------
    length : int
    windows, error_windows, loss_windows : int or None
    """

    length: int = 512
    windows: int | None = None
    error_windows: int | None = None
    loss_windows: int | None = None

    def of(self, model: ModelInfo) -> Settings:
        """Settings for a model.

        The time that a window takes goes with the number of heads. Where the weights were drawn,
        output errors and losses are those of half as many windows.
        """
        heads = model.n_layers * model.n_heads
        usual = next((count for most, count in WINDOWS if heads <= most), FEWEST)
        replaced = usual // 2 if model.spec.startswith(DRAWN) else usual
        return Settings(
            self.length,
            *(
                fallback if wanted is None else wanted
                for wanted, fallback in (
                    (self.windows, usual),
                    (self.error_windows, replaced),
                    (self.loss_windows, replaced),
                )
            ),
        )


@dataclass(frozen=True)
class Place:
    """A model on a text; the model is loaded when it is asked for, and once.

    Attributes
    ----------
    spec : str
    corpus : Corpus
    settings : Settings
    """

    spec: str
    corpus: Corpus
    settings: Settings

    @property
    def drawn(self) -> bool:
        """Whether the weights are fresh ones."""
        return self.spec.startswith(DRAWN)

    @cached_property
    def model(self) -> LoadedModel:
        """The model without a head."""
        return load(self.spec)

    @cached_property
    def with_head(self) -> LoadedModel:
        """The model with its head; one that is drawn at random has no loss worth anything."""
        return self.model if self.drawn else load(self.spec, head=True)

    @cached_property
    def control(self) -> LoadedModel:
        """The same architecture with fresh weights."""
        return load(f"{DRAWN}{self.spec}")

    @cached_property
    def weights(self) -> str:
        """Checksum of the weights, or of what they are drawn by."""
        return checksum(self.model)

    @cached_property
    def name(self) -> str:
        """Name of the model, without folders.

        A folder's own name says little, and the next training run writes to the same one: the
        first digits of its weights' checksum follow.
        """
        bare = self.spec.removeprefix(DRAWN)
        if self.model.info.source == "folder" or (self.drawn and Path(bare).is_dir()):
            return f"{self.plain_name}-{self.weights[:6]}"
        return self.plain_name

    @property
    def plain_name(self) -> str:
        """The same without digits, as one types it."""
        return plain(self.spec)

    def windows(self, count: int) -> list[Window]:
        """The first windows of the text, those that every part begins with."""
        sampling = engine.Sampling(length=self.settings.length, windows=count)
        return list(Frame.of(self.model, self.corpus, sampling).windows.values())

    @property
    def command(self) -> str:
        """What measures it, without this machine's paths."""
        one = self.settings
        file = Path(self.corpus.source)
        text = file.name if file.exists() else self.corpus.name
        return (
            f"python -m analyses claims --model {self.plain_name} --corpus {text}"
            f"{f' --length {one.length}' if one.length != Settings.length else ''}"
            f" --windows {one.windows} --error-windows {one.error_windows}"
            f" --loss-windows {one.loss_windows}"
        )


def places(specs: Sequence[str], corpora: Sequence[str], amounts: Amounts) -> Iterator[Place]:
    """Every model on every text; an unknown one is refused before anything is measured."""
    texts = [load_corpus(corpus) for corpus in corpora]
    known = [check(spec) for spec in specs]
    for model in known:
        check_length(model, amounts.length)
    for spec, model in zip(specs, known, strict=True):
        for text in texts:
            yield Place(spec, text, amounts.of(model))


def plain(spec: str) -> str:
    """Name of a model without folders.

    Examples
    --------
    >>> plain("random:roberta-base"), plain("org/name")
    ('random:roberta-base', 'org/name')
    """
    drawn, bare = (DRAWN, spec[len(DRAWN) :]) if spec.startswith(DRAWN) else ("", spec)
    return drawn + (Path(bare).absolute().name if Path(bare).is_dir() else bare)


def checksum(model: LoadedModel) -> str:
    """SHA-256 of the weights' files; of drawn weights, of all that they are drawn by.

    The drawn numbers themselves differ in the last bit from machine to machine, as every number
    on the page does; seed, shapes and the width of the distribution do not.

    Returns
    -------
    str
        64 hex digits.
    """
    info = model.info
    if info.weights_sha256 is not None:
        return info.weights_sha256
    config = model.model.config
    drawn_by = {
        "identity": info.identity,
        "dtype": info.dtype,
        "heads": info.n_heads,
        "range": getattr(config, "initializer_range", None),
        "activation": str(getattr(config, "hidden_act", None)),
        "shapes": {name: list(one.shape) for name, one in model.model.named_parameters()},
    }
    return hashlib.sha256(canonical_json(drawn_by).encode()).hexdigest()


def tokens_checksum(windows: Sequence[Window]) -> str:
    """SHA-256 of the tokens that a model reads: it goes by text, tokenizer and cutting."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(f"{window.text_id} {window.n_tokens}\n".encode())
        digest.update(window.ids.astype("<i8").tobytes() + window.special.tobytes())
    return digest.hexdigest()
