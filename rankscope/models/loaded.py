"""What :func:`rankscope.models.load` gives: the model, and a record of what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from rankscope.models.checkpoints import Source

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rankscope.text import Tokenizer

Head = Literal["masked-lm", "causal-lm"]
"""What a language-model head predicts: hidden tokens, or the next one."""


@dataclass(frozen=True)
class ModelInfo:
    """What was loaded, in plain values that are stored with every result.

    Parameters
    ----------
    spec, name : str
        What the user typed, and the short name for tables; a folder's name without its path.
    family : str
        The configuration's ``model_type``.
    n_layers, n_heads : int
        Attention layers and query heads a layer; of the encoder where there are two stacks.
    n_decoder_layers, n_decoder_heads : int or None
        The decoder's, None where there is only one stack.
    max_tokens : int or None
        Longest window, special tokens included; None without a limit.
    stored_dtype, dtype : str or None, str
        Type of the weights in the file (None if drawn) and as loaded.
    device : str
        Device of the model.
    weights_sha256 : str or None
        Checksum of the weights files; None if drawn, or not read yet.
    seed : int or None
        Seed of weights that were drawn, all of them or those that were missing.
    revision : str or None
        Commit of the hub repository.
    missing, unexpected : tuple of str
        Weights that the file lacks, and those that the model does not know.
    tokenizer : str
        Name of the tokenizer.
    source : {"builtin", "folder", "hub", "extra", "random"}
        Where the weights come from.
    """

    spec: str
    name: str
    family: str
    n_layers: int
    n_heads: int
    n_decoder_layers: int | None
    n_decoder_heads: int | None
    max_tokens: int | None
    stored_dtype: str | None
    dtype: str
    device: str
    weights_sha256: str | None
    seed: int | None
    revision: str | None
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    tokenizer: str
    source: Source

    @property
    def identity(self) -> str:
        """Name, with the seed where the weights were drawn: what tells models without a file."""
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"

    def as_dict(self) -> dict[str, Any]:
        """The same as a dictionary that ``json.dumps`` takes."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, its tokenizer and its provenance.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Base model, without a pooling layer where the family allows it; inside a model with a head
        where there is one.
    tokenizer : rankscope.text.Tokenizer
        Tokenizer.
    info : ModelInfo
        What was loaded.
    head : {"masked-lm", "causal-lm"} or None
        Language-model head that predicts a hidden token or the next one; None without.
    arguments : mapping or None
        What :func:`rankscope.models.load` was given, folders named from the root, so that worker
        processes can load the same; None for a model that was put together otherwise.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    info: ModelInfo
    head: Head | None = None
    arguments: Mapping[str, Any] | None = None
