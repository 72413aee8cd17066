"""Tables with several lines for each point: one quantity a line, one implementation a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.analysis.derive import Row
from chunkbench.report.cells import word
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.report.numbers import NOTHING
from chunkbench.report.view import View

Line = tuple[str, Callable[[Group, Row], Cell]]
"""Heading of a line, and the cell of an implementation at a point."""


def line_table(
    view: View,
    title: str,
    lines: Sequence[Line],
    has_numbers: Callable[[Row], bool] = lambda row: row.derived.latency_us is not None,
) -> Table:
    """One block of lines for each point; lines with nothing in them are left out. Points without numbers have one line.

    Where `has_numbers` says no, the status stands in the place of the first number.
    """
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in view.groups:
        shown = []
        known = any(has_numbers(row) for row in group.rows.values())
        for place, (text, cell) in enumerate(lines if known else lines[:1]):
            cells = [_cell(group, group.rows.get(name), cell, has_numbers, place == 0) for name in view.columns.ids]
            if any(cell.text != NOTHING for cell in cells):
                shown.append((text, cells))
        for number, (text, cells) in enumerate(shown):
            rows.append((*(view.blank() if number else view.keys(group)), Cell(text), *cells))
        sizes.append(len(shown))
    columns = (
        *view.key_columns(),
        Column("", ("",), "left"),
        *(view.columns.column(name) for name in view.columns.ids),
    )
    ends = [sum(sizes[: number + 1]) - 1 for number in range(len(sizes) - 1)]
    return Table(title, columns, tuple(rows), len(view.axes) + 1, frozenset(end for end in ends if end >= 0))


def _cell(
    group: Group, row: Row | None, cell: Callable[[Group, Row], Cell], has_numbers: Callable[[Row], bool], first: bool
) -> Cell:
    if row is not None and has_numbers(row):
        return cell(group, row)
    return word(row) if row is not None and first else Cell(NOTHING, "absent")
