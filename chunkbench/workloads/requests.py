"""Experiments whose points are requests that arrive one by one: what those on servers and replays have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from chunkbench.bench.experiment.errors import Finding
from chunkbench.bench.experiment.fields import Fraction01, Seconds, Whole
from chunkbench.bench.experiment.forest import prompt_conflicts
from chunkbench.bench.experiment.point import PointT
from chunkbench.bench.experiment.spec import Experiment
from chunkbench.bench.experiment.tree import sequences_in


class RequestExperiment(Experiment[PointT]):
    """One case for each point and implementation; nothing takes turns in rounds."""

    confidence: Annotated[Fraction01, Field(ge=0.5)] = 0.95
    case_limit_s: Seconds = Field(600.0, alias="case_limit", description="what would take longer is a timeout")
    requests: Annotated[Whole, Field(ge=1)] = Field(24, description="requests of one arrival seed")
    arrival_seeds: Annotated[Whole, Field(ge=1)] = Field(3, description="sequences of due times and requests")


def request_conflicts(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
    """Conflicts among prompts and sharing. Requests are not a batch: they may be more or fewer than the prefixes."""
    sequences = sequences_in(given["tree"]) if "tree" in given else values["prompts"]
    yield from prompt_conflicts({**given, "n_c": values["n_c"]}, sequences, values["prompts"])
