"""A comparison as GitHub Actions shows it: annotations on standard output."""

from __future__ import annotations

from chunkbench.regression.report.document import change, place, varying, verdict_line
from chunkbench.regression.verdicts import CaseVerdict, Comparison

MOST_ANNOTATIONS = 10
"""GitHub shows no more annotations of one step. The last one says how many others there are."""


def workflow_commands(comparison: Comparison) -> str:
    """Workflow commands, one per line: errors for cases that fail the comparison, warnings for other bad verdicts."""
    axes = varying(comparison.cases)
    marked = [(level, case) for case in comparison.cases if (level := _level(case, comparison))]
    shown = marked if len(marked) <= MOST_ANNOTATIONS else marked[: MOST_ANNOTATIONS - 1]
    lines = [
        f"::{level} title={_property(f'{case.verdict}: {place(case, axes)}')}::{_data(f'{change(case)} {case.reason}')}"
        for level, case in shown
    ]
    if len(shown) < len(marked):
        rest = f"{len(marked) - len(shown)} more; {verdict_line(comparison)}"
        lines.append(f"::notice title=chunkbench::{_data(rest)}")
    return "".join(f"{line}\n" for line in lines)


def _level(case: CaseVerdict, comparison: Comparison) -> str:
    if case.verdict in comparison.settings.fail_on:
        return "error"
    return "warning" if case.verdict in ("incorrect", "slower", "missing", "inconclusive") else ""


def _data(text: str) -> str:
    return text.strip().replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
