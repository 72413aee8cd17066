"""Where a series of values changed its level, and stayed there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORTEST = 3
"""Values that a level has to last for: fewer are an outlier."""
_MOST_ORDERS = 100_000


class ChangePoint(NamedTuple):
    """A new level that begins at the value with index `place`."""

    place: int
    shift: float
    """Median after less median before, up to the neighbouring change points."""
    chance: float
    """How often a series in random order looks as much changed as this one (a p value)."""


def change_points(values: Sequence[float], alpha: float, least: float) -> list[ChangePoint]:
    """Change points of a series, by binary segmentation.

    In each segment the split with the largest standardised rank sum (Mann-Whitney) is tested against the largest of the
    same values in random order, at `alpha`; levels that differ by less than `least` are not told apart. Values have
    to be independent from one to the next. Without 2 * `SHORTEST` values there is nothing to find.
    """
    series = np.asarray(values, dtype=np.float64)
    found: dict[int, float] = {}
    segments = [(0, len(series))]
    while segments:
        start, stop = segments.pop()
        split, chance = _best_split(series[start:stop], alpha, np.random.default_rng([start, stop]))
        if split is None or chance > alpha:
            continue
        middle = start + split
        if abs(np.median(series[middle:stop]) - np.median(series[start:middle])) < least:
            continue
        found[middle] = chance
        segments += [(start, middle), (middle, stop)]
    return _with_levels(series, found, least)


def _with_levels(series: NDArray[np.float64], found: dict[int, float], least: float) -> list[ChangePoint]:
    """Shifts between neighbouring levels; those that further splits have made small are dropped, the smallest first."""
    places = sorted(found)
    while places:
        edges = [0, *places, len(series)]
        levels = [float(np.median(series[a:b])) for a, b in itertools.pairwise(edges)]
        shifts = [after - before for before, after in itertools.pairwise(levels)]
        smallest = min(range(len(places)), key=lambda i: abs(shifts[i]))
        if abs(shifts[smallest]) >= least:
            return [ChangePoint(p, s, found[p]) for p, s in zip(places, shifts, strict=True)]
        del places[smallest]
    return []


def _best_split(segment: NDArray[np.float64], alpha: float, dice: np.random.Generator) -> tuple[int | None, float]:
    """Where to split, and the chance of a split as good in random order, from orders enough to tell `alpha`."""
    n = len(segment)
    orders = min(_MOST_ORDERS, round(10 / alpha))
    if n < 2 * SHORTEST:
        return None, 1.0
    ranks: NDArray[np.float64] = (segment.argsort().argsort() + 1).astype(np.float64)
    statistics = _statistics(ranks[None, :])
    best = float(statistics.max())
    shuffled = dice.permuted(np.tile(ranks, (orders, 1)), axis=1)
    reached = int((_statistics(shuffled).max(axis=1) >= best - 1e-9).sum())
    return int(statistics[0].argmax()) + SHORTEST, (reached + 1) / (orders + 1)


def _statistics(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """[order, split] distance of the first part's rank sum from what it would be by chance, in standard deviations."""
    n = ranks.shape[1]
    sizes = np.arange(SHORTEST, n - SHORTEST + 1)
    sums = ranks.cumsum(axis=1)[:, sizes - 1]
    deviation: NDArray[np.float64] = np.abs(sums - sizes * (n + 1) / 2) / np.sqrt(sizes * (n - sizes) * (n + 1) / 12)
    return deviation
