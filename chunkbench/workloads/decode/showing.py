"""How runs of this kind are shown."""

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
        """Everything that can be said about a run."""
        return build_timed(run, body)

    def draw(self, report: Report, manifest: Manifest) -> Figure | None:
        """The run's figure."""
        # matplotlib takes a while to load; nobody who only wants a table should wait for it.
        from chunkbench.workloads.decode import advantage, speedup, token_rate

        figures = {"speedup": speedup.draw, "token_rate": token_rate.draw, "advantage": advantage.draw}
        return figures.get(manifest.experiment.figure, speedup.draw)(report, manifest)


SHOWING = DecodeShowing()
