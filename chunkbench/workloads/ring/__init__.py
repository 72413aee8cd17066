"""Kind of work `ring`: attention over several ranks, by RingAttention, its successors, and other libraries' rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.registry import Registry
from chunkbench.bench.workload import Workload
from chunkbench.workloads.ring.result import RingPoint, RingResult
from chunkbench.workloads.ring.spec import RingExperiment

if TYPE_CHECKING:
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.report.layout import Layout
    from chunkbench.workloads.ring.methods import RingMethod


class RingWorkload(Workload[RingExperiment, RingPoint, RingResult]):
    """Measures schemes of several ranks, which are processes. All schemes of a point take turns on the same ranks."""

    name = "ring"
    summary = "attention over a context that several ranks hold"
    experiment = RingExperiment
    result = RingResult

    def implementations(self) -> Registry[RingMethod]:
        from chunkbench.workloads.ring.methods import METHODS

        return METHODS

    def weight(self, point: RingPoint, seed: int) -> int:
        queries = point.n_p if point.phase == "prefill" else 16 * point.batch_size
        return queries * point.n_p * point.heads // 1024 + (1 << 18)

    def start(
        self,
        experiment: RingExperiment,
        target: Target,
        points: Sequence[RingPoint],
        place: Workplace[RingResult],
        options: RunOptions,
    ) -> PointMeasurer[RingPoint, RingResult]:
        from chunkbench.workloads.ring.measure import RingMeasurer

        return RingMeasurer(experiment, target, place)

    def follow(self, experiment: RingExperiment) -> bool:
        """Serve as a rank in the run of rank 0, if the environment sets RANK above 0."""
        from chunkbench.run_error import CannotRunError
        from chunkbench.workloads.ring.launch import world_from_environment
        from chunkbench.workloads.ring.rank import NoLeaderError

        try:
            given = world_from_environment()
        except ValueError as error:
            raise CannotRunError(str(error)) from None
        if given is None or given.rank == 0:
            return False
        try:
            given.follow()
        except (NoLeaderError, OSError) as error:
            raise CannotRunError(str(error)) from None
        return True

    def describe(self, experiment: RingExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import list_plan

        words = f"at most {experiment.ring_rounds} passes of each scheme"
        return list_plan(experiment, target, self.implementations(), words)

    def estimate(self, experiment: RingExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import words_of

        return f"about its budget of {words_of(experiment.budget_s)}"

    def layout(self) -> Layout:
        from chunkbench.workloads.ring.layout import LAYOUT

        return LAYOUT
