"""Rates that systems sustain under the objective: the paper's Figure 5 in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.bench.analysis.derive import Row
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import ms_of_s, times
from chunkbench.report.view import Line, View
from chunkbench.workloads.serving.objective import OBJECTIVE_LOAD, shares_one_prefix, spots, sustained_rate
from chunkbench.workloads.serving.rates import paper_rates, rate_cell, rates_table
from chunkbench.workloads.serving.result import ServingResult

LEGEND = (
    f"objective = normalized latency of the reference with nothing shared at {OBJECTIVE_LOAD}% of its own capacity, in "
    "place of the paper's 40 ms per token; sustained rates are interpolated between measured ones, ≥ = the highest one"
)


def tables(view: View, objectives: Mapping[int, float]) -> list[Table]:
    """Rates that systems sustain. `objectives`: n_p -> seconds per token. No table without an objective."""
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
