"""Claims on cache managers, judged by replays: how many sequences fit, and what a cache saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chunkbench.bench.analysis.derive import Row
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, replayed
from chunkbench.report.claims.judges import fixed
from chunkbench.workloads.replay.metrics import METRICS
from chunkbench.workloads.replay.result import ReplayResult

NEAR = 0.15
"""Largest relative difference at which a replayed figure counts as equal to the stated figure. Small differences are
expected: the lengths of replayed requests are drawn at random.
"""
_MOONCAKE = 0.40
_KEEPING = ("paged_prefix", "radix_tree")
"""Managers that keep the K/V of finished requests."""


def sharing(evidence: Evidence) -> Judgement | None:
    """Number of sequences that fit at once with the prefix tree, over the number that fit with paged blocks. The claim
    is a ratio of 1 / (1 - r). None without replays that memory limits."""
    best: tuple[float, float, Figure] | None = None
    for tree, paged in _pairs(evidence, "prefix_tree", "paged"):
        if not _memory_limited(tree) or not _memory_limited(paged):
            continue
        facts = tree.facts
        if not isinstance(facts, ReplayResult) or not (facts.n_p and facts.n_s and facts.n_c) or facts.prompts > 1:
            continue
        ours, theirs = _batch(tree), _batch(paged)
        value, limit = ours / theirs, (facts.n_p + facts.n_c) / (facts.n_p + facts.n_c - facts.n_s)
        if best is None or theirs > best[0]:
            best = theirs, limit, Figure.counted(value / limit, tree, paged)
    if best is None:
        return None
    _, limit, figure = best
    gain = figure.value * limit
    reason = f"in replays {gain:.2f} times as many sequences fit at once; there 1 / (1 - r) = {limit:.2f}"
    return replayed(reason, [figure], abs(figure.value - 1) <= NEAR)


def _memory_limited(row: Row) -> bool:
    """Whether memory alone made requests wait: some waited, and the batch was not full."""
    facts = row.facts
    waited = isinstance(facts, ReplayResult) and all(any(m.waiting for m in seed.timeline) for seed in facts.replays)
    # Replays of single requests with several answers have no batch.
    return waited and 0 < _batch(row) < facts.batch_size


def _batch(row: Row) -> float:
    return METRICS["peak_batch"].value(row.facts) or 0


def least_computed(evidence: Evidence) -> tuple[float, Row] | None:
    """(Ratio, row) of the replay with the smallest ratio; None without replays. The ratio is the number of computed
    prompt tokens over the number of distinct ones. No order of requests can compute fewer than the distinct ones.
    """
    found = [
        (seed.computed_tokens / seed.distinct_tokens, row)
        for row, facts in replays(evidence)
        for seed in facts.replays
        if seed.distinct_tokens
    ]
    return min(found, key=lambda pair: pair[0], default=None)


def hits(evidence: Evidence) -> tuple[int, int]:
    """(Number of replays without preemptions, number of those in which cached and computed tokens add up to all prompt
    tokens.)
    """
    seeds = [seed for _, facts in replays(evidence) for seed in facts.replays if not seed.preemptions]
    return len(seeds), sum(seed.cached_tokens + seed.computed_tokens == seed.prompt_tokens for seed in seeds)


def mooncake(evidence: Evidence) -> Judgement:
    """Share of the prompt tokens that were cached in replays of a trace file, with memory for all requests."""
    found = [
        (seed.cached_tokens / seed.prompt_tokens, row, facts.traffic)
        for row, facts in replays(evidence)
        if facts.traffic and "." in facts.traffic and facts.memory is None and facts.implementation in _KEEPING
        for seed in facts.replays
        if seed.prompt_tokens
    ]
    if not found:
        return Judgement("not measured", "it needs a replay of a trace file (`traffic: PATH`) in endless memory")
    share, row, traffic = max(found, key=lambda entry: entry[0])
    reason = f"a replay of {traffic} finds {share:.1%} of the prompt tokens in an endless cache"
    return replayed(reason, [Figure.counted(share, row)], abs(share / _MOONCAKE - 1) <= NEAR / 3)


def replays(evidence: Evidence) -> Iterator[tuple[Row, ReplayResult]]:
    """Rows and facts of all completed replays."""
    for row in evidence.rows:
        if isinstance(row.facts, ReplayResult) and row.facts.status == "ok":
            yield row, row.facts


def _pairs(evidence: Evidence, manager: str, other: str) -> list[tuple[Row, Row]]:
    """The rows of two managers at each point, of the last run of each experiment."""
    names, order = {manager, other}, ("traffic", "n_p", "n_s", "n_c", "batch_size", "prompts", "tree", "rate", "memory")
    points = evidence.last(lambda point: point.rows if names <= point.rows.keys() else None, each_experiment=True)
    points.sort(key=lambda rows: repr([rows[manager].facts.axis(name) for name in order]))
    return [(rows[manager], rows[other]) for rows in points]


JUDGES: Mapping[str, Judge] = {
    "RA-optimum": fixed(
        "not measured",
        "the text compares orders of the requests; `chunkbench run replay-policies` compares what leaves the cache, "
        "one request at a time",
    ),
    "MC-hits": mooncake,
}
