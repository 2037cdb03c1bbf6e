"""Theorem 1 of Linformer: P projected from the right by a fixed matrix of rank k."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from rankscope.approximations.base import (
    Approximation,
    Cost,
    Shape,
    check_budget,
    refuse_causal,
)
from rankscope.approximations.fitted import projections_for
from rankscope.approximations.projections import (
    CAUSAL,
    Sharing,
    check_causal,
    check_length,
    check_parameters,
    drawn,
)
from rankscope.attention import Attention


@dataclass(frozen=True)
class Projected(Approximation):
    """P·RᵀR, P projected to k dimensions by a matrix that knows nothing of it.

    It needs P first and costs more than full attention: no method to run, but a yardstick of fixed
    subspaces beside P_low, whose subspace is every P's own.

    With N(0, 1/k) entries RᵀR is the identity in the mean and E‖P(RᵀR − I)‖² = ‖P‖²(m + 1)/k, so
    that the relative error is near √((m + 1)/k): above 1 for every k that saves anything. That of
    the output has E‖P(RᵀR − I)V‖² = (‖P‖²‖V‖² + ‖PV‖²)/k.

    Attributes
    ----------
    k : int
        Rows of R.
    projection : {"gaussian", "svd"}
        ``svd``: P·EᵀE with orthonormal rows E, the leading right singular vectors over calibration
        windows: the best fixed subspace. For shorter windows it is the projector on the span of
        the first columns of E, whose rows are no longer orthonormal.
    sharing : {"none", "headwise", "key-value", "layerwise"}
        Whether every head, every layer or the whole model has an R; P has one side only, so that
        ``key-value`` says the same as ``headwise``. With a file it must be the file's.
    seed : int
        All windows see the same draw; heads and layers that do not share have independent ones.
    file : Path, optional
        Fitted projections, for ``svd``.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, theorem 1.
    """

    k: int
    projection: Literal["gaussian", "svd"] = "gaussian"
    sharing: Sharing = "none"
    seed: int = 0
    file: Path | None = None

    name: ClassVar[str] = "projected"
    budget: ClassVar[str | None] = "k"

    def __post_init__(self) -> None:
        check_budget(self.name, "k", self.k)
        check_parameters(self.name, self.projection, self.seed, self.file)

    def check(self, shape: Shape) -> None:
        check_causal(self.name, shape)
        check_length(self.name, self.k, shape.length)
        stored = projections_for(self.file, self.projection, self.sharing)
        if stored is not None:
            stored.check(shape)
            for layer in shape.layers:
                stored.check_rank(layer, self.k)

    def settings(self) -> dict[str, Any]:
        """Name and the parameters that have a meaning for the projection."""
        found = super().settings()
        if self.projection == "svd":
            del found["seed"]
        return found

    def matrix(self, attention: Attention) -> torch.Tensor:
        right = self._right(attention)
        return (attention.weights @ right.mT) @ right

    def apply(self, attention: Attention) -> torch.Tensor:
        right = self._right(attention)
        return attention.weights @ (right.mT @ (right @ attention.values))

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of one head: P, the projected values, the output."""
        k = min(self.k, m)
        return Cost(n * m * (d + d_v) + 2 * k * m * d_v, 4 * n * m)

    def _right(self, attention: Attention) -> torch.Tensor:
        """R, or orthonormal rows, of shape (h, k, m)."""
        refuse_causal(self.name, attention, CAUSAL)
        m = attention.shape[1]
        check_length(self.name, self.k, m)
        where = (attention.dtype, attention.query.device)
        stored = projections_for(self.file, self.projection, self.sharing)
        if stored is None:
            at = (attention.group, attention.layer, attention.n_heads)
            # of a draw for both sides, that for the keys
            return drawn("gaussian", self.sharing, self.seed, (self.k, m), at, where)[0]
        if stored.sharing == "none":
            stored.check_heads(attention.n_heads)
        stored.check_rank(attention.layer, self.k)
        rows = stored.of(attention.layer, m)[0].to(torch.float64)
        basis: torch.Tensor = torch.linalg.qr(rows.mT).Q
        return basis.mT.to(device=where[1], dtype=where[0])
