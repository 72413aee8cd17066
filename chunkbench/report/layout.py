"""The report of a run, and the parts that a kind of work adds: tables, figure, metrics, claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.analysis.expectations import ExpectationOutcome
from chunkbench.bench.store import Manifest
from chunkbench.report import records
from chunkbench.report.claims.evidence import Judge
from chunkbench.report.columns import Columns
from chunkbench.report.metric import Metric
from chunkbench.report.model import Document
from chunkbench.report.view import Body, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """The document of one run, with its rows and expectations."""

    baseline: str
    columns: Columns
    varying: tuple[str, ...]
    """The axes that vary; they are the first columns of the tables."""
    groups: tuple[Group, ...]
    rows: Sequence[Row]
    """The rows, in the order of the run's cases."""
    outcomes: Sequence[ExpectationOutcome]
    metrics: Mapping[str, Metric]
    """Name -> a figure of the kind of work."""
    partial: tuple[str, ...]
    """The warning that points are missing; empty if the run is complete."""

    @property
    def data(self) -> list[dict[str, Any]]:
        """The content of the JSON format."""
        return records.data(self.rows, self.outcomes, self.metrics)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The content of the CSV format."""
        return records.records(self.groups, self.metrics)


@dataclass(frozen=True)
class Layout:
    """The parts that a kind adds to reports, comparisons and claims."""

    body: Callable[[View], Body]
    """The part of a run's report that depends on the kind."""
    draw: Callable[[Report, Manifest], Figure | None]
    """Draws the figure of a run; None if there is too little to draw. The call loads matplotlib."""
    metrics: Mapping[str, Metric]
    """Name -> a figure of the kind's results. Every kind that times something also has `latency`."""
    claims: Mapping[str, Judge]
    """Claim of `results/paper/claims.csv` -> its judge, for the claims that this kind measures."""
