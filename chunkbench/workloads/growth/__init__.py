"""Experiments that measure how the time of an operation grows with its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.registry import Registry
from chunkbench.bench.workload import Workload
from chunkbench.workloads.growth.result import GrowthPoint, GrowthResult
from chunkbench.workloads.growth.spec import GrowthExperiment

if TYPE_CHECKING:
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.report.layout import Layout
    from chunkbench.workloads.growth.methods import Operation


class GrowthWorkload(Workload[GrowthExperiment, GrowthPoint, GrowthResult]):
    """Times operations of the library, the server, the replay and the reports at sizes from 1 to a million."""

    name = "growth"
    summary = "how times grow with the amount of work"
    experiment = GrowthExperiment
    result = GrowthResult

    def implementations(self) -> Registry[Operation]:
        from chunkbench.workloads.growth.methods import OPERATIONS

        return OPERATIONS

    def weight(self, point: GrowthPoint, seed: int) -> int:
        return len(str(point.size))

    def start(
        self,
        experiment: GrowthExperiment,
        target: Target,
        points: Sequence[GrowthPoint],
        place: Workplace[GrowthResult],
        options: RunOptions,
    ) -> PointMeasurer[GrowthPoint, GrowthResult]:
        from chunkbench.workloads.growth.measure import GrowthMeasurer

        return GrowthMeasurer(experiment, target)

    def describe(self, experiment: GrowthExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import list_plan

        words = f"each operation at the sizes of its range; {self.estimate(experiment, target)}"
        return list_plan(experiment, target, self.implementations(), words)

    def estimate(self, experiment: GrowthExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import words_of

        return f"about its budget of {words_of(experiment.budget_s)}, and the time to prepare the largest sizes"

    def layout(self) -> Layout:
        from chunkbench.workloads.growth.layout import LAYOUT

        return LAYOUT
