"""Numbers of replays, medians over arrival seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from chunkbench.analysis.derive import Row
from chunkbench.workloads.replay.result import MemoryMoment, ReplayResult, ReplaySeed
from chunkbench.workloads.serving.numbers import SustainedRate, sustained_rate

OBJECTIVE_S = 0.1
"""Seconds per token up to which a rate of generated or recorded traffic counts as sustained. Our choice: the
PagedAttention paper compares rates at similar latencies, on axes up to 1 s. Below it waits begin; far above it, rates
depend on how long the traffic lasts."""


@dataclass(frozen=True)
class MemoryShares:
    """Of the memory that sequences have taken, in the mean over time."""

    used: float
    """Holds tokens."""
    reserved: float
    internal_fragmentation: float
    external_fragmentation: float


@dataclass(frozen=True)
class ReplayNumbers:
    """What the replays of one manager at one point gave."""

    hit_share: float
    """Prompt tokens that were in the cache when a request was first admitted, over all."""
    over_bound: float
    """Prompt tokens that were computed, over the least that any order computes."""
    memory: MemoryShares | None
    """None if no memory was ever taken."""
    saved: float
    """Slots that sharing saves, over the tokens of all live sequences, mean over time."""
    prompt_share: float | None
    """Share of the prompts in the memory that is used while answers are decoded; None if requests have one answer."""
    peak_slots: int
    peak_batch: int
    mean_batch: float
    """Requests in a step, mean over the time until the last request is due."""
    preemptions: float
    evicted_blocks: float
    refused: int
    """Requests that never fit, of all seeds."""
    first_token_s: tuple[float, float, float] | None
    """50th, 90th and 99th percentile."""


def replay_numbers(row: Row) -> ReplayNumbers | None:
    """Numbers of a row; None if it has no replay."""
    facts = row.facts
    if not isinstance(facts, ReplayResult) or not facts.replays:
        return None
    seeds = facts.replays

    def middle(value: Callable[[ReplaySeed], float]) -> float:
        return float(median(value(seed) for seed in seeds))

    shares = [share for seed in seeds if (share := memory_shares(seed.timeline)) is not None]
    first = [seed.first_token_s for seed in seeds if seed.first_token_s]
    return ReplayNumbers(
        hit_share=middle(lambda seed: seed.cached_tokens / seed.prompt_tokens if seed.prompt_tokens else 0.0),
        over_bound=middle(lambda seed: seed.computed_tokens / seed.distinct_tokens if seed.distinct_tokens else 0.0),
        memory=MemoryShares(
            *(fmean(getattr(share, name) for share in shares) for name in MemoryShares.__dataclass_fields__)
        )
        if shares
        else None,
        saved=middle(lambda seed: _saved(seed.timeline)),
        prompt_share=middle(lambda seed: seed.prompt_share or 0.0) if seeds[0].prompt_share is not None else None,
        peak_slots=int(middle(lambda seed: seed.peak_slots)),
        peak_batch=int(middle(lambda seed: seed.peak_batch)),
        mean_batch=middle(lambda seed: seed.mean_batch),
        preemptions=middle(lambda seed: seed.preemptions),
        evicted_blocks=middle(lambda seed: seed.evicted_blocks),
        refused=sum(seed.refused for seed in seeds),
        first_token_s=(_middle(first, 0), _middle(first, 1), _middle(first, 2)) if first else None,
    )


def rates_by_seed(rows: Sequence[Row], objective_s: float) -> list[SustainedRate | None]:
    """Sustained requests per second of each arrival seed, from rows of one manager that differ in the rate alone."""
    facts = [row.facts for row in rows if isinstance(row.facts, ReplayResult) and row.facts.rate is not None]
    seeds = min((len(one.us_per_token) for one in facts), default=0)
    return [
        sustained_rate([((one.rate or 0) / 60, one.us_per_token[seed] / 1e6) for one in facts], objective_s)
        for seed in range(seeds)
    ]


def rate_ratios(rows: Sequence[Row], base_rows: Sequence[Row], objective_s: float) -> list[float]:
    """Sustained rate over that of another manager, of each arrival seed in which both are more than a lower bound."""
    pairs = zip(rates_by_seed(rows, objective_s), rates_by_seed(base_rows, objective_s), strict=False)
    return [
        rate.per_s / base.per_s for rate, base in pairs if rate and base and not rate.at_least and not base.at_least
    ]


def memory_shares(timeline: Sequence[MemoryMoment]) -> MemoryShares | None:
    """How the memory that sequences have taken was used; each moment counts for the time until the next."""
    sums = [0.0] * 4
    for moment, following in pairwise(timeline):
        time = following.at - moment.at
        for place, slots in enumerate(
            (moment.used, moment.reserved, moment.internal_fragmentation, moment.external_fragmentation)
        ):
            sums[place] += time * slots
    total = sum(sums)
    return MemoryShares(*(one / total for one in sums)) if total else None


def _saved(timeline: Sequence[MemoryMoment]) -> float:
    saved = covered = 0.0
    for moment, following in pairwise(timeline):
        time = following.at - moment.at
        saved += time * (moment.covered - moment.used)
        covered += time * moment.covered
    return saved / covered if covered else 0.0


def _middle(seeds: Sequence[tuple[float, ...]], place: int) -> float:
    return float(median(seed[place] for seed in seeds))
