"""What a kind of work gets to make its part of a report (`View`), and what it returns (`Body`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.analysis.expectations import ExpectationOutcome
from chunkbench.bench.store.manifest import ExperimentFacts
from chunkbench.report.columns import Columns
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, count

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One line of a point: its name, and a cell for each implementation."""

    name: str | Cell
    cells: Mapping[str, Cell]

    @property
    def known(self) -> bool:
        """Whether any cell has a value."""
        return any(cell.text != NOTHING for cell in self.cells.values())


@dataclass(frozen=True)
class View:
    """The rows of a run, ordered for tables."""

    groups: Sequence[Group]
    rows: Sequence[Row]
    columns: Columns
    axes: Sequence[str]
    """Names of the axes that vary. They are the first columns of every table."""
    text: Callable[[str, object], str]
    """Formats the value of an axis. Takes the name of the axis and the value."""
    baseline: str
    outcomes: Sequence[ExpectationOutcome]
    experiment: ExperimentFacts

    def variants_ahead(self) -> str:
        """A sentence on the variants of the baseline that are surely faster at some points. Empty without such
        variants."""
        points = {
            name: sum(_ahead(group.rows.get(name)) for group in self.groups)
            for name in self.columns.ids
            if name != self.baseline and not self.columns.competes(name, self.baseline)
        }
        name_of = self.columns.name
        ahead = [f"{name_of(name)} is faster at {count(number, 'point')}" for name, number in points.items() if number]
        own = name_of(self.baseline)
        return f"Variants of {own} are not counted as others: {', '.join(ahead)}." if ahead else ""

    def only(self, groups: Sequence[Group]) -> View:
        """A copy with only these points."""
        return replace(self, groups=groups)

    def table(
        self,
        title: str,
        lines: Callable[[Group], Sequence[T]],
        columns: Sequence[Column[T]],
        keys: int = 0,
        apart: bool = False,
        essential: bool = True,
    ) -> Table:
        """Make a table with one or more lines for each point. Its first columns are the axes that vary.

        `lines` returns the lines of a point. The first `keys` of `columns` identify a line within its point. With
        `apart`, a gap follows every point. Otherwise a gap follows every value of the first axis, if at least two
        axes vary.
        """
        of_points = [(group, lines(group)) for group in self.groups]
        items = [(group, number, line) for group, shown in of_points for number, line in enumerate(shown)]

        def axis_column(axis: str) -> Column[tuple[Group, int, T]]:
            return Column(axis, lambda item: "" if item[1] else self.text(axis, item[0].axes.get(axis)))

        return Table(
            title,
            (*map(axis_column, self.axes), *(column.of(lambda item: item[2]) for column in columns)),
            items,
            len(self.axes) + keys,
            self._breaks([len(shown) for _, shown in of_points], apart),
            essential,
        )

    def by_implementation(self, title: str, show: Callable[[Group, Row | None], Cell], essential: bool = True) -> Table:
        """Make a table with one line for each point and one column for each implementation."""

        def column(name: str) -> Column[Group]:
            return self.columns.column(name, lambda group: show(group, group.rows.get(name)))

        return self.table(title, lambda group: [group], [*map(column, self.columns.ids)], essential=essential)

    def line_columns(self, names: Sequence[str]) -> list[Column[Line]]:
        """Columns of a table of `Line`: the line's name, and one column for each implementation in `names`."""

        def column(name: str) -> Column[Line]:
            return self.columns.column(name, lambda line: line.cells[name])

        return [Column("", lambda line: line.name, align="left"), *map(column, names)]

    def line_table(
        self, title: str, lines: Callable[[Group], Sequence[Line]], names: Sequence[str] = (), apart: bool = False
    ) -> Table:
        """Make a table of `Line`, with one column for each implementation in `names`. If `names` is empty, all
        implementations have a column."""
        return self.table(title, lines, self.line_columns(names or self.columns.ids), keys=1, apart=apart)

    def _breaks(self, sizes: Sequence[int], apart: bool) -> frozenset[int]:
        """Rows that a gap follows; `sizes` is the number of rows of each point."""
        if len(self.axes) < 2 and not apart:
            return frozenset()
        last_rows, end = set(), 0
        for size, group, following in zip(sizes, self.groups, self.groups[1:], strict=False):
            end += size
            if end and (apart or group.axes.get(self.axes[0]) != following.axes.get(self.axes[0])):
                last_rows.add(end - 1)
        return frozenset(last_rows)


def _ahead(row: Row | None) -> bool:
    """Whether a row is surely faster than the baseline: the whole interval of the ratio, or the ratio without an
    interval, is below 1."""
    if row is None or row.derived.ratio_to_baseline is None:
        return False
    return max(row.derived.ratio_to_baseline, row.derived.ratio_high or 0.0) < 1


@dataclass(frozen=True)
class Body:
    """The part of a report that a kind of work makes."""

    headline: str
    tables: tuple[Table, ...]
    verdict: str = ""
    """The line above the headline: the result of a comparison, or the points at which the baseline is slower."""
    legend: tuple[str, ...] = ()
    compares: bool = True
    """Whether the report compares times. If it does not, noise is not reported."""
    timing: str | None = None
    """If given, replaces the text of the footer's topic "timing"."""
