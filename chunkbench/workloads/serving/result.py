"""Points and results of kind `serving`: the facts about a system at a point."""

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
    """Servers under load. The load is `load` (percent of a system's capacity), `rate` (requests per minute) or
    `clients`.

    `forced` is the percentage of an answer's bytes that are forced by its constraint.
    """

    LEGACY: ClassVar[Mapping[str, Any]] = {"chunk_size": 64, "block_size": 32}

    model: LlamaShape = SHAPES["small-llama"]
    n_p: Count
    n_c: Count = 64
    load: Count | None = None
    clients: Count | None = None
    forced: Count | None = None


TIMELINE = 100
"""Largest number of parts of a timeline."""


@dataclass(frozen=True)
class Moment:
    """State of a server at one time: after a step, or when the suite sampled it."""

    at: float
    """Time on the clock of `time.perf_counter`, which all processes of a Linux host share."""
    batch: Count
    """Number of sequences in the step, or of running sequences."""
    kv_bytes: Count | None
    """Bytes of blocks or chunks that live requests refer to; None if unknown."""
    seconds: float | None = None
    """Seconds of the step; None between steps."""
    overhead_seconds: float | None = None
    """Seconds of the step outside of the model: scheduling, tree, plan, sampling."""
    tree_seconds: float | None = None
    """Seconds of the overhead that the cache's prefix tree took: match, join, append, leave, evict."""
    prompt_tokens: Count | None = None
    """Prompt tokens that the step computed."""


class ServerFacts(Facts):
    """What a server did during one measurement, computed from its moments. A new fact needs a field in `Moment` and
    here, and a line in `of`.
    """

    sampled: bool
    """Whether the server was only sampled now and then, so that peaks between two samples are missed."""
    steps: Count | None = None
    step_s: NonNegativeFloat | None = None
    """Mean seconds of a step."""
    overhead_s: NonNegativeFloat | None = Field(default=None, validation_alias=AliasChoices("overhead_s", "own_s"))
    """Mean seconds of a step outside of the model: scheduling, tree, plan, sampling. Older results call it `own_s`."""
    tree_s: NonNegativeFloat | None = None
    """Mean seconds of a step for the prefix tree, a part of `overhead_s`; None in older results."""
    computed_tokens: Count | None = None
    """Prompt tokens that were computed."""
    peak_batch: Count | None = None
    peak_kv_bytes: Count | None = None
    timeline: tuple[tuple[float, Count, Count | None], ...] = ()
    """(seconds after the start, batch, K/V bytes) for at most 100 parts of the time; batch and bytes are the largest of
    the part.
    """
    every_step: tuple[tuple[float, Count, Count, float], ...] = ()
    """(seconds after the start, batch, prompt tokens, seconds of the step) for each step, if the server records
    steps.
    """

    @classmethod
    def of(cls, moments: Sequence[Moment], started: float, sampled: bool) -> ServerFacts | None:
        """The facts of a measurement that began at `started`; None without moments."""
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
    """Number of answers that match the expression as a whole."""
    cut: Count
    """Number of answers that were cut at the number of tokens asked for, and do not match."""
    invalid: Count
    """Number of all other answers."""
    work: dict[str, float] = Field(default_factory=dict)
    """The cost of following the constraint, summed over the answers whose cost is known; `told` is their number.
    Tokens: sampled, forced, rolled_back; pieces of text that were appended without the model: pieces; seconds: mask_s,
    automaton_s, retokenize_s, compile_s. Empty if no cost is known.
    """
    texts: tuple[str, ...] = ()
    """The answers of the first arrival seed, in order of the plan."""
    spans: tuple[tuple[tuple[Count, Count], ...], ...] = ()
    """[answer] (begin, end) of each range of characters that was appended without the model."""

    @model_validator(mode="after")
    def _spans_are_inside(self) -> Self:
        """Raise ValueError if a span lies outside of its answer."""
        for text, spans in zip(self.texts, self.spans, strict=False):
            if any(not begin <= end <= len(text) for begin, end in spans):
                raise ValueError(f"a span is no part of its answer, which has {len(text)} characters")
        return self


class Measurement(Facts):
    """The measurement of one system with the requests of one arrival seed."""

    arrival_seed: Count
    requests: tuple[RequestResult, ...]
    client_cpu: NonNegativeFloat
    """Share of one CPU that the client used."""
    server: ServerFacts | None = None
    """Facts of the server; None if it records nothing."""
    constrained: ConstrainedAnswers | None = None

    @cached_property
    def numbers(self) -> LoadNumbers:
        """Rates and latencies of the requests."""
        return load_numbers(self.requests)


class EqualAnswers(Facts):
    """A server's greedy answers beside those of transformers, both in float32."""

    compared: Count
    """Number of answers with known token ids."""
    near_ties: Count
    """Number of answers whose first different token is at a near tie: there the two best logits of transformers differ
    by less than `near_tie_below`.
    """
    different: Count
    """Number of answers whose first different token is not at a near tie."""
    near_tie_below: NonNegativeFloat
    """The error of float32: the largest change of the difference of the two best logits when transformers computes all
    tokens at once.
    """
    question: str
    """The text of one of the questions."""
    answer: str
    """The server's answer to `question`."""


class ServingResult(ServingPoint, Result):
    """The results of a server system at a point. Ratios are formed between measurements of the same arrival seed, which
    have the same requests.
    """

    REPEATED = "arrival seed"

    us_per_token: tuple[PositiveFloat, ...] = ()
    """[measurement] normalized latency in microseconds: mean over the requests of (last token - due) / tokens."""
    requests_per_s: PositiveFloat | None = None
    """Mean rate of the arrivals; None with closed-loop clients."""
    reference: str = ""
    """The system to whose capacity `load` refers."""
    capacity_per_s: PositiveFloat | None = None
    """Requests per second of the reference with closed-loop clients; None if the point sets an absolute rate."""
    asked_requests: Count | None = None
    """Number of requests of an arrival seed that the experiment asks for; measurements have fewer if the budget was
    short.
    """
    weights: str = ""
    """Description of the model's weights, besides their dtype."""
    measurements: tuple[Measurement, ...] = ()
    server_said: dict[str, Any] = Field(default_factory=dict)
    """The server's entry in /v1/models."""
    equal_answers: EqualAnswers | None = None
    """Comparison of answers, made once in a run and the same at all points; None if not asked for, or if the server
    gave no answers.
    """

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_older(values) | {"us_per_token": [sample for (sample,) in values.get("samples_us", ())]}

    @property
    def rounds(self) -> Samples:
        return tuple((sample,) for sample in self.us_per_token)

    @property
    def round_groups(self) -> tuple[int, ...]:
        return tuple(measurement.arrival_seed for measurement in self.measurements) if self.us_per_token else ()
