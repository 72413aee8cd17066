"""How reports show runs of this kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkbench.report.build import build_timed
from chunkbench.report.report import Report
from chunkbench.store import Manifest, Run
from chunkbench.workloads.replay.body import body

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ReplayShowing:
    """Tables by `body`, and a figure."""

    def build(self, run: Run) -> Report:
        """The report of a run."""
        return build_timed(run, body)

    def draw(self, report: Report, manifest: Manifest) -> Figure | None:
        """The run's figure."""
        # Imported late: matplotlib loads slowly, and tables do not need it.
        from chunkbench.workloads.replay import figure

        return figure.draw(report, manifest)


SHOWING = ReplayShowing()
"""How reports show replays."""
