"""The facts about a system at a point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from chunkbench.experiment.points import ServingPoint
from chunkbench.store.request_result import RequestResult
from chunkbench.store.results import Result, Samples


class ServerFacts(BaseModel):
    """What a server did during one measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sampled: bool
    """Whether the server was asked now and then, so that peaks between two questions are missed."""
    steps: NonNegativeInt | None = None
    step_s: NonNegativeFloat | None = None
    """Mean time of a step."""
    own_s: NonNegativeFloat | None = None
    """Mean time of a step outside of the model: scheduling, tree, plan, sampling."""
    computed_tokens: NonNegativeInt | None = None
    """Prompt tokens that were computed."""
    peak_batch: NonNegativeInt | None = None
    peak_kv_bytes: NonNegativeInt | None = None
    timeline: tuple[tuple[float, int, int | None], ...] = ()
    """(seconds after the start, batch, K/V bytes), at most a hundred, each the largest of its part of the time."""
    every_step: tuple[tuple[float, int, int, float], ...] = ()
    """(seconds after the start, batch, prompt tokens, seconds that it took), where the server writes steps down."""


class Measurement(BaseModel):
    """The requests of one arrival seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arrival_seed: NonNegativeInt
    requests: tuple[RequestResult, ...]
    client_cpu: NonNegativeFloat
    """Share of one CPU that the client took."""
    server: ServerFacts | None = None
    """None if the server tells nothing about itself."""


class ServingResult(ServingPoint, Result):
    """A system at a point. Ratios are formed between measurements of the same requests: of one arrival seed."""

    REPEATED = "arrival seed"

    us_per_token: tuple[PositiveFloat, ...] = ()
    """[measurement] normalized latency: the mean over its requests of (last token - due) / tokens, microseconds."""
    requests_per_s: PositiveFloat | None = None
    """Mean rate of the arrivals."""
    reference: str = ""
    """The system whose capacity `load` is a share of."""
    capacity_per_s: PositiveFloat | None = None
    """Requests per second of the reference with closed-loop clients; None with an absolute rate."""
    asked_requests: NonNegativeInt | None = None
    """Requests of an arrival seed that the experiment asks for; measurements have fewer if the budget was short."""
    measurements: tuple[Measurement, ...] = ()
    server_said: dict[str, Any] = Field(default_factory=dict)
    """The entry of /v1/models."""

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_older(values) | {"us_per_token": [sample for (sample,) in values.get("samples_us", ())]}

    @property
    def rounds(self) -> Samples:
        return tuple((sample,) for sample in self.us_per_token)

    @property
    def round_groups(self) -> tuple[int, ...]:
        return tuple(one.arrival_seed for one in self.measurements) if self.us_per_token else ()
