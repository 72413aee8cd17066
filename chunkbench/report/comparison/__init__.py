"""Reports of a comparison of two runs: `render` in a format, `write_all` for the files."""

from __future__ import annotations

from chunkbench.report.comparison.files import write_all
from chunkbench.report.comparison.formats import FORMATS, render

__all__ = ["FORMATS", "render", "write_all"]
