"""Writing the reports of a comparison into a folder."""

from __future__ import annotations

from pathlib import Path

from chunkbench.regression.report.formats import render, step_summary
from chunkbench.regression.verdicts import Comparison

FILES = {
    "comparison.txt": "table",
    "comparison.md": "markdown",
    "comparison.json": "json",
    "comparison.xml": "junit",
    "annotations.txt": "github",
}


def write_all(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every format and the step summary; return the paths.

    If one file fails, the others are still written; then the first error is raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    errors: list[Exception] = []
    for name in (*FILES, "summary.md"):
        try:
            text = step_summary(comparison) if name == "summary.md" else render(comparison, FILES[name])
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
        except Exception as error:  # an error in one format must not lose the other reports
            errors.append(error)
    if errors:
        raise errors[0]
    return written
