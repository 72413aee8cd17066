"""Which rounds of two runs were measured while the machine ran alike.

A shared machine runs faster and slower for seconds at a time, by 20% and more, as its other tenants come and go. What
was measured while other processes of this machine were busy is not compared at all. What other machines on the same
hardware do shows in the yardsticks beside every round, and only rounds beside which they read alike are compared. All
this is judged by noise and yardsticks alone, never by the times that are being compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chunkbench.analysis.noise import FOREIGN_CPUS_ABOVE, STEAL_ABOVE

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts, Yardsticks

ARITHMETIC_STEP, MEMORY_STEP = 0.03, 0.05
"""Readings are alike when they fall into the same step of 3% or 5%."""

Class = tuple[int, int | None]
UNMETERED: Class = (0, None)
Stratum = tuple[NDArray[np.float64], NDArray[np.float64]]


def calm(case: CaseFacts) -> bool:
    """Whether nobody else used this machine's CPUs while a process measured the case's point."""
    noise = case.noise
    return noise is None or (noise.steal_fraction <= STEAL_ABOVE and noise.foreign_cpus <= FOREIGN_CPUS_ABOVE)


def classes(case: CaseFacts) -> list[Class]:
    """[round] in which steps the yardsticks read; all the same where there are none."""
    if len(case.yardsticks) != len(case.samples_us):
        return [UNMETERED] * len(case.samples_us)
    return [_class(reading) for reading in case.yardsticks]


def strata(base: Sequence[tuple[Class, float]], head: Sequence[tuple[Class, float]]) -> list[Stratum]:
    """Values of BASE and HEAD that may be compared with each other, class by class; classes of one side are dropped."""
    ours, theirs = _by_class(base), _by_class(head)
    return [(np.array(ours[name]), np.array(theirs[name])) for name in ours if name in theirs]


def _class(reading: Yardsticks) -> Class:
    memory = None if reading.memory_us is None else math.floor(math.log(reading.memory_us) / MEMORY_STEP)
    return math.floor(math.log(reading.arithmetic_us) / ARITHMETIC_STEP), memory


def _by_class(values: Sequence[tuple[Class, float]]) -> dict[Class, list[float]]:
    found: dict[Class, list[float]] = {}
    for name, value in values:
        found.setdefault(name, []).append(value)
    return found
