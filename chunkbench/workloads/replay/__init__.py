"""Kind of work `replay`: simulates cache managers that serve requests, on a virtual clock. It computes memory, cache
hits and latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.registry import Registry
from chunkbench.bench.workload import Workload
from chunkbench.workloads.replay.result import ReplayPoint, ReplayResult
from chunkbench.workloads.replay.spec import ReplayExperiment

if TYPE_CHECKING:
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.report.layout import Layout
    from chunkbench.workloads.replay.methods import ManagerKind


class ReplayWorkload(Workload[ReplayExperiment, ReplayPoint, ReplayResult]):
    """Compares cache managers in replays. All managers get the same requests, scheduler and memory."""

    name = "replay"
    summary = "requests through cache managers, on a virtual clock"
    experiment = ReplayExperiment
    result = ReplayResult

    def implementations(self) -> Registry[ManagerKind]:
        from chunkbench.workloads.replay.methods import MANAGERS

        return MANAGERS

    def weight(self, point: ReplayPoint, seed: int) -> int:
        """Relative cost of a point: number of tokens of an answer. It is 1 for traffic with answers of different
        lengths, which are not known before the traffic is read or drawn.
        """
        return point.n_c or 1

    def start(
        self,
        experiment: ReplayExperiment,
        target: Target,
        points: Sequence[ReplayPoint],
        place: Workplace[ReplayResult],
        options: RunOptions,
    ) -> PointMeasurer[ReplayPoint, ReplayResult]:
        """Fit the step times if a run of servers gives them. Raises `RunError` if they cannot be fitted."""
        from chunkbench.workloads.replay.measure import ReplayMeasurer

        return ReplayMeasurer(experiment, target)

    def describe(self, experiment: ReplayExperiment, target: Target) -> str:
        from chunkbench.workloads.replay.measure import describe

        return describe(experiment, target)

    def estimate(self, experiment: ReplayExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import words_of

        return f"at most its budget of {words_of(experiment.budget_s)}"

    def layout(self) -> Layout:
        from chunkbench.workloads.replay.layout import LAYOUT

        return LAYOUT
