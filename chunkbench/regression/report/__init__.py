"""Reports of a comparison of two runs: `render` in a format, `write_all` for the files."""

from __future__ import annotations

from chunkbench.regression.report.files import write_all
from chunkbench.regression.report.formats import FORMATS, render

__all__ = ["FORMATS", "render", "write_all"]
