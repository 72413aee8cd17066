"""Claims on cache managers, judged by replays: how memory is wasted and shared, and what a cache saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from chunkbench.analysis.derive import Row
from chunkbench.analysis.replay import memory_shares, replay_numbers
from chunkbench.paper.claims.evidence import Evidence
from chunkbench.paper.claims.judgement import ClaimVerdict, Figure, Judgement, absent, judged
from chunkbench.store.replay_result import ReplayResult

_USED = 0.204
"""Share of contiguously allocated memory that holds tokens, in the PagedAttention text."""
_NEAR = 0.15
"""A replayed share may differ from the text's by this part of it: the text's lengths are not known exactly."""
_PROMPT, _BEAMS = 0.12, 0.55
_MOONCAKE = 0.40
_KEEPING = ("paged_prefix", "radix_tree")
"""Managers that keep what finished requests leave."""


def waste(evidence: Evidence) -> Judgement:
    """Smallest share of contiguously reserved memory that holds tokens."""
    found = [
        (share.used, row)
        for row, facts in _replays(evidence)
        if facts.implementation == "contiguous_max"
        for seed in facts.replays
        if (share := memory_shares(seed.timeline)) is not None
    ]
    if not found:
        return absent("replays of contiguous reservation", "replay-managers")
    least, row = min(found, key=lambda pair: pair[0])
    reason = f"in replays, tokens use at least {least:.1%} of memory reserved for the largest length"
    verdict: ClaimVerdict = "holds" if abs(least / _USED - 1) <= _NEAR else "different here"
    return judged(verdict, reason, [Figure(least, least, least, (row,))])


def parallel(evidence: Evidence) -> Judgement:
    """Share of prompts in parallel sampling, and what beams share. Beams are drawn, so this never holds."""
    forks = [(row, facts.forks, facts) for row, facts in _replays(evidence) if facts.forks is not None]
    paged = [(row, fork, facts) for row, fork, facts in forks if facts.implementation == "paged"]
    prompts = [(fork.prompt_share, row) for row, fork, facts in paged if facts.samples]
    beams = [(fork.saved, row) for row, fork, facts in paged if facts.beams]
    if not prompts or not beams:
        return absent("parallel sampling and beam search", "replay-forks")
    prompt, row = min(prompts, key=lambda pair: abs(pair[0] - _PROMPT))
    reason = (
        f"lengths and beams are drawn, not observed: prompts are {_range(prompts)} of the memory in parallel sampling, "
        f"and beams share {_range(beams)} of theirs (the text: {_BEAMS:.0%})"
    )
    return judged("generated", reason, [Figure(prompt, prompt, prompt, (row,))])


def _range(shares: Sequence[tuple[float, Row]]) -> str:
    values = [share for share, _ in shares]
    return f"{min(values):.0%} to {max(values):.0%}"


def sharing(evidence: Evidence) -> Judgement | None:
    """Sequences that fit at once with the prefix tree, over those with blocks of their own; None without replays."""
    best: tuple[int, float, Figure] | None = None
    for point in _points(evidence):
        tree, paged = point.get("prefix_tree"), point.get("paged")
        if tree is None or paged is None or not _memory_limited(tree) or not _memory_limited(paged):
            continue
        facts = tree.facts
        if not isinstance(facts, ReplayResult) or not (facts.n_p and facts.n_s and facts.n_c) or facts.prompts > 1:
            continue
        ours, theirs = _batch(tree), _batch(paged)
        value, limit = ours / theirs, (facts.n_p + facts.n_c) / (facts.n_p + facts.n_c - facts.n_s)
        if best is None or theirs > best[0]:
            best = theirs, limit, Figure(value, value, value, (tree, paged))
    if best is None:
        return None
    _, limit, figure = best
    reason = f"in replays {figure.value:.2f} times as many sequences fit at once; 1 / (1 - r) = {limit:.2f} there"
    return judged("holds" if abs(figure.value / limit - 1) <= _NEAR else "does not hold", reason, [figure])


def _memory_limited(row: Row) -> bool:
    """Whether requests waited for memory, and for nothing else."""
    facts = row.facts
    waited = isinstance(facts, ReplayResult) and all(any(m.waiting for m in seed.timeline) for seed in facts.replays)
    # Replays of single requests, which fork, have no batch.
    return waited and 0 < _batch(row) < facts.batch_size


def _batch(row: Row) -> int:
    numbers = replay_numbers(row)
    return numbers.peak_batch if numbers else 0


def least_computed(evidence: Evidence) -> tuple[float, Row] | None:
    """The least that any replay computed, over the least that any order computes; None without replays."""
    found = [
        (seed.computed_tokens / seed.distinct_tokens, row)
        for row, facts in _replays(evidence)
        for seed in facts.replays
        if seed.distinct_tokens
    ]
    return min(found, key=lambda pair: pair[0], default=None)


def hits(evidence: Evidence) -> tuple[int, int]:
    """Replays without preemptions, and those of them whose cached and computed prompt tokens add up to all of them."""
    seeds = [seed for _, facts in _replays(evidence) for seed in facts.replays if not seed.preemptions]
    return len(seeds), sum(seed.cached_tokens + seed.computed_tokens == seed.prompt_tokens for seed in seeds)


def mooncake(evidence: Evidence) -> Judgement:
    """Prompt tokens that were cached in replays of a trace file with a memory for all requests."""
    found = [
        (seed.cached_tokens / seed.prompt_tokens, row, facts.traffic)
        for row, facts in _replays(evidence)
        if facts.traffic and "." in facts.traffic and facts.memory is None and facts.implementation in _KEEPING
        for seed in facts.replays
        if seed.prompt_tokens
    ]
    if not found:
        return Judgement("not measured", "it needs a replay of a trace file (`traffic: PATH`) in endless memory")
    share, row, traffic = max(found, key=lambda entry: entry[0])
    reason = f"a replay of {traffic} finds {share:.1%} of the prompt tokens in an endless cache"
    verdict: ClaimVerdict = "holds" if abs(share / _MOONCAKE - 1) <= _NEAR / 3 else "different here"
    return judged(verdict, reason, [Figure(share, share, share, (row,))])


def _replays(evidence: Evidence) -> Iterator[tuple[Row, ReplayResult]]:
    for rows in evidence.runs:
        for row in rows:
            if isinstance(row.facts, ReplayResult) and row.facts.status == "ok":
                yield row, row.facts


def _points(evidence: Evidence) -> Iterator[Mapping[str, Row]]:
    """Manager -> row, for each point of each run."""

    def place(row: Row) -> str:
        facts = row.facts
        names = ("traffic", "n_p", "n_s", "n_c", "batch_size", "prompts", "tree", "rate", "memory", "schedule")
        return repr([getattr(facts, name) for name in (*names, "samples", "beams", "experiment", "machine")])

    rows = sorted((row for row, _ in _replays(evidence)), key=place)
    for _, members in groupby(rows, place):
        yield {row.facts.implementation: row for row in members}
