"""Controls made of one matrix P, and the mean of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from rankscope.approximations.base import MASKED
from rankscope.approximations.draws import check_seed, generator
from rankscope.attention import Attention
from rankscope.exceptions import UsageError

ENTROPY_TOLERANCE = 1e-10
"""How close the entropy of a row comes to the wanted one, in nats, before P is rounded."""

_EXACT = 1e-12
_STEPS = 200


def support(attention: Attention, row: int, head: int) -> torch.Tensor | None:
    """The entries of a head's P that its mask does not hide.

    Taken from the bias, not from P: an entry of P can also be 0 by rounding.

    Parameters
    ----------
    attention : Attention
    row : int
        Place in the batch.
    head : int

    Returns
    -------
    (n, m) bool tensor, or None
        None where nothing is hidden.
    """
    if attention.bias is None:
        return None
    size = (*attention.query.shape[:3], attention.key.shape[2])
    seen = attention.bias.expand(size)[row, head] >= MASKED
    if attention.keep_rows is not None:
        seen = seen[attention.keep_rows]
    if attention.keep_columns is not None:
        seen = seen[:, attention.keep_columns]
    return None if bool(seen.all()) else seen


def shuffled_rows(
    matrix: torch.Tensor, random: torch.Generator, support: torch.Tensor | None = None
) -> torch.Tensor:
    """Every row of P in a random order of its own: the control ``rows``.

    Each row keeps its values, and so its sum s_i, its entropy and its squared norm q_i; the columns
    lose what they had in common. Over the n rows and m columns of a matrix without a mask

    - ‖P‖_F² = Σ q_i stays, and so does P1 = s: the part of the spectrum along 1 is kept;
    - E[PᵀP] = a·11ᵀ/m + b·(I − 11ᵀ/m), with a = Σ s_i²/m and b = (Σ q_i − a)/(m − 1);
    - E[PPᵀ] = ssᵀ/m + diag(q_i − s_i²/m);
    - rows of a single entry each give σ_j² = the number of rows whose entry is in column j: from
      the identity as from a sink, m(1 − (1 − 1/m)ⁿ) of them differ from 0 on average.

    Parameters
    ----------
    matrix : (n, m) tensor
        P of one head.
    random : torch.Generator
        On the CPU, so that every device draws the same.
    support : (n, m) bool tensor, optional
        Entries that the mask does not hide; the others stay as they are, and no value is moved
        there. All when not given.

    Returns
    -------
    (n, m) tensor
        Of the type and device of `matrix`.

    Raises
    ------
    UsageError
        If `matrix` has not two dimensions, or is not 0 outside of `support`.

    Examples
    --------
    >>> rows = shuffled_rows(torch.tensor([[0.7, 0.2, 0.1]]), torch.Generator().manual_seed(0))
    >>> rows.sort().values
    tensor([[0.1000, 0.2000, 0.7000]])
    """
    _check(matrix, support)
    keys = torch.rand(matrix.shape, generator=random, dtype=torch.float64).numpy()
    if support is None:
        return matrix.gather(1, torch.from_numpy(np.argsort(keys, axis=1)).to(matrix.device))
    seen = support.cpu().numpy()
    # hidden columns come last, so that the first ones of each row are its own in a random order
    order = np.argsort(np.where(seen, keys, np.inf), axis=1)
    first = np.arange(matrix.shape[1]) < seen.sum(axis=1, keepdims=True)
    rows, columns = (torch.from_numpy(one).to(matrix.device) for one in np.nonzero(seen))
    shuffled = matrix.clone()
    shuffled[rows, columns] = matrix[rows, torch.from_numpy(order[first]).to(matrix.device)]
    return shuffled


def gaussian_rows(
    matrix: torch.Tensor, random: torch.Generator, support: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax of Gaussian logits with the row entropies of P: the control ``gaussian``.

    Row i is s_i · softmax(t_i·g_i), g_i iid standard normal over the columns that its mask does not
    hide. Its entropy falls with t_i ≥ 0 from ln(columns) to 0, so that one t_i gives it the entropy
    of row i of P; rows of P that are uniform stay so, and a row with a single entry becomes one
    with a single entry, wherever g_i is largest.

    Parameters
    ----------
    matrix : (n, m) tensor
        P of one head; where special tokens were dropped, its rows sum to s_i < 1.
    random : torch.Generator
        On the CPU, so that every device draws the same.
    support : (n, m) bool tensor, optional
        Entries that the mask does not hide; the others become 0. All when not given.

    Returns
    -------
    (n, m) tensor
        Of the type and device of `matrix`. Entropies are equal to 1e-10 nats before they are
        rounded to that type. A row that is not finite gives one of NaN.

    Raises
    ------
    UsageError
        If `matrix` has not two dimensions, has negative entries, or is not 0 outside of `support`.

    Notes
    -----
    Newton's method for ln H(t), with dH/dt = −t · Var(g) under the softmax, kept between two
    bounds. It starts from t² = 2 (ln m − H), which holds for many columns and high temperature.

    References
    ----------
    Derrida 1981, Phys. Rev. B 24, 2613: the random energy model, whose entropy at inverse
    temperature t is ln m − t²/2 above its freezing point.

    Examples
    --------
    >>> gaussian_rows(torch.full((1, 4), 0.25), torch.Generator().manual_seed(0))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    _check(matrix, support)
    if bool((matrix < 0).any()):
        raise UsageError("a row with negative entries has no entropy", "give attention matrices")
    logits = torch.randn(matrix.shape, generator=random, dtype=torch.float64).to(matrix.device)
    rows = matrix.to(torch.float64)
    total = rows.sum(dim=1, keepdim=True)
    wanted = torch.special.entr(rows / total).sum(dim=1)
    width = torch.full_like(wanted, matrix.shape[1])
    if support is not None:
        logits = logits.masked_fill(~support, -torch.inf)
        width = support.sum(dim=1).to(torch.float64)
    gap = logits.amax(dim=1, keepdim=True) - logits
    missing = width.log() - wanted
    # a row of NaN, infinity or zeros has no entropy, and none of these comparisons holds
    flat = missing <= _EXACT
    cold = ~flat & (wanted <= _EXACT)
    between = ~flat & (wanted > _EXACT)
    found = torch.full_like(rows, torch.nan)
    found[flat] = gap[flat].isfinite() / width[flat, None]
    found[cold] = (gap[cold] == 0).to(torch.float64)
    found[between] = _with_entropy(gap[between], wanted[between], (2 * missing[between]).sqrt())
    found = torch.where(total == 0, 0.0, found * total)
    return found.to(matrix.dtype)


def _with_entropy(gap: torch.Tensor, wanted: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Rows exp(−t·gap), normalised, with the wanted entropies; an infinite gap is a hidden entry.

    Parameters
    ----------
    gap : (rows, m) float64
        By how much a logit is below the largest of its row.
    wanted, start : (rows) float64
        Entropies strictly between 0 and that of the uniform row, and where to look for t.
    """
    found = torch.zeros_like(gap)
    left = torch.arange(len(gap), device=gap.device)
    hidden = gap.isinf()
    # 0 · ∞ is NaN: hidden entries get weight 0 by their logarithm, and nothing by their gap
    gap = gap.masked_fill(hidden, 0.0)
    fence = torch.zeros_like(gap).masked_fill(hidden, -torch.inf) if bool(hidden.any()) else None
    t, low, high = start, torch.zeros_like(start), torch.full_like(start, torch.inf)
    for _ in range(_STEPS):
        weights = gap * -t[:, None]
        if fence is not None:
            weights += fence
        weights.exp_()
        norm = weights.sum(dim=1)
        weights /= norm[:, None]
        tilted = weights * gap
        mean = tilted.sum(dim=1)
        variance = tilted.mul_(gap).sum(dim=1) - mean**2
        entropy = norm.log() + t * mean
        done = (entropy - wanted).abs() <= ENTROPY_TOLERANCE
        found[left[done]] = weights[done]
        if bool(done.all()):
            return found
        low, high = torch.where(entropy > wanted, t, low), torch.where(entropy < wanted, t, high)
        step = t + (entropy / wanted).log() * entropy / (t * variance)
        middle = torch.where(high.isinf(), 2 * t, (low + high) / 2)
        t = torch.where((step > low) & (step < high), step, middle)
        if bool(done.any()):
            keep = ~done
            left, gap, wanted = left[keep], gap[keep], wanted[keep]
            t, low, high = t[keep], low[keep], high[keep]
            fence = None if fence is None else fence[keep]
    raise AssertionError(f"no temperature found for entropies {wanted.tolist()[:4]}")


MATRIX_CONTROLS: dict[
    str, Callable[[torch.Tensor, torch.Generator, torch.Tensor | None], torch.Tensor]
] = {"rows": shuffled_rows, "gaussian": gaussian_rows}
"""Controls made of one matrix P, by name."""


def control_matrix(
    control: str,
    matrix: torch.Tensor,
    attention: Attention,
    *,
    head: int,
    sample: int,
    row: int = 0,
    seed: int = 0,
) -> torch.Tensor:
    """A control of one captured matrix, its mask respected.

    Parameters
    ----------
    control : {"rows", "gaussian"}
    matrix : (n, m) tensor
        ``attention.matrix(row, head)``.
    attention : Attention
        Where it comes from.
    head, row : int
        As for :meth:`~rankscope.attention.Attention.matrix`.
    sample : int
        Number of the window in its run. Windows, layers, heads and controls have independent draws.
    seed : int
        0 or more.

    Returns
    -------
    (n, m) tensor
        Of the type and device of `matrix`.

    Raises
    ------
    UsageError
        For an unknown control, a negative seed, and what the control itself refuses.
    """
    if control not in MATRIX_CONTROLS:
        raise UsageError(
            f"no matrix makes the control {control!r}", f"one of {', '.join(MATRIX_CONTROLS)}"
        )
    check_seed(f"the control {control}", seed)
    number = list(MATRIX_CONTROLS).index(control)
    random = generator(seed, number, sample, attention.layer, head)
    return MATRIX_CONTROLS[control](matrix, random, support(attention, row, head))


def mean_matrix(matrices: Iterable[torch.Tensor]) -> torch.Tensor:
    """Mean of one head's P over windows of equal length, whose spectrum is the control ``mean``.

    P̄ = (P_1 + … + P_M) / M. Sums of the largest k singular values are convex: those of P̄ are at
    most the mean of those of the P_i. The cumulative ratio is not, and may fall on either side of
    the mean of the ratios: all permutation matrices have the ratio k/n, and their mean, the uniform
    matrix, 1.

    Parameters
    ----------
    matrices : iterable of (n, m) tensor
        At least one; asked for one after another, so that one at a time need exist.

    Returns
    -------
    (n, m) float64 tensor
        On the device of the matrices. Summed in their order, so that the same order gives the same
        bits. Not finite where one of them is not: a mean of what is left would be of other windows.

    Raises
    ------
    UsageError
        Without a matrix, or if they differ in size.

    References
    ----------
    Fan 1951, Proc. Natl. Acad. Sci. 37, 760: sums of the largest singular values are norms.

    Examples
    --------
    >>> mean_matrix([torch.eye(2), torch.eye(2).flip(0)])
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    total: torch.Tensor | None = None
    count = 0
    for matrix in matrices:
        if total is None:
            total = torch.zeros_like(matrix, dtype=torch.float64)
        elif total.shape != matrix.shape:
            raise UsageError(
                f"matrices {tuple(total.shape)} and {tuple(matrix.shape)} have no mean",
                "use windows of equal length, as packed ones are",
            )
        total += matrix
        count += 1
    if total is None:
        raise UsageError("no matrix has no mean", "give one at least")
    return total.div_(count)


def _check(matrix: torch.Tensor, support: torch.Tensor | None) -> None:
    if matrix.ndim != 2:
        raise UsageError(f"a control takes one (n, m) matrix, not {tuple(matrix.shape)}")
    if support is None:
        return
    if support.shape != matrix.shape or support.dtype != torch.bool:
        raise UsageError(
            f"a mask {tuple(support.shape)} of {support.dtype} does not fit {tuple(matrix.shape)}",
            "give one bool for each entry",
        )
    # NaN differs from 0, but is the fault of the matrix and not of its mask
    if bool((matrix[~support].abs() > 0).any()):
        raise UsageError(
            "the matrix is not 0 where its mask hides it", "give the mask that P was made with"
        )
