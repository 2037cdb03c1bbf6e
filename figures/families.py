"""All families at equal budget: output error, and what the model itself loses; and the table."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from analyses.families import FAMILIES, family_of
from figures._data import DATA, FOLDER, pictures
from rankscope import plots
from rankscope.plots.families import method_table
from rankscope.store.files import load

MODELS = {"builtin": "built-in", "minilm": "MiniLM", "mpnet": "12 × 12 encoder"}
CORPORA = {"wikitext103-test": "WikiText-103", "imdb-test": "IMDB"}
NAMES = {
    "linformer:bias=project": "Linformer, mean pooling",
    "projected": "P·RᵀR",
    "truncated": "P_low (needs P)",
    "best-output": "best output (needs P)",
    "top": "top entries of a row (needs P)",
    "band-plus-low-rank": "band + P_low (needs P)",
    "bigbird": "Big Bird, ITC",
    "bigbird:mode=etc": "Big Bird, ETC",
    "longformer": "Longformer",
    "random-band": "random + band",
    "lsh": "LSH, own query and key",
    "lsh:mode=shared": "LSH, shared query-key",
    "performer": "Performer",
    "linear": "linear transformer",
    "cosformer": "cosFormer",
    "nystrom": "Nyströmformer",
    "scatterbrain": "Scatterbrain",
    "mean-row": "mean row",
    "uniform": "uniform",
}


def draw() -> list[Path]:
    """Draw what ``analyses/families.py`` measured, and write the table beside it."""
    found = {
        (model, corpus): load(path)
        for model in MODELS
        for corpus in CORPORA
        if (path := DATA / f"families--{model}--{corpus}.nc").exists()
    }
    labels = list(dict.fromkeys(str(x) for one in found.values() for x in one["label"].to_numpy()))
    groups = {
        family: [label for label in labels if family_of(label) == family] for family in FAMILIES
    }
    titles = {key: f"{MODELS[key[0]]}\n{CORPORA[key[1]]}" for key in found}
    errors = method_table(
        {titles[key]: one["output_mean"] for key, one in found.items()}, groups, names=NAMES
    )
    losses = method_table(
        {
            titles[key]: one["loss_difference" if key[0] == "builtin" else "hidden_error"]
            for key, one in found.items()
        },
        groups,
        names=NAMES,
        quantity="built-in: loss above full attention's (nats); others: error of the final states",
    )
    table = FOLDER / "families.md"
    table.write_text(_table(found, groups), encoding="utf-8")
    return [
        *plots.save(errors, pictures("families")),
        *plots.save(losses, pictures("families_loss")),
        table,
    ]


def _table(found: dict[tuple[str, str], xr.Dataset], groups: dict[str, list[str]]) -> str:
    """The same numbers in Markdown: mean output error of the heads, and 10–90 % of the heads."""
    lines = [
        "<!-- written by `python -m figures families`; do not edit -->",
        "",
        "# Every method at equal budget",
        "",
        "Relative output error: mean over heads and, in brackets, 10 to 90 % of the heads; then",
        "the loss above full attention's (built-in model, nats a masked token) or the relative",
        "error of the final hidden states. n = 512. Nothing was trained. Methods with * need P.",
    ]
    for (model, corpus), one in found.items():
        budgets = sorted({int(b) for b in one["budget"].to_numpy() if b > 0})
        lines += ["", f"## {MODELS[model]}, {CORPORA[corpus]}", ""]
        lines += ["| family | method | " + " | ".join(f"{b}" for b in budgets) + " |"]
        lines += ["| --- | --- |" + " --- |" * len(budgets)]
        lost = "loss_difference" if model == "builtin" else "hidden_error"
        keys = [
            (str(x), int(b)) for x, b in zip(one["label"].values, one["budget"].values, strict=True)
        ]
        for family, members in groups.items():
            for label in members:
                cells = []
                for budget in budgets if (label, 0) not in keys else [0]:
                    if (label, budget) not in keys:
                        cells.append("refused")
                        continue
                    row = one.isel({"method": keys.index((label, budget))})
                    cells.append(
                        f"{float(row['output_mean']):.3f} "
                        f"({float(row['output_q10']):.2f}–{float(row['output_q90']):.2f}); "
                        f"{float(row[lost]):+.3f}"
                    )
                mark = "*" if family == "oracle" else ""
                cells += [""] * (len(budgets) - len(cells))
                name = NAMES.get(label, label).replace(" (needs P)", "")
                lines.append(f"| {family} | {name}{mark} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
