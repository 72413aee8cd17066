"""Reports of a comparison of two runs: `output` for a format, `write_all` for the files."""

from __future__ import annotations

from chunkbench.regression.report.files import output, step_summary, write_all

__all__ = ["output", "step_summary", "write_all"]
