"""Sustained rates as a table, and those that the paper states."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, significant
from chunkbench.report.printed import paper_rows
from chunkbench.report.view import Line, View
from chunkbench.workloads.serving.objective import SustainedRate

PAPER_OBJECTIVE_S = 0.040
"""Seconds per token of Figure 5."""


def rate_cell(rate: SustainedRate | None) -> Cell:
    """A rate; `≥` where all rates meet the objective."""
    return Cell(NOTHING if rate is None else f"{'≥ ' if rate.at_least else ''}{significant(rate.per_s, 3)}")


def rates_table(
    view: View, title: str, keys: Sequence[tuple[str, ...]], blocks: Sequence[tuple[tuple[str, ...], Sequence[Line]]]
) -> list[Table]:
    """The lines of each block, behind the texts that name it; `keys` are the headings of these texts. No table without
    blocks. A gap follows every value of the first text."""
    items = [
        (name if number == 0 else ("",) * len(keys), line)
        for name, lines in blocks
        for number, line in enumerate(lines)
    ]

    def key(place: int) -> Column[tuple[tuple[str, ...], Line]]:
        return Column(" ".join(keys[place]), lambda item: item[0][place], keys[place])

    columns = (
        *map(key, range(len(keys))),
        *(column.of(lambda item: item[1]) for column in view.line_columns(view.columns.ids)),
    )
    ends = itertools.accumulate(len(lines) for _, lines in blocks)
    breaks = (end - 1 for end, (a, b) in zip(ends, itertools.pairwise(blocks), strict=False) if a[0][0] != b[0][0])
    return [Table(title, columns, items, len(keys) + 1, frozenset(breaks))] if items else []


def paper_rates(n_p: int) -> Mapping[str, float]:
    """System -> requests per second that the paper's text states for Figure 5, with the whole prompt shared."""
    return {
        str(row["implementation"]): float(row["value"])
        for row in paper_rows("figure_points")
        if row["figure"] == "figure5" and int(row["n_p"]) == n_p
    }
