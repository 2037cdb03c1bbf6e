"""The claims in words: what the source says, what decides it, by which rule, and how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyses import _claims_mathematics as mathematics
from analyses import _claims_replaced as replaced
from analyses import _claims_spectra as spectra
from rankscope.exceptions import UsageError


@dataclass(frozen=True)
class Claim:
    """A claim of the source.

    Attributes
    ----------
    id : str
    says : str
        The claim.
    number : str
        What the number is, in a few words.
    decides : str
        One sentence and the formula.
    rule : str
    parts : tuple of str
        Parts of the measurements that it needs; none for what does not depend on a model.
    read : str
        What to keep in mind.
    figure : str
        What its picture shows.
    """

    id: str
    says: str
    number: str
    decides: str
    rule: str
    parts: tuple[str, ...]
    read: str
    figure: str

    @property
    def by_model(self) -> bool:
        """Whether it is about models and texts."""
        return bool(self.parts)


_HALVES = (
    "The choice is made by the first half of the texts (of the windows, where there is one text; "
    "rounded down); number, interval and units come from the other half alone. What the table "
    "shows of single methods and heads is over all windows."
)

_BOTH = "Both must say so; if they differ, it depends."

_ALL = (
    Claim(
        "C1",
        "Of 512 “eigenvalues” the first 128 hold about 90 % of the sum",
        "mean ratio at n/4",
        "Mean over windows, layers and heads of Σ_{i≤n/4} σ_i / Σ_i σ_i, σ the singular values of "
        "P (the source says eigenvalues; P is not symmetric, and its figure shows σ).",
        f"About 90 % is taken as .90 ± .02: {spectra.RULES['C1']}.",
        ("spectra",),
        "A control says what the same number is without what was learned: *rows shuffled* keeps "
        "the values of every row of P and destroys their columns; *random weights* is the same "
        "architecture on the same windows with fresh weights. Differences are paired by window. "
        "Above the range is not “about 90 %” either.",
        "ratio at n/4 of each model and text, and of its controls; shaded: .90 ± .02",
    ),
    Claim(
        "C2",
        "In every layer and head the first 128 hold at least 88 %",
        "ratio at n/4 of the least head",
        "Mean ratio at n/4 of the head in which that mean is least, min_{l,h} mean_t r_{t,l,h}. "
        f"{_HALVES} A mean read where it was found to be the least of many would be too low.",
        f"{str(spectra.RULES['C2']).capitalize()}.",
        ("spectra",),
        "Two columns are over all windows: the least of the heads' means, which is a little too "
        "low, and the share of heads whose mean is .88 or more. For the controls the least head "
        "of every window is compared with the least head of the control in the same window.",
        "mean over windows of the least head's ratio, and the same of the controls; line: .88",
    ),
    Claim(
        "C3",
        "The higher the layer, the lower the rank",
        "Kendall's τ of layer and ratio",
        "Mean over windows of Kendall's rank correlation τ between the number of the layer and the "
        "layer's mean ratio at n/4; 1 is strictly rising, 0 no order.",
        f"{str(spectra.RULES['C3']).capitalize()}. τ = .5: three of four pairs of layers in order.",
        ("spectra",),
        "Look at the random weights too: where their ratio rises as well, rising is no sign of "
        "anything learned. An interval of width 0 means the same τ in every window.",
        "τ of each model and text; lines: 0 and .5",
    ),
    Claim(
        "C4",
        "The longer the text, the lower the (relative) rank",
        "slope of k90(n)/n for a doubling",
        "Slope of the mean over heads of k90(n)/n over log₂ n, n from n/8 to n, k90 the number of "
        "singular values that hold 90 % of their sum; the shorter texts are the first tokens of "
        "the same windows, so that slopes are paired by window.",
        f"{str(spectra.RULES['C4']).capitalize()}. A fall of less than .005 of n for a doubling "
        "of n counts as none.",
        ("spectra",),
        "The absolute k90 rises with n in every model: the column gives the factor for a doubling, "
        "where 2 would leave the relative rank as it is. The limit of .005 was set after a first "
        "look at the slopes of MiniLM and mpnet, which lie around 0.",
        "relative rank k90(n)/n over n, on the first text of the summary",
    ),
    Claim(
        "C5",
        "The largest weights sit on the nearest neighbours",
        "mass within ±n/32",
        "Mean over rows, heads and windows of Σ_{|i−j|≤w} p_ij, w = n/32 (rounded down, 1 or "
        "more).",
        f"{str(spectra.RULES['C5']).capitalize()}. (.125 is about twice what uniform attention has "
        "within ±n/32.)",
        ("near",),
        "*Tokens shuffled*: the same model reads the same tokens in a random order. What stays "
        "does not come from the order of the text, but from positions and from the tokens "
        "themselves.",
        "attention mass within ±w over w, on the first text of the summary; grey: uniform "
        "attention",
    ),
    Claim(
        "C6",
        "Random attention beats window attention, against intuition",
        "output error, band less random",
        "Mean over heads and windows of ‖PV − P̃V‖/‖PV‖ of a band of w = n/8 less that of r = n/8 "
        "random keys a query.",
        f"{str(replaced.BETTER).capitalize()}.",
        ("errors", "losses"),
        "Big Bird's own table 1 (models trained with the pattern, n = 512; masked LM / SQuAD / "
        "MNLI): BERT-base 64.2 / 88.5 / 83.4; random 60.1 / 83.0 / 80.2; window 58.3 / 76.4 / "
        "73.1; both 62.7 / 85.1 / 80.5. There random is ahead of the window. Here nothing was "
        "trained for its pattern: the two answer different questions.",
        "output error at n/8 entries a query",
    ),
    Claim(
        "C7",
        "The receptive field is O(l·w), dilated O(l·d·w)",
        "reach after l layers",
        "Distance to the furthest token that can have influenced one after l layers, from Boolean "
        "products of the patterns with the residual connection, against l·d·w/2 to each side.",
        "Settled by mathematics if the distances agree at every layer; the command fails if not.",
        (),
        "It is a distance and not a number of tokens: a dilated band has gaps, and after l layers "
        "has seen l·w + 1 tokens, whatever d is.",
        "reach to each side over layers, computed",
    ),
    Claim(
        "C8",
        "Wide windows on top and narrow ones below are the best split",
        "advantage of growing windows",
        "Bands that grow from w = n/32 to 7n/32 with the layer, stay at n/8, or shrink, the same "
        "in total: what the better of the two others costs the model more than the growing ones "
        "(masked-LM loss in nats; where there is no head, error of the final hidden states). "
        f"{_HALVES}",
        f"{str(replaced.BETTER).capitalize()}.",
        ("errors", "losses"),
        "Longformer's ablation (models trained so; dev BPC): growing 1.21, fixed 1.23, shrinking "
        "1.24. Here trained models are cut down without further training. The picture shows the "
        "output error of single layers, which needs no choice and may order the splits otherwise "
        "than the model's own number does.",
        "output error of the three splits, mean over layers and heads",
    ),
    Claim(
        "C9",
        "A different dilation for each head helps",
        "output error, one dilation less one a head",
        "Output error of the best dilation of 1, 2, 4 for all heads less that of the best one for "
        f"each head, w = n/8. {_HALVES} Beside it, in the model itself: what the best of 1, 2, 4 "
        "for all heads, chosen likewise, costs more than 1, 2, 4 in turn by the head's number.",
        f"{str(replaced.BETTER).capitalize()}; for the choice, and for the turn. {_BOTH}",
        ("errors", "losses"),
        "Longformer trained with dilation on two heads: 1.20 against 1.21 BPC.",
        "output error by dilation, and with dilations in turn",
    ),
    Claim(
        "C10",
        "Global attention matters for special tokens such as [CLS]",
        "gain on special rows less gain on the others",
        "A band of n/8 entries against a narrower one with the special tokens global, at the same "
        "number of entries: fall of the output error on the rows of special tokens less that on "
        "all other rows. Beside it what the model gains.",
        f"{str(replaced.BETTER).capitalize()}; for the rows, and for the model. {_BOTH}",
        ("errors", "losses"),
        "On their own rows global tokens see all keys, so that their error is 0 by construction: "
        "what is measured there is the error without. *As many others*: the same number of global "
        "tokens, evenly over the text.",
        "output error by rows and global tokens, the same entries",
    ),
    Claim(
        "C11",
        "Big Bird's pattern is a small-world graph, full attention the complete graph",
        "σ of the small world",
        "σ = (C/C_rand)/(L/L_rand), C the clustering coefficient and L the mean path length "
        "against Erdős–Rényi graphs of the same degree; interval over draws.",
        "At 16 and at 64 keys a query the interval of σ must lie above 1, and that of L/L_rand "
        f"below {mathematics.PATHS}; not supported if it is the contrary everywhere; otherwise it "
        "depends.",
        (),
        "The paths are short because of the global tokens: two steps lead everywhere, and "
        "Longformer's pattern has that too. By ω (0 in a small world, 1 in a random graph) the "
        "sparser pattern is nearer to a random graph. For full attention C = L = 1 and the gap is "
        "n/(n − 1): it is the complete graph.",
        "σ, logarithmic; line: 1",
    ),
    Claim(
        "C12",
        "Full rank would mean orthogonal rows",
        "counterexample",
        "P = (1 − ε)I + ε11ᵀ/n has eigenvalues 1 and 1 − ε, so full rank, and ⟨p_i, p_j⟩ = "
        "ε(2 − ε)/n > 0 for all i ≠ j.",
        "Settled by mathematics: rank n and no two orthogonal rows, computed here.",
        (),
        "Full rank asks for independent rows. A stochastic matrix with orthogonal rows is a "
        "permutation matrix; a softmax, whose entries are all positive, never is one.",
        "singular values of the counterexample, n = 8",
    ),
    Claim(
        "C13",
        "That sparse attention works shows that P is low rank",
        "counterexample",
        "A head that looks at the previous token alone: one entry a row, rank n − 1, ratios at n/4 "
        "of .251 (σ) and .252 (σ²).",
        "Settled by mathematics: both ratios at n/4 are those of a matrix of full rank.",
        (),
        "Sparse and low rank are independent: uniform attention is dense and of rank 1. The same "
        "band of equal weights reads .783 by σ and .991 by σ².",
        "cumulative ratio of σ over k, n = 512",
    ),
    Claim(
        "C14",
        "Complexities: full n², window n·w, LSH n·log n, Linformer n·k, kernel n·m",
        "exponent of full attention's time",
        "Exponents of time and peak memory over n = 1,024 … 16,384, fitted with intervals "
        "(figures/data/complexity.nc, by `python -m analyses complexity`), and of multiply-adds, "
        "counted here.",
        f"Full attention: above 1.5; the others: {mathematics.RULES['C14']}. All must say so.",
        (),
        "At a fixed budget; log n cannot be told from a constant by an exponent. Theorem 1 of "
        "Linformer asks for k that grows like ln n.",
        "fitted exponents over n; line: 1.5",
    ),
    Claim(
        "C15",
        "P_low approximates full attention well",
        "output error at k = n/4",
        "Mean over heads and windows of ‖PV − P_low V‖/‖PV‖ at k = n/4, and what the model itself "
        "loses with P_low in the place of P in all layers.",
        f"Output error: {replaced.SMALL_ERROR}. The model: the same for the error of the final "
        f"states; for a loss, {replaced.SMALL_LOSS} (nats). {_BOTH}",
        ("errors", "losses"),
        "P_low needs P and its decomposition: it bounds what low rank can do, and is no way to "
        "save anything. Errors compound over layers in the model.",
        "output error of P_low over k, on the first text of the summary; line: .1",
    ),
    Claim(
        "C16",
        "Sparse models need more layers for the receptive field, so their memory advantage is "
        "small",
        "entries for equal reach, over n²",
        "Score entries of as many layers as it takes until every token can have influenced every "
        "other, over those of one layer of full attention, n².",
        "Supported if it is above .5 for every pattern, not supported if for none; otherwise it "
        "depends.",
        (),
        "For a band, 2(n − 1)/w layers of n(w + 1) entries are about 2n²: the claim holds, if all "
        "layers are kept in memory, as in training. In inference one layer is alive at a time. A "
        "full-attention model has several layers as well.",
        "score entries for full reach over n², logarithmic; line: .5",
    ),
)

CLAIMS = {one.id: one for one in _ALL}
"""All claims of the source, in its order."""


def chosen(ids: Sequence[str] | None) -> list[Claim]:
    """Claims by their ids, all of them when none is given.

    Raises
    ------
    UsageError
        For an unknown one.
    """
    wanted = [one.upper() for one in ids or CLAIMS]
    if unknown := [one for one in wanted if one not in CLAIMS]:
        raise UsageError(f"unknown claim {', '.join(unknown)}", f"one of {', '.join(CLAIMS)}")
    return [CLAIMS[one] for one in dict.fromkeys(wanted)]
