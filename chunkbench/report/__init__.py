"""Reports: one description of a run (`build`), `render` in a format, `write_all` for the files."""

from __future__ import annotations

from chunkbench.report.build import build
from chunkbench.report.files import write_all
from chunkbench.report.formats import FORMATS, render
from chunkbench.report.model import Report

__all__ = ["FORMATS", "Report", "build", "render", "write_all"]
