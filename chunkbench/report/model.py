"""What a report consists of, whatever it is rendered as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chunkbench.analysis.derive import Row

Emphasis = Literal["plain", "best", "noisy", "failed", "absent", "quiet"]


@dataclass(frozen=True)
class Cell:
    """A piece of text and how it stands out; the text alone has to be enough where there is no colour."""

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
    """Cells in rows and columns. The first `keys` columns name the row and are repeated where a table is split."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: int
    breaks: frozenset[int] = frozenset()
    """Rows after which the eye should rest."""


@dataclass(frozen=True)
class Group:
    """One point as measured one way: the values of its axes and the rows of its implementations by id."""

    axes: Mapping[str, Any]
    rows: Mapping[str, Row]


@dataclass(frozen=True)
class Document:
    """What is printed as text or as Markdown; formats only decide how it looks."""

    HEADINGS: ClassVar[tuple[str, str, str]] = ("Not measured, or marked", "Columns", "How it was measured")
    """Of statuses, legend and footer, where a format has headings."""

    title: str
    warnings: tuple[str, ...]
    """What a reader must know before the numbers: a partial run, a probe that cannot be right."""
    losses: str
    """Points where the baseline loses to the strongest other; comes before anything that flatters it."""
    headline: str
    tables: tuple[Table, ...]
    statuses: tuple[str, ...]
    """Why cells hold a word and not a number."""
    legend: tuple[str, ...]
    footer: tuple[tuple[str, str], ...]
    """(topic, text): how it was measured and what cannot be compared."""
