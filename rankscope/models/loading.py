"""From a configuration, with weights or without, to a transformers model in memory.

The only place where weights are read or drawn, and where the report of what did not match is
turned into a refusal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankscope.exceptions import IncompleteWeights, ModelError, UnsupportedModel, UsageError
from rankscope.models.architecture import quiet
from rankscope.models.loaded import Head
from rankscope.models.weights import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# What a base model may lack: these parts take no part in attention.
_HEADS = frozenset({"pooler", "pooling_layer", "lm_head", "classifier", "cls", "qa_outputs"})
_SHOWN = 6


@dataclass(frozen=True, eq=False)
class Reading:
    """A model with a checkpoint's weights, and the names that did not match.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Base model, or one with a head.
    missing : tuple of str
        Weights that the file lacks or has in another shape, and that were drawn instead.
    unexpected : tuple of str
        Weights of the file that the model does not know.
    head : {"masked-lm", "causal-lm"} or None
        The head that was asked for; None where it was not, or the file lacks some of its weights.
    headless : tuple of str
        Weights of that head that the file lacks or has in another shape.
    """

    model: PreTrainedModel
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    head: Head | None = None
    headless: tuple[str, ...] = ()


def torch_dtype(name: str) -> Any:
    """torch's dtype of a name such as ``float32``."""
    import torch

    return getattr(torch, name)


def parameter_dtype(model: PreTrainedModel) -> str:
    """Type of a model's parameters; several are joined with ``+``, the most frequent first."""
    counts = Counter(
        str(parameter.dtype).removeprefix("torch.")
        for parameter in model.parameters()
        if parameter.is_floating_point()
    )
    return "+".join(name for name, _ in counts.most_common())


def check_device(device: str) -> None:
    """Refuse a device that is not on this machine.

    Raises
    ------
    UsageError
        For anything but the CPU and the CUDA devices that torch finds.
    """
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"unknown device {device!r}", "use cpu or cuda") from error
    if parsed.type not in ("cpu", "cuda"):
        raise UsageError(f"the device {device!r} is not supported", "use cpu or cuda")
    if parsed.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                f"the device {device!r} is not there: torch finds no CUDA device",
                "use --device cpu, or install a torch that is built for CUDA",
            )
        if parsed.index is not None and parsed.index >= torch.cuda.device_count():
            raise UsageError(
                f"the device {device!r} is not there: torch finds {torch.cuda.device_count()}",
                "count from cuda:0",
            )


def head_of(config: PreTrainedConfig) -> Head | None:
    """The language-model head that transformers has for a family.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration.

    Returns
    -------
    {"masked-lm", "causal-lm"} or None
        None for encoder-decoders, whose heads predict something else, and for families without.

    Examples
    --------
    >>> from transformers import GPT2Config, RobertaConfig, T5Config
    >>> head_of(RobertaConfig()), head_of(GPT2Config()), head_of(T5Config())
    ('masked-lm', 'causal-lm', None)
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if getattr(config, "is_encoder_decoder", False):
        return None
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        return "masked-lm"
    return "causal-lm" if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else None


def no_head(where: str, family: str, lacking: tuple[str, ...] = ()) -> ModelError:
    """The refusal of a model without the head that was required.

    Parameters
    ----------
    where : str
        Model or file.
    family : str
        The configuration's ``model_type``.
    lacking : tuple of str
        Weights of the head that the file lacks; none where the family has no head.
    """
    if lacking:
        return IncompleteWeights(
            f"{where} has no language-model head: it lacks {_listed(list(lacking))}",
            "use a checkpoint that was saved with its head, or compare hidden states instead",
        )
    return UnsupportedModel(
        f"{where}: no language-model head is known for the family {family}",
        "use an encoder with a masked-LM head or a decoder, or compare hidden states instead",
    )


def draw(
    config: PreTrainedConfig,
    seed: int,
    *,
    dtype: str = "float32",
    name: str = "the model",
    head: Head | None = None,
) -> PreTrainedModel:
    """Build the architecture with fresh weights by transformers' own initialisation.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration.
    seed : int
        Same seed, same weights, bit for bit, on the same torch build and kind of processor.
        torch's own random state stays as it was.
    dtype : str
        Type of the parameters. They are drawn in float32 and then converted, so that a seed
        gives the same ones in every type.
    name : str
        Model's name, for messages.
    head : {"masked-lm", "causal-lm"}, optional
        Head to draw too; the base model's weights are the same as without.

    Returns
    -------
    transformers.PreTrainedModel
        On the CPU.

    Raises
    ------
    ModelError
        If transformers cannot build it.
    """
    import torch

    def build(kind: Head | None) -> PreTrainedModel:
        options = {} if kind else _without_pooling(config)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed the CUDA devices too and not put them back.
            torch.default_generator.manual_seed(seed)
            return _class(kind).from_config(config, dtype=torch.float32, **options)

    try:
        with quiet():
            model = build(None)
            if head is not None:
                base, model = model, build(head)
                # a pooling layer may be in one of them alone
                model.base_model.load_state_dict(base.state_dict(), strict=False)
    except Exception as error:
        raise _not_built(name, str(error).strip() or repr(error)) from error
    # Parameters only: rotary frequencies and the like stay in float32, as in a loaded model.
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch_dtype(dtype))
    model.config.dtype = torch_dtype(dtype)
    return model


def read(
    config: PreTrainedConfig,
    weights: Weights,
    *,
    dtype: str = "float32",
    seed: int = 0,
    allow_missing: bool = False,
    remedy: str = "",
    head: Head | None = None,
) -> Reading:
    """Build the architecture with the weights of a checkpoint, and read the loading report.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        Configuration.
    weights : Weights
        Verified weights.
    dtype : str
        Type of the weights as loaded, whatever type they are stored in.
    seed : int
        Seed of the weights that are missing, if ``allow_missing``.
    allow_missing : bool
        Whether to go on with weights that are missing or of another shape.
    remedy : str
        What to do if transformers cannot read the file.
    head : {"masked-lm", "causal-lm"}, optional
        Head to load with it. A file that lacks any of its weights gives the base model: they would
        stay random, and the predictions with them.

    Returns
    -------
    Reading
        Its model is on the CPU.

    Raises
    ------
    IncompleteWeights
        If any weight is missing that is not part of a pooler or head, or has another shape:
        it would stay random, and the attention with it.
    ModelError
        If transformers cannot read the file.
    """
    model, report = _from_file(config, weights, dtype, seed, remedy, head)
    headless: tuple[str, ...] = ()
    if head is not None:
        body = f"{model.base_model_prefix}."
        lacking = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
        headless = tuple(sorted(name for name in lacking if not name.startswith(body)))
        if headless:
            model, report = _from_file(config, weights, dtype, seed, remedy, None)
            head = None
    missing = sorted(report["missing_keys"])
    unexpected = sorted(report["unexpected_keys"])
    mismatched = {
        f"{name} (file {tuple(theirs)}, model {tuple(ours)})": name
        for name, theirs, ours in sorted(report["mismatched_keys"])
    }
    needed = [name for name in missing if not _HEADS & set(name.split("."))]
    if (needed or mismatched) and not allow_missing:
        total = len(model.state_dict())
        raise _incomplete(weights, needed, list(mismatched), unexpected, total)
    absent = tuple(sorted({*missing, *mismatched.values()}))
    return Reading(model, absent, tuple(unexpected), head, headless)


def _from_file(
    config: PreTrainedConfig,
    weights: Weights,
    dtype: str,
    seed: int,
    remedy: str,
    head: Head | None,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model with a checkpoint's weights, and transformers' report of what did not match."""
    import torch

    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model, report = _class(head).from_pretrained(
                weights.entry.parent,
                config=config,
                dtype=torch_dtype(dtype),
                output_loading_info=True,
                # Otherwise the first mismatch raises, without the names of the others.
                ignore_mismatched_sizes=True,
                local_files_only=True,
                use_safetensors=weights.kind == "safetensors",
                **({} if head else _without_pooling(config)),
            )
    except Exception as error:
        if fault := _fault_of(config):
            raise _not_built(str(weights.entry.parent), fault) from error
        raise ModelError(
            f"transformers cannot load {weights.entry} "
            f"({weights.entry.stat().st_size} bytes): {str(error).strip() or error!r}",
            remedy,
        ) from error
    return model, report


def _fault_of(config: PreTrainedConfig) -> str:
    """Why a configuration gives no model, whatever the weights; empty if it does."""
    import torch

    try:
        with quiet(), torch.device("meta"):
            _class(None).from_config(config)
    except Exception as error:
        return str(error).strip() or repr(error)
    return ""


def _not_built(name: str, fault: str) -> ModelError:
    return ModelError(
        f"transformers cannot build {name}: {fault}", "check the values in its config.json"
    )


def _class(head: Head | None) -> Any:
    """transformers' class that finds the class of a family."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    if head is None:
        return AutoModel
    return AutoModelForMaskedLM if head == "masked-lm" else AutoModelForCausalLM


def _without_pooling(config: PreTrainedConfig) -> dict[str, bool]:
    """Leave the pooling layer out where the family allows it: no attention depends on it."""
    import inspect

    from transformers import MODEL_MAPPING

    model_class = MODEL_MAPPING[type(config)]
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    accepts = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if accepts else {}


def _incomplete(
    weights: Weights, missing: list[str], mismatched: list[str], unexpected: list[str], total: int
) -> IncompleteWeights:
    """The refusal, with names and counts."""
    parts = []
    if missing:
        parts.append(f"lacks {len(missing)} of the model's {total} weights: {_listed(missing)}")
    if mismatched:
        parts.append(f"has {len(mismatched)} of another shape: {_listed(mismatched)}")
    if unexpected and missing:
        parts.append(f"has {len(unexpected)} that the model does not know: {_listed(unexpected)}")
    return IncompleteWeights(
        f"{weights.entry} {'; it '.join(parts)}",
        "these weights would stay random; use the checkpoint that belongs to the configuration, "
        "mend the names, or allow missing weights to go on all the same",
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
