"""Experiments whose implementations are sessions in a worker: the tolerance of their checks, and their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from chunkbench.experiment.fields import Positive
from chunkbench.experiment.point import PointT
from chunkbench.experiment.spec import Experiment
from chunkbench.experiment.terms import Dtype, Pages

TOLERANCE: Mapping[Dtype, float] = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Largest relative error that counts as correct, unless the experiment says otherwise."""


def _with_default_tolerance(raw: object) -> object:
    return {**TOLERANCE, **raw} if isinstance(raw, Mapping) else raw


class SessionExperiment(Experiment[PointT]):
    """An experiment whose implementations are sessions in a worker, checked against float64."""

    tolerance: Annotated[dict[Dtype, Positive], BeforeValidator(_with_default_tolerance)] = Field(
        default_factory=lambda: dict(TOLERANCE), description="largest relative error by dtype"
    )
    pages: Pages = Field("huge", description="memory pages on a CPU: huge where the system allows them, or small")
