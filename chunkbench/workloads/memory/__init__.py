"""Bytes of K and V that implementations hold; nothing is timed (section 3.1 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chunkbench.workloads.decode import AttentionWorkload
from chunkbench.workloads.memory.result import MemoryResult
from chunkbench.workloads.memory.spec import MemoryExperiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from chunkbench.paper.claims.judgement import Judge
    from chunkbench.report.metric import Metric
    from chunkbench.report.report import Report
    from chunkbench.report.view import Body, View
    from chunkbench.store import Manifest


class MemoryWorkload(AttentionWorkload[MemoryExperiment, MemoryResult]):
    """Sessions are filled one by one and state the bytes that they hold. These depend on n_c: one pass a point."""

    name = "memory"
    summary = "the memory of its K/V, untimed"
    experiment = MemoryExperiment
    result = MemoryResult

    def body(self, view: View) -> Body:
        from chunkbench.workloads.memory.body import body

        return body(view)

    def metrics(self) -> Mapping[str, Metric]:
        from chunkbench.workloads.decode.metrics import HELD

        return HELD

    def claims(self) -> Mapping[str, Judge]:
        from chunkbench.workloads.memory import claims

        return claims.JUDGES

    def figure(self, report: Report, manifest: Manifest) -> Figure | None:
        from chunkbench.workloads.memory import figure

        return figure.draw(report, manifest)
