"""What a model predicts, compared: which tokens are hidden, their loss, KL and agreement.

Array functions that know no model.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.exceptions import UsageError

_AT_A_TIME = 64


def masked_positions(
    special: NDArray[np.bool_], *, seed: int, number: int, fraction: float = 0.15
) -> NDArray[np.int64]:
    """The tokens of a window that a masked-LM loss hides.

    Of the c tokens that are not special, max(1, round(fraction · c)) are drawn without
    replacement by NumPy's default generator, seeded with the pair (seed, number): a window has the
    same ones for every method, in every run, whatever was measured before it. All of them are to
    be replaced by the mask token; none is left or exchanged, as some are in training.

    Parameters
    ----------
    special : (n,) bool
        True for tokens that are never hidden.
    seed : int
        At least 0.
    number : int
        Which window it is.
    fraction : float
        In (0, 1].

    Returns
    -------
    (count,) int64, ascending
        Empty if all tokens are special.

    Raises
    ------
    UsageError
        If `fraction` is out of its range, or `seed` or `number` below 0.

    Examples
    --------
    >>> special = np.array([True] + [False] * 20 + [True])
    >>> masked_positions(special, seed=0, number=0)
    array([11, 13, 16])
    """
    if not 0 < fraction <= 1:
        raise UsageError(f"a fraction of {fraction} cannot be hidden", "use more than 0, at most 1")
    if seed < 0 or number < 0:
        raise UsageError(f"seed {seed} and window {number} are no seed", "use 0 or more")
    candidates = np.flatnonzero(~special)
    if len(candidates) == 0:
        return candidates.astype(np.int64)
    count = max(1, round(fraction * len(candidates)))
    generator = np.random.default_rng((seed, number))
    return np.sort(generator.choice(candidates, count, replace=False)).astype(np.int64)


def token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every token, −ln softmax(logits)[target].

    Parameters
    ----------
    logits : (count, vocabulary) tensor
    targets : (count,) int64 tensor

    Returns
    -------
    (count,) float64
        In nats, 0 or more; NaN where the logits are not finite.

    Examples
    --------
    >>> round(float(token_losses(torch.zeros(1, 8), torch.tensor([3])).exp()), 6)
    8.0
    """
    found = [
        -torch.log_softmax(logits[part].to(torch.float64), dim=-1).gather(-1, one[:, None])[:, 0]
        for part in _parts(logits)
        for one in [targets[part].to(logits.device)]
    ]
    return torch.cat(found)


def divergence(exact: torch.Tensor, approximate: torch.Tensor) -> torch.Tensor:
    """KL divergence of two models' predictions of every token, Σ_v p_v ln(p_v / q_v).

    Parameters
    ----------
    exact, approximate : (count, vocabulary) tensor
        Logits of p, the prediction with full attention, and of q.

    Returns
    -------
    (count,) float64
        In nats, 0 or more but for rounding; NaN where logits are not finite.

    Examples
    --------
    >>> p, q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> round(float(divergence(p, q)), 6)
    0.130812
    """
    found = []
    for part in _parts(exact):
        p = torch.log_softmax(exact[part].to(torch.float64), dim=-1)
        q = torch.log_softmax(approximate[part].to(torch.float64), dim=-1)
        found.append((p.exp() * (p - q)).sum(dim=-1))
    return torch.cat(found)


def agreement(exact: torch.Tensor, approximate: torch.Tensor) -> torch.Tensor:
    """Whether two models predict the same token first.

    Parameters
    ----------
    exact, approximate : (count, vocabulary) tensor
        Logits.

    Returns
    -------
    (count,) float64
        1 where they do, 0 where not, NaN where logits are not finite.

    Examples
    --------
    >>> agreement(torch.tensor([[0.0, 1], [2, 1]]), torch.tensor([[0.0, 3], [0, 1]])).tolist()
    [1.0, 0.0]
    """
    same = (exact.argmax(dim=-1) == approximate.argmax(dim=-1)).to(torch.float64)
    finite = torch.isfinite(exact).all(dim=-1) & torch.isfinite(approximate).all(dim=-1)
    return torch.where(finite, same, torch.nan)


def _parts(logits: torch.Tensor) -> list[slice]:
    # float64 of a few tokens at a time: a vocabulary is wide
    return [slice(at, at + _AT_A_TIME) for at in range(0, len(logits), _AT_A_TIME)]
