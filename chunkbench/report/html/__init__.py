"""Makes a report as one HTML file. It loads no other files, and works with a keyboard, with a screen reader and in
print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from chunkbench.report import figures, ranking
from chunkbench.report.book import Book, Chapter
from chunkbench.report.claims.document import EMPHASIS, measured, missing, summary
from chunkbench.report.claims.judgement import WORDS
from chunkbench.report.model import Cell, Table

_MARKS = {
    "holds": "✓",
    "more than stated": "✓",
    "does not hold": "✗",
    "different here": "≠",
    "cannot tell": "?",
    "replayed": "~",
    "not measured": "○",
}


def render(book: Book) -> str:
    folder = files("chunkbench.report.html")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"bodies": bodies, "measured": measured}
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    # Not escaped: these files belong to the package, and hold no tag that would end their element.
    trusted: dict[str, Any] = {
        "css": Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        "script": Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),
    }
    pictures = {chapter.anchor: _picture(chapter) for chapter in book.chapters}
    return template.render(
        book=book,
        pictures=pictures,
        tally=summary(book.claims),
        judged=[
            (machine, claim)
            for machine, claims in book.claims.items()
            for claim in claims
            if claim.verdict != "not measured"
        ],
        missing=list(missing(book.claims)),
        ranking_title=ranking.TITLE,
        ranking_legend=ranking.LEGEND,
        marks=_MARKS,
        emphasis=EMPHASIS,
        words=WORDS,
        **trusted,
    )


def bodies(table: Table) -> list[list[tuple[Cell, ...]]]:
    """Group the rows that stay together when the reader sorts the table. A row with an empty first cell belongs to the
    row above."""
    groups: list[list[tuple[Cell, ...]]] = []
    for row in table.rows:
        if groups and row[0].text == "" and table.keys > 1:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


@dataclass(frozen=True)
class Picture:
    svg: Markup
    caption: str


def _picture(chapter: Chapter) -> Picture | None:
    """The run's figure as an SVG element. Its ids get the chapter's prefix, because a page has several figures."""
    drawn = figures.draw(chapter.report, chapter.manifest)
    if drawn is None:
        return None
    text, caption = figures.svg(drawn)
    text = text[text.index("<svg") :]
    prefix = f"{chapter.anchor}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'((?:xlink:)?href)="#', rf'\1="#{prefix}', text)
    text = text.replace("url(#", f"url(#{prefix}")
    widest = round(1.5 * drawn.get_figwidth() * 72)  # a figure of two panels shall not fill the page
    described = f'<svg role="img" aria-labelledby="{prefix}caption" style="max-width: {widest}px" '
    return Picture(Markup(re.sub(r"<svg ", described, text, count=1)), caption)
