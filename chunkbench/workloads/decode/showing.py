"""How reports show runs of this kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkbench.report.build import build_timed
from chunkbench.report.report import Report
from chunkbench.store import Manifest, Run
from chunkbench.workloads.decode.body import body

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DecodeShowing:
    """Tables by `body`, and a figure."""

    def build(self, run: Run) -> Report:
        """The report of a run."""
        return build_timed(run, body)

    def draw(self, report: Report, manifest: Manifest) -> Figure | None:
        """The run's figure."""
        # Imported late: matplotlib loads slowly, and tables do not need it.
        from chunkbench.workloads.decode import advantage, speedup, token_rate

        if manifest.experiment.figure == "checks":
            return None
        figures = {"speedup": speedup.draw, "token_rate": token_rate.draw, "advantage": advantage.draw}
        return figures.get(manifest.experiment.figure, speedup.draw)(report, manifest)


SHOWING = DecodeShowing()
