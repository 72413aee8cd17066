"""The report of an experiment that only checks results: which implementations are correct, and at which points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import FAILED
from chunkbench.report.model import Cell, Column, Emphasis, Table
from chunkbench.report.numbers import ABSENT, NOTHING, count, word
from chunkbench.report.view import Body, View
from chunkbench.workloads.decode.tables import latency_table

_RESULTS = ("passed", "failed", "cannot run here")
_EMPHASIS: Mapping[str, Emphasis] = {"passed": "best", "failed": "failed", "cannot run here": "absent"}


def body(view: View) -> Body:
    """A table with the error of every implementation at each point. Latencies are in the details, because the shapes
    are small.
    """
    errors = view.by_implementation("Largest error against float64 at each point", _cell, essential=False)
    tables = (_passes(view), errors, latency_table(view, essential=False))
    return Body(_headline(view), tables, compares=False)


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

    def passed(name: str) -> str:
        rows = _rows(view, name)
        return f"{sum(map(_right, rows))} of {len(rows)}" if _result(view, name) != "cannot run here" else NOTHING

    def largest_error(name: str) -> str:
        errors = [row.max_error for row in _rows(view, name) if _right(row) and row.max_error is not None]
        return _error(max(errors)) if errors else NOTHING

    columns: tuple[Column[str], ...] = (
        Column("implementation", view.columns.name, align="left"),
        Column("result", lambda name: Cell(_result(view, name), _EMPHASIS[_result(view, name)]), align="left"),
        Column("points", passed),
        Column("largest error", largest_error, ("largest", "error")),
    )
    return Table("Each implementation against float64, errors as parts of the largest value", columns, view.columns.ids)


def _right(row: Row) -> bool:
    return row.facts.status in ("ok", "noisy")


def _error(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def _cell(_: Group, row: Row | None) -> Cell:
    if row is None:
        return ABSENT
    if not _right(row) or row.max_error is None:
        return word(row)
    return Cell(_error(row.max_error), "best")
