"""Claims on the K/V that a batch of requests must compute (RadixAttention), tested on the suite's own prefix tree."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from chunkbench.attention.tree import PrefixTree
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Judgement, held
from chunkbench.workloads.replay import claims as managers

_BATCHES = 200
Request = tuple[int, ...]
Order = Callable[[PrefixTree, list[Request]], Request]


def bound(evidence: Evidence) -> Judgement:
    """Check that every order of requests computes at least as many tokens as the edges of their radix tree hold. Uses
    the suite's own tree, and replays.
    """
    own, least = _bound(), managers.least_computed(evidence)
    if least is None or own.verdict != "holds":
        return own
    value, row = least
    reason = f"{own.reason}; replays compute at least {value:.2f} times the edges"
    return replace(own, verdict=held(value >= 1), reason=reason, rows=(row.facts.key,))


@cache
def _bound() -> Judgement:
    """Compare tokens computed, with a cache for the longest request, with the edges of the batch's radix tree."""
    rng = random.Random(0)
    worst = 1.0
    for requests in _batches(rng):
        edges = len({request[:end] for request in requests for end in range(1, len(request) + 1)})
        longest_first, peak, _ = _serve(requests, lambda tree, waiting: max(waiting, key=tree.match))
        in_random_order, _, _ = _serve(requests, lambda _, waiting: rng.choice(waiting))
        worst = max(worst, in_random_order / edges)
        if longest_first != edges or in_random_order < edges or peak > max(map(len, requests)):
            computed = f"{longest_first} tokens computed, {in_random_order} in a random order; the edges have {edges}"
            return Judgement("does not hold", f"{computed}; {peak} held at the same time")
    reason = (
        f"{_BATCHES} random batches, a cache for one request of the longest length: longest shared prefix first "
        f"computes exactly the tree's edges; a random order computes up to {worst:.1f} times as much, never less"
    )
    return Judgement("holds", reason, 1.0)


def hit_rate(evidence: Evidence) -> Judgement:
    """Check that cached and computed tokens add up to all tokens of the requests. Uses the suite's own tree, and
    replays without preemptions.
    """
    own, (replays, equal) = _hit_rate(), managers.hits(evidence)
    if not replays or own.verdict != "holds":
        return own
    reason = f"{own.reason}; in {equal} of {replays} replays without preemptions, too"
    return replace(own, verdict=held(equal == replays), reason=reason)


@cache
def _hit_rate() -> Judgement:
    """Compare tokens found in the cache (counted by the tree) with tokens computed (counted by the chunks to fill)."""
    rng = random.Random(1)
    total = cached = computed = 0
    for requests in _batches(rng):
        new, _, hits = _serve(requests, lambda _, waiting: rng.choice(waiting))
        total, computed, cached = total + sum(map(len, requests)), computed + new, cached + hits
    reason = f"{cached:,} of {total:,} tokens found in the cache, {computed:,} computed, in {_BATCHES} batches"
    return Judgement(held(cached == total - computed), reason, cached / total)


def _serve(requests: Sequence[Request], choose: Order) -> tuple[int, int, int]:
    """Serve requests with a cache that keeps only the last request. Returns (tokens computed, most tokens held at once,
    tokens found).
    """
    tree, waiting = PrefixTree(chunk_size=1), list(requests)
    computed = peak = cached = 0
    last: int | None = None
    while waiting:
        request = choose(tree, waiting)
        waiting.remove(request)
        shared = tree.match(request)
        if last is not None and shared:
            tree.truncate(last, shared)  # drops the tokens that the next request does not share
        elif last is not None:
            tree.leave(last)
            last = None
        joined = tree.join(request)
        if last is not None:
            tree.leave(last)
        last = joined.sequence
        computed, cached = computed + len(joined.chunks), cached + joined.cached
        peak = max(peak, tree.pool.in_use)
    return computed, peak, cached


def _batches(rng: random.Random) -> list[list[Request]]:
    """Random batches of requests that share prefixes of random lengths, each in random order."""

    def tokens(limit: int) -> Request:
        return tuple(rng.randrange(3) for _ in range(rng.randrange(1, limit)))

    batches = []
    for _ in range(_BATCHES):
        requests: list[Request] = [tokens(12)]
        for _ in range(rng.randrange(2, 12)):
            parent = rng.choice(requests)
            requests.append(parent[: rng.randrange(len(parent) + 1)] + tokens(8))
        batches.append(rng.sample(requests, len(requests)))
    return batches


JUDGES: Mapping[str, Judge] = {
    "RA-bound": bound,
    "RA-hit": hit_rate,
}
