"""Experiments on the memory of K and V: like those of decode attention, but without timing."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ValidationInfo, field_validator

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.reading import Reading
from chunkbench.experiment.values import Finding, Findings
from chunkbench.workloads.decode.reading import RULES


class MemoryExperiment(TimedExperiment):
    """Implementations of decode attention, filled and checked, not timed: one case per point (strict, cold, eager)."""

    timed: ClassVar[bool] = False

    @field_validator("protocols", "caches", "modes", "expect")
    @classmethod
    def _times_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        if value != cls.model_fields[str(info.field_name)].default:
            raise Findings(Finding((), "is about timing, and `kind: memory` times nothing; leave it out", True))
        return value


READING = Reading(
    experiment=MemoryExperiment,
    summary="the memory of its K/V, untimed",
    rules=RULES,
)
