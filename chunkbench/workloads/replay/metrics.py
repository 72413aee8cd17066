"""Metrics of replays."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from chunkbench.report.metric import COUNT, RATIO, SECONDS, SHARE, Metric, Unit, by_name
from chunkbench.report.numbers import significant
from chunkbench.workloads.replay.result import TAKEN, ReplayResult, ReplaySeed

ONE_DECIMAL = Unit("", "{:.1f}".format)


def _each(value: Callable[[ReplaySeed], float | None]) -> Callable[[ReplayResult], list[float | None]]:
    """Build a metric that has a value for each arrival seed."""
    return lambda facts: [value(seed) for seed in facts.replays]


def _memory(label: str, kind: str) -> Metric:
    """Build a metric: the share of these slots in the memory that sequences have taken, mean over time."""

    def share(seed: ReplaySeed) -> float | None:
        slots = seed.slot_seconds
        taken = sum(slots[each] for each in TAKEN)
        return slots[kind] / taken if taken else None

    return Metric(kind, label, _each(share), SHARE, "higher" if kind == "used" else "lower", fmean)


def _saved(seed: ReplaySeed) -> float:
    """Number of slots that sharing saves, over the tokens of all live sequences; mean over time."""
    slots = seed.slot_seconds
    return (slots["covered"] - slots["used"]) / slots["covered"] if slots["covered"] else 0.0


def _first_token(place: int) -> Callable[[ReplayResult], list[float | None]]:
    return _each(lambda seed: seed.first_token_s[place] if seed.first_token_s else None)


METRICS = by_name(
    Metric("first_token_p50", "first token, ms: median", _first_token(0), SECONDS),
    Metric("first_token_p99", "  99th percentile", _first_token(2), SECONDS),
    Metric("refused", "requests that never fit", _each(lambda seed: seed.refused), COUNT, combine=sum),
    Metric(
        "peak_kv_bytes",
        "peak K/V, GB",
        lambda facts: [seed.peak_slots * facts.token_bytes for seed in facts.replays],
        Unit("bytes", lambda value: significant(value / 1e9, 3)),
    ),
    Metric("peak_batch", "peak batch", _each(lambda seed: seed.peak_batch), COUNT, "higher"),
    Metric("mean_batch", "mean batch", _each(lambda seed: seed.mean_batch or None), ONE_DECIMAL, "higher"),
    _memory("memory that is used", "used"),
    _memory("  reserved", "reserved"),
    _memory("  internal fragmentation", "internal_fragmentation"),
    _memory("  external fragmentation", "external_fragmentation"),
    Metric("saved", "saved by sharing", _each(_saved), SHARE, "higher"),
    Metric("prompt_share", "prompts' share of memory used", _each(lambda seed: seed.prompt_share), SHARE, ""),
    Metric(
        "hit_share",
        "cached prompt tokens",
        _each(lambda seed: seed.cached_tokens / seed.prompt_tokens if seed.prompt_tokens else 0.0),
        SHARE,
        "higher",
    ),
    Metric(
        "over_bound",
        "computed, over the least",
        _each(lambda seed: seed.computed_tokens / seed.distinct_tokens if seed.distinct_tokens else 0.0),
        RATIO,
    ),
    Metric("preemptions", "preemptions", _each(lambda seed: seed.preemptions), COUNT),
    Metric("evicted_blocks", "evicted blocks", _each(lambda seed: seed.evicted_blocks), COUNT),
)
