"""Computes the shortest time that the machine allows for one decode step, and how close a case comes to it.

`docs/design.md` defines the figures. The FLOPs agree with the self-attention row of the paper's Table 1 (4 * 2049 *
4096 per sequence).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunkbench.bench.store.results import Peaks, TimedResult

PROBE_ERROR_ABOVE = 1.02
"""Limit of the roofline fraction. No kernel exceeds the machine's peak, so a larger fraction means that the probe
missed the peak."""


def moved_bytes(tokens: int, token_bytes: int, b: int, h: int, d: int, element_bytes: int) -> int:
    """Bytes that a step moves: K and V of `tokens` tokens, q `[b, h, d]` and out, for b query rows.

    `token_bytes`: bytes of K and V of one token, all KV heads. If `tokens` counts only distinct token prefixes, the
    result is the least that any implementation can move.
    """
    return tokens * token_bytes + 2 * b * h * d * element_bytes


def flops(total_tokens: int, h: int, d: int) -> int:
    """Floating-point operations of a step: two products of 2 * d operations for each query head and context token."""
    return 4 * h * d * total_tokens


def roofline_us(unique_bytes: int, flops: int, peaks: Peaks) -> float:
    """The shortest possible time of a step in microseconds: the time to move the bytes or the time for the FLOPs,
    whichever is longer."""
    return 1e6 * max(unique_bytes / peaks.read_bytes_per_s, flops / peaks.matrix_flops_per_s)


def mean_roofline_us(case: TimedResult) -> float | None:
    """Mean of `roofline_us` over the timed steps of a round, then the median over rounds, in microseconds."""
    bounds = _round_bounds(case, case.unique_bytes, case.flops)
    return median(sum(bound) / len(bound) for bound in bounds) if bounds else None


def roofline_fraction(case: TimedResult) -> float | None:
    """Shortest possible time divided by measured time. None without samples or peaks.

    Each round gives the sum of `roofline_us` over its timed steps, divided by the sum of their latencies. The round's
    own peaks are used. The result is the median over rounds.
    """
    return _fraction(case, case.unique_bytes, case.flops)


def bandwidth_fraction(case: TimedResult) -> float | None:
    """Share of the peak read bandwidth that the case used.

    The share is the bytes that the implementation must move, divided by (latency x peak bandwidth).
    """
    return _fraction(case, case.read_bytes, (0,) * len(case.steps))


def probe_error(case: TimedResult) -> str | None:
    """The reason why a roofline fraction above 1.02 cannot be right; None for smaller fractions."""
    fraction = roofline_fraction(case)
    if fraction is None or fraction <= PROBE_ERROR_ABOVE:
        return None
    cause = (
        "with warm caches the data need not come from memory, whose bandwidth was probed"
        if case.cache == "warm"
        else "the probe did not reach what the machine can do"
    )
    return f"{fraction:.0%} of the roofline is more than the machine allows: {cause}"


def _fraction(case: TimedResult, moved: Sequence[int], work: Sequence[int]) -> float | None:
    bounds = _round_bounds(case, moved, work)
    if not bounds:
        return None
    return median(sum(bound) / sum(samples) for bound, samples in zip(bounds, case.samples_us, strict=True))


def _round_bounds(case: TimedResult, moved: Sequence[int], work: Sequence[int]) -> list[list[float]]:
    """The shortest possible times in microseconds, `[round][timed step]`; empty if samples, peaks or counts are
    missing."""
    steps = len(case.steps)
    complete = len(moved) == len(work) == steps > 0 and all(len(samples) == steps for samples in case.samples_us)
    if not complete or len(case.peaks) != len(case.samples_us):
        return []
    return [[roofline_us(*step, peaks) for step in zip(moved, work, strict=True)] for peaks in case.peaks]
