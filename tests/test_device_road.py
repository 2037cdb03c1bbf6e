"""The road of spectra that a GPU takes, with the CPU in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from rankscope.attention import Attention, check_measures, row_entropy, row_measures
from rankscope.capture import capture
from rankscope.engine import Recipe, SpectraPlan
from rankscope.engine.plan import Filing, WindowResult
from rankscope.exceptions import CaptureError
from rankscope.linalg import Workers
from rankscope.models import LoadedModel
from rankscope.models import load as load_model
from rankscope.text import Corpus, windows
from tiny import tiny_config
from tolerances import GRAM_RATIO


class OnDevice(SpectraPlan):
    """Spectra as for a device: filed one layer late."""

    order: list[str]

    def add(
        self,
        results: Sequence[WindowResult],
        place: int,
        attention: Attention,
        pool: Workers,
    ) -> Filing:
        filing = self._add_later(results, place, attention, pool)
        layer = attention.layer
        self.order.append(f"given {layer}")

        def file() -> None:
            self.order.append(f"filed {layer}")
            filing()

        return file


@pytest.fixture(params=["roberta", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedModel:
    tiny_config(request.param, initializer_range=0.25).save_pretrained(tmp_path / "model")
    return load_model(f"random:{tmp_path / 'model'}", tokenizer="hash")


@pytest.fixture
def corpus() -> Corpus:
    texts = [" ".join(f"word{i * j % 37}" for i in range(1, 3 + j % 9)) for j in range(40)]
    return Corpus.from_strings(texts, "words")


@pytest.mark.parametrize("recipe", [{"centred": True}, {"special": "renormalise"}])
def test_later_equals_at_once(
    model: LoadedModel, corpus: Corpus, recipe: dict[str, object]
) -> None:
    chosen = Recipe(length=12, windows=40, mode="document", **recipe)  # type: ignore[arg-type]
    later, once = OnDevice(model, corpus, chosen), SpectraPlan(model, corpus, chosen)
    later.order = []
    samples = range(3)
    with Workers(1) as pool:
        found = dict(later.compute(model, samples, pool))
        wanted = dict(once.compute(model, samples, pool))
    assert sorted(found) == sorted(wanted) == [0, 1, 2]
    for sample in samples:
        for name, values in wanted[sample].items():
            np.testing.assert_allclose(
                found[sample][name], values, atol=GRAM_RATIO, rtol=1e-6, err_msg=name
            )
    # the next layer is given before the one before it is filed
    first = later.order.index("filed 0")
    assert later.order[:first].count("given 1") == 1
    assert len(later.order) % 2 == 0


def attentions(model: LoadedModel, corpus: Corpus) -> Iterator[Attention]:
    cut = windows(corpus, model.tokenizer, length=12, count=2)
    return capture(model, cut, values=False)


def test_rows_are_measured_all_at_once(model: LoadedModel, corpus: Corpus) -> None:
    for attention in attentions(model, corpus):
        weights = attention.weights[0]
        measures = row_measures(weights, attention.causal)
        entropies = [row_entropy(one) for one in weights]
        np.testing.assert_allclose(measures[:, 0], entropies, rtol=1e-6)
        np.testing.assert_allclose(measures[:, 1:3], 1.0, atol=1e-6)
        assert not measures[:, 3].any()
        check_measures(measures.double().numpy(), attention)
        for place, wrong in ((1, 0.9), (2, 1.1)):
            spoilt = measures.double().numpy().copy()
            spoilt[2, place] = wrong
            with pytest.raises(CaptureError, match="head 2 sums to"):
                check_measures(spoilt, attention)
        spoilt = measures.double().numpy().copy()
        spoilt[1] = np.nan
        check_measures(spoilt, attention)


def test_looking_ahead_is_measured() -> None:
    matrix = torch.full((2, 3, 3), 1 / 3)
    matrix[0] = torch.tril(matrix[0]) / torch.tril(matrix[0]).sum(-1, keepdim=True)
    ahead = row_measures(matrix, causal=True)[:, 3]
    assert ahead.tolist() == pytest.approx([0.0, 1 / 3])
    assert row_measures(matrix)[:, 3].tolist() == [0.0, 0.0]
