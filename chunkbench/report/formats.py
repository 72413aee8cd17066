"""The formats of reports, by the names that the command line uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chunkbench.report import csv, json, latex, markdown, text_table
from chunkbench.report.book import Book
from chunkbench.report.model import Document
from chunkbench.report.report import Report
from chunkbench.report.text_table import FILE, Screen


@dataclass(frozen=True)
class Format:
    """One format. It prints one run, several runs, or both."""

    name: str
    ending: str
    """Ending of files in this format."""
    of_run: Callable[[Report], str] | None = None
    of_book: Callable[[Book], str] | None = None
    file: str = ""
    """The file that every run directory gets; empty: none."""


def _joined(render: Callable[[Document], str]) -> Callable[[Book], str]:
    """Prints a book's documents one after the other."""
    return lambda book: "\n".join(render(document) for document in book.documents())


def _html(book: Book) -> str:
    # Imported here because templates and figures load slowly, and printing a table does not need them.
    from chunkbench.report import html

    return html.render(book)


_TABLE = (
    Format("table", ".txt", text_table.render, _joined(text_table.render)),
    Format("markdown", ".md", markdown.render, _joined(markdown.render)),
    Format("latex", ".tex", latex.render, _joined(latex.render), "table.tex"),
    Format("csv", ".csv", csv.render, None, "table.csv"),
    Format("json", ".json", json.render, None, "report.json"),
    Format("html", ".html", None, _html),
)
_BY_NAME = {form.name: form for form in _TABLE}

FORMATS = tuple(form.name for form in _TABLE if form.of_run is not None)
BOOK_FORMATS = tuple(form.name for form in _TABLE if form.of_book is not None)
ENDINGS = {form.ending: form.name for form in _TABLE}
"""Ending of a file -> its format."""
FILES = {form.file: form.of_run for form in _TABLE if form.file and form.of_run is not None}
"""File in a run directory -> its renderer. `report.md` and `report.html` are not here: they hold a figure."""


def render(report: Report, form: str, screen: Screen = FILE) -> str:
    """The report in one of `FORMATS`; `table` suits the screen. Raises `KeyError` for any other name."""
    render_run = _BY_NAME[form].of_run
    if render_run is None:
        raise KeyError(form)
    return text_table.render(report, screen) if form == "table" else render_run(report)


def render_book(book: Book, form: str, screen: Screen = FILE) -> str:
    """A report on several runs in one of `BOOK_FORMATS`. Raises `KeyError` for any other name."""
    render_whole = _BY_NAME[form].of_book
    if render_whole is None:
        raise KeyError(form)
    return (
        _joined(lambda document: text_table.render(document, screen))(book) if form == "table" else render_whole(book)
    )


def render_document(document: Document, form: str, screen: Screen = FILE) -> str:
    """Any document as `table` or `markdown`; these formats need no rows of a run."""
    return markdown.render(document) if form == "markdown" else text_table.render(document, screen)
