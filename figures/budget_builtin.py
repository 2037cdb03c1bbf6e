"""Loss at equal total rank: one k for all heads, one a layer, one a head; and those ranks."""

from __future__ import annotations

from pathlib import Path

from figures._data import DATA, pictures
from rankscope import plots
from rankscope.store.files import load

SHOWN = 128


def draw() -> list[Path]:
    """Draw losses on WikiText-103 test of ranks chosen on validation, and a map of the ranks."""
    found = load(DATA / "loss--builtin--budgets.nc")
    heads = found.sizes["layer"] * found["rank"].sizes["head"]
    full = float(found["full_loss"])
    rows = []
    for mean in found["mean_rank"].to_numpy():
        for way in found["way"].to_numpy():
            one = found.sel({"mean_rank": mean, "way": way})
            bounds = (float(one[f"loss_difference_{end}"]) + full for end in ("low", "high"))
            rows.append((int(mean) * heads, str(way), float(one["loss"]), *bounds))
    note = "bars: 95 % interval of the difference to full attention"
    losses = plots.budget_curves(rows, full=full, heads=heads, note=note)
    ranks = found["rank"].sel({"mean_rank": SHOWN, "way": "head"})
    title = f"ranks of the heads, mean {SHOWN}"
    return [
        *plots.save(losses, pictures("budget_builtin")),
        *plots.save(plots.rank_map(ranks.to_numpy(), title=title), pictures("ranks_builtin")),
    ]
