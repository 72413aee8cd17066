"""Rows of a run, with the paper's figures for the same points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chunkbench.analysis.derive import Row, derive
from chunkbench.paper.printed import paper_ratio, paper_us

if TYPE_CHECKING:
    from chunkbench.store.results import Result


def rows(cases: Sequence[Result], baseline: str, confidence: float) -> list[Row]:
    """One row per case, in the order given: its derived figures, and the paper's latency and ratio."""
    return [_with_paper(row, baseline) for row in derive(cases, baseline, confidence)]


def _with_paper(row: Row, baseline: str) -> Row:
    printed, ratio = paper_us(row.facts), paper_ratio(row.facts, baseline)
    return replace(row, derived=replace(row.derived, paper_us=printed, paper_ratio=ratio))
