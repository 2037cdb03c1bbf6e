"""C6, C8, C9, C10 and C15: what methods of equal cost leave of the output, and of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import xarray as xr

from analyses import _claims_methods as methods
from analyses._claims_kept import size_of
from analyses._claims_rules import (
    Cells,
    Estimate,
    Finding,
    Rule,
    Verdict,
    estimate,
    halves,
    head_means,
    of_the_model,
    paired,
    percent,
    together,
)
from rankscope.approximations import method
from rankscope.summary.units import mean_of_present

Floats = npt.NDArray[np.float64]
INFINITY = float("inf")

BETTER = Rule((0.0, INFINITY), digits=0)
"""An advantage: for it above 0, against it below."""

SMALL_ERROR = Rule((-INFINITY, 0.1))
"""A relative error of the output, or of final states, that is called well."""

SMALL_LOSS = Rule((-INFINITY, 0.05))
"""A rise of the loss, in nats, that is called well."""


class Output:
    """Output errors of one model on one text, by method."""

    def __init__(self, kept: xr.Dataset) -> None:
        self.texts = kept["errors_text"].to_numpy()
        dims = ("errors_method", "errors_rows", "errors_window", "layer", "head")
        self._errors = kept["errors_output"].transpose(*dims).astype(np.float64)
        self._methods = [str(one) for one in kept["errors_method"].to_numpy()]

    def __contains__(self, text: str) -> bool:
        return str(method(text)) in self._methods

    def heads(self, text: str, rows: str = "all") -> Floats:
        """(window, layer, head)."""
        place = self._methods.index(str(method(text)))
        return np.asarray(self._errors.isel(errors_method=place).sel(errors_rows=rows))

    def mean(self, text: str, rows: str = "all") -> Estimate:
        """With its interval."""
        return estimate(self.heads(text, rows), self.texts)

    def gain(self, worse: str, better: str, rows: str = "all") -> Estimate:
        """Error of the first less that of the second, head by head and window by window."""
        return paired(self.heads(worse, rows), self.heads(better, rows), self.texts)

    def chosen(self, texts: list[str]) -> tuple[Estimate, str]:
        """Error of the best method for all heads, less that of the best one for each head.

        Both are chosen by the first half of the windows and judged by the second, see
        :func:`analyses._claims_rules.halves`.

        Returns
        -------
        Estimate, str
            NaN with a single unit, where there is nothing to choose by; the best for all heads.
        """
        choose, judge = halves(self.texts)
        if not choose.any():
            return estimate(np.full(len(self.texts), np.nan), self.texts), "–"
        errors = np.stack([self.heads(text) for text in texts])
        means = np.stack([head_means(one[choose], self.texts[choose]) for one in errors])
        one = int(np.nanargmin(mean_of_present(means, (1, 2))))
        # what has no number is no choice
        each = np.where(np.isnan(means), np.inf, means).argmin(axis=0)
        best = np.take_along_axis(errors, each[None, None], axis=0)[0]
        return paired(errors[one][judge], best[judge], self.texts[judge]), texts[one]


class Model:
    """Loss above full attention's, or error of the final states, by method."""

    def __init__(self, kept: xr.Dataset) -> None:
        self.there = "losses_value" in kept
        if not self.there:
            return
        self.texts = kept["losses_text"].to_numpy()
        values = kept["losses_value"].transpose("losses_window", "losses_method").to_numpy()
        self.in_nats = kept.attrs["losses_measure"] == "loss"
        self._methods = [str(one) for one in kept["losses_method"].to_numpy()]
        full = values[:, [self._methods.index("full")]] if self.in_nats else 0.0
        self._values: Floats = np.asarray(values - full)

    @property
    def what(self) -> str:
        """Measure and unit, for a column."""
        return "loss above full attention's, nats" if self.in_nats else "error of the final states"

    def windows(self, text: str) -> Floats:
        """(window,)."""
        return np.asarray(self._values.T[self._methods.index(str(method(text)))])

    def __contains__(self, text: str) -> bool:
        return self.there and str(method(text)) in self._methods

    def mean(self, text: str) -> Estimate:
        """With its interval."""
        return estimate(self.windows(text), self.texts)

    def gain(self, worse: str, better: str) -> Estimate:
        """What the first loses more than the second, window by window."""
        return paired(self.windows(worse), self.windows(better), self.texts)

    def gain_on_least(self, texts: list[str], better: str) -> tuple[Estimate, str]:
        """What that of several methods which loses least loses more than another.

        It is chosen by the first half of the windows, and the second half judges, see
        :func:`analyses._claims_rules.halves`.

        Returns
        -------
        Estimate, str
            NaN with a single unit; the method that was chosen.
        """
        choose, judge = halves(self.texts)
        if not choose.any():
            return estimate(np.full(len(self.texts), np.nan), self.texts), "–"
        means = [estimate(self.windows(one)[choose], self.texts[choose]).value for one in texts]
        least = texts[int(np.nanargmin(means))]
        values = self.windows(least) - self.windows(better)
        return estimate(values[judge], self.texts[judge]), least


def random_or_window(kept: xr.Dataset) -> Finding:
    """C6: error of the band less that of as many random keys."""
    output, model, n = Output(kept), Model(kept), size_of(kept, "errors")
    budgets = methods.budgets(n)
    number = output.gain(*_pair(budgets[1]))
    cells: Cells = {
        "band": output.mean(_pair(budgets[1])[0]),
        "random": output.mean(_pair(budgets[1])[1]),
    }
    for b in (budgets[0], budgets[2]):
        cells[f"difference at {_part(b, n)}"] = output.gain(*_pair(b))
    if _pair(budgets[1])[1] in model:
        cells["in the model"] = f"{model.gain(*_pair(budgets[1]))} ({_unit(model)})"
    return Finding(number, *BETTER.judge(number, ""), cells)


def widening_windows(kept: xr.Dataset) -> Finding:
    """C8: what the better of fixed and shrinking windows loses more than growing ones."""
    output, model = Output(kept), Model(kept)
    texts = methods.trends(size_of(kept, "errors"), kept.sizes["layer"])
    if not texts or texts["rising"] not in model:
        return Finding("one layer", Verdict.depends, "on the model: it has one layer")
    others = [texts["fixed"], texts["falling"]]
    number, other = model.gain_on_least(others, texts["rising"])
    names = {text: name for name, text in texts.items()}
    cells: Cells = {"chosen of the others": names.get(other, "–")}
    cells |= {f"{name} ({_unit(model)})": model.mean(text) for name, text in texts.items()}
    cells |= {f"{name}, output error": output.mean(text) for name, text in texts.items()}
    cells["output error, fixed less rising"] = output.gain(texts["fixed"], texts["rising"])
    return Finding(number, *BETTER.judge(number, ""), cells)


def dilation_by_head(kept: xr.Dataset) -> Finding:
    """C9: error of the best dilation for all heads less that of one chosen for each head."""
    output, model, n = Output(kept), Model(kept), size_of(kept, "errors")
    texts = methods.dilated(n)
    same = [texts[str(d)] for d in methods.DILATIONS]
    number, one = output.chosen(same)
    parts = [BETTER.judge(number, "")]
    names = {text: name for name, text in texts.items()}
    cells: Cells = {"chosen for all heads": names.get(one, "–")}
    cells |= {f"dilation {name}, output error": output.mean(text) for name, text in texts.items()}
    if texts["by head"] in model:
        plain, _ = model.gain_on_least(same, texts["by head"])
        parts.append(of_the_model(BETTER.judge(plain, "")))
        cells["by head, in the model"] = f"{plain} ({_unit(model)})"
    return Finding(number, *together(parts, "on which head gets which dilation"), cells)


def global_tokens(kept: xr.Dataset) -> Finding:
    """C10: what global special tokens gain on their own rows less what they gain on the others."""
    output, model, n = Output(kept), Model(kept), size_of(kept, "errors")
    texts = _globals_of(kept, methods.budget_of(n))
    if texts is None:
        return Finding("none", Verdict.depends, "on the model: it adds no special tokens")
    none, special, others = texts
    gains = {
        rows: output.heads(none, rows) - output.heads(special, rows)
        for rows in ("special", "other")
    }
    number = paired(gains["special"], gains["other"], output.texts)
    parts = [BETTER.judge(number, "")]
    cells: Cells = {
        "special rows, band alone": output.mean(none, "special"),
        "other rows, band alone": output.mean(none, "other"),
        "other rows, special tokens global": output.mean(special, "other"),
        "other rows, as many others global": output.mean(others, "other"),
    }
    if special in model:
        whole = model.gain(none, special)
        parts.append(of_the_model(BETTER.judge(whole, "")))
        cells["gain in the model"] = f"{whole} ({_unit(model)})"
        cells["of as many others"] = f"{model.gain(none, others)} ({_unit(model)})"
    return Finding(number, *together(parts, "on what is asked: the rows, or the model"), cells)


def low_rank_output(kept: xr.Dataset) -> Finding:
    """C15: output error of P_low at k = n/4, and what the model loses."""
    output, model, n = Output(kept), Model(kept), size_of(kept, "errors")
    quarter = methods.low_rank(n // 4)
    number = output.mean(quarter)
    parts = [SMALL_ERROR.judge(number, "")]
    ks = [k for k in methods.ranks(n) if methods.low_rank(k) in output]
    cells: Cells = {f"k = {_part(k, n)}": output.mean(methods.low_rank(k)) for k in ks}
    heads = head_means(output.heads(quarter), output.texts)
    cells["heads above .1 at n/4"] = percent(float(np.mean(heads[~np.isnan(heads)] > 0.1)))
    if quarter in model:
        lost = model.mean(quarter)
        rule = SMALL_LOSS if model.in_nats else SMALL_ERROR
        parts.append(of_the_model(rule.judge(lost, "")))
        for k in ks:
            if methods.low_rank(k) in model:
                cells[f"in the model at {_part(k, n)}"] = (
                    f"{model.mean(methods.low_rank(k))} ({_unit(model)})"
                )
    return Finding(number, *together(parts, "on what is asked: the heads, or the model"), cells)


def _globals_of(kept: xr.Dataset, b: int) -> tuple[str, str, str] | None:
    """The methods of C10 as they were measured: their special tokens go by the tokenizer."""
    named = [
        str(one)
        for one in kept["errors_method"].to_numpy()
        if str(one).startswith("longformer:") and "ids=" in str(one)
    ]
    even = [str(one) for one in kept["errors_method"].to_numpy() if "place=even" in str(one)]
    if not named or not even:
        return None
    return methods.band(b), named[0], even[0]


def _pair(b: int) -> tuple[str, str]:
    return methods.band(b), methods.random_keys(b)


def _part(k: int, n: int) -> str:
    return f"n/{n // k}" if n % k == 0 else str(k)


def _unit(model: Model) -> str:
    return "nats" if model.in_nats else "error of the final states"


FOUND: Mapping[str, Callable[[xr.Dataset], Finding]] = {
    "C6": random_or_window,
    "C8": widening_windows,
    "C9": dilation_by_head,
    "C10": global_tokens,
    "C15": low_rank_output,
}
"""What decides each claim."""
