"""Where a dataset's numbers come from, as the page says it and as datasets are told apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import xarray as xr

_SHORT = 12


@dataclass(frozen=True)
class Origin:
    """Model, text and settings of a part of a run.

    Attributes
    ----------
    model, corpus : str
    weights, text : str or None
        Checksums; None where they are not recorded.
    facts : list of [str, str]
        What the page lists, in order.
    """

    model: str
    corpus: str
    weights: str | None
    text: str | None
    facts: list[list[str]]

    @classmethod
    def of(cls, part: xr.Dataset) -> Origin:
        """Read the attributes of a summary of one model on one corpus.

        The attributes of a dataset that was put together from several runs are those of one of
        them; what belongs to another model or corpus is left out.
        """
        name, corpus = str(part["model"].item()), str(part["corpus"].item())
        model = _json(part, "model_json")
        settings = _json(part, "recipe_json")
        model = model if model.get("name") == name else {}
        text = settings.get("corpus") or {}
        text = text if text.get("name") == corpus else {}
        recipe = settings.get("recipe") or {}
        facts = [
            ["model", _words(name, model)],
            ["corpus", _text(corpus, text)],
            ["windows", _windows(part, recipe)],
            ["attention", _attention(part, recipe)],
            ["weights", _weights(model)],
            ["computed by", _versions(part)],
        ]
        return cls(name, corpus, model.get("weights_sha256"), text.get("sha256"), facts)

    def differs(self, other: Origin) -> str:
        """What is recorded differently of two origins with the same names; "" if nothing is."""
        for what, here, there in (
            ("weights", self.weights, other.weights),
            ("text", self.text, other.text),
        ):
            if here and there and here != there:
                return f"{what} ({here:.{_SHORT}} here, {there:.{_SHORT}} there)"
        return ""


def _json(part: xr.Dataset, name: str) -> dict[str, Any]:
    return dict(json.loads(part.attrs.get(name) or "{}") or {})


def _words(name: str, model: dict[str, Any]) -> str:
    if not model:
        return name
    kind = f"{model.get('family')}, {model.get('dtype')}"
    revision = model.get("revision")
    return f"{name} ({kind}{f', revision {revision:.{_SHORT}}' if revision else ''})"


def _text(corpus: str, text: dict[str, Any]) -> str:
    return f"{corpus}, sha256 {text['sha256']:.{_SHORT}}" if text.get("sha256") else corpus


def _windows(part: xr.Dataset, recipe: dict[str, Any]) -> str:
    count, texts = (int(part[name].item()) for name in ("n_windows", "n_texts"))
    low, high = (int(part[f"n_tokens_{end}"].item()) for end in ("min", "max"))
    size = f"n = {high}" if low == high else f"n = {low}–{high}"
    plural = "s" if count != 1 else ""
    mode = f", {recipe['mode']}" if recipe.get("mode") else ""
    return f"{count} window{plural}{mode}, {size}, from {texts} text{'s' if texts != 1 else ''}"


def _attention(part: xr.Dataset, recipe: dict[str, Any]) -> str:
    special = {
        "keep": "special tokens kept",
        "drop": "special tokens dropped after the softmax",
        "renormalise": "special tokens dropped, rows renormalised",
    }
    words = ["P after the softmax, uncentred; the ratios of single matrices are averaged"]
    words += [special[recipe["special"]]] if recipe.get("special") in special else []
    words += [f"{recipe['group']} attention"] if recipe.get("group") else []
    words += [f"driver {recipe['driver']}"] if recipe.get("driver") else []
    dtype = part.attrs.get("matrix_dtype")
    words += [f"P in {dtype}, σ in float64"] if dtype else []
    return ", ".join(words)


def _weights(model: dict[str, Any]) -> str:
    drawn = f"drawn at random, seed {model['seed']}" if model.get("seed") is not None else ""
    checksum = model.get("weights_sha256")
    stored = f"sha256 {checksum:.{_SHORT}}" if checksum else ""
    return ", ".join(one for one in (stored, drawn) if one) or "not recorded"


def _versions(part: xr.Dataset) -> str:
    versions = _json(part, "versions_json")
    named = [f"{name} {versions[name]}" for name in ("rankscope", "torch") if name in versions]
    hashed = part.attrs.get("settings_hash")
    named += [f"settings {hashed!s:.{_SHORT}}"] if hashed else []
    return ", ".join(named) or "not recorded"
