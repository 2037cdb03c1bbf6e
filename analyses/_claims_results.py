"""All that was measured and found, model by model: what the page and the pictures are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from analyses import _claims_mathematics as mathematics
from analyses import _claims_replaced as replaced
from analyses import _claims_spectra as spectra
from analyses._claims_kept import part_settings
from analyses._claims_mathematics import Proof
from analyses._claims_rules import Finding, head_means, percent
from analyses._claims_texts import CLAIMS
from rankscope.store.files import load
from rankscope.summary.units import mean_of_present

Floats = npt.NDArray[np.float64]

PUBLISHED = (0.867, 0.882, 0.886, 0.892, 0.899, 0.907, 0.917, 0.927, 0.938, 0.949, 0.959, 0.969)
"""Layer means of Linformer's figure 1, right: RoBERTa-base, WikiText-103, read off the picture."""

PUBLISHED_MEANS = (
    ("base", "IMDB", 0.931),
    ("base", "WikiText-103", 0.917),
    ("large", "IMDB", 0.911),
    ("large", "WikiText-103", 0.886),
)
"""The curves of its left part at 128."""

MODELS = {
    "builtin": "built-in (4 × 4)",
    "minilm": "MiniLM (6 × 12)",
    "mpnet-78c019": "mpnet (12 × 12)",
    "random:roberta-base": "random base (12 × 12)",
    "random:roberta-large": "random large (24 × 16)",
}
"""Short names, with layers × heads."""

CORPORA = {"wikitext103-test": "WikiText-103", "imdb-test": "IMDB", "builtin": "built-in text"}


@dataclass(frozen=True, eq=False)
class Measured:
    """One model on one text.

    Attributes
    ----------
    model, corpus : str
    kept : Dataset
    """

    model: str
    corpus: str
    kept: xr.Dataset

    @property
    def title(self) -> str:
        """For a row of a picture."""
        return f"{self.name}, {self.text}"

    @property
    def name(self) -> str:
        """The model without its size."""
        return self.short.partition(" (")[0]

    @property
    def short(self) -> str:
        """The model."""
        return MODELS.get(self.model, self.model)

    @property
    def text(self) -> str:
        """The text."""
        return CORPORA.get(self.corpus, self.corpus)

    def part(self, name: str) -> dict[str, Any] | None:
        """Settings of a part; None if it was not measured."""
        return part_settings(self.kept, name)

    def has(self, parts: tuple[str, ...]) -> bool:
        """Whether all these parts were measured."""
        return all(self.part(name) is not None for name in parts)

    @property
    def head_means(self) -> Floats:
        """Mean ratio at n/4 of every head, (layer, head); texts have equal weight."""
        ratio = self.kept["spectra_ratio"].transpose("spectra_window", "layer", "head")
        return head_means(ratio, self.kept["spectra_text"])

    @property
    def layer_means(self) -> Floats:
        """Mean over the heads of every layer."""
        return mean_of_present(self.head_means, (1,))

    def mean_over_heads(self, part: str, name: str, **chosen: str) -> Floats:
        """A variable of a part, averaged over texts and heads as the numbers of its claims are.

        Parameters
        ----------
        part, name : str
        **chosen : str
            Labels along other dimensions.

        Returns
        -------
        array over what else it depends on, float64
        """
        values = self.kept[f"{part}_{name}"].sel(chosen)
        values = values.transpose(f"{part}_window", "layer", "head", ...)
        return mean_of_present(head_means(values, self.kept[f"{part}_text"]), (0, 1))


@dataclass(frozen=True, eq=False)
class Results:
    """Findings of every claim.

    Attributes
    ----------
    measured : list of Measured
        Models in the order of :data:`MODELS`, then others; texts likewise.
    findings : dict of str to dict of int to Finding
        By claim, and by the place in `measured`.
    proofs : dict of str to Proof
    """

    measured: list[Measured]
    findings: Mapping[str, Mapping[int, Finding]]
    proofs: Mapping[str, Proof]

    def on(self, corpus: str) -> list[int]:
        """Places of a text."""
        return [place for place, one in enumerate(self.measured) if one.corpus == corpus]

    @property
    def corpora(self) -> list[str]:
        """Texts, each once."""
        return list(dict.fromkeys(one.corpus for one in self.measured))


def gather(data: Path) -> Results:
    """Find everything in the folder of data.

    Raises
    ------
    StoreError
        For a file that cannot be read.
    """
    found = []
    for path in sorted(data.glob("claims--*.nc")):
        kept = load(path)
        found.append(Measured(str(kept.attrs["model"]), str(kept.attrs["corpus"]), kept))
    found.sort(key=lambda one: (_place(one.model, MODELS), _place(one.corpus, CORPORA)))
    by_model = {**spectra.FOUND, **replaced.FOUND}
    findings = {
        claim.id: {
            place: by_model[claim.id](one.kept)
            for place, one in enumerate(found)
            if one.has(claim.parts)
        }
        for claim in CLAIMS.values()
        if claim.by_model
    }
    proofs = {name: prove(data) for name, prove in mathematics.FOUND.items()}
    return Results(found, findings, proofs)


def _place(name: str, known: Mapping[str, str]) -> tuple[int, str]:
    return ([*known].index(name) if name in known else len(known)), name


def figure1_rows(results: Results) -> list[dict[str, str]]:
    """Linformer's published map beside every model: layer means, and how far heads differ."""
    published = np.array(PUBLISHED)
    rows = [
        {
            "weights": "**published map**: RoBERTa-base (digitised, ± .002)",
            "text": "WikiText-103",
            "mean": f"{published.mean():.3f}",
            "first layer → last": f"{published[0]:.3f} → {published[-1]:.3f}",
            "rises in every layer": "yes",
            "largest spread of heads in a layer": "0.007",
            "mean distance of layer means from the published": "0",
        },
        *(
            {
                "weights": f"**published curve**: RoBERTa-{size} (digitised, ± .004)",
                "text": text,
                "mean": f"{mean:.3f}",
            }
            for size, text, mean in PUBLISHED_MEANS
        ),
    ]
    for one in results.measured:
        if not one.has(("spectra",)):
            continue
        means = one.layer_means
        rows.append(
            {
                "weights": one.short,
                "text": one.text,
                "mean": f"{np.nanmean(one.head_means):.3f}",
                "first layer → last": f"{means[0]:.3f} → {means[-1]:.3f}",
                "rises in every layer": "yes" if bool((np.diff(means) > 0).all()) else "no",
                "largest spread of heads in a layer": f"{spread_of(one):.3f}",
                "mean distance of layer means from the published": f"{distance(one):.3f}",
            }
        )
    return rows


def distance(one: Measured) -> float:
    """Mean distance of layer means from the published map, at equal depth of the network."""
    means = one.layer_means
    depth, theirs = np.linspace(0, 1, len(means)), np.linspace(0, 1, len(PUBLISHED))
    return float(np.nanmean(np.abs(means - np.interp(depth, theirs, PUBLISHED))))


def spread_of(one: Measured) -> float:
    """Largest difference between two heads of a layer."""
    means = one.head_means
    return float(np.nanmax(np.nanmax(means, axis=1) - np.nanmin(means, axis=1)))


def like_published(one: Measured, spread: float = 0.02) -> bool:
    """Whether layer means rise in every layer while the heads of each agree to within `spread`."""
    return bool((np.diff(one.layer_means) > 0).all()) and spread_of(one) <= spread


def rank_rows(results: Results) -> list[dict[str, str]]:
    """Numerical ranks of P: how many have full rank although no two rows are orthogonal."""
    rows = []
    for one in results.measured:
        if one.has(("spectra",)):
            ranks = one.kept["spectra_numerical_rank"].to_numpy()
            ranks = ranks[np.isfinite(ranks)]
            n = int(one.kept["spectra_length"].max())
            rows.append(
                {
                    "model": one.short,
                    "text": one.text,
                    "matrices of full rank": percent(np.mean(ranks == n)),
                    "median rank": f"{np.median(ranks):.0f} of {n}",
                }
            )
    return rows
