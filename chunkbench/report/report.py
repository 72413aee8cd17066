"""The report of a run: a document, and the rows that it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.analysis.expectations import ExpectationOutcome
from chunkbench.report import records
from chunkbench.report.columns import Columns
from chunkbench.report.metric import Metric
from chunkbench.report.model import Document


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """The document of one run, with its rows and expectations."""

    baseline: str
    columns: Columns
    varying: tuple[str, ...]
    """Axes that lead the tables."""
    groups: tuple[Group, ...]
    rows: Sequence[Row]
    """In the order of the run's cases."""
    outcomes: Sequence[ExpectationOutcome]
    metrics: Mapping[str, Metric]
    """The figures of the kind."""
    partial: tuple[str, ...]
    """The warning that points are missing."""

    @property
    def data(self) -> list[dict[str, Any]]:
        """The content of the JSON format."""
        return records.data(self.rows, self.outcomes, self.metrics)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The content of the CSV format."""
        return records.records(self.groups, self.metrics)
