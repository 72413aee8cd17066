"""The formats that a report can be printed in, by the name that the command line gives them."""

from __future__ import annotations

from chunkbench.report import csv, json, latex, markdown, text_table
from chunkbench.report.model import Report

_RENDERERS = {"markdown": markdown.render, "latex": latex.render, "csv": csv.render, "json": json.render}

FORMATS = ("table", *_RENDERERS)


def render(report: Report, form: str, colour: bool = False) -> str:
    """The report in one of `FORMATS`; only the table knows colour. Raises `KeyError` for any other name."""
    return text_table.render(report, colour) if form == "table" else _RENDERERS[form](report)
