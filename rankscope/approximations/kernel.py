"""Kernel attention: P from features of single tokens, φ(Q)φ(K)ᵀ with rows divided by their sum.

The output is φ(Q)(φ(K)ᵀV) over φ(Q)(φ(K)ᵀ1): with features of width f, n·f·d multiply-adds instead
of n²·d. Performer draws φ at random so that φ(q)ᵀφ(k) is exp(qᵀk) in expectation; the linear
transformer and cosFormer choose another kernel, which a model trained with a softmax never saw.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, get_args

import torch

from rankscope.approximations.base import MASKED, Approximation, Cost, check_budget, has_mask
from rankscope.approximations.draws import check_seed, generator
from rankscope.attention import Attention, Group
from rankscope.exceptions import MethodError, UsageError

CHUNK = 64
"""Tokens whose causal products are formed together, beside the sums over all earlier ones."""


@dataclass(frozen=True)
class _Kernel(Approximation):
    """What the kernel methods share: everything but their features."""

    causal: ClassVar[bool] = True

    @abstractmethod
    def _features(self, attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        """φ(Q) (batch, head, n, f) and φ(K) (batch, head, m, f), up to factors that cancel."""

    def _width(self, d: int) -> int:
        """f, the width of the features."""
        return d

    def _divide(self, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return part / whole

    def matrix(self, attention: Attention) -> torch.Tensor:
        given = _reduced(self.name, attention)
        query, key = self._features(given)
        weights = query @ key.mT
        if given.causal:
            weights = weights.tril()
        return self._divide(weights, weights.sum(dim=-1, keepdim=True)).to(given.dtype)

    def apply(self, attention: Attention) -> torch.Tensor:
        given = _reduced(self.name, attention)
        query, key = self._features(given)
        value = given.values.to(key.dtype)
        # the column of ones gathers the row sums with the same products as the values
        value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        sums = _earlier(query, key, value) if given.causal else query @ (key.mT @ value)
        return self._divide(sums[..., :-1], sums[..., -1:]).to(given.dtype)

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        f = self._width(d)
        return Cost((n + m) * f * (d_v + 1), 4 * max(n, m) * f)


@dataclass(frozen=True)
class Performer(_Kernel):
    """FAVOR+: softmax attention by random features, unbiased before the rows are normalised.

    φ(x) = exp(ωᵀx − ‖x‖²/2)/√m with x = √scale·q or √scale·k and m directions ω ~ N(0, I):
    E φ(q)ᵀφ(k) = exp(scale·qᵀk). The directions come in orthogonal blocks whose lengths are drawn
    from the χ distribution with d degrees of freedom. The trigonometric estimator has
    φ(x) = exp(‖x‖²/2)·(sin ωᵀx, cos ωᵀx)/√m instead.

    Exponents are shifted by the maximum over the keys for each feature and then by the maximum
    over the features for each query. Both shifts cancel between numerator and denominator, so that
    no constant has to be added to keep the ratio finite. In causal attention the first shift is
    taken over all keys and the sums are in float64; a row whose terms all vanish beside it is NaN.

    Rows of the trigonometric estimator may have negative entries, huge ones where their sum is near
    zero. They are left as they are: ``negative_mass`` and the output error report them.

    Attributes
    ----------
    features : int
        Width of φ for a token. The trigonometric estimator has two for each direction, so that it
        needs an even number; at equal width it has half as many directions.
    estimator : {"positive", "trigonometric"}
    orthogonal : bool
        Whether directions are orthogonal in blocks of d; independent ones have a larger variance.
    seed : int
        Directions differ between layers and heads, and are the same for every window.

    References
    ----------
    Choromanski et al. 2021, arXiv:2009.14794, lemma 1, equations 5–7 and section 2.4.
    """

    features: int
    estimator: Literal["positive", "trigonometric"] = "positive"
    orthogonal: bool = True
    seed: int = 0

    name: ClassVar[str] = "performer"
    budget: ClassVar[str | None] = "features"

    def __post_init__(self) -> None:
        check_budget(self.name, "features", self.features)
        check_seed(self.name, self.seed)
        if self.estimator == "trigonometric" and self.features % 2:
            raise UsageError(
                f"the trigonometric estimator has two features a direction, not {self.features}",
                "use an even number of features",
            )

    def _width(self, d: int) -> int:
        return self.features

    @property
    def _number(self) -> int:
        return self.features // 2 if self.estimator == "trigonometric" else self.features

    def _features(self, attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        trigonometric = self.estimator == "trigonometric"
        # sums of both signs, and sums over a past that is small beside the future, lose digits
        dtype = torch.float64 if trigonometric or attention.causal else attention.dtype
        query = attention.query.to(dtype) * math.sqrt(attention.scale)
        key = attention.key.to(dtype) * math.sqrt(attention.scale)
        drawn = directions(
            self._number,
            query.shape[-1],
            heads=attention.n_heads,
            seed=self.seed,
            layer=attention.layer,
            group=attention.group,
            orthogonal=self.orthogonal,
        ).to(query)
        if trigonometric:
            half = _half_square(key)
            return _waves(query, drawn), _waves(key, drawn) * (half - half.amax(2, True)).exp()
        of_query, of_key = _exponents(query, drawn), _exponents(key, drawn)
        shift = of_key.amax(dim=2, keepdim=True)
        of_query += shift
        of_query -= of_query.amax(dim=-1, keepdim=True)
        of_key -= shift
        return of_query.exp_(), of_key.exp_()

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        after = super().cost(n, m, d, d_v)
        return Cost((n + m) * self._number * d + after.multiply_adds, after.bytes)


@dataclass(frozen=True)
class LinearTransformer(_Kernel):
    """The linear transformer's kernel, φ(x) = elu(x) + 1: x + 1 where x > 0, else exp(x).

    It approximates no softmax. Query and key enter without the scale of the scores, as published.

    References
    ----------
    Katharopoulos et al. 2020, arXiv:2006.16236, equations 4–7 and 9–12 (causal).
    """

    name: ClassVar[str] = "linear"

    def _features(self, attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        return _elu_plus_one(attention.query), _elu_plus_one(attention.key)


@dataclass(frozen=True)
class CosFormer(_Kernel):
    """cosFormer: relu(q)ᵀrelu(k)·cos(π(i − j)/2M) with M = max(n, m), rows divided by their sum.

    It is a product of features: cos(πi/2M)cos(πj/2M) + sin(πi/2M)sin(πj/2M) is the cosine.

    A query that has no positive coordinate in common with any key has no weight at all. Its row is
    zero, as the published code makes it, which keeps denominators above 1e-6; a row sum of 0 shows
    in ``row_sum_drift``. No other row is touched.

    References
    ----------
    Qin et al. 2022, arXiv:2202.08791, section 3.2.
    """

    name: ClassVar[str] = "cosformer"

    def _width(self, d: int) -> int:
        return 2 * d

    def _divide(self, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        return torch.where(whole == 0, torch.zeros_like(part), part / whole)

    def _features(self, attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        length = max(attention.shape)

        def placed(x: torch.Tensor) -> torch.Tensor:
            place = torch.arange(x.shape[2], dtype=torch.float64, device=x.device)
            angle = (math.pi / (2 * length) * place)[:, None]
            positive = x.clamp_min(0.0)
            return torch.cat([positive * angle.cos().to(x), positive * angle.sin().to(x)], dim=-1)

        return placed(attention.query), placed(attention.key)


def positive_features(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Performer's positive features φ(x) = exp(ωᵀx − ‖x‖²/2)/√m, without any shift.

    Parameters
    ----------
    x : (..., n, d) tensor
        √scale times queries or keys.
    drawn : (..., m, d) tensor
        Directions ω, from :func:`directions`.

    Returns
    -------
    (..., n, m) tensor
        E φ(x)ᵀφ(y) = exp(xᵀy).

    References
    ----------
    Choromanski et al. 2021, arXiv:2009.14794, lemma 1.

    Examples
    --------
    >>> positive_features(torch.zeros(1, 2), torch.ones(4, 2))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    return _exponents(x, drawn).exp() / math.sqrt(drawn.shape[-2])


def trigonometric_features(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The features exp(‖x‖²/2)·(sin ωᵀx, cos ωᵀx)/√m of the trigonometric estimator.

    Parameters
    ----------
    x : (..., n, d) tensor
        √scale times queries or keys.
    drawn : (..., m, d) tensor
        Directions ω, from :func:`directions`.

    Returns
    -------
    (..., n, 2m) tensor
        E φ(x)ᵀφ(y) = exp(xᵀy); single products may be negative.

    References
    ----------
    Choromanski et al. 2021, arXiv:2009.14794, equation 5; Rahimi & Recht 2007.
    """
    return _waves(x, drawn) * _half_square(x).exp() / math.sqrt(drawn.shape[-2])


def directions(
    number: int,
    d: int,
    *,
    heads: int,
    seed: int,
    layer: int = 0,
    group: Group = "encoder",
    orthogonal: bool = True,
) -> torch.Tensor:
    """Random directions ω for the features of every head of a layer.

    Parameters
    ----------
    number, d : int
        m, directions for each head, and the width of the queries.
    heads : int
    seed, layer, group
        What the draw depends on.
    orthogonal : bool
        Blocks of d orthogonal directions, uniform on the sphere, with lengths of their own from
        the χ_d distribution: each is N(0, I), but no two of a block are independent.

    Returns
    -------
    (heads, number, d) float64 tensor on the CPU

    References
    ----------
    Choromanski et al. 2021, arXiv:2009.14794, section 2.4; Yu et al. 2016, arXiv:1610.09072.
    """
    return _directions(number, d, heads, seed, layer, group, orthogonal).clone()


@lru_cache(maxsize=64)
def _directions(
    number: int, d: int, heads: int, seed: int, layer: int, group: Group, orthogonal: bool
) -> torch.Tensor:
    blocks = -(-number // d)
    stream = generator(seed, layer, get_args(Group).index(group))
    drawn = torch.randn(heads, blocks, d, d, generator=stream, dtype=torch.float64)
    if orthogonal:
        turn, upper = torch.linalg.qr(drawn)
        # without the signs the rotation is not uniform
        turn = turn * upper.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
        lengths = torch.randn(heads, blocks, d, d, generator=stream, dtype=torch.float64)
        drawn = turn * lengths.norm(dim=-1, keepdim=True)
    return drawn.flatten(1, 2)[:, :number]


def _half_square(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x.square().sum(dim=-1, keepdim=True)


def _exponents(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    # in place: these are the largest tensors there are
    return (x @ drawn.mT).sub_(_half_square(x))


def _waves(x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    angle = x @ drawn.mT
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def _elu_plus_one(x: torch.Tensor) -> torch.Tensor:
    # elu(x) + 1 would round exp(x) to zero below -17 in float32
    return torch.where(x > 0, x + 1.0, x.clamp_max(0.0).exp())


def _earlier(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Σ_{j≤i} (φ(q_i)ᵀφ(k_j))·v_j, from sums over earlier chunks and products within one."""
    state = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
    parts = []
    for start in range(0, query.shape[2], CHUNK):
        here = slice(start, start + CHUNK)
        q, k, v = query[:, :, here], key[:, :, here], value[:, :, here]
        parts.append(q @ state + (q @ k.mT).tril() @ v)
        state = state + k.mT @ v
    return torch.cat(parts, dim=2)


def _reduced(name: str, attention: Attention) -> Attention:
    """The attention without its special tokens, if no bias but a plain causal mask is on it."""
    given = attention.reduced()
    kind = "causal" if given.causal else given.group
    plain = given.bias is None or (given.causal and _is_plain(given.bias, *given.shape))
    if given.local is not None:
        why = (
            f"cannot keep to the local mask of this {kind} layer: sums over the features of all "
            "keys hold the far ones too"
        )
    elif plain:
        return given
    elif has_mask(given):
        why = f"cannot keep to the mask of this {kind} layer, which hides single pairs of tokens"
    elif given.bias is not None and bool((given.bias != 0).any()):
        why = (
            "has features of single tokens, and no place for a bias that depends on pairs, such as "
            "this model's relative positions"
        )
    else:
        return given
    raise MethodError(f"{name} {why}", "choose a method that looks at single pairs")


def _is_plain(bias: torch.Tensor, n: int, m: int) -> bool:
    """Whether the bias is the causal mask and nothing else, seen a few rows at a time."""
    if n != m:
        return False
    bias = bias.expand(*bias.shape[:-2], n, m)
    column = torch.arange(m, device=bias.device)
    for rows in torch.split(column, 1024):
        part, later = bias[..., rows, :], column > rows[:, None]
        if not bool(((part < MASKED) == later).all() & (later | (part == 0)).all()):
            return False
    return True
