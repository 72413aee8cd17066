"""Which rounds of two runs were measured while the machine was in the same state.

A shared machine is faster or slower for seconds at a time, by 20% and more, when its other tenants come and go. A case
is not compared if other processes of this machine were busy while it was measured. The load of other virtual machines
on the same hardware shows in the yardsticks beside every round: only rounds with equal readings are compared. Noise and
yardsticks alone decide this, never the times that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chunkbench.analysis.noise import FOREIGN_CPUS_ABOVE, STEAL_ABOVE
from chunkbench.store.results import Result, SessionResult, TimedResult, Yardsticks

ARITHMETIC_STEP, MEMORY_STEP = 0.03, 0.05
"""Two readings are equal if they fall into the same step: of 3% for arithmetic, of 5% for memory."""

Class = tuple[int, int | None]
"""The steps into which the arithmetic and the memory yardstick of a round fall."""
UNMETERED: Class = (0, None)
Stratum = tuple[NDArray[np.float64], NDArray[np.float64]]


def calm(case: Result) -> bool:
    """Whether no other process used this machine's CPUs while the case's point was measured."""
    noise = case.noise if isinstance(case, SessionResult) else None
    return noise is None or (noise.steal_fraction <= STEAL_ABOVE and noise.foreign_cpus <= FOREIGN_CPUS_ABOVE)


def classes(case: Result) -> list[Class]:
    """[round] the yardstick class. All rounds have one class if there are no yardsticks."""
    readings = yardsticks_of(case)
    return (
        [_class(reading) for reading in readings]
        if len(readings) == len(case.rounds)
        else [UNMETERED] * len(case.rounds)
    )


def yardsticks_of(case: Result) -> tuple[Yardsticks, ...]:
    """[round] readings of the yardsticks; empty where a kind of work has none."""
    return case.yardsticks if isinstance(case, TimedResult) else ()


def strata(base: Sequence[tuple[Class, float]], head: Sequence[tuple[Class, float]]) -> list[Stratum]:
    """The comparable values of BASE and HEAD, one stratum for each class that both sides have."""
    base_values, head_values = _by_class(base), _by_class(head)
    return [(np.array(base_values[name]), np.array(head_values[name])) for name in base_values if name in head_values]


def _class(yardsticks: Yardsticks) -> Class:
    memory = None if yardsticks.memory_us is None else math.floor(math.log(yardsticks.memory_us) / MEMORY_STEP)
    return math.floor(math.log(yardsticks.arithmetic_us) / ARITHMETIC_STEP), memory


def _by_class(values: Sequence[tuple[Class, float]]) -> dict[Class, list[float]]:
    by_class: dict[Class, list[float]] = {}
    for name, value in values:
        by_class.setdefault(name, []).append(value)
    return by_class
