"""The formats that a report can be printed in, by the name that the command line gives them."""

from __future__ import annotations

from chunkbench.report import csv, json, latex, markdown, text_table
from chunkbench.report.book import Book
from chunkbench.report.model import Document
from chunkbench.report.report import Report

_RENDERERS = {"markdown": markdown.render, "latex": latex.render, "csv": csv.render, "json": json.render}

FORMATS = ("table", *_RENDERERS)
BOOK_FORMATS = ("table", "markdown", "latex", "html")


def render(report: Report, form: str, colour: bool = False) -> str:
    """The report in one of `FORMATS`; only the table knows colour. Raises `KeyError` for any other name."""
    return text_table.render(report, colour) if form == "table" else _RENDERERS[form](report)


def render_book(book: Book, form: str, colour: bool = False) -> str:
    """Several runs in one of `BOOK_FORMATS`."""
    if form == "html":
        # Its templates and the figures take a while to load; nobody who wants a table should wait for them.
        from chunkbench.report import html

        return html.render(book)
    documents = book.documents()
    if form == "latex":
        return "\n".join(latex.render(document) for document in documents)
    return "\n".join(render_document(document, form, colour) for document in documents)


def render_document(document: Document, form: str, colour: bool = False) -> str:
    """Any document as `table` or `markdown`, the forms that need no rows of a run."""
    return markdown.render(document) if form == "markdown" else text_table.render(document, colour)
