"""Cells that several tables use."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.analysis.derive import Row
from chunkbench.report.model import Cell
from chunkbench.report.numbers import NOTHING, micros

NOISY_MARK = "~"
PROBE_MARK = "!"
"""Marks a roofline fraction above what the machine allows."""
STATUS_WORD: Mapping[str, str] = {
    "unavailable": "n/a",
    "unsupported": "unsupp.",
    "incorrect": "wrong",
    "error": "error",
    "timeout": "timeout",
    "crashed": "crashed",
    "oom": "oom",
}


def latency(row: Row | None, fastest: float | None) -> Cell:
    """Microseconds, or the status where nothing was measured."""
    if row is None:
        return Cell(NOTHING, "absent")
    value = row.derived.latency_us
    if value is None:
        return word(row)
    if row.facts.status == "noisy":
        return Cell(NOISY_MARK + micros(value), "noisy")
    return Cell(micros(value), "best" if value == fastest else "plain")


def word(row: Row) -> Cell:
    """The status as a word, in place of a missing figure."""
    failed = row.facts.status in ("incorrect", "error", "timeout", "crashed")
    return Cell(STATUS_WORD.get(row.facts.status, row.facts.status), "failed" if failed else "absent")
