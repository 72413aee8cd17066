"""The facts about a system at a point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, ClassVar, Self

from pydantic import AliasChoices, Field, NonNegativeFloat, PositiveFloat, model_validator

from chunkbench.bench.experiment.point import RequestPoint
from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import Facts, Result, Samples
from chunkbench.llama import SHAPES, LlamaShape
from chunkbench.traffic.request_result import LoadNumbers, RequestResult, load_numbers


class ServingPoint(RequestPoint):
    """Servers under load: `load` in percent of a system's capacity, `rate` in requests per minute, or `clients`.

    `forced` is the percentage of an answer's bytes that its constraint leaves no choice about.
    """

    LEGACY: ClassVar[Mapping[str, Any]] = {"chunk_size": 64, "block_size": 32}

    model: LlamaShape = SHAPES["small-llama"]
    n_p: Count
    n_c: Count = 64
    load: Count | None = None
    clients: Count | None = None
    forced: Count | None = None


TIMELINE = 100
"""Most parts of a timeline."""


@dataclass(frozen=True)
class Moment:
    """State of a server at one time: after a step, or when it was asked."""

    at: float
    """On the clock of `time.perf_counter`, which all processes of a Linux host share."""
    batch: Count
    """Sequences in the step, or running."""
    kv_bytes: Count | None
    """Bytes of blocks or chunks that live requests refer to; None if unknown."""
    seconds: float | None = None
    """Time of the step; None between steps."""
    overhead_seconds: float | None = None
    """Part of the step that was not the model: scheduling, tree, plan, sampling."""
    tree_seconds: float | None = None
    """Part of that which was the cache's bookkeeping of prefixes: match, join, append, leave, evict."""
    prompt_tokens: Count | None = None
    """Prompt tokens that the step computed."""


class ServerFacts(Facts):
    """What a server did during one measurement, from its moments. A new fact stands in both classes and in `of`."""

    sampled: bool
    """Whether the server was asked now and then, so that peaks between two questions are missed."""
    steps: Count | None = None
    step_s: NonNegativeFloat | None = None
    """Mean time of a step."""
    overhead_s: NonNegativeFloat | None = Field(default=None, validation_alias=AliasChoices("overhead_s", "own_s"))
    """Mean time of a step outside of the model: scheduling, tree, plan, sampling. Lines written before it had this name
    call it `own_s`."""
    tree_s: NonNegativeFloat | None = None
    """Mean time of a step for the bookkeeping of prefixes, a part of `overhead_s`; None in lines of older versions."""
    computed_tokens: Count | None = None
    """Prompt tokens that were computed."""
    peak_batch: Count | None = None
    peak_kv_bytes: Count | None = None
    timeline: tuple[tuple[float, Count, Count | None], ...] = ()
    """(seconds after the start, batch, K/V bytes), at most a hundred, each the largest of its part of the time."""
    every_step: tuple[tuple[float, Count, Count, float], ...] = ()
    """(seconds after the start, batch, prompt tokens, seconds that it took), where the server writes steps down."""

    @classmethod
    def of(cls, moments: Sequence[Moment], started: float, sampled: bool) -> ServerFacts | None:
        """The facts of a measurement that started at this time; None without a moment."""
        if not moments:
            return None
        steps = [moment for moment in moments if moment.seconds is not None]
        overheads = [moment.overhead_seconds for moment in steps if moment.overhead_seconds is not None]
        trees = [moment.tree_seconds for moment in steps if moment.tree_seconds is not None]
        computed = [moment.prompt_tokens for moment in steps if moment.prompt_tokens is not None]
        return cls(
            sampled=sampled,
            steps=len(steps) or None,
            step_s=fmean(moment.seconds or 0.0 for moment in steps) if steps else None,
            overhead_s=fmean(overheads) if overheads else None,
            tree_s=fmean(trees) if trees else None,
            computed_tokens=sum(computed) if computed else None,
            peak_batch=max(moment.batch for moment in moments),
            peak_kv_bytes=_most_bytes(moments),
            timeline=_timeline(moments, started),
            every_step=tuple(
                (round(step.at - started, 4), step.batch, step.prompt_tokens or 0, round(step.seconds or 0.0, 5))
                for step in steps
            ),
        )


def _timeline(moments: Sequence[Moment], started: float) -> tuple[tuple[float, int, int | None], ...]:
    size = math.ceil(len(moments) / TIMELINE)
    parts = [moments[first : first + size] for first in range(0, len(moments), size)]
    return tuple(
        (round(part[0].at - started, 3), max(moment.batch for moment in part), _most_bytes(part)) for part in parts
    )


def _most_bytes(moments: Sequence[Moment]) -> int | None:
    return max((moment.kv_bytes for moment in moments if moment.kv_bytes is not None), default=None)


class ConstrainedAnswers(Facts):
    """How the answers of one measurement follow their constraint."""

    regex: str
    valid: Count
    """Answers that match it as a whole."""
    cut: Count
    """Answers that had as many tokens as were asked for, and do not match."""
    invalid: Count
    """All others."""
    work: dict[str, float] = Field(default_factory=dict)
    """What following it took, the sum over `told` answers: tokens that were sampled, forced, rolled_back; pieces of
    text that were appended without the model; seconds mask_s, automaton_s, retokenize_s, compile_s. Empty: not told."""
    texts: tuple[str, ...] = ()
    """The answers of the first arrival seed, in order of the plan."""
    spans: tuple[tuple[tuple[Count, Count], ...], ...] = ()
    """[answer] begins and ends of the characters that were appended without the model."""

    @model_validator(mode="after")
    def _spans_are_inside(self) -> Self:
        """Raise ValueError where a span is no part of its answer."""
        for text, spans in zip(self.texts, self.spans, strict=False):
            if any(not begin <= end <= len(text) for begin, end in spans):
                raise ValueError(f"a span is no part of its answer, which has {len(text)} characters")
        return self


class Measurement(Facts):
    """The requests of one arrival seed."""

    arrival_seed: Count
    requests: tuple[RequestResult, ...]
    client_cpu: NonNegativeFloat
    """Share of one CPU that the client took."""
    server: ServerFacts | None = None
    """None if the server tells nothing about itself."""
    constrained: ConstrainedAnswers | None = None

    @cached_property
    def numbers(self) -> LoadNumbers:
        """Numbers of the requests."""
        return load_numbers(self.requests)


class EqualAnswers(Facts):
    """A server's greedy answers beside those of transformers, both in float32."""

    compared: Count
    """Answers that told their token ids."""
    near_ties: Count
    """Answers whose first other token is at a near tie: transformers' two best logits differ by less than
    `near_tie_below`."""
    different: Count
    """Answers with another first other token."""
    near_tie_below: NonNegativeFloat
    """The most by which how far apart two logits are changes in transformers itself, where it computes all tokens at
    once: the error of float32."""
    question: str
    """One of the questions."""
    answer: str
    """The server's answer to it."""


class ServingResult(ServingPoint, Result):
    """A system at a point. Ratios are formed between measurements of the same requests: of one arrival seed."""

    REPEATED = "arrival seed"

    us_per_token: tuple[PositiveFloat, ...] = ()
    """[measurement] normalized latency: the mean over its requests of (last token - due) / tokens, microseconds."""
    requests_per_s: PositiveFloat | None = None
    """Mean rate of the arrivals; None with closed-loop clients."""
    reference: str = ""
    """The system whose capacity `load` is a share of."""
    capacity_per_s: PositiveFloat | None = None
    """Requests per second of the reference with closed-loop clients; None with an absolute rate."""
    asked_requests: Count | None = None
    """Requests of an arrival seed that the experiment asks for; measurements have fewer if the budget was short."""
    weights: str = ""
    """What a reader must know of the model's weights beside their dtype."""
    measurements: tuple[Measurement, ...] = ()
    server_said: dict[str, Any] = Field(default_factory=dict)
    """The entry of /v1/models."""
    equal_answers: EqualAnswers | None = None
    """Of the run, the same at all points; None: not asked for, or the server did not answer."""

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_older(values) | {"us_per_token": [sample for (sample,) in values.get("samples_us", ())]}

    @property
    def rounds(self) -> Samples:
        return tuple((sample,) for sample in self.us_per_token)

    @property
    def round_groups(self) -> tuple[int, ...]:
        return tuple(measurement.arrival_seed for measurement in self.measurements) if self.us_per_token else ()
