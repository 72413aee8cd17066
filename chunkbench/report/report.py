"""The report of a run: a document with the rows that it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunkbench.analysis.derive import Row
from chunkbench.analysis.expectations import Outcome
from chunkbench.report.columns import Columns
from chunkbench.report.model import Document, Group


@dataclass(frozen=True)
class Report(Document):
    """Everything that can be said about a run."""

    baseline: str
    columns: Columns
    varying: tuple[str, ...]
    """Axes that lead the tables."""
    groups: tuple[Group, ...]
    rows: Sequence[Row]
    """In the order of the run's cases."""
    outcomes: Sequence[Outcome]
