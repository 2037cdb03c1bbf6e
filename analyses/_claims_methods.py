"""The methods that the claims compare, by what they are for; all at one budget, n/8 entries."""

from __future__ import annotations

from itertools import pairwise

from rankscope.approximations import Approximation, method
from rankscope.approximations.patterns import schedule
from rankscope.text import Window

TRENDS = ("rising", "fixed", "falling")
DILATIONS = (1, 2, 4)


def budget_of(n: int) -> int:
    """Score entries a query: n/8, even, 8 at least."""
    return max(8, n // 8 // 2 * 2)


def budgets(n: int) -> tuple[int, ...]:
    """Budgets at which random keys and band are compared: half, once and twice that."""
    b = budget_of(n)
    return b // 4 * 2, b, 2 * b


def ranks(n: int) -> tuple[int, ...]:
    """k of P_low: n/32 … n/2."""
    found = tuple(n // part for part in (32, 16, 8, 4, 2))
    return tuple(k for k, after in pairwise((*found, n)) if 1 <= k < after)


def band(w: int) -> str:
    """w/2 neighbours on each side."""
    return f"band:w={w}"


def random_keys(r: int) -> str:
    """As many keys at random."""
    return f"random:r={r}"


def trends(n: int, layers: int) -> dict[str, str]:
    """Bands that grow with the layer, stay, or shrink, the same in total: C8.

    From b/4 to 7b/4, b the budget, so that all three have b on average.
    """
    b = budget_of(n)
    low, high = max(2, b // 4 // 2 * 2), 2 * b - max(2, b // 4 // 2 * 2)
    if layers < 2:
        return {}
    found = {}
    for trend in TRENDS:
        widths = schedule(trend, low, high, layers)  # type: ignore[arg-type]
        one = len(set(widths)) == 1
        found[trend] = band(widths[0]) if one else f"band:w={'/'.join(map(str, widths))}"
    return found


def dilated(n: int) -> dict[str, str]:
    """The same dilation in all heads, and one that goes by the head: C9."""
    b = budget_of(n)
    found = {str(d): f"dilated:w={b},dilation={d}" for d in DILATIONS if d > 1}
    return {"1": band(b), **found, "by head": f"dilated:w={b},dilation={_joined(DILATIONS)}"}


def with_globals(window: Window, b: int) -> dict[str, str]:
    """A band; a band and its special tokens global; as many others global: C10.

    Global tokens cost 2g entries a query, which the band is narrower by.
    """
    ids = sorted({int(one) for one in window.ids[window.special]})
    g = int(window.special.sum())
    found = {"none": band(b)}
    if ids and b - 2 * g >= 2:
        w = (b - 2 * g) // 2 * 2
        found["special"] = f"longformer:w={w},g=0,ids={_joined(ids)}"
        found["others"] = f"longformer:w={w},g={g},place=even"
    return found


def low_rank(k: int) -> str:
    """P_low of rank k."""
    return f"truncated:k={k}"


def methods_of(window: Window, layers: int) -> list[Approximation]:
    """All whose output error is measured."""
    n = window.n_tokens
    texts = [*(text for b in budgets(n) for text in (band(b), random_keys(b)))]
    texts += [*trends(n, layers).values(), *dilated(n).values()]
    texts += [*with_globals(window, budget_of(n)).values(), "uniform"]
    texts += [low_rank(k) for k in ranks(n)]
    return [method(text) for text in dict.fromkeys(texts)]


def loss_methods(window: Window, layers: int) -> list[Approximation]:
    """All that are put into the model: one budget, and of P_low the rank n/4."""
    n = window.n_tokens
    half, _, twice = budgets(n)
    left_out = {text for b in (half, twice) for text in (band(b), random_keys(b))}
    left_out |= {low_rank(k) for k in ranks(n) if k != n // 4}
    return [one for one in methods_of(window, layers) if str(one) not in left_out]


def _joined(numbers: tuple[int, ...] | list[int]) -> str:
    return "/".join(map(str, numbers))
