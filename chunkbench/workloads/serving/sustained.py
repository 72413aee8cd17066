"""Shows the highest rates that meet the objective (the paper's Figure 5), beside the rates that the paper states."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from chunkbench.bench.analysis.derive import Row
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, ms_of_s, significant, times
from chunkbench.report.printed import paper_rows
from chunkbench.report.view import Line, View
from chunkbench.workloads.serving.objective import (
    OBJECTIVE_LOAD,
    SustainedRate,
    shares_one_prefix,
    spots,
    sustained_rate,
)
from chunkbench.workloads.serving.result import ServingResult

LEGEND = (
    f"objective = normalized latency of the reference with nothing shared at {OBJECTIVE_LOAD}% of its own capacity, in "
    "place of the paper's 40 ms per token; sustained rates are interpolated between measured ones, ≥ = the highest one"
)


def tables(view: View, objectives: Mapping[int, float]) -> list[Table]:
    """Make the table of the highest rates that meet the objective. `objectives`: n_p -> seconds per token. Without
    objectives there is no table."""
    names = view.columns.ids
    blocks = []
    points = [group for group in view.groups if shares_one_prefix(group.axes)]
    for n_p, objective in sorted(objectives.items()):
        for n_s in sorted({group.axes["n_s"] for group in points if group.axes["n_p"] == n_p}):
            groups = [group for group in points if (group.axes["n_p"], group.axes["n_s"]) == (n_p, n_s)]
            rates = {
                name: sustained_rate(spots(g.rows[name] for g in groups if name in g.rows), objective) for name in names
            }
            reference = next((f.reference for g in groups for r in g.rows.values() if (f := _facts(r))), "")
            base = rates.get(reference)
            printed = paper_rates(n_p) if n_s == n_p else {}
            ratios = {name: rate.per_s / base.per_s if rate and base else None for name, rate in rates.items()}
            lines = (
                Line("requests per second", {name: rate_cell(rate) for name, rate in rates.items()}),
                Line(f"  over {view.columns.name(reference)}", {name: Cell(times(ratios[name])) for name in names}),
                Line("  the same, paper", {name: Cell(times(_over(printed, name, reference))) for name in names}),
            )
            place = (str(n_p), str(n_s), ms_of_s(objective))
            blocks.append((place, [line for line in lines if line.known]))
    keys = (("n_p",), ("n_s",), ("objective,", "ms/token"))
    return rates_table(view, "Rates sustained under the objective", keys, blocks)


def _over(rates: Mapping[str, float], name: str, base: str) -> float | None:
    return rates[name] / rates[base] if name in rates and base in rates else None


def _facts(row: Row) -> ServingResult | None:
    return row.facts if isinstance(row.facts, ServingResult) and row.facts.reference else None


PAPER_OBJECTIVE_S = 0.040


def rate_cell(rate: SustainedRate | None) -> Cell:
    """The cell of a rate. It begins with `≥` if all measured rates meet the objective."""
    return Cell(NOTHING if rate is None else f"{'≥ ' if rate.at_least else ''}{significant(rate.per_s, 3)}")


def rates_table(
    view: View, title: str, keys: Sequence[tuple[str, ...]], blocks: Sequence[tuple[tuple[str, ...], Sequence[Line]]]
) -> list[Table]:
    """Make a table of blocks of lines. Without blocks there is no table.

    A block is (texts, lines). The texts name the block. They stand in the first columns of its first line. `keys` are
    the headings of these columns. A gap separates two blocks whose first texts differ.
    """
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
    """System -> requests per second that the paper states for Figure 5, with the whole prompt shared."""
    return {
        str(row["implementation"]): float(row["value"])
        for row in paper_rows("figure_points")
        if row["figure"] == "figure5" and int(row["n_p"]) == n_p
    }
