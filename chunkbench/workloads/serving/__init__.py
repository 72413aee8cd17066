"""The kind of work `serving`: measures servers under load (section 4.2 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.registry import Registry
from chunkbench.bench.workload import Workload
from chunkbench.pins import SERVING_INSTALL
from chunkbench.run_error import CannotRunError
from chunkbench.workloads.serving.methods import SYSTEMS
from chunkbench.workloads.serving.result import ServingPoint, ServingResult
from chunkbench.workloads.serving.servers.system import System
from chunkbench.workloads.serving.spec import ServingExperiment

if TYPE_CHECKING:
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.report.layout import Layout


class ServingWorkload(Workload[ServingExperiment, ServingPoint, ServingResult]):
    """Measures servers that answer the same requests."""

    name = "serving"
    summary = "servers under load"
    experiment = ServingExperiment
    result = ServingResult

    def implementations(self) -> Registry[System]:
        return SYSTEMS

    def weight(self, point: ServingPoint, seed: int) -> int:
        from chunkbench.workloads.serving.plan import weight

        return weight(point)

    def start(
        self,
        experiment: ServingExperiment,
        target: Target,
        points: Sequence[ServingPoint],
        place: Workplace[ServingResult],
        options: RunOptions,
    ) -> PointMeasurer[ServingPoint, ServingResult]:
        try:
            from chunkbench.workloads.serving.measure import ServingMeasurer
        except ModuleNotFoundError as error:
            raise CannotRunError(f"{error.name} is missing: {SERVING_INSTALL}") from None
        return ServingMeasurer(experiment, target, points, place)

    def describe(self, experiment: ServingExperiment, target: Target) -> str:
        from chunkbench.workloads.serving.plan import describe

        return describe(experiment, target)

    def estimate(self, experiment: ServingExperiment, target: Target) -> str:
        """Say that a run takes at most its budget, because it leaves out work that does not fit."""
        from chunkbench.bench.runner.dry_run import words_of

        if not any(SYSTEMS.availability(name, target.device)[1].ok for name in experiment.implementations):
            return "no implementation of this experiment is available here"
        return f"at most about its budget of {words_of(experiment.budget_s)}"

    def layout(self) -> Layout:
        from chunkbench.workloads.serving.layout import LAYOUT

        return LAYOUT
