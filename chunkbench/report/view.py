"""A run's rows put in order for its tables, and what a kind of work makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chunkbench.analysis.derive import Row
from chunkbench.analysis.expectations import Outcome
from chunkbench.report.columns import Columns
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.store.manifest import ExperimentFacts


@dataclass(frozen=True)
class View:
    """What tables are made of."""

    groups: Sequence[Group]
    rows: Sequence[Row]
    columns: Columns
    axes: Sequence[str]
    """Those that vary; they lead every table."""
    text: Callable[[str, object], str]
    """Turns (axis, value) into the text of a cell."""
    baseline: str
    outcomes: Sequence[Outcome]
    experiment: ExperimentFacts

    def keys(self, group: Group) -> list[Cell]:
        """The cells that name a point."""
        return [Cell(self.text(axis, group.axes.get(axis))) for axis in self.axes]

    def blank(self) -> list[Cell]:
        """As many cells that name nothing: further lines of the point above."""
        return [Cell("") for _ in self.axes]

    def key_columns(self) -> list[Column]:
        return [Column(axis, (axis,)) for axis in self.axes]

    def breaks(self, sizes: int | Sequence[int]) -> frozenset[int]:
        """Last row of every run of points that agree on the first axis; `sizes` are the points' lines."""
        if len(self.axes) < 2:
            return frozenset()
        heights = [sizes] * len(self.groups) if isinstance(sizes, int) else sizes
        found, end = set(), 0
        for number, group in enumerate(self.groups[:-1]):
            end += heights[number]
            if group.axes.get(self.axes[0]) != self.groups[number + 1].axes.get(self.axes[0]) and end:
                found.add(end - 1)
        return frozenset(found)


@dataclass(frozen=True)
class Body:
    """The part of a report that a kind of work writes."""

    headline: str
    tables: tuple[Table, ...]
    losses: str = ""
    """Points where the baseline loses to the strongest rival; comes before anything that flatters it."""
    legend: tuple[str, ...] = ()
    timing: str | None = None
    """Replaces what the footer says of timing."""
