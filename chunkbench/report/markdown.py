"""Makes a report as Markdown."""

from __future__ import annotations

import re

from chunkbench.report.model import Cell, Document, Table

# Markdown ignores an underscore inside a word, so `n_p` stays readable as plain text.
_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def render(report: Document) -> str:
    blocks = [f"# {escape(report.title)}"] if report.title else []
    blocks += [f"> {escape(warning)}" for warning in report.warnings]
    blocks += [f"**{escape(report.verdict)}**"] if report.verdict else []
    blocks += [escape(report.headline)] if report.headline else []
    blocks += [f"![Speed-up over each implementation]({figure})" for figure in report.figures]
    for table in report.tables:
        blocks += [f"## {escape(table.title)}"] if table.title else []
        blocks.append(_table(table))
    statuses, legend, footer = report.headings
    for title, lines in ((statuses, report.statuses), (legend, report.legend)):
        if lines:
            blocks += [f"## {title}", "\n".join(f"- {escape(line)}" for line in lines)]
    if report.footer:
        blocks += [
            f"## {footer}",
            "\n".join(f"- **{escape(topic)}**: {escape(text)}" for topic, text in report.footer),
        ]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Put the text on one line, and escape Markdown's special characters."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _table(table: Table) -> str:
    head = "| " + " | ".join(escape(column.name) for column in table.columns) + " |"
    rule = "|" + "|".join(" --- " if column.align == "left" else " ---: " for column in table.columns) + "|"
    return "\n".join([head, rule, *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in table.rows)])


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return f"**{text}**" if cell.emphasis == "best" else text
