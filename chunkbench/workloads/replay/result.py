"""Results of replays. They are computed, not measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

from pydantic import Field, NonNegativeFloat, model_validator

from chunkbench.bench.experiment.point import RequestPoint
from chunkbench.bench.experiment.terms import Count, Size
from chunkbench.bench.store.results import Facts, Result, Samples
from chunkbench.llama import SHAPES, LlamaShape


class ReplayPoint(RequestPoint):
    """A replay of requests with a cache manager. If `traffic` sets the lengths, n_p and n_c are None."""

    model: LlamaShape = SHAPES["llama2-7b"]
    n_p: Count | None = None
    n_c: Count | None = None
    chunk_size: Size = 64
    block_size: Size = 32
    traffic: str | None = None
    memory: Count | None = None
    schedule: str | None = None
    samples: Count | None = None
    beams: Count | None = None

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = super().completed(given)
        if given.get("traffic", "fixed") == "fixed":
            values["n_c"] = given.get("n_c", 64)
        return values if "tree" in given else values | {"n_s": values["n_s"] or 0}

    def as_json(self) -> dict[str, Any]:
        # Keys have 0 in place of lengths that traffic sets.
        return {**super().as_json(), "n_p": self.n_p or 0, "n_c": self.n_c or 0}


TAKEN = ("used", "reserved", "internal_fragmentation", "external_fragmentation")
"""Kinds of slots that belong to sequences."""


class MemoryMoment(NamedTuple):
    """How the memory is used after a step was scheduled, in token slots."""

    at: float
    """Seconds on the virtual clock."""
    batch: Count
    waiting: Count
    used: Count
    reserved: Count
    internal_fragmentation: Count
    external_fragmentation: Count
    evictable: Count
    free: Count
    covered: Count
    """Sum of the tokens of all live sequences. Shared tokens count for each sequence."""


class ReplaySeed(Facts):
    """The replay of one arrival seed."""

    arrival_seed: Count
    requests: Count
    refused: Count
    """Number of requests that never fit into the memory. Latencies do not contain them."""
    prompt_tokens: Count
    """Prompt tokens of the requests that were answered."""
    cached_tokens: Count
    """Prompt tokens of answered requests that were found in the cache when the request was first admitted."""
    distinct_tokens: Count
    """Distinct prompt tokens of the answered requests: equal whole blocks count once, and blocks of answers do not
    count. No order of the requests computes fewer tokens.
    """
    computed_tokens: Count
    """Tokens that were computed as prompts. Prompt and answer tokens that are computed again after a preemption count
    again.
    """
    preemptions: Count
    evicted_blocks: Count
    steps: Count
    end_s: NonNegativeFloat
    peak_slots: Count
    """Largest number of token slots that live sequences had, in whole blocks."""
    peak_batch: Count
    mean_batch: NonNegativeFloat = 0.0
    """Mean number of requests in a step, over the time until the last request is due."""
    prompt_share: NonNegativeFloat | None = None
    """Share of the used memory that holds prompts, over all steps that decode answers. A prompt counts once. None if
    requests have one answer.
    """
    first_token_s: tuple[NonNegativeFloat, ...] = ()
    """Time to first token at the 50th, 90th and 99th percentile."""
    timeline: tuple[MemoryMoment, ...] = ()

    @cached_property
    def slot_seconds(self) -> Mapping[str, float]:
        """Kind of slots (`TAKEN`) or `covered` -> slots times seconds, summed over the timeline. Each moment lasts
        until the next one.
        """
        spans = [(moment, following.at - moment.at) for moment, following in pairwise(self.timeline)]
        return {kind: sum(time * getattr(moment, kind) for moment, time in spans) for kind in (*TAKEN, "covered")}


class ReplayResult(ReplayPoint, Result):
    """The replays of a point through one manager."""

    VERB = "replayed"
    REPEATED = "arrival seed"
    TIMED = "normalized latency"

    us_per_token: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """[arrival seed] normalized latency on the virtual clock, in microseconds per token."""
    requests_per_s: NonNegativeFloat | None = None
    """Mean rate of the arrivals."""
    capacity: Count = 0
    """Token slots of the memory."""
    block_tokens: Count = 0
    token_bytes: Count = 0
    """Bytes of K and V of a token in all layers of the model."""
    step_time: str = ""
    """Description of the model of step times."""
    replays: tuple[ReplaySeed, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _on_the_clock(cls, values: Any) -> Any:
        """Drop `forks` of results before schema version 10, when requests with several answers had no clock."""
        return (
            {name: value for name, value in values.items() if name != "forks"} if isinstance(values, dict) else values
        )

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        older = super().from_older(values) | {"us_per_token": [sample for (sample,) in values.get("samples_us", ())]}
        # In older results, n_p and n_c were 0 where traffic sets the lengths.
        return older | {name: older[name] or None for name in ("n_p", "n_c")}

    @property
    def rounds(self) -> Samples:
        return tuple((sample,) for sample in self.us_per_token)

    @property
    def round_groups(self) -> tuple[int, ...]:
        return tuple(range(len(self.us_per_token)))
