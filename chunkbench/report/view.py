"""A run's rows in order, as input of its tables, and the part of a report that a kind of work makes from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chunkbench.analysis.derive import Row
from chunkbench.analysis.expectations import Outcome
from chunkbench.report.columns import Columns
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.store.manifest import ExperimentFacts


@dataclass(frozen=True)
class View:
    """The input of a report's tables."""

    groups: Sequence[Group]
    rows: Sequence[Row]
    columns: Columns
    axes: Sequence[str]
    """The axes that vary; they are the first columns of every table."""
    text: Callable[[str, object], str]
    """Turns (axis, value) into the text of a cell."""
    baseline: str
    outcomes: Sequence[Outcome]
    experiment: ExperimentFacts

    def only(self, groups: Sequence[Group]) -> View:
        """The same view of some of the points."""
        return replace(self, groups=groups)

    def keys(self, group: Group) -> list[Cell]:
        """The cells that name a point."""
        return [Cell(self.text(axis, group.axes.get(axis))) for axis in self.axes]

    def blank(self) -> list[Cell]:
        """Empty cells in place of `keys`, for further lines of the same point."""
        return [Cell("") for _ in self.axes]

    def key_columns(self) -> list[Column]:
        return [Column(axis, (axis,)) for axis in self.axes]

    def breaks(self, sizes: int | Sequence[int]) -> frozenset[int]:
        """Rows after which the value of the first axis changes; `sizes` is the number of rows of each point."""
        if len(self.axes) < 2:
            return frozenset()
        heights = [sizes] * len(self.groups) if isinstance(sizes, int) else sizes
        last_rows, end = set(), 0
        for number, group in enumerate(self.groups[:-1]):
            end += heights[number]
            if group.axes.get(self.axes[0]) != self.groups[number + 1].axes.get(self.axes[0]) and end:
                last_rows.add(end - 1)
        return frozenset(last_rows)


@dataclass(frozen=True)
class Body:
    """The part of a report that a kind of work makes."""

    headline: str
    tables: tuple[Table, ...]
    losses: str = ""
    """Points where the baseline loses to its strongest rival; shown before the headline."""
    legend: tuple[str, ...] = ()
    compares: bool = True
    """Whether times are compared. If not, noise does not matter."""
    timing: str | None = None
    """Replaces the footer's text about timing."""
