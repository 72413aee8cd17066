"""The content of a report, which is the same in all formats."""

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
"""All characters that XML 1.0 forbids, and all control characters except tab and line breaks."""


def legal(text: str) -> str:
    """Replace each character that UTF-8, XML or a terminal cannot show by U+FFFD."""
    return _ILLEGAL.sub("\ufffd", text)


@dataclass(frozen=True)
class Cell:
    """A text and its emphasis. The text must be enough to understand the cell, because some formats have no colours."""

    text: str
    emphasis: Emphasis = "plain"


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table. `show` makes the cell of an item."""

    name: str
    show: Callable[[T], Cell | str]
    heading: tuple[str, ...] = ()
    """Lines of a short heading, for narrow tables. If empty, `name` is used."""
    align: Literal["left", "right"] = "right"
    wrap: bool = False
    """Whether long texts are broken into several lines."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the heading in narrow tables."""
        return self.heading or (self.name,)

    def of(self, part: Callable[[U], T]) -> Column[U]:
        """A copy of this column for a table whose items have another type. `part` turns an item of that table into an
        item of this column."""
        return Column(self.name, lambda item: self.show(part(item)), self.heading, self.align, self.wrap)


@dataclass(frozen=True)
class Table:
    """A table with one row for each item. The first `keys` columns identify a row; if a format splits the table, each
    part repeats them."""

    title: str
    columns: tuple[Column[Any], ...]
    items: Sequence[Any]
    keys: int = 1
    breaks: frozenset[int] = frozenset()
    """Indices of rows after which there is a gap or a line."""
    essential: bool = True
    """Whether a terminal shows the table even without --detail."""

    @cached_property
    def rows(self) -> list[tuple[Cell, ...]]:
        """`[item][column]`: cells."""
        shown = ([column.show(item) for column in self.columns] for item in self.items)
        return [tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in shown]


@dataclass(frozen=True)
class Check:
    """The verdict on a case, in the form of a test result for JUnit XML or GitHub."""

    name: str
    """The name of the case, which is the same in every comparison."""
    implementation: str
    place: str
    """A short name of the case, for people."""
    verdict: str
    text: str
    level: Literal["passed", "suspicious", "failed", "broken"]
    """`failed`: the case makes the comparison fail. `broken`: the same, and the implementation gave no valid result."""


@dataclass(frozen=True)
class Suite:
    """The verdicts on all cases in the form of test results, worst first."""

    name: str
    properties: Mapping[str, str]
    checks: Sequence[Check]
    summary: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a report for people. Formats leave out empty parts."""

    title: str = ""
    warnings: tuple[str, ...] = ()
    """Warnings that must be read before the numbers, such as a partial run."""
    verdict: str = ""
    """The line above the headline: the result of a comparison, or the points at which the baseline is slower."""
    headline: str = ""
    figures: tuple[str, ...] = ()
    """Names of the picture files."""
    tables: tuple[Table, ...] = ()
    statuses: tuple[str, ...] = ()
    """Explanations of cells that contain a word instead of a number."""
    legend: tuple[str, ...] = ()
    footer: tuple[tuple[str, str], ...] = ()
    """(topic, text): how the run was measured, and warnings against wrong comparisons."""
    headings: tuple[str, str, str] = ("Not measured, or marked", "Columns", "How it was measured")
    """Headings above `statuses`, `legend` and `footer`."""

    @property
    def documents(self) -> Sequence[Document]:
        return (self,)


@dataclass(frozen=True, kw_only=True)
class Output(Document):
    """The output of a command, for people and for programs."""

    data: Any
    """The content of the JSON format."""
    suite: Suite | None = None
    """What is written into a file of test results, such as JUnit XML."""

    @property
    def records(self) -> Sequence[Mapping[str, Any]] | None:
        """The content of the CSV format. None if `data` is not a list."""
        return self.data if isinstance(self.data, list) else None
