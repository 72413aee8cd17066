"""A run's rows put in order for its tables, and the part of a report that depends on the kind of experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkbench.analysis.derive import Row
from chunkbench.analysis.expectations import Outcome
from chunkbench.report.columns import name
from chunkbench.report.model import Cell, Column, Group, Table


@dataclass(frozen=True)
class View:
    """What tables are made of."""

    groups: Sequence[Group]
    rows: Sequence[Row]
    implementations: Sequence[str]
    """In the order of columns."""
    labels: Mapping[str, str]
    axes: Sequence[str]
    """Those that vary; they lead every table."""
    text: Callable[[str, object], str]
    """Turns (axis, value) into the text of a cell."""
    baseline: str
    outcomes: Sequence[Outcome]
    experiment: Mapping[str, Any]
    """As the manifest has it."""

    def keys(self, group: Group) -> list[Cell]:
        """The cells that name a point."""
        return [Cell(self.text(axis, group.axes.get(axis))) for axis in self.axes]

    def blank(self) -> list[Cell]:
        """As many cells that name nothing: further lines of the point above."""
        return [Cell("") for _ in self.axes]

    def key_columns(self) -> list[Column]:
        return [Column(axis, (axis,)) for axis in self.axes]

    def name(self, implementation: str) -> str:
        """What running text calls an implementation."""
        known = implementation in self.labels
        return name(implementation, self.labels[implementation]) if known else implementation

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
class Told:
    """What a kind of experiment has to say."""

    headline: str
    tables: tuple[Table, ...]
    losses: str = ""
    legend: tuple[str, ...] = ()
