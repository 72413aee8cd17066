"""Makes a report as text for a terminal or a file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from chunkbench.report.model import Column, Document, Emphasis, Table, legal

_BRIEF_TOPICS = ("machine", "software", "judged by")
"""Topics of the footer that a brief report keeps."""


@dataclass(frozen=True)
class Screen:
    """Where the text is shown. The default is a file."""

    colour: bool = False
    width: int = 100
    """Width in characters."""
    brief: bool = False
    """Whether to show only the essential parts."""


FILE = Screen()

_WRAPPED = 20
"""Smallest width, in characters, of a column whose texts are broken into lines."""
_STYLES: dict[Emphasis, str] = {
    "plain": "",
    "best": "bold green",
    "noisy": "yellow",
    "failed": "bold red",
    "absent": "dim",
    "quiet": "dim",
}


def render(report: Document, screen: Screen = FILE) -> str:
    """Show the report as text. No line is wider than the screen."""
    out, width = StringIO(), screen.width
    console = Console(
        file=out,
        width=width,
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
    )

    def print_wrapped(text: str, style: str = "", indent: str = "") -> None:
        for line in _wrap(text, width, indent):
            console.print(Text(line, style), no_wrap=True, crop=False, overflow="ignore")

    if report.title:
        print_wrapped(report.title, "bold")
    for warning in report.warnings:
        print_wrapped(warning, "bold yellow", "  ")
    if report.verdict:
        print_wrapped(report.verdict, "bold", "  ")
    if report.headline:
        print_wrapped(report.headline, "", "  ")
    shown = [table for table in report.tables if table.essential or not screen.brief]
    for table in shown:
        for number, part in enumerate(_split(table, width)):
            if out.tell():
                console.print()
            if part.title:
                print_wrapped(part.title + (", continued" if number else ""), "bold")
            console.print(_rich(part, width))
    for lines in (report.statuses, () if screen.brief else report.legend):
        if lines:
            console.print()
        for line in lines:
            print_wrapped(line, "", "  ")
    footer = [pair for pair in report.footer if not screen.brief or pair[0] in _BRIEF_TOPICS]
    if screen.brief and len(shown) < len(report.tables):
        left_out = "; ".join(table.title for table in report.tables if table not in shown)
        footer.append(("--detail", f"{left_out}; how it was measured"))
    if footer:
        console.print()
    indent = 2 + max((len(topic) for topic, _ in footer), default=0)
    for topic, text in footer:
        first, *more = _wrap(text, width - indent, "")
        console.print(Text.assemble((topic.ljust(indent), "bold"), first), no_wrap=True, crop=False)
        for line in more:
            console.print(Text(" " * indent + line), no_wrap=True, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _rich(table: Table, width: int) -> RichTable:
    gap = 2 if sum(_widths(table)) + 2 * (len(table.columns) - 1) <= width else 1
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, gap - 1))
    for column in table.columns:
        drawn.add_column(
            Text("\n".join(column.lines)),
            justify=column.align,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            vertical="top" if any(column.wrap for column in table.columns) else "bottom",
            header_style="bold",
        )
    for number, row in enumerate(table.rows):
        drawn.add_row(
            *(Text(legal(cell.text), _STYLES[cell.emphasis]) for cell in row), end_section=number in table.breaks
        )
    return drawn


def _split(table: Table, width: int) -> list[Table]:
    """Parts of a table that fit into the width. Each part begins with the key columns; all parts are about equally
    wide."""
    widths = [column + 1 for column in _widths(table)]
    room = width + 1 - sum(widths[: table.keys])  # no gap follows the last column
    values = widths[table.keys :]
    least = len(_filled(values, room))
    if least < 2:
        return [table]
    # The narrowest room that needs no more parts makes the parts about equally wide.
    even = next((r for r in range(max(values), room + 1) if len(_filled(values, r)) <= least), room)
    parts, first = [], table.keys
    for size in _filled(values, even):
        parts.append(_only(table, [*range(table.keys), *range(first, first + size)]))
        first += size
    return parts


def _filled(widths: Sequence[int], room: int) -> list[int]:
    """Number of columns of each part, if each part takes as many columns as fit, but at least one."""
    sizes, used = [0], 0
    for column in widths:
        if sizes[-1] and used + column > room:
            sizes.append(0)
            used = 0
        sizes[-1] += 1
        used += column
    return sizes


def _only(table: Table, indices: Sequence[int]) -> Table:
    return replace(table, columns=tuple(table.columns[i] for i in indices))


def _widths(table: Table) -> list[int]:
    def width(number: int, column: Column[Any]) -> int:
        widest = max(map(cell_len, (*column.lines, *(legal(row[number].text) for row in table.rows))))
        return min(widest, _WRAPPED) if column.wrap else widest

    return [width(number, column) for number, column in enumerate(table.columns)]


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(legal(text), width, subsequent_indent=indent, break_on_hyphens=False) or [""]
