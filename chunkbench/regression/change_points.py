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

    In each segment the split that explains most of the spread by two levels is tested against the best split of the
    same values in random order (a permutation test, exact whatever the noise looks like), at `alpha`; levels whose
    medians differ by less than `least` are not told apart. Values have to be independent from one to the next. Without
    2 * `SHORTEST` values there is nothing to find.
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
    centred = segment - segment.mean()
    explained = _explained(centred[None, :])
    best = float(explained.max())
    shuffled = dice.permuted(np.tile(centred, (orders, 1)), axis=1)
    reached = int((_explained(shuffled).max(axis=1) >= best * (1 - 1e-9)).sum())
    return int(explained[0].argmax()) + SHORTEST, (reached + 1) / (orders + 1)


def _explained(centred: NDArray[np.float64]) -> NDArray[np.float64]:
    """[order, split] how much of the spread two levels explain, up to a factor that no order changes."""
    n = centred.shape[1]
    sizes = np.arange(SHORTEST, n - SHORTEST + 1)
    explained: NDArray[np.float64] = centred.cumsum(axis=1)[:, sizes - 1] ** 2 / (sizes * (n - sizes))
    return explained
