"""The interface of a kind of work for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chunkbench.report.report import Report
from chunkbench.store import Manifest, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Showing(Protocol):
    """Makes the report and the figure of runs of one kind."""

    def build(self, run: Run) -> Report:
        """The report of a run; the run may be incomplete, or have no case at all."""
        ...

    def draw(self, report: Report, manifest: Manifest) -> Figure | None:
        """The run's figure; None when there is too little to draw."""
        ...
