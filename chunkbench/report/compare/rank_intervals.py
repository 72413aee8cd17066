"""Confidence intervals of the shift between two sets of values. The intervals also hold for few values.

An interval contains all shifts that a rank test does not reject. It contains the true shift with at least the stated
confidence, for any number of values. The noise need not have a normal distribution. Each function states what it
assumes about the noise. If there are too few values for a confidence, the interval is infinite.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MOST_COUNTED = 600
"""Largest value of a rank statistic whose distribution is counted exactly. Above it, a normal distribution is used."""


class Shift(NamedTuple):
    """An estimated difference and its interval. The interval is infinite if there are too few values."""

    value: float
    low: float
    high: float

    @property
    def enough(self) -> bool:
        """Whether there were enough values for a finite interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def centre(differences: ArrayLike, confidence: float) -> Shift:
    """Estimate the centre of differences between paired values.

    Uses the Hodges-Lehmann estimate (the median of all means of two differences) and the interval of Wilcoxon's
    signed-rank test. Assumes that the noise of a difference is symmetric. This is true if both values of a pair have
    equal noise. Raises `ValueError` without differences.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise ValueError("a centre needs at least one difference")
    i, j = np.triu_indices(len(values))
    return _shift(np.sort((values[i] + values[j]) / 2), _signed_rank(len(values), confidence))


def between(base: ArrayLike, head: ArrayLike, confidence: float) -> Shift:
    """Estimate how much larger the values of `head` are than the values of `base`. The values are not paired.

    Uses the Hodges-Lehmann estimate (the median of all differences) and the interval of the Mann-Whitney test. Assumes
    that both sides have the same distribution of noise. Raises `ValueError` if a side has no values.
    """
    bases, heads = (np.asarray(side, dtype=np.float64) for side in (base, head))
    if not len(bases) or not len(heads):
        raise ValueError("a shift needs values on both sides")
    differences = np.sort((heads[:, None] - bases[None, :]).ravel())
    return _shift(differences, _mann_whitney(len(bases), len(heads), confidence))


def _shift(ordered: NDArray[np.float64], rank: int) -> Shift:
    value = float(np.median(ordered))
    if rank == 0:
        return Shift(value, -math.inf, math.inf)
    return Shift(value, float(ordered[rank - 1]), float(ordered[-rank]))


@lru_cache(maxsize=1024)
def _signed_rank(n: int, confidence: float) -> int:
    """Position, from both ends, of the ordered means that bound the interval. 0 if there is no interval."""
    tail = (1 - confidence) / 2
    if n * (n + 1) // 2 > _MOST_COUNTED:
        return _normal_rank(n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24, tail)
    return _largest_rank(_signed_rank_chances(n), tail)


@lru_cache(maxsize=1024)
def _mann_whitney(m: int, n: int, confidence: float) -> int:
    """Position, from both ends, of the ordered differences between m and n values that bound the interval. 0 if there
    is no interval."""
    tail = (1 - confidence) / 2
    if m * n > _MOST_COUNTED:
        return _normal_rank(m * n / 2, m * n * (m + n + 1) / 12, tail)
    return _largest_rank(_mann_whitney_chances(min(m, n), max(m, n)), tail)


def _normal_rank(mean: float, variance: float, tail: float) -> int:
    # Half a step to the safe side, since the statistic takes only whole numbers.
    return max(0, math.floor(mean - 0.5 + NormalDist().inv_cdf(tail) * math.sqrt(variance)))


def _largest_rank(chances: NDArray[np.float64], tail: float) -> int:
    """Largest r with P(statistic < r) <= tail. The chances are rounded, so 1e-9 of the tail is tolerated."""
    return int(np.searchsorted(np.cumsum(chances), tail * (1 + 1e-9), side="right"))


@lru_cache(maxsize=64)
def _signed_rank_chances(n: int) -> NDArray[np.float64]:
    """For each t, the probability that the sum of a random subset of the ranks 1..n is t."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return chances


@lru_cache(maxsize=256)
def _mann_whitney_chances(m: int, n: int) -> NDArray[np.float64]:
    """For each u, the probability that in u of the m * n pairs the value of the first set is above the value of the
    second set."""
    if m == 0 or n == 0:
        return np.ones(1)
    # The largest value is one of the m, and then lies above all n, or it is one of the n.
    chances = np.zeros(m * n + 1)
    without_m, without_n = _mann_whitney_chances(m - 1, n), _mann_whitney_chances(m, n - 1)
    chances[n : n + len(without_m)] += without_m * m / (m + n)
    chances[: len(without_n)] += without_n * n / (m + n)
    return chances
