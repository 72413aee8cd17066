"""The experiment: a frozen model of one YAML file, and the points and cases that it describes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chunkbench import kinds
from chunkbench.experiment.errors import did_you_mean
from chunkbench.experiment.fields import Axes, Blocks, Count, Implementations, Seconds, written_axes
from chunkbench.experiment.point import Case, Point
from chunkbench.experiment.sweep import SweepRules, blocks_of, check_sweep, combine, matches, resolve
from chunkbench.experiment.terms import Device, Dtype
from chunkbench.experiment.values import Findings, show


class Experiment(BaseModel, ABC):
    """One experiment as its file states it, with defaults filled in; durations are in seconds.

    A file writes `budget` and `case_limit` (`5m`); the model calls them `budget_s` and `case_limit_s`. This class has
    the fields of all kinds of work; each kind adds its own fields in a subclass.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    timed: ClassVar[bool] = False
    """Whether the implementations take turns and are timed, so that two revisions can be compared."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="name of the run directory; default: the file's name"
    )
    title: str = Field("", max_length=200, description="heading of tables and figures")
    kind: str = Field(default_factory=lambda: kinds.names()[0], description="the kind of work", validate_default=True)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="auto: float16 on CUDA, bfloat16 on a CPU that has it, else float32"
    )
    seed: Count = Field(0, ge=0)
    paper: Literal["table1", "table3", "figure3", "figure4"] | None = Field(
        None, description="the paper's table or figure that reports show beside the run"
    )
    implementations: Implementations
    budget_s: Seconds = Field(300.0, alias="budget", description="measuring time of the whole run")
    case_limit_s: Seconds = Field(60.0, alias="case_limit", description="a case that would take longer is a timeout")
    defaults: Axes = Field(default_factory=dict, description="axes for every block that does not give them itself")
    sweep: Blocks = Field(description="blocks; the lists of one block multiply, blocks add up")
    exclude: tuple[Axes, ...] = Field((), description="filters; a combination that matches a filter is left out")
    source: str = Field("", exclude=True, repr=False)
    """Text of the file."""
    path: str = Field("", exclude=True, repr=False)
    """The file as the caller named it."""

    @model_validator(mode="before")
    @classmethod
    def _take_defaults_of_kind(cls, raw: object) -> object:
        if isinstance(raw, Mapping) and raw.get("kind") in kinds.names():
            return {**kinds.get(raw["kind"]).reading().defaults, **raw}
        return raw

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind not in kinds.names():
            raise ValueError(f"{show(kind)} is not known here{did_you_mean(kind[:60], kinds.names())}")
        return kind

    @model_validator(mode="after")
    def _sweep_fits_together(self) -> Experiment:
        blocks = [written_axes(block) for block in self.sweep]
        filters = [written_axes(excluded) for excluded in self.exclude]
        findings = list(check_sweep(written_axes(self.defaults), blocks, filters, self._rules, report_unused=False))
        if findings:
            raise Findings(*findings)
        return self

    @property
    def _rules(self) -> SweepRules:
        rules: SweepRules = kinds.get(self.kind).reading().rules
        return rules

    def points(self, device: Device, dtype: Dtype) -> tuple[Point, ...]:
        """All points in the order of the file, each once; `device` and `dtype` replace auto.

        Blocks keep their order; inside a block the axes vary in the order of `AXES`, the first axis slowest.
        """
        default_dtype = dtype if self.dtype == "auto" else self.dtype
        resolved_device: Device = device if self.device == "auto" else self.device
        points: dict[Point, None] = {}
        for block in blocks_of(self.defaults, self.sweep, self._rules.implied):
            for combination in combine(block):
                values = {**combination, "dtype": combination.get("dtype", default_dtype)}
                if values["dtype"] == "auto":
                    values["dtype"] = dtype
                if not any(matches(excluded, values) for excluded in self.exclude):
                    points[Point(**resolve(values), device=resolved_device)] = None
        return tuple(points)

    @abstractmethod
    def cases(self, point: Point) -> tuple[Case, ...]:
        """All cases of a point."""


def yaml_keys(model: type[Experiment]) -> dict[str, Any]:
    """The keys that a file of this kind may hold, with their fields."""
    return {field.alias or name: field for name, field in model.model_fields.items() if name not in ("source", "path")}
