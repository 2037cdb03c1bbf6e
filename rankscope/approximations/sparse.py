"""Sparse attention: the softmax of each row over a few of its entries, the others never computed.

Here are the band, the dilated band, and :class:`Top`, the bound of the family; global tokens are in
``longformer.py``, random keys and blocks in ``bigbird.py``. All are masked softmaxes. Those whose
entries are chosen by position are computed in strips of dense blocks
(:mod:`rankscope.approximations.strips`), with the model's own mask and position terms added.

A budget is the number of score entries a query, on average and beside its own:

=============== ============ =====================================================================
method          budget       what it is spent on
=============== ============ =====================================================================
band, dilated   ``w``        w/2 neighbours each side
longformer      ``w``        the same; g global tokens come on top, with 2g entries a query
global          ``entries``  entries/2 tokens: each query sees them, and each of them sees all
random          ``r``        r random keys
random-band     ``entries``  half a band (rounded down to an even width), the rest random keys
bigbird         ``entries``  3 window blocks, r random blocks, and 2 global blocks counted twice
                             like global tokens: blocks of ⌊entries / (7 + r)⌋ tokens
top             ``w``        w entries, its own only if it is among the largest
=============== ============ =====================================================================

At the ends of the text, and where two parts of a pattern meet, there are fewer. With a causal or
local mask, the entries that it hides are not replaced by others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import scipy.sparse
import torch

from rankscope.approximations import patterns
from rankscope.approximations.base import Approximation, Cost, Shape, check_budget
from rankscope.approximations.strips import Pattern
from rankscope.attention import Attention
from rankscope.exceptions import MethodError, UsageError

PerLayer = int | tuple[int, ...]


@dataclass(frozen=True)
class Sparse(Approximation):
    """A masked softmax: what all methods with a pattern have in common."""

    causal: ClassVar[bool] = True

    @abstractmethod
    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        """The pattern of one head as strips; `tokens` are the (n,) ids, where they matter."""

    def pattern(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> scipy.sparse.csr_array:
        """The pattern of one head as a graph's adjacency matrix.

        Parameters
        ----------
        n : int
            Tokens.
        head, layer : int
        tokens : (n,) int64, optional
            Token ids, for methods that choose global tokens by them.

        Returns
        -------
        (n, n) csr_array of bool
            True where a query (row) may score a key (column); the diagonal always is.

        Raises
        ------
        UsageError
            If the pattern depends on token ids that were not given.
        MethodError
            If the method has no parameters for the layer.
        """
        if n < 1:
            raise UsageError(f"no pattern has {n} tokens", "use 1 or more")
        return self.layout(n, head, layer, tokens).sparse()

    def matrix(self, attention: Attention) -> torch.Tensor:
        n = check_square(self.name, attention)
        whole = attention.reduced()
        bias = whole.query.new_full((*whole.query.shape[:2], n, n), -torch.inf)
        for rows, heads, layout in self._layouts(whole):
            bias[rows, heads].masked_fill_(layout.mask().to(bias.device), 0.0)
        if whole.bias is not None:
            bias += whole.bias
        return replace(whole, bias=bias).weights

    def apply(self, attention: Attention) -> torch.Tensor:
        check_square(self.name, attention)
        whole = attention.reduced()
        output = torch.empty_like(whole.values)
        for rows, heads, layout in self._layouts(whole):
            part = whole.heads(heads)
            bias = part.bias
            if bias is not None and bias.ndim == 4 and len(bias) > 1:
                bias = bias[rows]
            output[rows, heads] = layout.attend(
                part.query[rows], part.key[rows], part.values[rows], part.scale, bias
            )
        return output

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost in strips, blocks filled up and all; the mean over layers and heads that differ."""
        found = [layout.cost(d, d_v) for layout in self._typical(n)]
        mean = -(-sum(one.multiply_adds for one in found) // len(found))
        return Cost(mean, max(one.bytes for one in found))

    def _kind(self, head: int) -> Hashable:
        """Heads with the same have the same pattern."""
        return None

    @property
    def _by_tokens(self) -> bool:
        return False

    def _typical(self, n: int) -> Iterator[Pattern]:
        yield self.layout(n)

    def _layouts(self, whole: Attention) -> Iterator[tuple[slice, slice, Pattern]]:
        """Rows of the batch, heads, and their pattern; each pattern is made once."""
        batch, n = whole.query.shape[0], whole.query.shape[2]
        every = [slice(row, row + 1) for row in range(batch)] if self._by_tokens else [slice(None)]
        for rows in every:
            made: dict[Hashable, Pattern] = {}
            for heads in self._alike(whole.n_heads):
                kind = self._kind(heads.start)
                if kind not in made:
                    made[kind] = self.layout(
                        n, heads.start, whole.layer, whole.tokens[rows][0].cpu()
                    )
                yield rows, heads, made[kind]

    def _alike(self, heads: int) -> Iterator[slice]:
        """Runs of heads with the same pattern."""
        start = 0
        for head in range(1, heads + 1):
            if head == heads or self._kind(head) != self._kind(start):
                yield slice(start, head)
                start = head


@dataclass(frozen=True)
class Band(Sparse):
    """Longformer's sliding window: the w/2 nearest tokens on each side, and the token itself.

    Attributes
    ----------
    w : int or tuple of int
        Even; a tuple has one width for each layer, such as `patterns.schedule` gives.

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
    """

    w: PerLayer

    name: ClassVar[str] = "band"
    budget: ClassVar[str | None] = "w"

    def __post_init__(self) -> None:
        check_several(self.name, "w", self.w)
        for w in each(self.w):
            check_budget(self.name, "w", w)
            if w % 2:
                raise UsageError(
                    f"{self.name} with w={w} cannot have w/2 neighbours on each side",
                    "use an even w",
                )

    def check(self, shape: Shape) -> None:
        for layer in shape.layers:
            self.width(layer)

    def at_budget(self, budget: int) -> Self:
        if isinstance(self.w, tuple):
            raise UsageError(
                f"{self.name} with a w for each layer has no single budget", "give one w"
            )
        # an odd one is refused as it is for w itself
        return super().at_budget(budget)

    def width(self, layer: int) -> int:
        """w of a layer.

        Raises
        ------
        MethodError
            If there are not as many widths.
        """
        if isinstance(self.w, int):
            return self.w
        if layer >= len(self.w):
            raise MethodError(
                f"{self} has widths for {len(self.w)} layers, and none for layer {layer}",
                "give one width for each layer of the model",
            )
        return self.w[layer]

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        return Pattern(n, (patterns.band(n, self.width(layer)),))

    def _typical(self, n: int) -> Iterator[Pattern]:
        for layer in range(len(each(self.w))):
            yield self.layout(n, layer=layer)


@dataclass(frozen=True)
class Dilated(Band):
    """A band with gaps: w/2 tokens on each side at distances of 1, 2, … times the dilation.

    Attributes
    ----------
    w : int or tuple of int
        Even; a tuple has one for each layer.
    dilation : int or tuple of int
        A tuple is gone through by the heads, again and again: with 1/2, every other head has 2.

    References
    ----------
    Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
    """

    dilation: int | tuple[int, ...] = 2

    name: ClassVar[str] = "dilated"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_several(self.name, "dilation", self.dilation)
        for dilation in each(self.dilation):
            check_budget(self.name, "dilation", dilation)

    def check(self, shape: Shape) -> None:
        super().check(shape)
        if len(each(self.dilation)) > shape.n_heads:
            raise MethodError(
                f"{self} has dilations for {len(each(self.dilation))} heads, "
                f"{shape.model} has {shape.n_heads}",
                "give no more dilations than heads",
            )

    def layout(
        self, n: int, head: int = 0, layer: int = 0, tokens: torch.Tensor | None = None
    ) -> Pattern:
        return Pattern(n, (patterns.band(n, self.width(layer), self._kind(head)),))

    def _kind(self, head: int) -> int:
        dilations = each(self.dilation)
        return dilations[head % len(dilations)]

    def _typical(self, n: int) -> Iterator[Pattern]:
        for layer in range(len(each(self.w))):
            for head in range(len(each(self.dilation))):
                yield self.layout(n, head, layer)


@dataclass(frozen=True)
class Top(Approximation):
    """The w largest entries of every row of P, divided by their sum: the bound of the family.

    No other masked softmax with w entries a row is closer to P in total variation, which is
    1 - Σ of the entries kept. It is a bound and not a method to run: it needs P first.

    Attributes
    ----------
    w : int
        Entries of a row; its own counts like any other.
    """

    w: int

    name: ClassVar[str] = "top"
    budget: ClassVar[str | None] = "w"
    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_budget(self.name, "w", self.w)

    def matrix(self, attention: Attention) -> torch.Tensor:
        weights = attention.reduced().weights
        kept, columns = self._kept(weights)
        return torch.zeros_like(weights).scatter_(-1, columns, kept)

    def apply(self, attention: Attention) -> torch.Tensor:
        whole = attention.reduced()
        heads = []
        for head in range(whole.n_heads):
            one = whole.heads(slice(head, head + 1))
            kept, columns = self._kept(one.weights)
            batch, _, n, w = columns.shape
            value = one.values
            # the batch one below the other: row b of it begins at b·m
            start = value.shape[2] * torch.arange(batch, device=value.device)
            heads.append(
                torch.nn.functional.embedding_bag(
                    (columns + start[:, None, None, None]).view(-1, w),
                    value.flatten(0, 2),
                    mode="sum",
                    per_sample_weights=kept.view(-1, w),
                ).view(batch, 1, n, -1)
            )
        return torch.cat(heads, dim=1)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of applying the entries; finding them costs full attention and a selection."""
        return Cost(n * min(self.w, m) * d_v, 8 * n * min(self.w, m))

    def _kept(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, columns = weights.topk(min(self.w, weights.shape[-1]), dim=-1)
        return kept / kept.sum(dim=-1, keepdim=True), columns


def each(given: PerLayer) -> tuple[int, ...]:
    """The values of a parameter that is one number or several."""
    return given if isinstance(given, tuple) else (given,)


def check_several(name: str, what: str, given: PerLayer | None) -> None:
    """Refuse several values that are only one: the text of a method could not tell them apart.

    Raises
    ------
    UsageError
    """
    if isinstance(given, tuple) and len(given) < 2:
        raise UsageError(f"{name} with {what}={given} has no several values", "give the number")


def check_square(name: str, attention: Attention) -> int:
    """Refuse cross-attention, whose queries and keys share no positions.

    Returns
    -------
    int
        n, the number of tokens.

    Raises
    ------
    MethodError
    """
    n, m = attention.shape
    if n != m or attention.group == "cross":
        raise MethodError(
            f"{name} places its entries by position, and {n} queries and {m} keys of "
            "cross-attention share none",
            "choose a method that needs no positions",
        )
    return n
