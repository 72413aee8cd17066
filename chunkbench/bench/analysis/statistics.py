"""Statistics of samples and rounds, as `docs/design.md` defines them. Needs only the standard library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Literal, NamedTuple

IntervalKind = Literal["confidence", "range"]

MIN_ROUNDS_FOR_CONFIDENCE = 6
"""Smallest number of rounds for a confidence interval. With fewer rounds, the interval goes from the smallest to the
largest mean. With five rounds, this range holds the true median with a probability of only 93.75% (1 - 2/2^5)."""

MIN_TIMED_STEPS = 8


class Interval(NamedTuple):
    """An interval for a median, in the unit of the samples. `kind` says whether it is a confidence interval or a
    range."""

    low: float
    high: float
    kind: IntervalKind


def round_means(samples_us: Sequence[Sequence[float]]) -> list[float]:
    """Mean of the samples of each round. `samples_us` is `[round][step]`, the result `[round]`, both in
    microseconds."""
    return [fmean(samples) for samples in samples_us]


def latency_us(samples_us: Sequence[Sequence[float]]) -> float:
    """Mean over the steps of each round, then median over the rounds, in microseconds. Raises `ValueError` when there
    is no round."""
    if not samples_us:
        raise ValueError("no rounds: a latency needs at least one")
    return median(round_means(samples_us))


def interval(means: Sequence[float], confidence: float) -> Interval:
    """Confidence interval for the true median of the round means, in the unit of `means`.

    The interval goes from the j-th smallest to the j-th largest mean. With n means, the interval holds the true median
    with probability 1 - 2 P(Binomial(n, 1/2) < j). j is the largest number for which this probability is at least
    `confidence`. Without such a j, or with fewer than 6 means, the interval goes from the smallest to the largest mean.
    The kind of the interval is then `range`, otherwise `confidence`.
    Raises `ValueError` when `means` is empty or `confidence` is not inside (0, 1).
    """
    if not means:
        raise ValueError("no rounds: an interval needs at least one")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: it has to lie between 0 and 1")
    ordered = sorted(means)
    rank = _rank(len(ordered), confidence)
    if rank == 0:
        return Interval(ordered[0], ordered[-1], "range")
    return Interval(ordered[rank - 1], ordered[-rank], "confidence")


def relative_half_width(means: Sequence[float], confidence: float) -> float:
    """Half the width of the interval divided by the median of the means: 0.02 means plus or minus 2%."""
    low, high, _ = interval(means, confidence)
    return (high - low) / (2 * median(means))


def spread(values: Sequence[float]) -> float:
    """(largest - smallest) / smallest value. The paper uses this figure to show that a latency hardly depends on
    sharing."""
    return (max(values) - min(values)) / min(values)


def enough(rounds: Iterable[Sequence[float]], min_rounds: int, precision: float, confidence: float) -> bool:
    """Whether every case has at least `min_rounds` rounds and a `relative_half_width` of at most `precision`.

    `rounds`: for each case, the means of its rounds. On a noisy machine the answer may always be no, so the caller must
    also have a time limit.
    """
    return all(
        len(means) >= max(min_rounds, 1) and relative_half_width(means, confidence) <= precision for means in rounds
    )


def timed_steps(n_c: int, count: int) -> tuple[int, ...]:
    """Choose `count` evenly spread steps of 1..n_c, the first and the last included. At least 8 steps are chosen, or
    all steps if n_c is smaller."""
    if n_c < 1:
        raise ValueError(f"n_c is {n_c}: there is no step to time")
    count = min(n_c, max(count, MIN_TIMED_STEPS))
    if count == 1:
        return (1,)
    gaps = count - 1
    return tuple(1 + (i * (n_c - 1) + gaps // 2) // gaps for i in range(count))


def _rank(n: int, confidence: float) -> int:
    """Largest j for which the j-th smallest and the j-th largest mean enclose the median with this confidence; 0 if
    there is no such j."""
    if n < MIN_ROUNDS_FOR_CONFIDENCE:
        return 0
    rank, tail = 0, 0
    for j in range(1, n // 2 + 1):
        tail += math.comb(n, j - 1)
        # Integers stay exact for thousands of rounds; 0.5**n would underflow.
        if 1 - 2 * (tail / (1 << n)) < confidence:
            break
        rank = j
    return rank
