"""Experiments whose points are requests that arrive one by one: what those on servers and replays have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import ValidationInfo, field_validator

from chunkbench.experiment.point import Case, Point
from chunkbench.experiment.sweep import wrong_prompts
from chunkbench.experiment.timed import TimedExperiment
from chunkbench.experiment.values import AxisValue, Finding, Findings

_UNUSED = ("protocols", "caches", "modes", "expect", "min_rounds", "max_rounds", "pages", "tolerance")


class RequestExperiment(TimedExperiment):
    """One case for each point and implementation; nothing takes turns in rounds."""

    timed: ClassVar[bool] = False

    @field_validator(*_UNUSED)
    @classmethod
    def _is_for_rounds(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        if value != field.get_default(call_default_factory=True):
            kind = info.data.get("kind", "")
            raise Findings(Finding((), f"does not apply to `kind: {kind}`; leave it out", True))
        return value

    def cases(self, point: Point) -> tuple[Case, ...]:
        """One case for each implementation."""
        return tuple(Case(point, name, "strict", "cold", "eager") for name in self.implementations)


def wrong_requests(values: Mapping[str, AxisValue]) -> Iterator[Finding]:
    """Conflicts among prompts and sharing. Requests are not a batch: they may be more or fewer than the prefixes."""
    drawn = {name: value for name, value in values.items() if name != "batch_size"}
    yield from wrong_prompts(drawn if "tree" in values else {**drawn, "batch_size": values.get("prompts", 1)})
