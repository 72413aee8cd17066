"""Formats numbers and table cells. Numbers get no more digits than a measurement justifies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.model import Cell, Emphasis

N = TypeVar("N", int, float)

NOTHING = "-"


def significant(value: float, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, without exponent: 332.5, 5,203, 405,100."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else NOTHING
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1  # 9.9999 became 10.000: one decimal less
    return f"{rounded:,.{max(decimals, 0)}f}"


def micros(value: float | None) -> str:
    """Format microseconds with four significant digits, without the unit."""
    return NOTHING if value is None else significant(value)


def ms_of_us(value: float | None) -> str:
    """Format microseconds as milliseconds with three significant digits, without the unit."""
    return NOTHING if value is None else significant(value / 1e3, 3)


def ms_of_s(value: float | None) -> str:
    """Format seconds as milliseconds with three significant digits, without the unit."""
    return NOTHING if value is None else significant(value * 1e3, 3)


def ratio(value: float) -> str:
    """Format a ratio: 0.91, 12.3, 123."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def times(value: float | None) -> str:
    """Format a ratio with `x`: 0.91x, 12.3x, 123x."""
    return NOTHING if value is None else f"{ratio(value)}x"


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage: 95%, 4.5%, 0.3%, <0.1%."""
    if fraction is None:
        return NOTHING
    if 0 < fraction < 0.0005:
        return "<0.1%"
    return f"{fraction:.0%}" if fraction >= 0.0995 else f"{fraction:.1%}"


def megabytes(count: int | None) -> str:
    """Format bytes in units of 10^6 bytes, without the unit."""
    return NOTHING if count is None else significant(count / 1e6)


def gigabytes(count: float) -> str:
    """Format bytes in GiB (2^30 bytes), with the unit."""
    return f"{count / 2**30:.3g} GiB"


def span(low: float | None, high: float | None) -> str:
    """Format an interval in microseconds, without the unit."""
    return NOTHING if low is None or high is None else f"{significant(low)}..{significant(high)}"


def ratio_span(low: float | None, high: float | None, decimals: int = 3) -> str:
    """Format the minimum and maximum of a ratio: 0.970..1.031."""
    return NOTHING if low is None or high is None else f"{low:.{decimals}f}..{high:.{decimals}f}"


def extent(values: Iterable[N], text: Callable[[N], str] = str, to: str = " to ") -> str:
    """Format the minimum and maximum of the values: `3 to 8`. If both give the same text, it comes once. Empty without
    values."""
    known = list(values)
    if not known:
        return ""
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low}{to}{high}"


def count(number: int, noun: str) -> str:
    """Format a number with a noun in singular or plural: `1 point`, `2 points`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


NOISY_MARK = "~"
PROBE_MARK = "!"
"""Marks a roofline fraction that is impossible, because the probe measured too low a limit."""
ABSENT = Cell(NOTHING, "absent")
"""The cell of a case that does not exist."""
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
    """The cell of a latency in microseconds. If there is none, the cell of the status."""
    return measured(row, micros(row.derived.latency_us), fastest(group, row)) if row is not None else ABSENT


def measured(row: Row, text: str, emphasis: Emphasis = "plain") -> Cell:
    """The cell of a figure. Noisy cases are marked. If nothing was measured, the cell of the status."""
    if row.derived.latency_us is None:
        return word(row)
    return Cell(NOISY_MARK + text, "noisy") if row.facts.status == "noisy" else Cell(text, emphasis)


def fastest(group: Group, row: Row) -> Emphasis:
    """`best` if the row has the lowest latency of the point, else `plain`."""
    known = [other.derived.latency_us for other in group.rows.values() if other.derived.latency_us is not None]
    return "best" if known and row.derived.latency_us == min(known) else "plain"


def word(row: Row) -> Cell:
    """The cell of the status, for a row without figures."""
    failed = row.facts.status in ("incorrect", "error", "timeout", "crashed")
    return Cell(STATUS_WORD.get(row.facts.status, row.facts.status), "failed" if failed else "absent")
