"""The report of an experiment that only checks: which implementations are right at which points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from chunkbench.analysis.derive import Row
from chunkbench.report.cells import word
from chunkbench.report.model import Cell, Column, Emphasis, Table
from chunkbench.report.numbers import NOTHING, count
from chunkbench.report.view import Body, View
from chunkbench.store import FAILED
from chunkbench.workloads.decode.tables import latency_table

_RESULTS = ("passed", "failed", "cannot run here")
_EMPHASIS: Mapping[str, Emphasis] = {"passed": "best", "failed": "failed", "cannot run here": "absent"}


def body(view: View) -> Body:
    """Every implementation with its error at each point. Latencies of such small shapes are a detail."""
    details = (replace(table, essential=False) for table in (_errors(view), latency_table(view)))
    return Body(_headline(view), (_passes(view), *details), compares=False)


def _headline(view: View) -> str:
    tally = Counter(_result(view, name) for name in view.columns.ids)
    parts = [f"{count(tally[word], 'implementation')} {word}" for word in _RESULTS if tally[word]]
    return f"{count(len(view.groups), 'point')}: {', '.join(parts)}."


def _rows(view: View, name: str) -> list[Row]:
    return [group.rows[name] for group in view.groups if name in group.rows]


def _result(view: View, name: str) -> str:
    rows = _rows(view, name)
    if any(row.facts.status in FAILED for row in rows):
        return "failed"
    return "passed" if any(map(_right, rows)) else "cannot run here"


def _passes(view: View) -> Table:
    """One line for each implementation."""
    lines = []
    for name in view.columns.ids:
        rows, result = _rows(view, name), _result(view, name)
        errors = [row.facts.max_error for row in rows if _right(row) and row.facts.max_error is not None]
        lines.append(
            (
                Cell(view.columns.name(name)),
                Cell(result, _EMPHASIS[result]),
                Cell(f"{sum(map(_right, rows))} of {len(rows)}" if result != "cannot run here" else NOTHING),
                Cell(f"{max(errors):.0e}".replace("e-0", "e-") if errors else NOTHING),
            )
        )
    columns = (
        Column("implementation", ("implementation",), "left"),
        Column("result", ("result",), "left"),
        Column("points", ("points",)),
        Column("largest error", ("largest", "error")),
    )
    return Table("Each implementation against float64, as parts of the largest value", columns, tuple(lines), 1)


def _right(row: Row) -> bool:
    return row.facts.status in ("ok", "noisy")


def _errors(view: View) -> Table:
    rows = [(*view.keys(group), *(_cell(group.rows.get(name)) for name in view.columns.ids)) for group in view.groups]
    columns = (*view.key_columns(), *map(view.columns.column, view.columns.ids))
    title = "Largest error against float64 at each point"
    return Table(title, columns, tuple(rows), len(view.axes), view.breaks(1))


def _cell(row: Row | None) -> Cell:
    if row is None:
        return Cell(NOTHING, "absent")
    if not _right(row) or row.facts.max_error is None:
        return word(row)
    return Cell(f"{row.facts.max_error:.0e}".replace("e-0", "e-"), "best")
