"""Made-up runs of random spectra, and feeding them window by window."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from made_up import run_of
from rankscope.summary.accumulate import CODES, Accumulator


def random_run(texts: list[int], seed: int = 0, bad: float = 0.0, length: int = 6) -> xr.Dataset:
    """A run of random spectra of 2 layers and 3 heads, some matrices of which are not usable."""
    rng = np.random.default_rng(seed)
    shape = (len(texts), 2, 3)
    codes = np.where(rng.random(shape) < bad, CODES["non_finite"], 0).astype(np.int8)
    return run_of(
        np.sort(rng.random((*shape, length)))[..., ::-1],
        text_id=texts,
        n_tokens=rng.integers(2, length + 1, len(texts)).tolist(),
        status=codes,
    )


def fed(run: xr.Dataset, into: Any, start: int = 0, end: int | None = None) -> Any:
    """Feed the windows of a run one by one."""
    pair = run.isel(model=0, corpus=0)
    whole = isinstance(into, Accumulator)
    names = ("status", "cumulative_ratio", *(("energy_ratio",) if whole else ()))
    arrays = {name: pair[name].to_numpy() for name in names}
    scalars = {"rank_90": pair["rank_90"].to_numpy()} if whole else {}
    sizes, texts = pair["n_tokens"].to_numpy(), pair["text_id"].to_numpy()
    for place in range(start, len(texts) if end is None else end):
        into.add(
            text_id=int(texts[place]),
            n_tokens=int(sizes[place]),
            **{name: array[place] for name, array in arrays.items()},
            **({"scalars": {k: v[place] for k, v in scalars.items()}} if scalars else {}),
        )
    return into
