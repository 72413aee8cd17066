"""Answers that follow constraints, of closed-loop clients: how many per second, and what following them took."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from chunkbench.bench.analysis.derive import Row
from chunkbench.bench.analysis.statistics import interval
from chunkbench.workloads.serving.result import ConstrainedAnswers, Measurement, ServingResult

MASK, JUMP, RETOKENIZE, COMPILED = (
    "chunk_llama_mask",
    "chunk_llama_jump",
    "chunk_llama_jump_retokenize",
    "chunk_llama_jump_compiled",
)
"""Systems; the answers of all others are compared with those of the first."""


class SpeedRatio(NamedTuple):
    """Answers per second over another system's: of the medians, and the interval of single arrival seeds."""

    value: float
    low: float
    high: float


def measurements(row: Row) -> tuple[Measurement, ...]:
    """What was measured of a system at a point."""
    return row.facts.measurements if isinstance(row.facts, ServingResult) else ()


def answers(row: Row) -> list[ConstrainedAnswers]:
    """[arrival seed] of a system that got constraints; empty of others."""
    return [measurement.constrained for measurement in measurements(row) if measurement.constrained]


def answers_per_s(measurement: Measurement) -> float:
    """Answered requests per second."""
    return measurement.numbers.requests_per_s


def speed_ratio(row: Row, base: Row, confidence: float) -> SpeedRatio | None:
    """Answers per second of `row` over those of `base`; None if one of them has none."""
    if base.derived.latency_us is None or row.derived.latency_us is None:
        return None
    mine, theirs = ({m.arrival_seed: answers_per_s(m) for m in measurements(side)} for side in (row, base))
    shared = [seed for seed in mine if theirs.get(seed)]
    if not shared:
        return None
    value = median(mine[seed] for seed in shared) / median(theirs[seed] for seed in shared)
    low, high, _ = interval([mine[seed] / theirs[seed] for seed in shared], confidence)
    return SpeedRatio(value, min(low, value), max(high, value))


def equal_answers(row: Row, reference: Row) -> tuple[int, int] | None:
    """How many answers of the first arrival seed are equal, of how many; None if they have no seed in common."""
    mine, theirs = answers(row), answers(reference)
    if not mine or not theirs or measurements(row)[0].arrival_seed != measurements(reference)[0].arrival_seed:
        return None
    pairs = list(zip(mine[0].texts, theirs[0].texts, strict=False))
    return (sum(one == other for one, other in pairs), len(pairs)) if pairs else None
