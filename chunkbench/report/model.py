"""The parts of a report, independent of the format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

Emphasis = Literal["plain", "best", "noisy", "failed", "absent", "quiet"]
T = TypeVar("T")
U = TypeVar("U")
_ILLEGAL = re.compile("[^\t\n\r\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids (control characters, halves of surrogate pairs), and control characters that XML 1.0
allows."""


def legal(text: str) -> str:
    """The text with U+FFFD for each character that UTF-8, XML or a terminal cannot show."""
    return _ILLEGAL.sub("\ufffd", text)


@dataclass(frozen=True)
class Cell:
    """A text and its emphasis. The text alone must say everything, because formats may lack colour."""

    text: str
    emphasis: Emphasis = "plain"


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table: its name, and the function that makes an item's cell."""

    name: str
    show: Callable[[T], Cell | str]
    heading: tuple[str, ...] = ()
    """The name as lines, for narrow tables; empty: one line."""
    align: Literal["left", "right"] = "right"
    wrap: bool = False
    """Whether long texts continue on the next line. Otherwise the whole text is on one line."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The heading in narrow tables."""
        return self.heading or (self.name,)

    def of(self, part: Callable[[U], T]) -> Column[U]:
        """The same column for larger items, of which `part` extracts the items of this column."""
        return Column(self.name, lambda item: self.show(part(item)), self.heading, self.align, self.wrap)


@dataclass(frozen=True)
class Table:
    """A table with a row for each item. The first `keys` columns name the row; each part of a split table repeats these
    columns."""

    title: str
    columns: tuple[Column[Any], ...]
    items: Sequence[Any]
    keys: int = 1
    breaks: frozenset[int] = frozenset()
    """Indices of the rows that a gap or a line follows."""
    essential: bool = True
    """Whether a terminal shows the table also without --detail."""

    @cached_property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The cells of each item."""
        shown = ([column.show(item) for column in self.columns] for item in self.items)
        return [tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in shown]


@dataclass(frozen=True)
class Check:
    """A judged case in the form of a test result, for programs that read JUnit XML or GitHub's commands."""

    name: str
    """Name of the case, the same in every comparison."""
    implementation: str
    place: str
    """Short name of the case, for people."""
    verdict: str
    text: str
    level: Literal["passed", "suspicious", "failed", "broken"]
    """`failed`: the case makes the comparison fail. `broken`: the same, because the implementation gave no valid
    result."""


@dataclass(frozen=True)
class Suite:
    """Judged cases in the form of test results, worst first."""

    name: str
    properties: Mapping[str, str]
    checks: Sequence[Check]
    summary: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a report for readers; a format decides only the looks. Empty parts are not shown."""

    title: str = ""
    warnings: tuple[str, ...] = ()
    """Warnings that a reader needs before the numbers: a partial run, a wrong probe."""
    verdict: str = ""
    """The line before the headline: the result of a comparison, or the points at which the baseline is slower than
    others."""
    headline: str = ""
    figures: tuple[str, ...] = ()
    """Files of pictures."""
    tables: tuple[Table, ...] = ()
    statuses: tuple[str, ...] = ()
    """Explanations of cells that hold a word instead of a number."""
    legend: tuple[str, ...] = ()
    footer: tuple[tuple[str, str], ...] = ()
    """Pairs (topic, text): how the run was measured, and warnings against wrong comparisons."""
    headings: tuple[str, str, str] = ("Not measured, or marked", "Columns", "How it was measured")
    """Headings of statuses, legend and footer, in formats with headings."""

    @property
    def documents(self) -> Sequence[Document]:
        """A list that has only this document, for formats that print several documents."""
        return (self,)


@dataclass(frozen=True, kw_only=True)
class Output(Document):
    """The output of a command: a document for readers, with its content for programs."""

    data: Any
    """The content of the JSON format."""
    suite: Suite | None = None
    """The test results as plain data, for formats that test-counting programs read (such as JUnit XML)."""

    @property
    def records(self) -> Sequence[Mapping[str, Any]] | None:
        """The content of the CSV format: the data, if it is a list."""
        return self.data if isinstance(self.data, list) else None
