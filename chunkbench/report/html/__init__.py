"""One self-contained HTML file: no request leaves it, and it reads with a keyboard, a screen reader, on paper."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from chunkbench.report import figures
from chunkbench.report.book import Book, Chapter
from chunkbench.report.claims import EMPHASIS, headline, measured
from chunkbench.report.model import Cell, Table
from chunkbench.report.report import Report

_MARKS = {"holds": "✓", "does not hold": "✗", "different here": "≠", "needs a GPU": "○", "not measured": "○"}


def render(book: Book) -> str:
    """The whole page."""
    folder = files("chunkbench.report.html")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"bodies": bodies, "measured": measured}
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    # Ours, and free of what would end the element: not to be escaped.
    ours: dict[str, Any] = {
        "css": Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        "script": Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),
    }
    pictures = {chapter.anchor: Markup(_picture(chapter)) for chapter in book.chapters}
    return template.render(
        book=book,
        pictures=pictures,
        tally=headline(book.claims),
        marks=_MARKS,
        emphasis=EMPHASIS,
        headings=Report.HEADINGS,
        **ours,
    )


def bodies(table: Table) -> list[list[tuple[Cell, ...]]]:
    """Rows that stay together when a table is sorted: one whose first cell is empty goes on with the one above."""
    found: list[list[tuple[Cell, ...]]] = []
    for row in table.rows:
        if found and row[0].text == "" and table.keys > 1:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _picture(chapter: Chapter) -> str:
    """The run's figure as an element; its ids are made the chapter's own, for there are several on the page."""
    drawn = figures.draw(chapter.report, chapter.manifest)
    if drawn is None:
        return ""
    text = figures.svg(drawn)
    text = text[text.index("<svg") :]
    own = f"{chapter.anchor}-"
    text = re.sub(r'\bid="', f'id="{own}', text)
    text = re.sub(r'((?:xlink:)?href)="#', rf'\1="#{own}', text)
    text = text.replace("url(#", f"url(#{own}")
    return re.sub(r"<svg ", '<svg role="img" aria-labelledby="' + own + 'caption" ', text, count=1)
