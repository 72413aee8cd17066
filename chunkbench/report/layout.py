"""The report of a run, and what a kind of work adds to it."""

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
    """The report of one run."""

    baseline: str
    columns: Columns
    varying: tuple[str, ...]
    """Names of the axes that have more than one value in the run."""
    groups: tuple[Group, ...]
    rows: Sequence[Row]
    """The rows, in the order of the run's cases."""
    outcomes: Sequence[ExpectationOutcome]
    metrics: Mapping[str, Metric]
    """Name -> figure, for all figures of the run's kind of work."""
    partial: tuple[str, ...]
    """The warning that points are missing. Empty if the run is complete."""

    @property
    def data(self) -> list[dict[str, Any]]:
        return records.data(self.rows, self.outcomes, self.metrics)

    @property
    def records(self) -> list[dict[str, Any]]:
        return records.records(self.groups, self.metrics)


@dataclass(frozen=True)
class Layout:
    """What a kind of work adds to reports, comparisons and claims."""

    body: Callable[[View], Body]
    """Makes the part of a report that differs between kinds of work."""
    draw: Callable[[Report, Manifest], Figure | None]
    """Draws the figure of a run. Returns None if there is too little to draw. Loads matplotlib."""
    metrics: Mapping[str, Metric]
    """Name -> figure. Kinds that time something also have `latency`, which is not listed here."""
    claims: Mapping[str, Judge]
    """Id of a claim in `results/paper/claims.csv` -> its judge. Contains the claims that this kind measures."""
