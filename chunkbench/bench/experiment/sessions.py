"""Models of experiments that measure sessions, that time calls, or that send requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from chunkbench.bench.experiment.fields import (
    Axes,
    Caches,
    Fraction01,
    ImplementationId,
    Modes,
    Positive,
    Protocols,
    Seconds,
    Whole,
)
from chunkbench.bench.experiment.findings import Finding, Findings, show
from chunkbench.bench.experiment.forest import prompt_conflicts
from chunkbench.bench.experiment.point import Case, PointT
from chunkbench.bench.experiment.spec import CASE_LIMIT, Experiment
from chunkbench.bench.experiment.sweep import Sweep, read_filter, selects
from chunkbench.bench.experiment.terms import Cache, Device, Dtype, Mode, Pages, Protocol
from chunkbench.bench.experiment.tree import sequences_in
from chunkbench.bench.experiment.tree_reader import is_tree_file, read_forest
from chunkbench.text_file import did_you_mean

TOLERANCE: Mapping[Dtype, float] = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Largest relative error that counts as correct, unless the experiment says otherwise."""


def _with_default_tolerance(raw: object) -> object:
    return {**TOLERANCE, **raw} if isinstance(raw, Mapping) else raw


class SessionExperiment(Experiment[PointT]):
    """An experiment whose implementations run in a worker. The output of each implementation is compared with a
    float64 computation."""

    tolerance: Annotated[dict[Dtype, Positive], BeforeValidator(_with_default_tolerance)] = Field(
        default_factory=lambda: dict(TOLERANCE),
        description="largest relative error by dtype; default: "
        + ", ".join(f"{dtype} {error:g}" for dtype, error in TOLERANCE.items()),
    )
    pages: Pages = Field("huge", description="memory pages on a CPU: huge where the system allows them, or small")


Confidence = Annotated[Fraction01, Field(ge=0.5, description="confidence of the intervals")]
REQUESTS = (
    "requests of an arrival seed. Servers: above a load of 100 the number grows in proportion to the load; with "
    "clients it is two for each client, at least 4 and at most this"
)
PROTOCOL_CACHE: Mapping[Protocol, Cache] = {"strict": "cold", "paper": "warm"}
DEVICE_MODES: Mapping[Device, tuple[Mode, ...]] = {"cpu": ("eager",), "cuda": ("events", "graph", "eager")}
Metric = Literal["speedup", "latency_ratio", "roofline_fraction", "append_us", "plan_us"]
COMPARING: tuple[Metric, ...] = ("speedup", "latency_ratio")
AT_MOST: tuple[Metric, ...] = ("latency_ratio", "append_us", "plan_us")
"""The bar of these metrics is an upper bound. The bar of all other metrics is a lower bound."""


class Expectation(BaseModel):
    """A condition: the points that `where` selects must reach `bar` and should reach `aim`.

    Lower bounds: `speedup` (latency of `against` divided by latency of `implementation`) and `roofline_fraction`. Upper
    bounds: `latency_ratio` (1 / speedup), `append_us` and `plan_us` (microseconds).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: Axes = Field(default_factory=dict, description="axis filter; a list means any of its values")
    implementation: ImplementationId = "chunk_attn"
    metric: Metric
    against: str | None = Field(None, description="what to compare with: an implementation, or roofline")
    bar: Positive
    aim: Positive | None = None

    @field_validator("where")
    @classmethod
    def _where_holds_its_tree(cls, where: dict[str, Any]) -> dict[str, Any]:
        """Replace the path of a tree file by its forest, because a report judges the run without that file."""
        tree = where.get("tree")
        if isinstance(tree, list | tuple) and any(map(is_tree_file, tree)):
            raise Findings(
                Finding(
                    ("tree",),
                    "several trees, at least one of them a file; write an expectation for each tree",
                )
            )
        try:
            return where | {"tree": read_forest(tree)} if is_tree_file(tree) else where
        except Findings:
            return where  # `_more_findings` reports the problem, at the tree's own place

    @field_validator("against")
    @classmethod
    def _against_suits_metric(cls, against: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric")
        if metric in COMPARING and against in (None, "roofline"):
            raise ValueError(f"{metric} compares with an implementation; name it")
        if metric == "roofline_fraction" and against not in (None, "roofline"):
            raise ValueError("roofline_fraction compares with the roofline; leave against out")
        if metric in ("append_us", "plan_us") and against is not None:
            raise ValueError(f"{metric} is compared with the bar alone; leave against out")
        return against

    @field_validator("aim")
    @classmethod
    def _aim_is_beyond_bar(cls, aim: float | None, info: ValidationInfo) -> float | None:
        bar, metric = info.data.get("bar"), info.data.get("metric")
        if aim is not None and bar is not None and (aim > bar if metric in AT_MOST else aim < bar):
            raise ValueError(f"{aim:g} is easier to reach than bar = {bar:g}; an aim goes beyond the bar")
        return aim

    @model_validator(mode="after")
    def _compares_with_something(self) -> Expectation:
        if self.metric in COMPARING and self.against is None:
            raise Findings(Finding((), f"against is missing: {self.metric} compares with an implementation"))
        return self


class TimedExperiment(SessionExperiment[PointT]):
    """An experiment that times the calls of implementations, round by round."""

    protocols: Protocols = Field(
        ("strict",), description="strict: interleaved rounds; paper: the timing of the paper's authors"
    )
    caches: Caches | None = Field(
        None, description="hardware caches before a call: cold, warm; default: cold for strict, warm for paper"
    )
    modes: Modes | None = Field(
        None, description="modes of timing: events, graph, eager; default: all three on CUDA, eager on a CPU"
    )
    confidence: Confidence = 0.95
    precision: Fraction01 = Field(
        0.02, description="a point ends when the half-width of every interval is below this share of the latency"
    )
    min_rounds: Whole = Field(3, ge=3, description="smallest number of rounds in strict")
    max_rounds: Whole = Field(50, ge=3, validate_default=True, description="largest number of rounds in strict")
    expect: tuple[Expectation, ...] = Field(
        (), description="conditions that points must meet; reports show bar and aim"
    )

    @classmethod
    def nested_keys(cls) -> tuple[str, ...]:
        return tuple(Expectation.model_fields)

    @classmethod
    def _more_findings(cls, raw: Mapping[str, Any], sweep: Sweep, report_unused: bool) -> Iterator[Finding]:
        """Findings about filters of expectations: filters that cannot be read, and filters that match no point."""
        expect = raw.get("expect")
        for index, expectation in enumerate(expect if isinstance(expect, list | tuple) else ()):
            place = ("expect", index, "where")
            where = expectation.get("where") if isinstance(expectation, Mapping) else None
            accepted, findings = read_filter(where, place, sweep.point.axes())
            yield from findings
            # A filter on dtype may match only once auto is resolved.
            judged = report_unused and not findings and "dtype" not in accepted
            if judged and not any(selects(accepted, values) for values in sweep.combinations):
                yield Finding(place, "matches no point of the sweep")

    @field_validator("modes")
    @classmethod
    def _modes_suit_device(cls, modes: tuple[Mode, ...] | None, info: ValidationInfo) -> tuple[Mode, ...] | None:
        if info.data.get("device") == "cpu" and modes not in (None, ("eager",)):
            raise ValueError("a CPU has only the mode eager")
        return modes

    @field_validator("max_rounds")
    @classmethod
    def _rounds_in_order(cls, max_rounds: int, info: ValidationInfo) -> int:
        if max_rounds < info.data.get("min_rounds", 1):
            raise ValueError(f"{max_rounds} is smaller than min_rounds = {info.data['min_rounds']}")
        return max_rounds

    @field_validator("expect")
    @classmethod
    def _expectations_are_measured(
        cls, expect: tuple[Expectation, ...], info: ValidationInfo
    ) -> tuple[Expectation, ...]:
        measured = info.data.get("implementations")
        if measured is None:
            return expect
        findings = [
            Finding(
                (index, field), f"{show(name)} is not among implementations{did_you_mean(str(name)[:60], measured)}"
            )
            for index, expectation in enumerate(expect)
            for field, name in (("implementation", expectation.implementation), ("against", expectation.against))
            if name not in (None, "roofline", *measured)
        ]
        if findings:
            raise Findings(*findings)
        return expect

    def in_full(self) -> Self:
        """The same experiment with exactly `min_rounds` rounds and practically no time limit, so that every step is
        timed."""
        day = 86400.0
        return self.model_copy(update={"budget_s": day, "case_limit_s": day, "max_rounds": self.min_rounds})

    def cases(self, point: PointT) -> tuple[Case[PointT], ...]:
        """One case for each protocol, cache, mode and implementation. The implementation varies fastest."""
        modes = ("eager",) if point.device == "cpu" else self.modes or DEVICE_MODES[point.device]
        return tuple(
            Case(point, implementation, protocol, cache, mode)
            for protocol in self.protocols
            for cache in self.caches or (PROTOCOL_CACHE[protocol],)
            for mode in modes
            for implementation in self.implementations
        )


class RequestExperiment(Experiment[PointT]):
    """An experiment with one case for each point and implementation. Implementations do not take turns in rounds."""

    confidence: Confidence = 0.95
    case_limit_s: Seconds = Field(600.0, alias="case_limit", description=CASE_LIMIT)
    requests: Annotated[Whole, Field(ge=1)] = Field(24, description=REQUESTS)
    arrival_seeds: Annotated[Whole, Field(ge=1)] = Field(
        3, description="number of seeds; each draws its own due times and requests"
    )


def request_conflicts(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
    """Contradictions among the axes that describe prompts.

    The number of requests may differ from the number of prefixes, because requests are not a batch.
    """
    sequences = sequences_in(given["tree"]) if "tree" in given else values["prompts"]
    yield from prompt_conflicts({**given, "n_c": values["n_c"]}, sequences, values["prompts"])
