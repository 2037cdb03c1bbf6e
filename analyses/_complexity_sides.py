"""What is measured: full attention, torch's fused kernel, and every method that is cheap to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rankscope.approximations import Approximation, method
from rankscope.approximations.fitted import Projections
from rankscope.attention import Attention

FULL, FUSED = "full", "fused"

GROUPS: Mapping[str, tuple[str, ...]] = {
    "full attention": (FULL,),
    "sparse": (
        "band:w={b}",
        "dilated:w={b}",
        "global:entries={b}",
        "longformer:w={b}",
        "random:r={b}",
        "random-band:entries={b}",
        "bigbird:entries={b}",
        "bigbird:entries={b},mode=etc",
    ),
    "low rank": ("linformer:k={b}",),
    "kernel": (
        "performer:features={b}",
        "performer:features={b},estimator=trigonometric",
        "linear",
        "cosformer",
    ),
    "Nyström": ("nystrom:landmarks={b}",),
    "hashing": ("lsh:entries={b}",),
    "sparse + low rank": ("scatterbrain:entries={b}",),
}
"""Methods by the family that the source puts them in; {b} stands for the budget."""

NOT_TO_RUN = frozenset(
    {"uniform", "mean-row", "truncated", "best-output", "projected", "top", "band-plus-low-rank"}
)
"""Bounds and yardsticks: those that need P first, and uniform attention, which looks at nothing."""

LEARNED = "linformer:k={k},projection=learned"
TABLE_RANKS = (128, 256)
"""k of the columns of Linformer's table 3 that stand beside the measured ratios."""

PUBLISHED: Mapping[int, Mapping[int, tuple[float, float]]] = {
    128: {
        512: (1.5, 1.7),
        1024: (1.7, 3.0),
        2048: (2.6, 6.1),
        4096: (3.4, 14.0),
        8192: (5.5, 28.0),
        16384: (8.6, 56.0),
        65536: (20.0, 60.0),
    },
    256: {
        512: (1.3, 1.5),
        1024: (1.6, 2.9),
        2048: (2.4, 5.6),
        4096: (3.2, 13.0),
        8192: (5.0, 26.0),
        16384: (7.8, 48.0),
        65536: (18.0, 52.0),
    },
}
"""Time and memory saved, by k and n, on a 16 GB V100.

Wang et al. 2020, arXiv:2006.04768, table 3.
"""


@dataclass(frozen=True)
class Side:
    """One curve: a method, or torch's fused kernel where `method` is None.

    Attributes
    ----------
    text : str
        Its name in the results; without the file that a learned projection comes from.
    group : str
        A key of :data:`GROUPS`.
    method : Approximation or None
    least : int
        Shortest text that it can be applied to.
    """

    text: str
    group: str
    method: Approximation | None
    least: int = 1

    def run(self, attention: Attention) -> torch.Tensor:
        """The output: (1, 1, n, d) tensor."""
        if self.method is not None:
            return self.method.apply(attention)
        fused = torch.nn.functional.scaled_dot_product_attention
        return fused(attention.query, attention.key, attention.values, scale=attention.scale)

    def expected(self, n: int, d: int) -> tuple[float, float]:
        """Multiply-adds and bytes by the method's own account; NaN for the fused kernel."""
        if self.method is None:
            return float("nan"), float("nan")
        cost = self.method.cost(n, n, d, d)
        return float(cost.multiply_adds), float(cost.bytes)


def sides(budget: int, longest: int, folder: Path) -> list[Side]:
    """Everything that is measured, full attention and the fused kernel first.

    Parameters
    ----------
    budget : int
        Score entries, features, landmarks or projected rows of every method that has one.
    longest : int
        Largest n; made-up projections are that long.
    folder : Path
        Where they are written.

    Returns
    -------
    list of Side
    """
    found = [Side(FULL, "full attention", method(FULL)), Side(FUSED, "full attention", None)]
    for group, templates in GROUPS.items():
        for template in templates:
            if template == FULL:
                continue
            text = template.format(b=budget)
            one = method(text)
            least = budget if one.name == "linformer" else 1
            found.append(Side(text, group, one, least))
            if one.name == "linformer":
                found += [_learned(k, longest, folder) for k in TABLE_RANKS if k <= longest]
    return found


def gaussian(n: int, d: int, device: torch.device, seed: int = 0) -> Attention:
    """One head with Gaussian query, key and value, float32.

    Parameters
    ----------
    n, d : int
        Tokens, and width of query, key and value.
    device : torch.device
    seed : int

    Returns
    -------
    Attention
        Without a mask or bias.
    """
    random = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 1, n, d, generator=random).to(device) for _ in range(3))
    tokens = torch.zeros(1, n, dtype=torch.int64, device=device)
    return Attention(query, key, value, d**-0.5, None, 0, tokens)


def _learned(k: int, longest: int, folder: Path) -> Side:
    """Projections as they would be learned: dense and read from a file; their numbers are drawn."""
    draw = np.random.default_rng(np.random.SeedSequence((0, k)))
    e, f = (
        torch.from_numpy(draw.standard_normal((1, k, longest), dtype=np.float32)) / k**0.5
        for _ in range(2)
    )
    nobody = Projections(
        kind="learned",
        sharing="headwise",
        length=longest,
        n_heads=1,
        e={0: e},
        f={0: f},
        model="none",
        weights_sha256=None,
        text="none",
        text_sha256="",
        windows=0,
    )
    text = LEARNED.format(k=k)
    path = nobody.write(folder / f"k{k}.safetensors")
    return Side(text, "low rank", method(f"{text},file={path}"), least=k)
