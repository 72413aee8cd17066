"""Judged cases as GitHub Actions shows them: annotations on standard output."""

from __future__ import annotations

from chunkbench.report.model import Suite

MOST_ANNOTATIONS = 10
"""GitHub shows no more annotations of one step. The last one says how many others there are."""


def render(suite: Suite) -> str:
    """Workflow commands, one per line: errors for cases that fail the comparison, warnings for suspicious ones."""
    marked = [check for check in suite.checks if check.level != "passed"]
    shown = marked if len(marked) <= MOST_ANNOTATIONS else marked[: MOST_ANNOTATIONS - 1]
    lines = [
        f"::{'warning' if check.level == 'suspicious' else 'error'} "
        f"title={_property(f'{check.verdict}: {check.place}')}::{_data(check.text)}"
        for check in shown
    ]
    if len(shown) < len(marked):
        lines.append(f"::notice title=chunkbench::{_data(f'{len(marked) - len(shown)} more; {suite.summary}')}")
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
