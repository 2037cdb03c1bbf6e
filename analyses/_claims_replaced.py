"""C6, C8, C9, C10 and C15: what methods of equal cost leave of the output, and of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import xarray as xr

from analyses import _claims_methods as methods
from analyses._claims_rules import (
    Cells,
    Estimate,
    Finding,
    Rule,
    Verdict,
    estimate,
    paired,
    percent,
    together,
)
from rankscope.approximations import method

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

    def windows(self, text: str, rows: str = "all") -> Floats:
        """Mean over the heads, (window,)."""
        return np.asarray(np.nanmean(self.heads(text, rows), axis=(1, 2)))

    def mean(self, text: str, rows: str = "all") -> Estimate:
        """With its interval."""
        return estimate(self.windows(text, rows), self.texts)

    def gain(self, worse: str, better: str, rows: str = "all") -> Estimate:
        """Error of the first less that of the second, window by window."""
        return paired(self.windows(worse, rows), self.windows(better, rows), self.texts)


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

    def least(self, texts: list[str]) -> str:
        """The method that loses least on average."""
        return min(texts, key=lambda text: float(np.nanmean(self.windows(text))))


def random_or_window(kept: xr.Dataset) -> Finding:
    """C6: error of the band less that of as many random keys."""
    output, model, n = Output(kept), Model(kept), size_of(kept)
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
    texts = methods.trends(size_of(kept), kept.sizes["layer"])
    if not texts or texts["rising"] not in model:
        return Finding("one layer", Verdict.depends, "on the model: it has one layer")
    other = model.least([texts["fixed"], texts["falling"]])
    number = model.gain(other, texts["rising"])
    cells: Cells = {f"{name} ({_unit(model)})": model.mean(text) for name, text in texts.items()}
    cells |= {f"{name}, output error": output.mean(text) for name, text in texts.items()}
    cells["output error, fixed less rising"] = output.gain(texts["fixed"], texts["rising"])
    return Finding(number, *BETTER.judge(number, ""), cells)


def dilation_by_head(kept: xr.Dataset) -> Finding:
    """C9: error of the best dilation for all heads less that of one chosen for each head."""
    output, model, n = Output(kept), Model(kept), size_of(kept)
    texts = methods.dilated(n)
    same = [texts[str(d)] for d in methods.DILATIONS]
    one, each = _held_out(np.stack([output.heads(text) for text in same]))
    number = paired(one, each, output.texts)
    parts = [BETTER.judge(number, "")]
    cells: Cells = {
        f"dilation {name}, output error": output.mean(text) for name, text in texts.items()
    }
    if texts["by head"] in model:
        plain = model.gain(model.least(same), texts["by head"])
        parts.append(BETTER.judge(plain, ""))
        cells["by head, in the model"] = f"{plain} ({_unit(model)})"
    return Finding(number, *together(parts, "on which head gets which dilation"), cells)


def _held_out(errors: Floats) -> tuple[Floats, Floats]:
    """Errors under the best dilation for all heads, and for each, chosen on the other windows.

    Parameters
    ----------
    errors : (dilation, window, layer, head) array

    Returns
    -------
    (window,), (window,)
        NaN with a single window, where there is nothing to choose by.
    """
    count = errors.shape[1]
    one, each = np.full(count, np.nan), np.full(count, np.nan)
    for window in range(count) if count > 1 else ():
        others = np.delete(errors, window, axis=1).mean(axis=1)
        best = int(others.mean(axis=(1, 2)).argmin())
        one[window] = errors[best, window].mean()
        chosen = others.argmin(axis=0)[None]
        each[window] = np.take_along_axis(errors[:, window], chosen, axis=0).mean()
    return one, each


def global_tokens(kept: xr.Dataset) -> Finding:
    """C10: what global special tokens gain on their own rows less what they gain on the others."""
    output, model, n = Output(kept), Model(kept), size_of(kept)
    texts = _globals_of(kept, methods.budget_of(n))
    if texts is None:
        return Finding("none", Verdict.depends, "on the model: it adds no special tokens")
    none, special, others = texts
    gains = {
        rows: output.windows(none, rows) - output.windows(special, rows)
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
        parts.append(BETTER.judge(whole, ""))
        cells["gain in the model"] = f"{whole} ({_unit(model)})"
        cells["of as many others"] = f"{model.gain(none, others)} ({_unit(model)})"
    return Finding(number, *together(parts, "on what is asked: the rows, or the model"), cells)


def low_rank_output(kept: xr.Dataset) -> Finding:
    """C15: output error of P_low at k = n/4, and what the model loses."""
    output, model, n = Output(kept), Model(kept), size_of(kept)
    quarter = methods.low_rank(n // 4)
    number = output.mean(quarter)
    parts = [SMALL_ERROR.judge(number, "")]
    ks = [k for k in methods.ranks(n) if methods.low_rank(k) in output]
    cells: Cells = {f"k = {_part(k, n)}": output.mean(methods.low_rank(k)) for k in ks}
    heads = output.heads(quarter).mean(axis=0)
    cells["heads above .1 at n/4"] = percent(np.mean(heads > 0.1))
    if quarter in model:
        lost = model.mean(quarter)
        rule = SMALL_LOSS if model.in_nats else SMALL_ERROR
        parts.append(rule.judge(lost, ""))
        for k in ks:
            if methods.low_rank(k) in model:
                cells[f"in the model at {_part(k, n)}"] = (
                    f"{model.mean(methods.low_rank(k))} ({_unit(model)})"
                )
    return Finding(number, *together(parts, "on what is asked: the heads, or the model"), cells)


def size_of(kept: xr.Dataset) -> int:
    """n of the output errors, from the ranks that were measured: the largest is n/2."""
    ks = [
        int(str(one).rpartition("=")[2])
        for one in kept["errors_method"].to_numpy()
        if str(one).startswith("truncated:")
    ]
    return 2 * max(ks)


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
