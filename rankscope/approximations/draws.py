"""Random numbers of methods: apart from torch's global ones, and the same for every window."""

from __future__ import annotations

import numpy as np
import torch

from rankscope.exceptions import UsageError


def check_seed(name: str, seed: int) -> None:
    """Refuse a negative seed.

    Raises
    ------
    UsageError
    """
    if seed < 0:
        raise UsageError(f"{name} has no random numbers for the seed {seed}", "use 0 or more")


def generator(seed: int, *place: int) -> torch.Generator:
    """torch's random numbers for one place, such as a layer or a head.

    Parameters
    ----------
    seed : int
        0 or more.
    *place : int
        Numbers that tell the place from others, 0 or more.

    Returns
    -------
    torch.Generator
        On the CPU; streams of different places and seeds are independent.
    """
    state = np.random.SeedSequence((seed, *place)).generate_state(1, np.uint64)
    # torch takes seeds of 63 bits
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
