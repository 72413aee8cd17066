"""The figures of a kind of work: each is declared once, and tables, comparisons and claims take it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.model import Cell
from chunkbench.report.numbers import NOTHING, megabytes, micros, ms_of_s, percent, significant, times

Better = Literal["lower", "higher", ""]
"""Which of two values is better; empty: neither."""


Samples = Callable[[Any], Iterable[float | None]]
"""Result -> a figure in each round, arrival seed or context; one value where nothing is repeated. None: unknown."""


class Unit(NamedTuple):
    """How values are written."""

    word: str
    """The unit of the values themselves, as `compare` and `history` name it."""
    text: Callable[[float], str]
    """A value as tables show it; the name of its line or column says the unit."""


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
    """As `--metric` takes it."""
    label: str
    """The name of its line or column in tables."""
    samples: Samples
    unit: Unit
    better: Better = "lower"
    combine: Callable[[Sequence[float]], float] = median
    """The figure of all repeats."""
    exact: bool = False
    """Counted, not measured: any change of it is a verdict."""

    def known(self, result: Any) -> list[float]:
        """[repeat] the values that are known."""
        return [value for value in self.samples(result) if value is not None]

    def value(self, result: Any) -> float | None:
        """The figure of a result; None if no repeat knows it."""
        known = self.known(result)
        return self.combine(known) if known else None

    def text(self, result: Any) -> str:
        """The figure as tables show it."""
        value = self.value(result)
        return NOTHING if value is None else self.unit.text(value)

    def cell(self, row: Row) -> Cell:
        """The cell of a row."""
        return Cell(self.text(row.facts))

    def line(self, _: Group, row: Row) -> Cell:
        """The cell of a row at a point, for a line with another name."""
        return self.cell(row)


def by_name(*metrics: Metric) -> dict[str, Metric]:
    """Name -> metric, in this order."""
    return {metric.name: metric for metric in metrics}


def one(value: Callable[[Any], float | None]) -> Samples:
    """Samples of a figure that a result has once."""
    return lambda result: (value(result),)
