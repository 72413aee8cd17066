"""All formats that commands can print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chunkbench.report import latex, machine_formats, markdown, text_table
from chunkbench.report.book import Book
from chunkbench.report.model import Document, legal
from chunkbench.report.text_table import FILE, Screen

Part = Literal["documents", "records", "data", "book", "suite"]
"""Name of the attribute that a format prints. It belongs to an `Output`, `Report` or `Book`."""


def _html(book: Book, _: Screen) -> str:
    # Imported here because templates and figures load slowly, and printing a table does not need them.
    from chunkbench.report import html

    return html.render(book)


@dataclass(frozen=True)
class Format:
    name: str
    ending: str
    """Ending of the names of files in this format."""
    part: Part
    render: Callable[[Any, Screen], str]
    """Turns the part into text."""


def _each(render: Callable[[Document, Screen], str]) -> Callable[[Sequence[Document], Screen], str]:
    """A function that returns the texts of documents, one after the other."""
    return lambda documents, screen: "\n".join(render(document, screen) for document in documents)


FORMATS = (
    Format("table", ".txt", "documents", _each(text_table.render)),
    Format("markdown", ".md", "documents", _each(lambda document, _: markdown.render(document))),
    Format("latex", ".tex", "documents", _each(lambda document, _: latex.render(document))),
    Format("csv", ".csv", "records", lambda records, _: machine_formats.csv_text(records)),
    Format("json", ".json", "data", lambda data, _: machine_formats.json_text(data)),
    Format("html", ".html", "book", _html),
    Format("junit", ".xml", "suite", lambda suite, _: machine_formats.junit_xml(suite)),
    Format("github", ".log", "suite", lambda suite, _: machine_formats.github_commands(suite)),
)


def names(*parts: Part) -> tuple[str, ...]:
    """Names of the formats that print one of these parts."""
    return tuple(form.name for form in FORMATS if form.part in parts)


def render(content: Document | Book, form: str, screen: Screen = FILE) -> str:
    """Turn the content into text in the format `form`. The format `table` fits the width of the screen. Raises
    `KeyError` if the content does not have the part that the format prints."""
    known = {entry.name: entry for entry in FORMATS}[form]
    part = getattr(content, known.part, None)
    if part is None:
        raise KeyError(form)
    text = known.render(part, screen)
    return text if form == "table" else legal(text)  # a table has escape sequences of its own


def endings(*parts: Part) -> dict[str, str]:
    """Ending of a file name -> name of the format, for formats that print one of these parts."""
    return {form.ending: form.name for form in FORMATS if form.part in parts}
