"""Fixed projections of keys and values from n tokens to k rows.

A projection is a matrix E ∈ ℝ^{k×n} that is multiplied with the keys, and a matrix F with the
values. Pooling and convolution are made for the length of the window at hand; drawn and fitted
ones have columns of their own for every place, so that a shorter window uses the first n of them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from rankscope.approximations.base import Shape, check_budget
from rankscope.attention import Group
from rankscope.exceptions import MethodError, UsageError

CAUSAL = "a projection mixes later tokens into every row"

Sharing = Literal["none", "headwise", "key-value", "layerwise"]
Pair = tuple[torch.Tensor, torch.Tensor]


def segments(n: int, k: int) -> list[int]:
    """Where k segments of equal or nearly equal length begin and end.

    Parameters
    ----------
    n : int
        Tokens.
    k : int
        Segments, 1 … n.

    Returns
    -------
    list of int
        k + 1 boundaries; segment i is [⌊in/k⌋, ⌊(i+1)n/k⌋), so that all tokens are covered and two
        segments differ by one token at most.

    Examples
    --------
    >>> segments(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [i * n // k for i in range(k + 1)]


def pooling(n: int, k: int) -> torch.Tensor:
    """Mean pooling as a projection: row i averages the tokens of segment i.

    Returns
    -------
    (k, n) float64
        Rows sum to 1.

    Examples
    --------
    >>> pooling(3, 2)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    matrix = torch.zeros(k, n, dtype=torch.float64)
    for row, (start, end) in enumerate(pairwise(segments(n, k))):
        matrix[row, start:end] = 1.0 / (end - start)
    return matrix


def pool_max(rows: torch.Tensor, k: int) -> torch.Tensor:
    """Max pooling over the same segments: every channel's largest entry, not a linear map.

    Parameters
    ----------
    rows : (*batch, n, d) tensor
    k : int
        Segments, 1 … n.

    Returns
    -------
    (*batch, k, d) tensor

    Examples
    --------
    >>> pool_max(torch.tensor([[1.0], [5.0], [2.0]]), 2)
    tensor([[1.],
            [5.]])
    """
    *batch, n, d = rows.shape
    edges = torch.tensor(segments(n, k), device=rows.device)
    of = torch.repeat_interleave(edges.diff())
    pooled = rows.new_full((*batch, k, d), -math.inf)
    return pooled.scatter_reduce(-2, of[:, None].expand(*batch, n, d), rows, "amax")


def strided(kernel: torch.Tensor, n: int) -> torch.Tensor:
    """A convolution whose stride is its kernel's length, as a projection.

    Parameters
    ----------
    kernel : (*batch, s) tensor
        One scalar kernel for all channels; with one a channel there would be no n × n matrix.
    n : int
        Tokens. The last stride may be cut short.

    Returns
    -------
    (*batch, ⌈n/s⌉, n) tensor
        Differentiable in the kernel.

    References
    ----------
    Wang et al. 2020, arXiv:2006.04768, section 4, general projections.

    Examples
    --------
    >>> strided(torch.tensor([1.0, 2.0]), 3)
    tensor([[1., 2., 0.],
            [0., 0., 1.]])
    """
    size = kernel.shape[-1]
    rows = math.ceil(n / size)
    place = torch.arange(n, device=kernel.device)
    inside = place // size == torch.arange(rows, device=kernel.device)[:, None]
    return torch.where(inside, kernel[..., place % size][..., None, :], 0.0)


def stride(n: int, k: int) -> int:
    """Length of the kernel and step, ⌈n/k⌉, of a convolution that leaves k rows or fewer."""
    return math.ceil(n / k)


def gaussian(k: int, n: int, seed: int, *place: int) -> torch.Tensor:
    """A random projection R with independent N(0, 1/k) entries.

    Parameters
    ----------
    k, n : int
        Its rows and columns.
    seed : int
        0 or more.
    *place : int
        Which of the independent matrices of that seed: numbers of layer, head and the like.

    Returns
    -------
    (k, n) float64
        The first n columns of what a greater n gives.
    """
    return torch.from_numpy(_stream(seed, place).standard_normal((n, k)).T / math.sqrt(k))


def uniform_kernel(size: int, seed: int, *place: int) -> torch.Tensor:
    """The kernel of a convolution that was never trained, U(−1/√s, 1/√s).

    Returns
    -------
    (s,) float64
    """
    bound = 1.0 / math.sqrt(size)
    return torch.from_numpy(_stream(seed, place).uniform(-bound, bound, size))


@lru_cache(maxsize=8)
def drawn(
    kind: Literal["gaussian", "conv"],
    sharing: Sharing,
    seed: int,
    size: tuple[int, int],
    at: tuple[Group, int, int],
    where: tuple[torch.dtype, torch.device],
) -> Pair:
    """E and F drawn for one layer; the same for the same arguments.

    Parameters
    ----------
    kind : {"gaussian", "conv"}
    sharing : str
        Without sharing every head has its own E and F, headwise every layer, key-value every layer
        an E = F, layerwise all layers the same one.
    seed : int
    size : (k, n)
    at : (group, layer, heads)
        Kind of attention, number of the layer, its number of heads.
    where : (dtype, device)

    Returns
    -------
    two (h, k, n) tensors, (h, ⌈n/s⌉, n) for a convolution
        h is the number of heads without sharing, and 1 with it.
    """
    k, n = size
    dtype, device = where
    group, layer, heads = get_args(Group).index(at[0]), at[1], at[2]

    def one(*place: int) -> torch.Tensor:
        if kind == "conv":
            return strided(uniform_kernel(stride(n, k), seed, *place), n)
        return gaussian(k, n, seed, *place)

    def side(number: int) -> torch.Tensor:
        if sharing == "none":
            found = [one(group, layer, number, head) for head in range(heads)]
        else:
            found = [one(group, layer, number)]
        return torch.stack(found).to(device, dtype)

    if sharing == "layerwise":
        shared = one()[None].to(device, dtype)
        return shared, shared
    if sharing == "key-value":
        shared = one(group, layer)[None].to(device, dtype)
        return shared, shared
    return side(0), side(1)


def check_parameters(name: str, projection: str, seed: int, file: Path | None) -> None:
    """Refuse a file without a use or a use without a file, and a negative seed.

    Raises
    ------
    UsageError
    """
    fitted = projection in ("svd", "learned")
    if fitted and file is None:
        raise UsageError(
            f"{name} with projection={projection} needs a file of projections",
            "write one with rankscope linformer fit, and give it as file=",
        )
    if file is not None and not fitted:
        raise UsageError(
            f"{name} with projection={projection} reads no file", "use projection=learned or svd"
        )
    if seed < 0:
        raise UsageError(f"seed {seed} is negative", "use 0 or more")


def check_length(name: str, k: int, n: int) -> None:
    """Refuse more rows than tokens.

    Raises
    ------
    MethodError
    """
    check_budget(name, "k", k)
    if k > n:
        raise MethodError(
            f"{name} with k = {k} cannot project n = {n} tokens to more rows than there are",
            f"use a k of {n} or less, or longer windows",
        )


def check_causal(name: str, shape: Shape) -> None:
    """Refuse a causal model before the long work.

    Raises
    ------
    MethodError
    """
    if shape.causal:
        raise MethodError(
            f"{name} cannot be used on a causal model, {shape.model}: {CAUSAL}",
            "choose a method that keeps order",
        )


def _stream(seed: int, place: tuple[int, ...]) -> np.random.Generator:
    # numpy's, because its draws do not depend on how many follow, and its streams are independent
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))
