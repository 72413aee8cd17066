"""Experiments of `kind: growth`: their keys and cases."""

from __future__ import annotations

from pydantic import Field

from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.fields import ImplementationId, Seconds
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.experiment.spec import BASELINE, CASE_LIMIT
from chunkbench.bench.experiment.sweep import Required
from chunkbench.workloads.growth.result import GrowthPoint


class GrowthExperiment(Experiment[GrowthPoint]):
    """An experiment that times operations at several sizes. An operation has a case at each size in its range."""

    POINT = GrowthPoint
    REQUIRED = (Required(frozenset({"size"}), "size is missing, here and under defaults"),)

    baseline: ImplementationId = Field("decode", validate_default=True, description=BASELINE)
    case_limit_s: Seconds = Field(900.0, alias="case_limit", description=CASE_LIMIT)

    def cases(self, point: GrowthPoint) -> tuple[Case[GrowthPoint], ...]:
        from chunkbench.workloads.growth.methods import OPERATIONS

        ranges = {name: OPERATIONS.load(name).sizes for name in self.implementations}
        return tuple(Case(point, name) for name, (low, high) in ranges.items() if low <= point.size <= high)
