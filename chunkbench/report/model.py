"""The parts of a report, independent of the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chunkbench.analysis.derive import Row

Emphasis = Literal["plain", "best", "noisy", "failed", "absent", "quiet"]


@dataclass(frozen=True)
class Cell:
    """A text and its emphasis. The text alone must say everything, because formats may lack colour."""

    text: str
    emphasis: Emphasis = "plain"


@dataclass(frozen=True)
class Column:
    """A column's heading, in full and as lines for narrow tables."""

    head: str
    short: tuple[str, ...]
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns. The first `keys` columns name the row; each part of a split table repeats them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: int
    breaks: frozenset[int] = frozenset()
    """Indices of the rows that a gap or a line follows."""
    essential: bool = True
    """Whether a terminal shows it also without --detail."""


@dataclass(frozen=True)
class Group:
    """One point with one protocol, cache and mode: the values of its axes, and its rows by implementation id."""

    axes: Mapping[str, Any]
    rows: Mapping[str, Row]


@dataclass(frozen=True)
class Document:
    """The content of a report; a format only decides how it looks."""

    HEADINGS: ClassVar[tuple[str, str, str]] = ("Not measured, or marked", "Columns", "How it was measured")
    """Headings of statuses, legend and footer, in formats with headings."""

    title: str
    warnings: tuple[str, ...]
    """What a reader must know before the numbers: a partial run, a wrong probe."""
    losses: str
    """Points where the baseline loses to its strongest rival; shown before the headline."""
    headline: str
    tables: tuple[Table, ...]
    statuses: tuple[str, ...]
    """Why cells hold a word instead of a number."""
    legend: tuple[str, ...]
    footer: tuple[tuple[str, str], ...]
    """(topic, text): how the run was measured, and what must not be compared."""
