"""Finds the places where a series of values changed to a new level and stayed there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORTEST = 3
"""Smallest number of values that make a level. Fewer values count as outliers."""
_MOST_ORDERS = 100_000
"""Largest number of random orders that a permutation test tries."""


class ChangePoint(NamedTuple):
    """The start of a new level in a series of values."""

    place: int
    """Index of the first value of the new level."""
    shift: float
    """Median of the new level minus the median of the level before."""
    chance: float
    """p value: how often random orders of the same values have a change of this size."""


def change_points(values: Sequence[float], alpha: float, least: float) -> list[ChangePoint]:
    """Find where a series of independent values changes to a new level.

    The series is split repeatedly, each time where two levels explain most of the variance. A permutation test decides
    whether a split counts: random orders of the same values may have an equally good split with a probability of at
    most `alpha`. The test holds for any distribution of the noise. Levels whose medians differ by less than `least` are
    joined. A series with fewer than 2 * `SHORTEST` values has no change points.
    """
    series = np.asarray(values, dtype=np.float64)
    chances: dict[int, float] = {}
    segments = [(0, len(series))]
    while segments:
        start, stop = segments.pop()
        split, chance = _best_split(series[start:stop], alpha, np.random.default_rng([start, stop]))
        if split is None or chance > alpha:
            continue
        middle = start + split
        if abs(np.median(series[middle:stop]) - np.median(series[start:middle])) < least:
            continue
        chances[middle] = chance
        segments += [(start, middle), (middle, stop)]
    return _with_shifts(series, chances, least)


def _with_shifts(series: NDArray[np.float64], chances: dict[int, float], least: float) -> list[ChangePoint]:
    """The change points with their shifts. Further splits can make a shift small: such change points are dropped, the
    smallest first."""
    places = sorted(chances)
    while places:
        edges = [0, *places, len(series)]
        levels = [float(np.median(series[a:b])) for a, b in itertools.pairwise(edges)]
        shifts = [after - before for before, after in itertools.pairwise(levels)]
        smallest = min(range(len(places)), key=lambda i: abs(shifts[i]))
        if abs(shifts[smallest]) >= least:
            return [ChangePoint(p, s, chances[p]) for p, s in zip(places, shifts, strict=True)]
        del places[smallest]
    return []


def _best_split(segment: NDArray[np.float64], alpha: float, rng: np.random.Generator) -> tuple[int | None, float]:
    """The best split, and how often random orders have an equally good split. The number of orders suffices for
    `alpha`."""
    n = len(segment)
    orders = min(_MOST_ORDERS, round(10 / alpha))
    if n < 2 * SHORTEST:
        return None, 1.0
    centred = segment - segment.mean()
    explained = _explained(centred[None, :])
    best = float(explained.max())
    shuffled = rng.permuted(np.tile(centred, (orders, 1)), axis=1)
    as_good = int((_explained(shuffled).max(axis=1) >= best * (1 - 1e-9)).sum())
    return int(explained[0].argmax()) + SHORTEST, (as_good + 1) / (orders + 1)


def _explained(centred: NDArray[np.float64]) -> NDArray[np.float64]:
    """The variance that two levels explain, `[order, split]`, up to a factor that is the same for all orders."""
    n = centred.shape[1]
    sizes = np.arange(SHORTEST, n - SHORTEST + 1)
    explained: NDArray[np.float64] = centred.cumsum(axis=1)[:, sizes - 1] ** 2 / (sizes * (n - sizes))
    return explained
