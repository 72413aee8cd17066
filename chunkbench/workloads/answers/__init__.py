"""Experiments that test what a model finds in a context when most of its heads keep only a window (RazorAttention,
2407.15891).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.registry import Registry
from chunkbench.bench.workload import Workload
from chunkbench.workloads.answers.result import AnswersPoint, AnswersResult
from chunkbench.workloads.answers.spec import AnswersExperiment

if TYPE_CHECKING:
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.report.layout import Layout
    from chunkbench.workloads.answers.methods import HeadChoice


class AnswersWorkload(Workload[AnswersExperiment, AnswersPoint, AnswersResult]):
    """Tests whether a model still finds keys and values in a context after the context's K/V cache was compressed."""

    name = "answers"
    summary = "what a model still finds in a compressed cache"
    experiment = AnswersExperiment
    result = AnswersResult

    def implementations(self) -> Registry[HeadChoice]:
        from chunkbench.workloads.answers.methods import METHODS

        return METHODS

    def weight(self, point: AnswersPoint, seed: int) -> int:
        return point.n_p

    def start(
        self,
        experiment: AnswersExperiment,
        target: Target,
        points: Sequence[AnswersPoint],
        place: Workplace[AnswersResult],
        options: RunOptions,
    ) -> PointMeasurer[AnswersPoint, AnswersResult]:
        """Load the model and find its retrieval heads. Raises `RunError` if that is impossible."""
        from chunkbench.workloads.answers.measure import AnswersMeasurer

        return AnswersMeasurer(experiment, target, points, place.notify)

    def describe(self, experiment: AnswersExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import list_plan

        words = f"{experiment.contexts} contexts for each choice of heads"
        return list_plan(experiment, target, self.implementations(), words)

    def estimate(self, experiment: AnswersExperiment, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import words_of

        return f"at most its budget of {words_of(experiment.budget_s)}"

    def layout(self) -> Layout:
        from chunkbench.workloads.answers.layout import LAYOUT

        return LAYOUT
