"""Makes tables of several quantities. Each point has a line for each quantity; each implementation has a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import ABSENT, NOTHING, fastest, ms_of_us, times, word
from chunkbench.report.view import Line, View

Quantity = tuple[str, Callable[[Group, Row], Cell]]
"""The name of a line, and a function that gives the cell of an implementation at a point."""


def paper(text: Callable[[Group, Row], str | None]) -> Callable[[Group, Row], Cell]:
    """Makes the function that gives the cell of a number from the paper."""
    return lambda group, row: Cell(text(group, row) or NOTHING, "quiet")


def normalized_latency(baseline: str) -> tuple[Quantity, Quantity, Quantity]:
    """Lines for the latency of requests, its interval, and its ratio to the latency of the baseline, whose name is
    `baseline`."""

    def seeds(row: Row) -> str:
        derived = row.derived
        return f"{ms_of_us(derived.low_us)}..{ms_of_us(derived.high_us)}" if derived.rounds > 1 else NOTHING

    return (
        (
            "normalized latency, ms/token",
            lambda group, row: Cell(ms_of_us(row.derived.latency_us), fastest(group, row)),
        ),
        ("  smallest and largest seed", lambda _, row: Cell(seeds(row), "quiet")),
        (f"  over {baseline}", lambda _, row: Cell(times(row.derived.ratio_to_baseline))),
    )


def quantities(
    view: View,
    title: str,
    entries: Sequence[Quantity | Metric],
    has_numbers: Callable[[Row], bool] = lambda row: row.derived.latency_us is not None,
) -> Table:
    """One block of lines for each point, without empty lines. Points without numbers have one line.

    If `has_numbers` is false for a row, the row's status takes the place of the first number.
    """

    lines = [_line(entry) for entry in entries]

    def cell(group: Group, name: str, place: int) -> Cell:
        row = group.rows.get(name)
        if row is not None and has_numbers(row):
            return lines[place][1](group, row)
        return word(row) if row is not None and place == 0 else ABSENT

    def block(group: Group) -> list[Line]:
        known = any(map(has_numbers, group.rows.values()))
        return [
            Line(name, {implementation: cell(group, implementation, place) for implementation in view.columns.ids})
            for place, (name, _) in enumerate(lines if known else lines[:1])
        ]

    return view.line_table(title, lambda group: [line for line in block(group) if line.known], apart=True)


def _line(entry: Quantity | Metric) -> Quantity:
    return (entry.label, entry.line) if isinstance(entry, Metric) else entry
