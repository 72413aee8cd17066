"""Claims on which K/V a batch of requests has to compute (RadixAttention), tried on the suite's own tree."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

from chunkbench.kvcache import PrefixTree
from chunkbench.paper.claims.judgement import Judgement

_BATCHES = 200
Request = tuple[int, ...]
Order = Callable[[PrefixTree, list[Request]], Request]


@cache
def bound() -> Judgement:
    """Tokens computed with a cache of the longest request's size, against the edges of the batch's radix tree."""
    dice = random.Random(0)
    most = 1.0
    for requests in _batches(dice):
        edges = len({request[:end] for request in requests for end in range(1, len(request) + 1)})
        best, peak, _ = _serve(requests, lambda tree, waiting: max(waiting, key=tree.match))
        by_chance, _, _ = _serve(requests, lambda _, waiting: dice.choice(waiting))
        most = max(most, by_chance / edges)
        if best != edges or by_chance < edges or peak > max(map(len, requests)):
            told = f"{best} tokens computed, {by_chance} in an order by chance, where the edges have {edges}"
            return Judgement("does not hold", f"{told}; {peak} held at once")
    reason = (
        f"{_BATCHES} batches by chance, a cache that holds the longest request and no more: the longest shared prefix "
        f"first computes exactly the tree's edges, requests by chance up to {most:.1f} times as much, never less"
    )
    return Judgement("holds", reason, 1.0)


@cache
def hit_rate() -> Judgement:
    """Tokens found in the cache, counted by the tree, and those computed, counted by the chunks it asked to fill."""
    dice = random.Random(1)
    total = found = computed = 0
    for requests in _batches(dice):
        new, _, served = _serve(requests, lambda _, waiting: dice.choice(waiting))
        total, computed, found = total + sum(map(len, requests)), computed + new, found + served
    rate, reason = found / total, f"{found:,} of {total:,} tokens found, {computed:,} computed, in {_BATCHES} batches"
    return Judgement("holds" if found == total - computed else "does not hold", reason, rate)


def _serve(requests: Sequence[Request], choose: Order) -> tuple[int, int, int]:
    """Tokens computed, most tokens held at once, tokens found, where the cache keeps the last request alone."""
    tree, waiting = PrefixTree(chunk_size=1), list(requests)
    computed = peak = found = 0
    last: int | None = None
    while waiting:
        request = choose(tree, waiting)
        waiting.remove(request)
        shared = tree.match(request)
        if last is not None and shared:
            tree.truncate(last, shared)  # what the next one does not share makes room for it
        elif last is not None:
            tree.leave(last)
            last = None
        joined = tree.join(request)
        if last is not None:
            tree.leave(last)
        last = joined.sequence
        computed, found = computed + len(joined.chunks), found + joined.cached
        peak = max(peak, tree.pool.in_use)
    return computed, peak, found


def _batches(dice: random.Random) -> list[list[Request]]:
    """Requests that share prefixes of all lengths, in no order."""

    def tokens(most: int) -> Request:
        return tuple(dice.randrange(3) for _ in range(dice.randrange(1, most)))

    batches = []
    for _ in range(_BATCHES):
        grown: list[Request] = [tokens(12)]
        for _ in range(dice.randrange(2, 12)):
            stem = dice.choice(grown)
            grown.append(stem[: dice.randrange(len(stem) + 1)] + tokens(8))
        batches.append(dice.sample(grown, len(grown)))
    return batches
