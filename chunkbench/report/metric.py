"""The figures of a kind of work. Each figure is declared once, for tables, comparisons and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.model import Cell
from chunkbench.report.numbers import NOTHING, megabytes, micros, ms_of_s, percent, significant, times

Better = Literal["lower", "higher", ""]
"""Whether lower or higher values are better; empty if neither is better."""


Samples = Callable[[Any], Iterable[float | None]]
"""A function that gives the figure of a result for each round, arrival seed or context; one value if nothing is
repeated. An unknown value is None."""


class Unit(NamedTuple):
    """The unit of a figure, and the format of its values."""

    word: str
    """Name of the unit, as `compare` and `history` print it."""
    text: Callable[[float], str]
    """Formats a value for tables, where the name of the line or column states the unit."""


SECONDS = Unit("s", ms_of_s)
MICROSECONDS = Unit("us", micros)
SHARE = Unit("share", percent)
RATIO = Unit("x", times)
BYTES = Unit("bytes", lambda value: megabytes(round(value)))
NUMBER = Unit("", lambda value: significant(value, 3))
COUNT = Unit("", lambda value: f"{value:,.0f}")


@dataclass(frozen=True)
class Metric:
    """A figure of one result."""

    name: str
    """The name for the option `--metric`."""
    label: str
    """The name of the figure's line or column in tables."""
    samples: Samples
    unit: Unit
    better: Better = "lower"
    combine: Callable[[Sequence[float]], float] = median
    """Combines the values of all repeats into one figure."""
    exact: bool = False
    """Whether the figure is counted, not measured, so that any change gives a verdict."""

    def known(self, result: Any) -> list[float]:
        """The known values of all repeats."""
        return [value for value in self.samples(result) if value is not None]

    def value(self, result: Any) -> float | None:
        """The figure of a result; None if no repeat has a value."""
        known = self.known(result)
        return self.combine(known) if known else None

    def text(self, result: Any) -> str:
        """The figure in the format of tables."""
        value = self.value(result)
        return NOTHING if value is None else self.unit.text(value)

    def cell(self, row: Row) -> Cell:
        """The cell of a row in a table."""
        return Cell(self.text(row.facts))

    def line(self, _: Group, row: Row) -> Cell:
        """The cell of a row, as `Metric.cell`; with the parameters that a line of a table passes."""
        return self.cell(row)


def by_name(*metrics: Metric) -> dict[str, Metric]:
    """Name -> metric, in this order."""
    return {metric.name: metric for metric in metrics}


def one(value: Callable[[Any], float | None]) -> Samples:
    """A function that gives the one value of a figure that is not repeated."""
    return lambda result: (value(result),)
