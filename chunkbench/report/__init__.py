"""Reports: `build` describes a run, `render` prints it in a format, `write_all` writes the files."""

from __future__ import annotations

from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.files import render_run, write_all
from chunkbench.report.formats import render
from chunkbench.report.layout import Report

__all__ = ["Report", "build", "build_book", "render", "render_run", "write_all"]
