"""Points and results of the kind `serving`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any, ClassVar, Self

from pydantic import AliasChoices, Field, NonNegativeFloat, PositiveFloat, model_validator

from chunkbench.bench.experiment.point import RequestPoint
from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import Facts, Peaks, Result, Samples
from chunkbench.llama import SHAPES, LlamaShape
from chunkbench.traffic.request_result import LoadNumbers, RequestResult, load_numbers


class ServingPoint(RequestPoint):
    """Servers under load. Exactly one axis sets the load: `load` (percent of a system's capacity), `rate` (requests per
    minute) or `clients`.

    `forced`: percentage of the bytes of an answer for which its constraint leaves no choice. `samples`: number of
    answers that are sampled for each prompt. `beams`: number of answers that beam search finds for each prompt.
    """

    LEGACY: ClassVar[Mapping[str, Any]] = {"chunk_size": 64, "block_size": 32}

    model: LlamaShape = SHAPES["small-llama"]
    n_p: Count
    n_c: Count = 64
    load: Count | None = None
    clients: Count | None = None
    forced: Count | None = None
    samples: Count | None = None
    beams: Count | None = None

    @property
    def answers(self) -> int:
        """Number of answers to each prompt."""
        return self.samples or self.beams or 1


TIMELINE = 100
"""Largest number of entries of a timeline."""


@dataclass(frozen=True)
class Moment:
    """The state of a server at one time: after a step, or when ChunkBench asked the server."""

    at: float
    """Time in seconds on the clock of `time.perf_counter`. On Linux, all processes have the same clock."""
    batch: Count
    """Number of sequences in the step. If ChunkBench asked the server: number of running sequences."""
    kv_bytes: Count | None
    """Bytes of the blocks or chunks that unfinished requests use; None if unknown."""
    seconds: float | None = None
    """Seconds of the step; None if the moment is not the end of a step."""
    overhead_seconds: float | None = None
    """Seconds of the step outside of the model: scheduling, prefix tree, plan, sampling."""
    tree_seconds: float | None = None
    """Seconds that the prefix tree took: match, join, append, leave, evict. A part of `overhead_seconds`."""
    prompt_tokens: Count | None = None
    """Number of prompt tokens that the step computed."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Name of a part of the step -> its seconds. Empty if the server does not tell them."""


class ServerFacts(Facts):
    """What a server did during one measurement, computed from its moments.

    A new fact needs a field in `Moment`, a field here, and a line in `of`.
    """

    sampled: bool
    """Whether ChunkBench asked the server only at intervals. Then peaks between two samples are missed."""
    steps: Count | None = None
    step_s: NonNegativeFloat | None = None
    """Mean seconds of a step."""
    overhead_s: NonNegativeFloat | None = Field(default=None, validation_alias=AliasChoices("overhead_s", "own_s"))
    """Mean seconds of a step outside of the model: scheduling, prefix tree, plan, sampling. Old results call it
    `own_s`."""
    tree_s: NonNegativeFloat | None = None
    """Mean seconds of a step for the prefix tree; a part of `overhead_s`. None in old results."""
    parts: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Name of a part of a step -> its median seconds, over the steps without prompt tokens. Empty if the server does
    not tell them."""
    computed_tokens: Count | None = None
    """Number of prompt tokens that the server computed."""
    peak_batch: Count | None = None
    peak_kv_bytes: Count | None = None
    timeline: tuple[tuple[float, Count, Count | None], ...] = ()
    """(seconds after the start, largest batch, largest number of K/V bytes) for each of at most `TIMELINE` periods."""
    every_step: tuple[tuple[float, Count, Count, float], ...] = ()
    """(seconds after the start, batch, prompt tokens, seconds of the step) for each step. Empty if the server does not
    record steps.
    """

    @classmethod
    def of(cls, moments: Sequence[Moment], started: float, sampled: bool) -> ServerFacts | None:
        """Compute the facts of a measurement. `started`: its start on the clock of the moments. None without moments,
        and if no moment saw a running sequence: vLLM's beam search runs in requests of one token, between samples."""
        if not any(moment.batch for moment in moments):
            return None
        steps = [moment for moment in moments if moment.seconds is not None]
        overheads = [moment.overhead_seconds for moment in steps if moment.overhead_seconds is not None]
        trees = [moment.tree_seconds for moment in steps if moment.tree_seconds is not None]
        decoding = [moment.parts for moment in steps if moment.parts and not moment.prompt_tokens]
        computed = [moment.prompt_tokens for moment in steps if moment.prompt_tokens is not None]
        return cls(
            sampled=sampled,
            steps=len(steps) or None,
            step_s=fmean(moment.seconds or 0.0 for moment in steps) if steps else None,
            overhead_s=fmean(overheads) if overheads else None,
            tree_s=fmean(trees) if trees else None,
            parts={name: median(parts[name] for parts in decoding) for name in (decoding[0] if decoding else ())},
            computed_tokens=sum(computed) or None,
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
    """How well the answers of one measurement follow their constraint, and at what cost."""

    regex: str
    valid: Count
    """Number of answers that match the regular expression."""
    cut: Count
    """Number of answers that were cut at the allowed number of tokens, so that they do not match."""
    invalid: Count
    """Number of answers that do not match, although they were not cut."""
    work: dict[str, float] = Field(default_factory=dict)
    """Cost of following the constraint: name -> sum over the answers whose cost is known. Empty if no cost is known.

    `told`: number of these answers. `sampled`, `forced`, `rolled_back`: tokens. `pieces`: pieces of text that were
    appended without the model. `mask_s`, `automaton_s`, `retokenize_s`, `compile_s`: seconds.
    """
    texts: tuple[str, ...] = ()
    """The answers of the first arrival seed, in the order of the requests."""
    spans: tuple[tuple[tuple[Count, Count], ...], ...] = ()
    """`[answer]`: (begin, end) of each range of characters that was appended without the model."""

    @model_validator(mode="after")
    def _spans_are_inside(self) -> Self:
        """Raise ValueError if a span lies outside of its answer."""
        for text, spans in zip(self.texts, self.spans, strict=False):
            if any(not begin <= end <= len(text) for begin, end in spans):
                raise ValueError(f"a span is no part of its answer, which has {len(text)} characters")
        return self


class Measurement(Facts):
    """The answers of one system to the requests of one arrival seed."""

    arrival_seed: Count
    requests: tuple[RequestResult, ...]
    gap_s: NonNegativeFloat | None = None
    """Median seconds between two tokens of an answer. None in old results."""
    peak_process_bytes: Count | None = None
    """Largest resident memory of each process of the server, summed. None for a server that runs elsewhere, and in old
    results."""
    client_cpu: NonNegativeFloat
    """CPU time of the client divided by wall time: 1 is one busy CPU."""
    server: ServerFacts | None = None
    """What the server recorded. None if it records nothing."""
    constrained: ConstrainedAnswers | None = None

    @cached_property
    def numbers(self) -> LoadNumbers:
        return load_numbers(self.requests)


class EqualAnswers(Facts):
    """The comparison of a server's greedy answers with those of transformers, both in float32."""

    compared: Count
    """Number of compared answers: those whose token ids are known."""
    near_ties: Count
    """Number of answers whose first different token is at a near tie. At a near tie, the two largest logits of
    transformers differ by less than `near_tie_below`.
    """
    different: Count
    """Number of answers whose first different token is not at a near tie."""
    near_tie_below: NonNegativeFloat
    """Largest float32 rounding error of a gap. A gap is the difference between the two largest logits of transformers.
    Each gap is computed twice: token by token, and with all tokens at once. The error of a gap is the difference
    between the two results.
    """
    question: str
    """The text of one question, as an example."""
    answer: str
    """The server's answer to `question`."""


class MachineLimits(Facts):
    """What bounds a decode step on this machine, besides the model's shape."""

    peaks: Peaks
    """Rates, probed before the point."""
    layers: Count
    """Number of layers that the servers run."""
    vocabulary: Count
    """Number of rows of the head."""
    shared_reads: bool = False
    """Whether a step reads K/V of a shared prefix once for all sequences."""


class ServingResult(ServingPoint, Result):
    """The results of one system at one point. Ratios of two systems compare measurements of the same arrival seed,
    which have the same requests.
    """

    REPEATED = "arrival seed"
    TIMED = "normalized latency"

    us_per_token: tuple[PositiveFloat, ...] = ()
    """`[measurement]`: normalized latency in microseconds. It is the mean over the requests of (time of the last token
    - due time) / number of tokens."""
    requests_per_s: PositiveFloat | None = None
    """Mean number of arrivals per second. None with closed-loop clients."""
    reference: str = ""
    """The system to whose capacity `load` refers."""
    capacity_per_s: PositiveFloat | None = None
    """Requests per second that `reference` answers for closed-loop clients. None if the point has no `load`."""
    asked_requests: Count | None = None
    """Number of requests that each measurement should have. If the budget is short, measurements have fewer
    requests."""
    weights: str = ""
    """A remark on the model's weights for readers of the report. Empty if there is none."""
    machine_limits: MachineLimits | None = None
    """None on a GPU, without a closed loop, for a server that runs elsewhere or has packed weights, and in old
    results."""
    measurements: tuple[Measurement, ...] = ()
    server_said: dict[str, Any] = Field(default_factory=dict)
    """What the server says about its model in /v1/models."""
    equal_answers: EqualAnswers | None = None
    """The check of the server's answers. It is made once in a run, and is the same at all points. None if the
    experiment does not ask for it, or if the server gave no answers.
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
