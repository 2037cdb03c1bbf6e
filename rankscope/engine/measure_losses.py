"""The model with its attention replaced: loss and agreement of every method on every window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.approximations import Approximation, method
from rankscope.engine.frame import Frame
from rankscope.engine.machine import hidden_states
from rankscope.engine.measure_methods import checked_methods, method_labels, with_whole_paths
from rankscope.engine.plan import Plan, WindowResult
from rankscope.engine.recipe import Sampling
from rankscope.exceptions import UsageError
from rankscope.intervene import Intervention, check_measurable, measure
from rankscope.linalg import Workers
from rankscope.store.schema import WINDOW, Variables

if TYPE_CHECKING:
    from rankscope.models import LoadedModel
    from rankscope.text import Corpus, Window

BY_METHOD = (*WINDOW, "method")

LOSSES: Variables = {
    "loss": (BY_METHOD, "float64", "loss in nats a predicted token"),
    "kl": (BY_METHOD, "float64", "KL divergence of the predictions from full attention's, in nats"),
    "top1_agreement": (BY_METHOD, "float64", "share of equal likeliest predictions"),
    "hidden_error": (BY_METHOD, "float64", "relative Frobenius error of the final hidden states"),
    "hidden_cosine": (BY_METHOD, "float64", "mean cosine of the final hidden states"),
    "masked_tokens": (WINDOW, "int64", "tokens that were predicted"),
    "n_tokens": (WINDOW, "int32", "tokens of the window"),
    "status": (WINDOW, "int8", "what became of the window under full attention"),
    "method_status": (BY_METHOD, "int8", "what became of the window under the method"),
}
"""Variables of a run of interventions."""

PSEUDO: Variables = {
    "pseudo_perplexity": (BY_METHOD, "float64", "exp of the mean loss of tokens hidden one by one")
}
"""What such a run has beside them when it was asked for."""

Heads = tuple[int, ...] | tuple[tuple[int, int], ...]


class InterventionPlan(Plan):
    """Loss of a model under several methods, full attention first.

    Parameters
    ----------
    model : LoadedModel
        With its head for losses, without for hidden states.
    corpus : Corpus
    sampling : Sampling
        Its layers are those whose attention is replaced.
    methods : sequence of Approximation
    heads : tuple of int, or of (layer, head), optional
        Heads whose attention is replaced; all when not given.
    mask_seed : int
        Of the hidden tokens.
    fraction : float
        Share of the tokens that are hidden, in (0, 1].
    pseudo : int
        Also hide every so many-th token by itself; 0 for none.
    """

    def __init__(
        self,
        model: LoadedModel,
        corpus: Corpus,
        sampling: Sampling,
        methods: Sequence[Approximation],
        *,
        heads: Heads | None = None,
        mask_seed: int = 0,
        fraction: float = 0.15,
        pseudo: int = 0,
    ) -> None:
        if sampling.special != "keep":
            raise UsageError(
                "the model itself always sees its special tokens", "use special=keep here"
            )
        self.frame = Frame.of(model, corpus, sampling)
        check_measurable(
            model, self.frame.group, methods, seed=mask_seed, fraction=fraction, pseudo=pseudo
        )
        self.mask_seed, self.fraction, self.pseudo = mask_seed, fraction, pseudo
        if sampling.layers is not None and heads is not None and isinstance(heads[0], tuple):
            raise UsageError(
                "heads by layer name their layers themselves", "leave out --layers, or the layers"
            )
        layers = None if sampling.layers is None else self.frame.layers
        wanted = dict.fromkeys(one for one in methods if one.name != "full")
        self.interventions = [Intervention(one, layers, heads) for one in wanted]
        for one in self.interventions:
            places = one.places(self.frame.n_layers, self.frame.n_heads)
            checked_methods([one.method], replace(self.frame.shape, layers=tuple(places)))
        chosen = list(wanted)
        names = [method("full"), *chosen]
        settings = {
            "methods": [one.settings() for one in self.interventions],
            "head": model.head,
            "mask_seed": mask_seed,
            "fraction": fraction,
            "pseudo": pseudo,
        }
        self.schema = self.frame.schema(
            "losses of a model with its attention replaced",
            {**LOSSES, **PSEUDO} if pseudo else LOSSES,
            {"method": np.array([str(one) for one in names])},
            labels=method_labels(names),
            settings={"intervention": settings},
            by_head=False,
        )

    def trial(self, model: LoadedModel) -> None:
        self.frame.try_methods(model, [one.method for one in self.interventions])

    def estimate(self, model: LoadedModel, threads: int) -> int:
        n, config = self.frame.length, model.model.config.get_text_config()
        logits = 3 * 4 * n * int(config.vocab_size) if model.head else 0
        # P of all heads and, for one head, its decomposition in float64
        matrices = (self.frame.n_heads * 4 + 10 * 8) * n * n
        return matrices + logits + hidden_states(model, n)

    def holding(self, windows: Mapping[int, Window]) -> InterventionPlan:
        part = super().holding(windows)
        assert isinstance(part, InterventionPlan)
        part.interventions = [
            replace(one, method=with_whole_paths(one.method)) for one in self.interventions
        ]
        return part

    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for sample in todo:
            found = measure(
                model,
                self.frame.windows[sample],
                self.interventions,
                seed=self.mask_seed,
                fraction=self.fraction,
                pseudo=self.pseudo,
                group=self.frame.group,  # type: ignore[arg-type]
                # the same tokens are hidden in a window whatever else a run takes
                numbers=[self.frame.sampling.skip + sample],
            )
            result = WindowResult(self, sample)
            for name in self.schema.variables:
                if hasattr(found, name) and name != "status":
                    result.fields[name] = getattr(found, name)[0]
            result.fields["status"] = found.status[0, 0]
            result.fields["method_status"] = found.status[0]
            yield sample, result.fields


def parsed_heads(text: str) -> Heads:
    """Heads from their text: ``0,3`` in every layer, or ``1.0,2.11`` by layer and head.

    Raises
    ------
    UsageError
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        if any("." in part for part in parts):
            pairs = [tuple(map(int, part.split("."))) for part in parts]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError
            return tuple((pair[0], pair[1]) for pair in pairs)
        return tuple(int(part) for part in parts)
    except ValueError as error:
        raise UsageError(
            f"--heads {text!r} is no list of heads", "for example 0,3 or, by layer, 1.0,2.11"
        ) from error
