"""Reports: one description of a run (`build`), one module per format that renders it, `write_all` for the files."""

from __future__ import annotations

from chunkbench.report.build import build
from chunkbench.report.files import write_all
from chunkbench.report.model import Report

__all__ = ["Report", "build", "write_all"]
