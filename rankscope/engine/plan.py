"""A run as the engine sees it, and the results of one window while they come in layer by layer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankscope.attention import Attention
from rankscope.engine.frame import Frame
from rankscope.linalg import Workers
from rankscope.status import Status
from rankscope.store.schema import RunSchema

if TYPE_CHECKING:
    from rankscope.models import LoadedModel


class Plan(ABC):
    """Windows, layout and settings of a run, before anything is computed.

    Attributes
    ----------
    frame : Frame
    schema : RunSchema
    """

    frame: Frame
    schema: RunSchema

    @property
    def settings_hash(self) -> str:
        """Equal for runs that give the same result."""
        return str(self.schema.attrs["settings_hash"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the hash is made of."""
        settings: Mapping[str, Any] = json.loads(self.schema.attrs["recipe_json"])
        return settings

    @abstractmethod
    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Fields of every window of `todo`, as they are done."""

    def trial(self, model: LoadedModel) -> None:  # noqa: B027 most have nothing to try
        """Refuse, before anything is stored, what only real attention can tell.

        Raises
        ------
        MethodError
        """

    @abstractmethod
    def estimate(self, model: LoadedModel, workers: int) -> int:
        """Bytes that the run needs beside the loaded model; an estimate."""


class LayerPlan(Plan):
    """A run that measures the captured attention of one layer after the other."""

    values = False
    """Whether it needs the value vectors."""

    @abstractmethod
    def add(self, result: WindowResult, place: int, attention: Attention, pool: Workers) -> None:
        """Measure one layer and file it under its place."""

    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for sample in todo:
            if self.frame.sizes[sample] == 0:
                yield sample, WindowResult(self, sample).fields
        current: WindowResult | None = None
        for sample, attention in self.frame.attentions(model, todo, values=self.values):
            if current is None or current.sample != sample:
                current = WindowResult(self, sample)
            # one layer at work; the forward pass prepares the next meanwhile
            self.add(current, self.frame.layers.index(attention.layer), attention, pool)
            current.left.discard(attention.layer)
            del attention
            if not current.left:
                yield sample, current.fields


class WindowResult:
    """Everything that the store keeps of one window, filled layer by layer.

    Attributes
    ----------
    sample, size : int
        Which window, and its tokens that take part.
    fields : dict of str to array
        One for every variable: NaN, and the status ``empty``, until it is filled.
    left : set of int
        Layers that have not come yet.
    """

    def __init__(self, plan: Plan, sample: int) -> None:
        self.sample = sample
        self.size = int(plan.frame.sizes[sample])
        self.left = set(plan.frame.layers)
        axes = plan.schema.axes
        self.fields: dict[str, Any] = {}
        for name, (dims, dtype, _) in plan.schema.variables.items():
            shape = tuple(len(axes[dim]) for dim in dims[3:])
            filler = Status.empty if name == "status" else np.nan if dtype == "float64" else 0
            self.fields[name] = np.full(shape, filler, dtype=dtype)
        self.fields["n_tokens"] = np.int32(self.size)

    def file(self, place: int, found: Mapping[str, NDArray[Any]]) -> None:
        """Put one layer's arrays (head, …) in their place; shorter axes leave the rest as it is."""
        for name, values in found.items():
            target = self.fields[name][place]
            target[tuple(slice(0, size) for size in values.shape)] = values
