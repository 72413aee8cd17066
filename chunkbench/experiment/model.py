"""The experiment: a frozen model of one YAML file, and the points and cases that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from chunkbench.experiment.axes import Finding, Findings, show
from chunkbench.experiment.errors import did_you_mean
from chunkbench.experiment.fields import (
    Axes,
    Blocks,
    Caches,
    Count,
    Fraction01,
    ImplementationId,
    Implementations,
    Modes,
    Positive,
    Protocols,
    Seconds,
    written_axes,
)
from chunkbench.experiment.names import MODULES
from chunkbench.experiment.point import Cache, Case, Device, Dtype, Mode, Point, Protocol
from chunkbench.experiment.sweep import Kind, blocks_of, check_sweep, combine, matches, resolve

TOLERANCE: Mapping[Dtype, float] = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Largest relative error that counts as correct, unless the experiment says otherwise."""
PROTOCOL_CACHE: Mapping[Protocol, Cache] = {"strict": "cold", "paper": "warm"}
DEVICE_MODES: Mapping[Device, tuple[Mode, ...]] = {"cpu": ("eager",), "cuda": ("events", "graph", "eager")}
Metric = Literal["speedup", "latency_ratio", "roofline_fraction", "append_us", "plan_us"]
COMPARING: tuple[Metric, ...] = ("speedup", "latency_ratio")
AT_MOST: tuple[Metric, ...] = ("latency_ratio", "append_us", "plan_us")
"""Metrics whose bar is an upper bound; for the others it is a lower bound."""


def _with_default_tolerance(raw: object) -> object:
    return {**TOLERANCE, **raw} if isinstance(raw, Mapping) else raw


class Expectation(BaseModel):
    """What the points that `where` selects must reach (`bar`) and should reach (`aim`).

    `speedup`: latency of `against` over latency of `implementation`, at least; `latency_ratio`: its inverse, at most;
    `roofline_fraction`: at least; `append_us`, `plan_us`: microseconds, at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: Axes = Field(default_factory=dict, description="axis filter; a list means any of its values")
    implementation: ImplementationId = "chunk_attn"
    metric: Metric
    against: str | None = Field(None, description="an implementation, or roofline")
    bar: Positive
    aim: Positive | None = None

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

    def applies_to(self, point: Point) -> bool:
        """Whether `where` selects the point."""
        return matches(self.where, dict(point))


class Experiment(BaseModel):
    """One experiment as its file states it, with defaults filled in; durations are in seconds.

    A file writes `budget` and `case_limit` (`5m`), the model calls them `budget_s` and `case_limit_s`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="names the run directory; default: the file's name"
    )
    title: str = Field("", max_length=200, description="heading of tables and figures")
    kind: Kind = Field(
        "decode", description="decode attention, timed; the memory of its K/V, untimed; the modules of a decoder layer"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="auto: float16 on CUDA, bfloat16 on a CPU that has it, else float32"
    )
    seed: Count = Field(0, ge=0)
    paper: Literal["table1", "table3", "figure3", "figure4"] | None = Field(
        None, description="the paper's table or figure that the run is set beside"
    )
    figure: Literal["speedup", "token_rate", "advantage"] = Field(
        "speedup",
        description="of kind decode: speed-ups, token rates, or a map of the advantage over n_s and b",
    )
    implementations: Implementations
    baseline: ImplementationId = Field("chunk_attn", validate_default=True, description="ratios refer to it")
    protocols: Protocols = ("strict",)
    caches: Caches | None = Field(None, description="default: the protocol's own, strict cold and paper warm")
    modes: Modes | None = Field(None, description="default: eager on a CPU, and all three on CUDA")
    budget_s: Seconds = Field(300.0, alias="budget", description="measuring time of the whole run")
    case_limit_s: Seconds = Field(60.0, alias="case_limit", description="a case that would take longer is a timeout")
    confidence: Annotated[Fraction01, Field(ge=0.5)] = 0.95
    precision: Fraction01 = Field(0.02, description="stop when the interval's half-width is this share of the latency")
    min_rounds: Count = Field(
        3, ge=3, description="of the strict protocol; with fewer there is no telling noise from a result"
    )
    max_rounds: Count = Field(50, ge=3, validate_default=True)
    tolerance: Annotated[dict[Dtype, Positive], BeforeValidator(_with_default_tolerance)] = Field(
        default_factory=lambda: dict(TOLERANCE), description="largest relative error by dtype"
    )
    defaults: Axes = Field(default_factory=dict, description="axes of every block that does not state them itself")
    sweep: Blocks = Field(description="blocks: inside one lists multiply, blocks add up")
    exclude: tuple[Axes, ...] = Field((), description="filters; a combination that one matches is left out")
    expect: tuple[Expectation, ...] = ()
    source: str = Field("", exclude=True, repr=False)
    """Text of the file."""
    path: str = Field("", exclude=True, repr=False)
    """The file as the caller named it."""

    @model_validator(mode="before")
    @classmethod
    def _modules_are_known(cls, raw: object) -> object:
        if isinstance(raw, Mapping) and raw.get("kind") == "modules":
            return {"implementations": MODULES, "baseline": "self_attention", **raw}
        return raw

    @field_validator("baseline")
    @classmethod
    def _baseline_is_measured(cls, baseline: str, info: ValidationInfo) -> str:
        measured = info.data.get("implementations", (baseline,))
        if baseline not in measured:
            raise ValueError(f"{baseline} is not among implementations; add it there, or set baseline to one of them")
        return baseline

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
            for index, one in enumerate(expect)
            for field, name in (("implementation", one.implementation), ("against", one.against))
            if name not in (None, "roofline", *measured)
        ]
        if findings:
            raise Findings(*findings)
        return expect

    @model_validator(mode="after")
    def _memory_is_untimed(self) -> Experiment:
        timed = ("protocols", "caches", "modes", "expect") if self.kind == "memory" else ()
        findings = [
            Finding((key,), "is about timing, and `kind: memory` times nothing; leave it out", True)
            for key in timed
            if getattr(self, key) != type(self).model_fields[key].default
        ]
        if findings:
            raise Findings(*findings)
        return self

    @model_validator(mode="after")
    def _sweep_fits_together(self) -> Experiment:
        blocks = [written_axes(block) for block in self.sweep]
        filters = [written_axes(one) for one in self.exclude]
        findings = list(check_sweep(written_axes(self.defaults), blocks, filters, kind=self.kind, unused=False))
        if findings:
            raise Findings(*findings)
        return self

    def in_full(self) -> Experiment:
        """The same with every step of the fewest rounds timed, whatever it takes."""
        day = 86400.0
        return self.model_copy(update={"budget_s": day, "case_limit_s": day, "max_rounds": self.min_rounds})

    @property
    def timed(self) -> bool:
        """Whether there is anything to time."""
        return self.kind != "memory"

    def points(self, device: Device, dtype: Dtype) -> tuple[Point, ...]:
        """All points in the order of the file, each once; `device` and `dtype` stand in where the file says auto.

        Blocks come in turn; inside a block the axes vary in the order of `AXES`, the first slowest.
        """
        own = dtype if self.dtype == "auto" else self.dtype
        here: Device = device if self.device == "auto" else self.device
        found: dict[Point, None] = {}
        for block in blocks_of(self.kind, self.defaults, self.sweep, 0):
            for combination in combine(block):
                values = {**combination, "dtype": combination.get("dtype", own)}
                if values["dtype"] == "auto":
                    values["dtype"] = dtype
                if not any(matches(one, values) for one in self.exclude):
                    found[Point(**resolve(values), device=here)] = None
        return tuple(found)

    def cases(self, point: Point) -> tuple[Case, ...]:
        """All cases of a point: protocols x caches x modes x implementations, the last varying fastest."""
        modes = self.modes or DEVICE_MODES[point.device]
        if point.device == "cpu" or not self.timed:
            modes = ("eager",)
        return tuple(
            Case(point, implementation, protocol, cache, mode)
            for protocol in self.protocols
            for cache in self.caches or (PROTOCOL_CACHE[protocol],)
            for mode in modes
            for implementation in self.implementations
        )


YAML_KEYS: Mapping[str, Any] = {
    field.alias or name: field for name, field in Experiment.model_fields.items() if name not in ("source", "path")
}
"""The keys that a file may hold."""
