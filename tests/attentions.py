"""Made-up attention of every kind that a method may meet."""

from __future__ import annotations

import torch

from rankscope.attention import Attention


def attention(
    n: int = 24,
    *,
    d: int = 8,
    d_v: int | None = None,
    heads: int = 3,
    batch: int = 2,
    seed: int = 0,
    sharpness: float = 2.0,
    causal: bool = False,
    m: int | None = None,
    dtype: torch.dtype = torch.float64,
    shared: bool = False,
) -> Attention:
    """Attention with Gaussian query, key and value.

    `sharpness` scales the queries: 0 gives the uniform matrix. `shared` makes key = query, as in
    Reformer; a causal one has its mask as a bias.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, width: int) -> torch.Tensor:
        return torch.randn(batch, heads, rows, width, generator=generator, dtype=torch.float64)

    m = n if m is None else m
    query = sharpness * draw(n, d)
    key = query if shared else draw(m, d)
    bias = None
    if causal:
        bias = torch.full((n, m), torch.finfo(dtype).min, dtype=dtype).triu(1)
    return Attention(
        query=query.to(dtype),
        key=key.to(dtype),
        value=draw(m, d if d_v is None else d_v).to(dtype),
        scale=d**-0.5,
        bias=bias,
        layer=0,
        tokens=torch.arange(n).expand(batch, n) + 5,
        group="cross" if m != n else "decoder" if causal else "encoder",
        causal=causal,
        samples=tuple(range(batch)),
    )
