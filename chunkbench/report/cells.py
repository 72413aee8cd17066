"""Cells that several tables use."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.model import Cell, Emphasis
from chunkbench.report.numbers import NOTHING, micros

NOISY_MARK = "~"
PROBE_MARK = "!"
"""Marks a roofline fraction above what the machine allows."""
ABSENT = Cell(NOTHING, "absent")
"""Where there is no case."""
STATUS_WORD: Mapping[str, str] = {
    "unavailable": "n/a",
    "unsupported": "unsupp.",
    "incorrect": "wrong",
    "error": "error",
    "timeout": "timeout",
    "crashed": "crashed",
    "oom": "oom",
}


def latency(group: Group, row: Row | None) -> Cell:
    """Microseconds, or the status where nothing was measured."""
    return measured(row, micros(row.derived.latency_us), fastest(group, row)) if row is not None else ABSENT


def measured(row: Row, text: str, emphasis: Emphasis = "plain") -> Cell:
    """The text of a figure, marked if it is noisy; the status where nothing was measured."""
    if row.derived.latency_us is None:
        return word(row)
    return Cell(NOISY_MARK + text, "noisy") if row.facts.status == "noisy" else Cell(text, emphasis)


def fastest(group: Group, row: Row) -> Emphasis:
    """The emphasis of a latency: whether it is the least of its point."""
    known = [other.derived.latency_us for other in group.rows.values() if other.derived.latency_us is not None]
    return "best" if known and row.derived.latency_us == min(known) else "plain"


def word(row: Row) -> Cell:
    """The status as a word, in place of a missing figure."""
    failed = row.facts.status in ("incorrect", "error", "timeout", "crashed")
    return Cell(STATUS_WORD.get(row.facts.status, row.facts.status), "failed" if failed else "absent")
