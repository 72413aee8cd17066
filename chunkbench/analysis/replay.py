"""Numbers of replays, medians over arrival seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from chunkbench.analysis.derive import Row
from chunkbench.store.replay_result import MemoryMoment, ReplayResult, ReplaySeed


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
    peak_slots: int
    peak_batch: int
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
        peak_slots=int(middle(lambda seed: seed.peak_slots)),
        peak_batch=int(middle(lambda seed: seed.peak_batch)),
        preemptions=middle(lambda seed: seed.preemptions),
        evicted_blocks=middle(lambda seed: seed.evicted_blocks),
        refused=sum(seed.refused for seed in seeds),
        first_token_s=(_middle(first, 0), _middle(first, 1), _middle(first, 2)) if first else None,
    )


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
