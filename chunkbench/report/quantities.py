"""Makes tables that have several lines for each point, and a column for each implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import ABSENT, NOTHING, fastest, ms_of_us, times, word
from chunkbench.report.view import Line, View

Quantity = tuple[str, Callable[[Group, Row], Cell]]
"""Name of a line, and the function that makes its cells."""


def paper(text: Callable[[Group, Row], str | None]) -> Callable[[Group, Row], Cell]:
    """The function of a `Quantity` for a line with numbers of the paper. `text` returns a number as text, or None."""
    return lambda group, row: Cell(text(group, row) or NOTHING, "quiet")


def normalized_latency(baseline: str) -> tuple[Quantity, Quantity, Quantity]:
    """Three lines: the normalized latency, its range over the arrival seeds, and its ratio to the latency of the
    implementation `baseline`."""

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
    """Make a table with a line for each entry at each point. Lines without any value are left out.

    `has_numbers`: whether a row has numbers. A row without numbers shows its status in the first line. A point has only
    the first line if none of its rows has numbers.
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
