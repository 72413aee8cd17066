"""The formats of a comparison, by name."""

from __future__ import annotations

from collections.abc import Callable

from chunkbench.regression.report import github, junit
from chunkbench.regression.report.document import document
from chunkbench.regression.verdicts import Comparison
from chunkbench.report import markdown, text_table

FORMATS = ("table", "markdown", "json", "junit", "github")
PULL_REQUEST_BYTES = 60_000
"""A comment on GitHub may have 65,536 characters. The difference is left for other text in the comment."""
STEP_SUMMARY_BYTES = 1_000_000
"""GitHub's limit is 1 MiB."""
_TERMINAL_ROWS, _TERMINAL_NOTES = 40, 5
"""Most cases in the terminal's table, and most notes on them: the important cases have to fit on one screen."""


def render(comparison: Comparison, form: str, colour: bool = False) -> str:
    """The comparison in one of `FORMATS`; only the table has colours. Raises `KeyError` for any other name."""
    renderers: dict[str, Callable[[], str]] = {
        "markdown": lambda: pull_request(comparison),
        "json": lambda: comparison.model_dump_json(indent=2) + "\n",
        "junit": lambda: junit.render(comparison),
        "github": lambda: github.workflow_commands(comparison),
        "table": lambda: text_table.render(
            document(comparison, _TERMINAL_ROWS, _TERMINAL_NOTES), text_table.Screen(colour)
        ),
    }
    return renderers[form]()


def pull_request(comparison: Comparison) -> str:
    """Markdown for a comment on a pull request."""
    return _within(comparison, PULL_REQUEST_BYTES)


def step_summary(comparison: Comparison) -> str:
    """Markdown for the summary of a workflow's step."""
    return _within(comparison, STEP_SUMMARY_BYTES)


def _within(comparison: Comparison, limit: int) -> str:
    """Markdown with as many cases as fit into `limit` bytes, worst first."""
    rows = len(comparison.cases)
    while True:
        text = markdown.render(document(comparison, rows))
        if len(text.encode()) <= limit or rows == 0:
            return text
        rows = rows * 2 // 3
