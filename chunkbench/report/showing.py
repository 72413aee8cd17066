"""What a report has to know of a kind of work: its part for this room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chunkbench.report.report import Report
from chunkbench.store import Manifest, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Showing(Protocol):
    """How runs of a kind are shown."""

    def build(self, run: Run) -> Report:
        """Everything that can be said about a run, complete or not, even without a single case."""
        ...

    def draw(self, report: Report, manifest: Manifest) -> Figure | None:
        """The run's figure; None when there is too little to draw."""
        ...
