"""A measured run as the control ``mean-M`` sees it: averaged in groups of M windows."""

from __future__ import annotations

import numpy as np
import xarray as xr

from rankscope.labels import control_of, group_size
from rankscope.summary.accumulate import CODES, GOOD
from rankscope.summary.averages import BLOCK_BYTES
from rankscope.summary.units import Array, Floats
from rankscope.summary.windows import quarter_of

RATIOS = ("cumulative_ratio", "energy_ratio")


def beside_groups(run: xr.Dataset, control: xr.Dataset, index: int | None) -> xr.Dataset:
    """A run in the samples of its control: as it is, or in the groups of ``mean-M``.

    Of a group, what was measured is the mean of the ratios of its M windows, head by head, to be
    set against the ratio of the mean P of the same windows.

    Parameters
    ----------
    run, control : Dataset, dims (sample, layer, head, index)
        Of one model and corpus, with the coordinates model, text_id, window, token_start and
        token_end; `run` is read in blocks.
    index : int, optional
        The k that is wanted of a run in groups; a quarter of their windows' size when None.

    Returns
    -------
    Dataset, dims (sample, layer, head, index)
        `run` itself for any other control. Else its ratios at that k alone (at none if it has no
        such k), status, n_tokens, and where each group begins and ends. A head has a mean where all
        of its M matrices are usable; else it has NaN, and the status of the first that is not.
        Windows that are left over, fewer than M, are in no group.
    """
    count = group_size(control_of(str(control["model"].item()))[0])
    if count is None:
        return run
    whole = run.sizes["sample"] // count
    sizes = run["n_tokens"].isel(sample=slice(whole * count)).to_numpy()
    wanted = np.unique(quarter_of(sizes[sizes > 0])) if index is None else [index]
    chosen = run[[*RATIOS, "status", "n_tokens"]].isel(
        index=np.flatnonzero(np.isin(run["index"], wanted))
    )
    chosen = chosen.transpose("sample", "layer", "head", "index")
    width = count * sum(one.nbytes for one in chosen.values()) // max(1, run.sizes["sample"])
    step = count * max(1, BLOCK_BYTES // max(1, width))
    parts = [
        _in_groups(chosen.isel(sample=slice(start, min(start + step, whole * count))), count)
        for start in range(0, whole * count, step)
    ]
    return xr.concat(parts, "sample") if parts else chosen.isel(sample=slice(0))


def _in_groups(part: xr.Dataset, count: int) -> xr.Dataset:
    part = part.load()
    first, last = slice(None, None, count), slice(count - 1, None, count)
    status = _by_group(part["status"].to_numpy(), count)
    good = np.asarray(np.isin(status, GOOD))
    usable = np.asarray(good.all(axis=1))
    first_bad = np.take_along_axis(status, good.argmin(axis=1)[:, None], axis=1)[:, 0]
    found = part.isel(sample=first).assign_coords(
        token_end=("sample", part["token_end"].to_numpy()[last])
    )
    means = {
        name: _mean(_by_group(part[name].to_numpy(), count), usable[..., None]) for name in RATIOS
    }
    return found.assign(
        {name: (part[name].dims, values) for name, values in means.items()}
        | {"status": (part["status"].dims, np.where(usable, CODES["ok"], first_bad))}
    )


def _by_group(values: Array, count: int) -> Array:
    """(sample, …) as (group, M, …)."""
    return values.reshape(len(values) // count, count, *values.shape[1:])


def _mean(values: Floats, usable: Array) -> Floats:
    return np.asarray(np.where(usable, values.mean(axis=1), np.nan))
