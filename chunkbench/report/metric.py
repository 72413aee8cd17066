"""Declares the figures of a kind of work, for tables, comparisons and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.model import Cell
from chunkbench.report.numbers import NOTHING, megabytes, micros, ms_of_s, percent, significant, times

Better = Literal["lower", "higher", ""]
"""Whether lower or higher values are better. Empty if neither is."""


Samples = Callable[[Any], Iterable[float | None]]
"""Takes a result and returns its values: one for each round, arrival seed or context. An unknown value is None."""


class Unit(NamedTuple):
    word: str
    """Name of the unit in comparisons and histories."""
    text: Callable[[float], str]
    """Formats a value for a table, without the unit."""


SECONDS = Unit("s", ms_of_s)
MICROSECONDS = Unit("us", micros)
SHARE = Unit("share", percent)
RATIO = Unit("x", times)
BYTES = Unit("bytes", lambda value: megabytes(round(value)))
NUMBER = Unit("", lambda value: significant(value, 3))
COUNT = Unit("", lambda value: f"{value:,.0f}")


@dataclass(frozen=True)
class Metric:
    """A figure that each result of a kind of work has."""

    name: str
    """The name in the option `--metric`."""
    label: str
    """The name in tables."""
    samples: Samples
    unit: Unit
    better: Better = "lower"
    combine: Callable[[Sequence[float]], float] = median
    """Computes the figure of a result from its known values."""
    exact: bool = False
    """Whether the figure is counted, not measured. Then each change counts, however small."""

    def known(self, result: Any) -> list[float]:
        """The values of a result, without unknown ones."""
        return [value for value in self.samples(result) if value is not None]

    def value(self, result: Any) -> float | None:
        """The figure of a result. None if it has no known value."""
        known = self.known(result)
        return self.combine(known) if known else None

    def text(self, result: Any) -> str:
        """The figure of a result as text, without the unit."""
        value = self.value(result)
        return NOTHING if value is None else self.unit.text(value)

    def cell(self, row: Row) -> Cell:
        return Cell(self.text(row.facts))

    def line(self, _: Group, row: Row) -> Cell:
        """The same as `cell`; the group is ignored."""
        return self.cell(row)


def by_name(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def one(value: Callable[[Any], float | None]) -> Samples:
    """Make `Samples` for a figure that has only one value in each result."""
    return lambda result: (value(result),)
