"""Rates that systems sustain under the objective: the paper's Figure 5 in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.analysis.derive import Row
from chunkbench.analysis.serving import OBJECTIVE_LOAD, shares_one_prefix, spots, sustained_rate
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, significant, times
from chunkbench.report.rates import paper_rates, rate_words
from chunkbench.report.view import View
from chunkbench.store.serving_facts import ServingFacts

LEGEND = (
    f"objective = normalized latency of the reference with nothing shared at {OBJECTIVE_LOAD}% of its own capacity, in "
    "place of the paper's 40 ms per token; sustained rates are interpolated between measured ones, ≥ = the highest one"
)


def tables(view: View, objectives: Mapping[int, float]) -> list[Table]:
    """Rates that systems sustain. `objectives`: n_p -> seconds per token. No table without an objective."""
    names = view.columns.ids
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    lines_of_rates = [group for group in view.groups if shares_one_prefix(group.axes)]
    for n_p, objective in sorted(objectives.items()):
        for n_s in sorted({g.axes["n_s"] for g in lines_of_rates if g.axes["n_p"] == n_p}):
            groups = [g for g in lines_of_rates if (g.axes["n_p"], g.axes["n_s"]) == (n_p, n_s)]
            found = {
                name: sustained_rate(spots(g.rows[name] for g in groups if name in g.rows), objective) for name in names
            }
            reference = next((f.reference for g in groups for r in g.rows.values() if (f := _facts(r))), "")
            base = found.get(reference)
            printed = paper_rates(n_p) if n_s == n_p else {}
            lines = [
                ("requests per second", [rate_words(rate) for rate in found.values()]),
                (
                    f"  over {view.columns.name(reference)}",
                    [times(rate.per_s / base.per_s if rate and base else None) for rate in found.values()],
                ),
                ("  the same, paper", [times(_over(printed, name, reference)) for name in names]),
            ]
            for number, (text, cells) in enumerate(lines):
                if any(cell != NOTHING for cell in cells):
                    place = (str(n_p), str(n_s), significant(objective * 1e3, 3)) if number == 0 else ("", "", "")
                    rows.append((*map(Cell, place), Cell(text), *map(Cell, cells)))
        breaks.append(len(rows) - 1)
    columns = (
        Column("n_p", ("n_p",)),
        Column("n_s", ("n_s",)),
        Column("objective, ms/token", ("objective,", "ms/token")),
        Column("", ("",), "left"),
        *(view.columns.column(name) for name in names),
    )
    if not rows:
        return []
    return [Table("Rates sustained under the objective", columns, tuple(rows), 4, frozenset(breaks[:-1]))]


def _over(rates: Mapping[str, float], name: str, base: str) -> float | None:
    return rates[name] / rates[base] if name in rates and base in rates else None


def _facts(row: Row) -> ServingFacts | None:
    return row.facts if isinstance(row.facts, ServingFacts) and row.facts.reference else None
