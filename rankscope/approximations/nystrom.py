"""Nyström attention: P from its columns and rows at a few landmarks.

P ≈ F·A⁺·B with F = softmax(QK̃ᵀ), A = softmax(Q̃K̃ᵀ) and B = softmax(Q̃Kᵀ), where Q̃ and K̃ are means
over segments of the tokens. How good it is hangs on A, which is close to singular where attention
is peaked or the landmarks are alike: :func:`conditioning` says how close.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from rankscope.approximations.base import (
    Approximation,
    Cost,
    Shape,
    check_budget,
    has_mask,
    refuse_causal,
)
from rankscope.attention import Attention
from rankscope.exceptions import MethodError

_WHY_CAUSAL = "a landmark is the mean of a segment and holds later tokens"


@dataclass(frozen=True)
class Nystrom(Approximation):
    """Nyströmformer's attention, softmax(QK̃ᵀ)·A⁺·softmax(Q̃Kᵀ) with A = softmax(Q̃K̃ᵀ).

    The tokens are cut into segments of equal length, the first ones a token longer where the length
    is no multiple; their mean queries and mean keys are the landmarks. `Attention` holds no
    padding, so that none gets into a mean. Scores are scaled as the model's own.

    Rows of the product need be no distributions: ``negative_mass`` and ``row_sum_drift`` report it.
    The depthwise convolution over the values that the published model is trained with, and adds to
    the output, has weights that an untouched model lacks; it is not part of this.

    Attributes
    ----------
    landmarks : int
        All tokens where there are fewer; with ``exact`` that is full attention as closely as the
        condition of P allows.
    pinv : {"iterative", "exact"}
        ``iterative`` is the published iteration, see :func:`iterative_inverse`; ``exact`` the
        pseudo-inverse from an SVD in float64, without singular values below l·2.2e-16·σ₁.
    iterations : int
        Steps of the iteration; six as published need not be enough for an ill-conditioned A.

    References
    ----------
    Xiong et al. 2021, arXiv:2102.03902, equations 8, 13 and 14.
    """

    landmarks: int = 64
    pinv: Literal["iterative", "exact"] = "iterative"
    iterations: int = 6

    name: ClassVar[str] = "nystrom"
    budget: ClassVar[str | None] = "landmarks"

    def __post_init__(self) -> None:
        check_budget(self.name, "landmarks", self.landmarks)
        check_budget(self.name, "iterations", self.iterations)

    def check(self, shape: Shape) -> None:
        if shape.causal:
            raise _causal(shape.model)

    def matrix(self, attention: Attention) -> torch.Tensor:
        given = _reduced(attention)
        left, inverse, right = self._factors(given)
        return (left @ (inverse @ right)).to(given.dtype)

    def apply(self, attention: Attention) -> torch.Tensor:
        given = _reduced(attention)
        left, inverse, right = self._factors(given)
        return (left @ (inverse @ (right @ given.values.to(right.dtype)))).to(given.dtype)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        """Cost of one head; an SVD of A counts as 11·l³ multiply-adds."""
        marks = min(self.landmarks, n, m)
        scores = (n + m + marks) * marks * d
        inverse = marks**3 * (4 * self.iterations if self.pinv == "iterative" else 11)
        values = (n + m + marks) * marks * d_v
        return Cost(scores + inverse + values, 4 * max(n, m) * marks)

    def _factors(self, given: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key = _landmarks(given, self.landmarks)
        core = _core(query, key, given.scale)
        left = _softmax(given.query, key, given.scale)
        right = _softmax(query, given.key, given.scale)
        if self.pinv == "iterative":
            # a few steps cannot magnify much, see iterative_inverse
            return left, iterative_inverse(core, self.iterations).to(left.dtype), right
        return left.to(core.dtype), _exact_inverse(core), right.to(core.dtype)


@dataclass(frozen=True)
class Conditioning:
    """How well the landmark matrix A of every head can be inverted.

    Attributes
    ----------
    condition : (batch, head) float64
        σ₁(A)/σ_l(A), 1 or more; infinite for a singular A, NaN for one that is not finite.
    residual : (batch, head) float64
        ‖AZA − A‖_F/‖A‖_F of the iterative inverse Z; 0 for a pseudo-inverse.
    """

    condition: torch.Tensor
    residual: torch.Tensor


def conditioning(attention: Attention, landmarks: int, iterations: int = 6) -> Conditioning:
    """Condition of the landmark matrix A = softmax(Q̃K̃ᵀ), and what the iteration leaves of it.

    Parameters
    ----------
    attention : Attention
    landmarks : int
        As of :class:`Nystrom`.
    iterations : int

    Returns
    -------
    Conditioning

    Raises
    ------
    MethodError
        Where the method cannot be used on this attention.
    """
    check_budget(Nystrom.name, "landmarks", landmarks)
    check_budget(Nystrom.name, "iterations", iterations)
    given = _reduced(attention)
    core = _core(*_landmarks(given, landmarks), given.scale)
    good = torch.isfinite(core).all(dim=-1).all(dim=-1)
    condition = torch.full_like(core[..., 0, 0], torch.nan)
    if bool(good.any()):
        sigma = torch.linalg.svdvals(core[good])
        condition[good] = sigma[..., 0] / sigma[..., -1]
    found = core @ iterative_inverse(core, iterations) @ core
    residual = torch.linalg.matrix_norm(found - core) / torch.linalg.matrix_norm(core)
    return Conditioning(condition, residual)


def iterative_inverse(matrix: torch.Tensor, iterations: int = 6) -> torch.Tensor:
    """Approximate pseudo-inverse of matrices by a third-order iteration.

    Z₀ = Aᵀ/(‖A‖₁‖A‖_∞) and Z ← ¼Z(13I − AZ(15I − AZ(7I − AZ))).

    The norms are those of each matrix by itself. (The published code takes the largest over the
    whole batch and all heads, so that its result depends on what else is in the batch.)

    Parameters
    ----------
    matrix : (*batch, l, l) tensor
    iterations : int
        The smallest singular values come last: where σ is small, AZ is about
        (13/4)^i·σ²/(‖A‖₁‖A‖_∞) after i steps, so that six reach down to σ ≈ 0.03·√(‖A‖₁‖A‖_∞).

    Returns
    -------
    (*batch, l, l) tensor

    References
    ----------
    Xiong et al. 2021, arXiv:2102.03902, equation 11; Razavi et al. 2014.

    Examples
    --------
    >>> iterative_inverse(torch.diag(torch.tensor([2.0, 4.0])))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    size = matrix.abs()
    columns = size.sum(dim=-2).amax(dim=-1)
    rows = size.sum(dim=-1).amax(dim=-1)
    identity = torch.eye(matrix.shape[-2], dtype=matrix.dtype, device=matrix.device)
    found = matrix.mT / (columns * rows)[..., None, None]
    for _ in range(iterations):
        product = matrix @ found
        inner = 15 * identity - product @ (7 * identity - product)
        found = 0.25 * found @ (13 * identity - product @ inner)
    return found


def segment_means(x: torch.Tensor, segments: int) -> torch.Tensor:
    """Means over consecutive segments of the tokens, of equal length but for one token.

    Parameters
    ----------
    x : (*batch, n, d) tensor
    segments : int
        At most n; where n is no multiple, the first n mod segments are a token longer.

    Returns
    -------
    (*batch, segments, d) tensor

    Examples
    --------
    >>> segment_means(torch.arange(5.0)[:, None], 2)
    tensor([[1.0000],
            [3.5000]])
    """
    *lead, n, d = x.shape
    length, longer = divmod(n, segments)
    border = longer * (length + 1)
    long = x[..., :border, :].reshape(*lead, longer, length + 1, d)
    short = x[..., border:, :].reshape(*lead, segments - longer, length, d)
    return torch.cat([long.mean(dim=-2), short.mean(dim=-2)], dim=-2)


def _landmarks(given: Attention, landmarks: int) -> tuple[torch.Tensor, torch.Tensor]:
    number = min(landmarks, *given.shape)
    return segment_means(given.query, number), segment_means(given.key, number)


def _softmax(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax(scale * (query @ key.mT), dim=-1)


def _core(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    # its inverse magnifies rounding by the condition of A; it is small, so that float64 is cheap
    return _softmax(query.to(torch.float64), key.to(torch.float64), scale)


def _exact_inverse(core: torch.Tensor) -> torch.Tensor:
    # one matrix that is not finite would fail them all
    good = torch.isfinite(core).all(dim=-1).all(dim=-1)
    inverse = torch.full_like(core, torch.nan)
    if bool(good.any()):
        inverse[good] = torch.linalg.pinv(core[good])
    return inverse


def _causal(where: str) -> MethodError:
    return MethodError(
        f"nystrom cannot be used on the causal model {where}: {_WHY_CAUSAL}",
        "choose a method that keeps order",
    )


def _reduced(attention: Attention) -> Attention:
    """The attention without its special tokens, if there is nothing on it but query and key."""
    refuse_causal(Nystrom.name, attention, _WHY_CAUSAL)
    given = attention.reduced()
    if given.local is not None or has_mask(given):
        raise MethodError(
            "nystrom cannot keep to a mask: a landmark is a mean of tokens, and attends to and is "
            "seen by all of them or none",
            "choose a method that looks at single pairs",
        )
    if given.bias is not None and bool((given.bias != 0).any()):
        raise MethodError(
            "nystrom has no place for a bias that depends on pairs, such as this model's relative "
            "positions: a landmark is the mean of a segment and stands at no position",
            "choose a method that looks at single pairs",
        )
    return given
