"""By how much one set of values lies above another: intervals that keep their word at small counts.

The intervals hold the true shift with at least the stated confidence whatever the noise looks like, skewed or with
several peaks, and for any number of values: they invert exact rank tests. Where the values are too few for a confidence
there is no interval. What each does assume is said there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_COUNTED = 600
"""Values that a rank statistic can take, up to which its distribution is counted out; beyond, it is nearly normal."""


class Shift(NamedTuple):
    """An estimate and its interval, infinite where there are too few values for one."""

    value: float
    low: float
    high: float

    @property
    def enough(self) -> bool:
        """Whether there were values enough for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def centre(differences: ArrayLike, confidence: float) -> Shift:
    """Centre of symmetry of differences that were measured in pairs.

    Hodges-Lehmann estimate (the median of all means of two) and the interval of Wilcoxon's signed-rank test. Assumes
    that the noise of a difference is symmetric, as it is where both of a pair are equally exposed to it.
    Raises `ValueError` without a difference.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise ValueError("a centre needs at least one difference")
    i, j = np.triu_indices(len(values))
    return _shift(np.sort((values[i] + values[j]) / 2), _signed_rank(len(values), confidence))


def between(base: ArrayLike, head: ArrayLike, confidence: float) -> Shift:
    """How far `head` lies above `base`, measured apart: `between_strata` with one stratum."""
    return between_strata([(np.asarray(base, dtype=np.float64), np.asarray(head, dtype=np.float64))], confidence)


def between_strata(strata: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], confidence: float) -> Shift:
    """How far heads lie above bases, compared within each stratum only.

    Hodges-Lehmann estimate (the median of all differences) and the interval of the stratified Mann-Whitney test.
    Assumes that inside a stratum the noise of either is distributed alike, and the same shift in all of them.
    Raises `ValueError` when there is no stratum with values on both sides.
    """
    filled = [(base, head) for base, head in strata if len(base) and len(head)]
    if not filled:
        raise ValueError("a shift needs values on both sides")
    differences = np.sort(np.concatenate([(head[:, None] - base[None, :]).ravel() for base, head in filled]))
    return _shift(differences, _mann_whitney(tuple((len(base), len(head)) for base, head in filled), confidence))


def fewest_in_pairs(confidence: float) -> int:
    """Fewest differences with which `centre` has an interval of this confidence."""
    return next(n for n in range(1, 200) if _signed_rank(n, confidence))


def fewest_apart(confidence: float, base: int | None = None) -> int:
    """Fewest values of HEAD with which `between` has an interval, given so many of BASE (None: as many)."""
    return next((n for n in range(1, 200) if _mann_whitney(((base or n, n),), confidence)), 200)


def _shift(ordered: NDArray[np.float64], rank: int) -> Shift:
    value = float(np.median(ordered))
    if rank == 0:
        return Shift(value, -math.inf, math.inf)
    return Shift(value, float(ordered[rank - 1]), float(ordered[-rank]))


@lru_cache(maxsize=1024)
def _signed_rank(n: int, confidence: float) -> int:
    """Which of the ordered means, from either end, bounds the interval; 0 when none keeps the confidence."""
    tail = (1 - confidence) / 2
    if n * (n + 1) // 2 > _COUNTED:
        return _normal_rank(n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24, tail)
    return _largest_rank(_signed_rank_chances(n), tail)


@lru_cache(maxsize=1024)
def _mann_whitney(counts: tuple[tuple[int, int], ...], confidence: float) -> int:
    """The same for the ordered differences of strata with these numbers of values."""
    tail = (1 - confidence) / 2
    if sum(m * n for m, n in counts) > _COUNTED:
        mean = sum(m * n / 2 for m, n in counts)
        return _normal_rank(mean, sum(m * n * (m + n + 1) / 12 for m, n in counts), tail)
    chances = np.ones(1)
    for m, n in counts:
        chances = np.convolve(chances, _mann_whitney_chances(min(m, n), max(m, n)))
    return _largest_rank(chances, tail)


def _normal_rank(mean: float, variance: float, tail: float) -> int:
    # Half a step to the safe side, as the statistic has whole values only.
    return max(0, math.floor(mean - 0.5 + NormalDist().inv_cdf(tail) * math.sqrt(variance)))


def _largest_rank(chances: NDArray[np.float64], tail: float) -> int:
    """Largest r with P(statistic < r) <= tail. A hair above counts as equal: the chances are rounded."""
    return int(np.searchsorted(np.cumsum(chances), tail * (1 + 1e-9), side="right"))


@lru_cache(maxsize=64)
def _signed_rank_chances(n: int) -> NDArray[np.float64]:
    """[t] chance that of the ranks 1..n those that a coin picks add up to t."""
    chances = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return chances


@lru_cache(maxsize=256)
def _mann_whitney_chances(m: int, n: int) -> NDArray[np.float64]:
    """[u] chance that u pairs of m and n values stand the wrong way round."""
    if m == 0 or n == 0:
        return np.ones(1)
    # The largest of all values is one of the m, and then stands above all n, or one of the n.
    chances = np.zeros(m * n + 1)
    one, other = _mann_whitney_chances(m - 1, n), _mann_whitney_chances(m, n - 1)
    chances[n : n + len(one)] += one * m / (m + n)
    chances[: len(other)] += other * n / (m + n)
    return chances
