"""Figures of experiments of `kind: growth`: the times of an operation by size, and their slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from chunkbench.bench.analysis.derive import Row
from chunkbench.report.metric import SECONDS, Metric, by_name
from chunkbench.workloads.growth.result import GrowthResult

STEEP = 1.1
"""A slope above this is worse than linear."""
SPAN = 100
"""The slope of an operation is that of its sizes above the largest one divided by this number."""
METRICS = by_name(Metric("time", "time, ms", lambda result: result.seconds, SECONDS))


class Curve(NamedTuple):
    """The times of an operation, by size."""

    name: str
    rows: Sequence[Row]
    """In order of size. Each has a time."""

    @property
    def spots(self) -> list[tuple[int, float]]:
        """(size, seconds) of each row."""
        return [(facts(row).size, seconds_of(row)) for row in self.rows]

    @property
    def slope(self) -> float | None:
        """Slope of log time over log size by least squares, over the last sizes (`SPAN`). None with fewer than two."""
        largest = max((size for size, _ in self.spots), default=0)
        spots = [(math.log(size), math.log(seconds)) for size, seconds in self.spots if size * SPAN >= largest]
        if len(spots) < 2:
            return None
        middle = sum(x for x, _ in spots) / len(spots)
        return sum((x - middle) * y for x, y in spots) / sum((x - middle) ** 2 for x, _ in spots)


def curves(rows: Sequence[Row], names: Sequence[str]) -> list[Curve]:
    """The curves of these operations that have any time."""
    timed = sorted((row for row in rows if facts(row).seconds), key=lambda row: facts(row).size)
    found = [Curve(name, [row for row in timed if row.facts.implementation == name]) for name in names]
    return [curve for curve in found if curve.rows]


def facts(row: Row) -> GrowthResult:
    assert isinstance(row.facts, GrowthResult)
    return row.facts


def seconds_of(row: Row) -> float:
    assert row.derived.latency_us is not None
    return row.derived.latency_us / 1e6
