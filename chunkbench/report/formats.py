"""The formats of everything that commands print. Each format is one function, and one line in this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chunkbench.report import latex, machine_formats, markdown, text_table
from chunkbench.report.book import Book
from chunkbench.report.model import Document, legal
from chunkbench.report.text_table import FILE, Screen

Part = Literal["documents", "records", "data", "book", "suite"]
"""The attribute of `Output`, `Report` or `Book` that a format prints."""


def _html(book: Book, _: Screen) -> str:
    # Imported here because templates and figures load slowly, and printing a table does not need them.
    from chunkbench.report import html

    return html.render(book)


@dataclass(frozen=True)
class Format:
    """One format."""

    name: str
    ending: str
    """Ending of files in this format."""
    part: Part
    render: Callable[[Any, Screen], str]
    """Returns the part as text in this format."""


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
    """The formats of an output with these parts."""
    return tuple(form.name for form in FORMATS if form.part in parts)


def render(content: Document | Book, form: str, screen: Screen = FILE) -> str:
    """The content in a format; `table` fits the width of the screen. Raises `KeyError` for a format that the content
    does not have."""
    known = {entry.name: entry for entry in FORMATS}[form]
    part = getattr(content, known.part, None)
    if part is None:
        raise KeyError(form)
    text = known.render(part, screen)
    return text if form == "table" else legal(text)  # a table has escape sequences of its own


def endings(*parts: Part) -> dict[str, str]:
    """Ending of a file -> its format, of an output with these parts."""
    return {form.ending: form.name for form in FORMATS if form.part in parts}
