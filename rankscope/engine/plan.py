"""A run as the engine sees it, and the results of one window while they come in layer by layer."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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
    from rankscope.summary.precision import Precision
    from rankscope.text import Window


Filing = Callable[[], None]


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

    @property
    def n_samples(self) -> int:
        """Windows of the run."""
        return self.schema.n_samples

    @abstractmethod
    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Fields of every window of `todo`, as they are done.

        Where windows come in blocks, `todo` is one block, so that the same windows share a forward
        pass whoever computes them.
        """

    def holding(self, windows: Mapping[int, Window]) -> Plan:
        """The same run with these windows only, by sample: what travels to a worker.

        Files that methods name are named in full, since a worker may stand in another folder.
        """
        part = copy.copy(self)
        part.frame = self.frame.holding(windows)
        nothing = np.zeros(1, dtype=np.int64)
        part.schema = replace(
            self.schema, text_id=nothing, window=nothing, token_start=nothing, token_end=nothing
        )
        return part

    def rule(self) -> Precision | None:
        """When the run has enough windows; None if it takes all that there are."""
        return None

    def trial(self, model: LoadedModel) -> None:  # noqa: B027 most have nothing to try
        """Refuse, before anything is stored, what only real attention can tell.

        Raises
        ------
        MethodError
        """

    @abstractmethod
    def estimate(self, model: LoadedModel, threads: int) -> int:
        """Bytes that the run needs beside the loaded model; an estimate."""


class LayerPlan(Plan):
    """A run that measures the captured attention of one layer after the other."""

    values = False
    """Whether it needs the value vectors."""

    batched = False
    """Whether `add` takes several windows of one length at once."""

    @abstractmethod
    def add(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> Filing | None:
        """Measure one layer and file it under its place; one result for each row of the batch.

        Returns
        -------
        callable or None
            What waits for a device and files the layer when it is done; None when it is filed.
        """

    def compute(
        self, model: LoadedModel, todo: Sequence[int], pool: Workers
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for sample in todo:
            if self.frame.sizes[sample] == 0:
                yield sample, WindowResult(self, sample).fields
        batch_size = self.schema.block if self.batched else 1
        # neighbours of one length share a forward pass
        order = sorted(todo, key=self.frame.sizes.__getitem__) if batch_size > 1 else todo
        open_results: dict[int, WindowResult] = {}
        under_way: deque[tuple[list[WindowResult], int, Filing | None]] = deque()
        # a worker of one thread keeps to one core, so that as many as there are cores fit in
        overlap = pool.count > 1 or model.model.device.type != "cpu"
        stream = self.frame.attentions(
            model, order, values=self.values, batch_size=batch_size, overlap=overlap
        )
        for samples, attention in stream:
            for sample in samples:
                if sample not in open_results:
                    open_results[sample] = WindowResult(self, sample)
            results = [open_results[sample] for sample in samples]
            # one layer at work; the forward pass prepares the next meanwhile
            filing = self.add(results, self.frame.layers.index(attention.layer), attention, pool)
            layer = attention.layer
            del attention
            # a device works on this layer while what was found of the one before is filed
            under_way.append((results, layer, filing))
            while len(under_way) > (filing is not None):
                yield from self._filed(*under_way.popleft(), open_results)
        while under_way:
            yield from self._filed(*under_way.popleft(), open_results)

    def _filed(
        self,
        results: Sequence[WindowResult],
        layer: int,
        filing: Filing | None,
        open_results: dict[int, WindowResult],
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """File a layer, and hand out the windows that are complete with it."""
        if filing is not None:
            filing()
        for result in results:
            result.left.discard(layer)
            if not result.left:
                yield result.sample, open_results.pop(result.sample).fields


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
