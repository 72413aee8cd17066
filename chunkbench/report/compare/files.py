"""Writing the reports of a comparison into a folder."""

from __future__ import annotations

from pathlib import Path

from chunkbench.report import render
from chunkbench.report.compare.document import document, within
from chunkbench.report.compare.verdicts import Comparison
from chunkbench.report.model import Output

FILES = {
    "comparison.txt": "table",
    "comparison.md": "markdown",
    "comparison.json": "json",
    "comparison.xml": "junit",
    "annotations.txt": "github",
}
"""File -> its format."""
PULL_REQUEST_BYTES = 60_000
"""A comment on GitHub may have 65,536 characters. The difference is left for other text in the comment."""
STEP_SUMMARY_BYTES = 1_000_000
"""GitHub's limit is 1 MiB."""
_TERMINAL_ROWS, _TERMINAL_NOTES = 40, 5
"""Most cases in the terminal's table, and most notes on them: the important cases have to fit on one screen."""


def output(comparison: Comparison, form: str) -> Output:
    """The comparison, as long as suits the format: a screen as `table`, a comment on a pull request as `markdown`."""
    if form == "table":
        return document(comparison, _TERMINAL_ROWS, _TERMINAL_NOTES)
    return within(comparison, PULL_REQUEST_BYTES) if form == "markdown" else document(comparison)


def step_summary(comparison: Comparison) -> str:
    """Markdown for the summary of a workflow's step."""
    return render(within(comparison, STEP_SUMMARY_BYTES), "markdown")


def write_all(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every format and the step summary; return the paths.

    If one file fails, the others are still written; then the first error is raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    errors: list[Exception] = []
    for name in (*FILES, "summary.md"):
        try:
            form = FILES.get(name)
            text = step_summary(comparison) if form is None else render(output(comparison, form), form)
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
        except Exception as error:  # an error in one format must not lose the other reports
            errors.append(error)
    if errors:
        raise errors[0]
    return written
