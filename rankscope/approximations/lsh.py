"""LSH attention: tokens attend to those whose vectors point the same way, found by hashing.

Angular hashes put tokens of similar direction into one bucket; tokens are sorted by bucket, cut
into chunks, and attend to their own chunk and the one before: n·2·chunk score entries a round
instead of n². Several rounds with hashes of their own find what one has missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from rankscope.approximations.base import (
    MASKED,
    Approximation,
    Cost,
    check_budget,
    has_mask,
)
from rankscope.approximations.draws import check_seed, generator
from rankscope.attention import Attention, Group
from rankscope.exceptions import MethodError, UsageError


@dataclass(frozen=True)
class Lsh(Approximation):
    """Reformer's attention by locality-sensitive hashing.

    h(x) = argmax([xR; −xR]) with R ~ N(0, 1); a token attends to the tokens of its own and of the
    previous chunk of the order by (h, position), whether or not their buckets agree, and the first
    chunk to itself alone. A pair that c rounds bring together has its score lowered by ln c in each
    of them, so that the log-sum-exp over the rounds counts it once: the output is the softmax over
    the union of the pairs.

    In ``shared`` mode the key is the query's direction, k = q/‖q‖, as in Reformer's layers that
    have one matrix for both; scores are scale·qᵀk, and a token attends to itself only if it may
    attend to nothing else. The published code makes keys of length √d before it divides by √d: that
    is a scale of 1.

    In ``own`` mode query and key are the model's, hashed with the same R, and so are the scores; a
    token may attend to itself. Queries and keys are sorted apart. A chunk of queries attends to the
    2·chunk keys around the place where its first query would stand among the keys: in the same
    bucket, as far in as it is among the queries. Where query and key are alike, these are the own
    and the previous chunk. (Chunks of equal number would pair queries with keys of other buckets
    wherever the two fill their buckets differently, as they do in models that do not share them.)

    Position biases are added to the scores of the pairs, masks hide pairs; a token without any pair
    attends to itself. On a causal model no weight falls on later tokens, but where the chunks end
    depends on all of them, so that a later token can change which earlier ones are seen: the method
    does not count as causal.

    Attributes
    ----------
    entries : int
        Score entries that are computed for each query, 2·chunk·rounds.
    rounds : int
        With more rounds at equal `entries` chunks are smaller.
    mode : {"own", "shared"}
    buckets : int, optional
        A power of two; without it the largest one up to 2n/chunk. More than 2·chunk are put
        together from several hashes of at most that many buckets each.
    seed : int
        Hashes differ between rounds, heads and layers, and are the same for every window.

    References
    ----------
    Kitaev, Kaiser & Levskaya 2020, arXiv:2001.04451, section 2 and appendix A; Andoni et al. 2015,
    arXiv:1509.02897.
    """

    entries: int
    rounds: int = 4
    mode: Literal["own", "shared"] = "own"
    buckets: int | None = None
    seed: int = 0

    name: ClassVar[str] = "lsh"
    budget: ClassVar[str | None] = "entries"

    def __post_init__(self) -> None:
        check_budget(self.name, "rounds", self.rounds)
        check_budget(self.name, "entries", self.entries)
        check_seed(self.name, self.seed)
        if self.entries % (2 * self.rounds):
            raise UsageError(
                f"{self.entries} score entries are no two chunks in each of {self.rounds} rounds",
                f"use a multiple of {2 * self.rounds}",
            )
        if self.buckets is not None and (self.buckets < 2 or self.buckets & (self.buckets - 1)):
            raise UsageError(
                f"lsh cannot hash into {self.buckets} buckets", "use a power of two, 2 or more"
            )

    def matrix(self, attention: Attention) -> torch.Tensor:
        given = self._reduced(attention)
        *lead, n, m = *given.query.shape[:2], *given.shape
        # one place more, for the pairs that are none
        scores = given.query.new_full((*lead, n * m + 1), -torch.inf)
        for one in self._hashed(given):
            found = _scores(given, one)
            place = one.rows[..., None] * m + one.columns[..., None, :]
            place = torch.where(found == -torch.inf, n * m, place)
            scores.scatter_(-1, place.flatten(2), found.flatten(2))
        scores = scores[..., :-1].reshape(*lead, n, m)
        alone = (scores == -torch.inf).all(dim=-1)
        itself = torch.eye(n, m, dtype=torch.bool, device=scores.device)
        scores = torch.where(alone[..., None] & itself, 0.0, scores)
        return torch.softmax(scores, dim=-1)

    def apply(self, attention: Attention) -> torch.Tensor:
        given = self._reduced(attention)
        value = given.values
        rounds = self._hashed(given)
        top = given.query.new_full((*given.query.shape[:3], 1), -torch.inf)
        total, output = torch.zeros_like(top), torch.zeros_like(top)
        for one in rounds:
            scores = _scores(given, one)
            if len(rounds) > 1:
                scores = scores - _times_seen(one, rounds).to(scores).log()
            highest = scores.amax(dim=-1, keepdim=True)
            weights = (scores - _finite(highest)).exp_()
            sums = one.restore(weights.sum(dim=-1, keepdim=True))
            part = one.restore(weights @ _take(value, one.columns))
            highest = one.restore(highest)
            joint = torch.maximum(top, highest)
            before, now = (top - _finite(joint)).exp(), (highest - _finite(joint)).exp()
            total, output = before * total + now * sums, before * output + now * part
            top = joint
        alone = top == -torch.inf
        if bool(alone.any()):
            return torch.where(alone, value, output / total)
        return output / total

    def cost(self, n: int, m: int, d: int, d_v: int) -> Cost:
        chunk = self._chunk(n, m)
        columns = sum(_factors(self._buckets(n, chunk), 2 * chunk)) // 2
        hashed = (n if self.mode == "shared" else n + m) * d * columns
        entries = 2 * chunk * chunk * -(-n // chunk)
        return Cost(self.rounds * (hashed + entries * (d + d_v)), 4 * entries)

    def _chunk(self, n: int, m: int) -> int:
        # no chunk need be longer than the text
        return min(self.entries // (2 * self.rounds), max(n, m))

    def _buckets(self, n: int, chunk: int) -> int:
        if self.buckets is not None:
            return self.buckets
        return 1 << max(1, (2 * (n // chunk)).bit_length() - 1)

    def _reduced(self, attention: Attention) -> Attention:
        given = attention.reduced()
        n, m = given.shape
        if n != m and self.mode == "shared":
            raise MethodError(
                "lsh with mode=shared makes the keys from the queries, and in cross-attention "
                f"these are {n} tokens of another text than the {m} that are attended to",
                "use mode=own",
            )
        if n != m and has_mask(given):
            raise MethodError(
                f"lsh cannot keep to a mask over {n} queries and {m} keys: a query without any "
                "pair has no key of its own to fall back on",
                "choose another method",
            )
        return given

    def _hashed(self, given: Attention) -> list[_Round]:
        """Who meets whom in every round."""
        n, m = given.shape
        chunk = self._chunk(n, m)
        factors = _factors(self._buckets(n, chunk), 2 * chunk)
        drawn = rotations(
            factors,
            given.query.shape[-1],
            rounds=self.rounds,
            heads=given.n_heads,
            seed=self.seed,
            layer=given.layer,
            group=given.group,
        )
        found = []
        for turn in drawn.to(given.query):
            queries = _hash(given.query, turn, factors)
            keys = queries if self.mode == "shared" else _hash(given.key, turn, factors)
            found.append(_Round.of(queries, keys, chunk, self.mode == "shared"))
        return found


@dataclass(frozen=True)
class _Round:
    """Which queries meet which keys in one round.

    Attributes
    ----------
    rows : (batch, head, chunks, chunk) int64
        Queries in the order of their buckets; the last one fills the last chunk up.
    columns : (batch, head, chunks, 2·chunk) int64
        Keys that the queries of a chunk meet.
    inside : (batch, head, chunks, 2·chunk) bool
        False where there is no such key.
    slot : (batch, head, n) int64
        Place of every query in the order.
    first : (batch, head, n) int32
        Place of the first key that every query meets, in the order of keys; may be negative.
    place : (batch, head, m) int32
        Place of every key in that order.
    shared : bool
        Whether a token meets itself only if there is no other.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    inside: torch.Tensor
    slot: torch.Tensor
    first: torch.Tensor
    place: torch.Tensor
    shared: bool

    @classmethod
    def of(cls, queries: torch.Tensor, keys: torch.Tensor, chunk: int, shared: bool) -> _Round:
        """Sort by bucket and cut into chunks; `queries` and `keys` are (batch, head, …) buckets."""
        n, m = queries.shape[-1], keys.shape[-1]
        sorted_queries, order = queries.sort(dim=-1, stable=True)
        sorted_keys, order_of_keys = (
            (sorted_queries, order) if shared else keys.sort(dim=-1, stable=True)
        )
        slot, place = _inverse(order), _inverse(order_of_keys)
        begin = torch.arange(0, n, chunk, device=queries.device)
        bucket = sorted_queries[..., begin].contiguous()

        def spans(ordered: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            low = torch.searchsorted(ordered, bucket)
            return low, torch.searchsorted(ordered, bucket, right=True) - low

        (low, size), (low_of_keys, size_of_keys) = spans(sorted_queries), spans(sorted_keys)
        target = low_of_keys + (begin - low) * size_of_keys // size
        start = target - chunk
        window = start[..., None] + torch.arange(2 * chunk, device=queries.device)
        columns = _take(order_of_keys[..., None], window.clamp(0, m - 1))[..., 0]
        padded = torch.arange(len(begin) * chunk, device=queries.device).clamp_max(n - 1)
        return cls(
            rows=order[..., padded.view(-1, chunk)],
            columns=columns,
            inside=(window >= 0) & (window < m),
            slot=slot,
            first=start.gather(-1, slot // chunk).int(),
            place=place.int(),
            shared=shared,
        )

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, head, chunks, chunk, …) in the order of buckets → (batch, head, n, …) in text."""
        return _take(x.flatten(2, 3), self.slot)


def rotations(
    factors: tuple[int, ...],
    d: int,
    *,
    rounds: int,
    heads: int,
    seed: int,
    layer: int = 0,
    group: Group = "encoder",
) -> torch.Tensor:
    """Gaussian matrices R of the angular hashes h(x) = argmax([xR; −xR]).

    Parameters
    ----------
    factors : tuple of int
        Even numbers of buckets; the hash is a number with one digit for each.
    d : int
        Width of the queries.
    rounds, heads : int
    seed, layer, group
        What the draw depends on.

    Returns
    -------
    (rounds, heads, d, Σ factors/2) float64 tensor on the CPU

    References
    ----------
    Andoni et al. 2015, arXiv:1509.02897.
    """
    shape = (rounds, heads, d, sum(factors) // 2)
    return torch.randn(
        shape, generator=generator(seed, layer, get_args(Group).index(group)), dtype=torch.float64
    )


def _factors(buckets: int, limit: int) -> tuple[int, ...]:
    """Powers of two of nearly equal size, each up to the limit, whose product is `buckets`.

    One matrix for all buckets would cost n·d·n/chunk; with these it is n·d·chunk·log(n/chunk).
    """
    bits = buckets.bit_length() - 1
    number = -(-bits // max(1, limit.bit_length() - 1))
    each, more = divmod(bits, number)
    return (1 << each,) * (number - more) + (1 << (each + 1),) * more


def _hash(x: torch.Tensor, turn: torch.Tensor, factors: tuple[int, ...]) -> torch.Tensor:
    """Bucket of every vector, whatever its length."""
    bucket = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
    unit, column = 1, 0
    for factor in factors:
        turned = x @ turn[..., column : column + factor // 2]
        bucket += unit * torch.cat([turned, -turned], dim=-1).argmax(dim=-1)
        unit, column = unit * factor, column + factor // 2
    return bucket


def _scores(given: Attention, one: _Round) -> torch.Tensor:
    """(batch, head, chunks, chunk, 2·chunk) scores of a round's pairs; −∞ where there is none."""
    query = _take(given.query, one.rows)
    source = given.query if one.shared else given.key
    if one.shared:
        # a zero vector has no direction; its score is 0 as in the published code
        source = source / source.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    scores = given.scale * (query @ _take(source, one.columns).mT)
    rows, columns = one.rows[..., None], one.columns[..., None, :]
    allowed = one.inside[..., None, :].expand_as(scores)
    if given.causal:
        allowed = allowed & (columns <= rows)
    if one.shared:
        allowed = allowed & (columns != rows)
    if given.bias is not None:
        bias = _pairs(given.bias, rows, columns)
        allowed = allowed & (bias >= MASKED)
        scores = scores + bias
    return scores.masked_fill(~allowed, -torch.inf)


def _times_seen(one: _Round, rounds: list[_Round]) -> torch.Tensor:
    """In how many rounds every pair of one round meets; 1 where there is no pair."""
    number = torch.zeros((), dtype=torch.float32, device=one.rows.device)
    for other in rounds:
        ahead = _take(other.place[..., None], one.columns)[..., 0][..., None, :]
        ahead = ahead - _take(other.first[..., None], one.rows)
        number = number + ((ahead >= 0) & (ahead < one.columns.shape[-1]))
    return number.clamp_min(1.0)


def _pairs(bias: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Entries of a bias at pairs of tokens, without making it larger than it is."""
    bias = bias.expand(*([1] * (4 - bias.ndim)), *bias.shape)
    shape = (*rows.shape[:2], *[1] * (rows.ndim - 2))
    batch, head = (
        torch.arange(size, device=bias.device).view(size, *[1] * (rows.ndim - 1 - axis))
        for axis, size in enumerate(shape[:2])
    )
    places = (batch, head, rows, columns)
    return bias[
        tuple(
            place if size > 1 else torch.zeros_like(place)
            for place, size in zip(places, bias.shape, strict=True)
        )
    ]


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x (batch, head, n, d) at index (batch, head, …) of tokens → (batch, head, …, d)."""
    flat = index.flatten(2)
    found = x.gather(2, flat[..., None].expand(*flat.shape, x.shape[-1]))
    return found.view(*index.shape, x.shape[-1])


def _inverse(order: torch.Tensor) -> torch.Tensor:
    place = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


def _finite(highest: torch.Tensor) -> torch.Tensor:
    """Something to subtract: the maximum, or 0 where there is nothing to take it of."""
    return torch.where(highest == -torch.inf, 0.0, highest)
