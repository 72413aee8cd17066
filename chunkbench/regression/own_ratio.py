"""How much of a ratio the machines themselves explain: what does not belong to any implementation changed as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from chunkbench.store import CaseFacts


class OwnRatio(NamedTuple):
    """Time that fixed work takes on HEAD's machine over the time that it takes on BASE's: least and most."""

    low: float
    high: float

    def left(self, low: float, high: float) -> tuple[float, float]:
        """What the machines leave of a shift, both logarithms: of its interval, less all that they may explain."""
        return low - math.log(self.high), high - math.log(self.low)


def _arithmetic(case: CaseFacts) -> Iterator[float]:
    return (reading.arithmetic_us for reading in case.yardsticks)


def _sweeps(case: CaseFacts) -> Iterator[float]:
    return (reading.memory_us for reading in case.yardsticks if reading.memory_us is not None)


def _reading(case: CaseFacts) -> Iterator[float]:
    return (1 / peak.read_bytes_per_s for peak in case.peaks)


def _products(case: CaseFacts) -> Iterator[float]:
    return (1 / peak.matrix_flops_per_s for peak in case.peaks)


_WORK: Mapping[str, Callable[[CaseFacts], Iterator[float]]] = {
    "arithmetic yardstick": _arithmetic,
    "memory yardstick": _sweeps,
    "read bandwidth": _reading,
    "matrix rate": _products,
}


def own_ratio(base: Sequence[CaseFacts], head: Sequence[CaseFacts]) -> OwnRatio | None:
    """From yardsticks and probed peaks, as far as both sides have them; None where they have none in common.

    An implementation leans on one of them or on another: that is why there is a least and a most.
    """
    ratios = []
    for times in _WORK.values():
        ours = [time for case in base for time in times(case)]
        theirs = [time for case in head for time in times(case)]
        if ours and theirs and min(*ours, *theirs) > 0:
            ratios.append(median(theirs) / median(ours))
    return OwnRatio(min(ratios), max(ratios)) if ratios else None
