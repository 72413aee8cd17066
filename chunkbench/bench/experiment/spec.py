"""The model of an experiment: one YAML file, and the points and cases that it describes."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from chunkbench.bench import workload
from chunkbench.bench.experiment.fields import Axes, Blocks, ImplementationId, Implementations, Seconds, Whole
from chunkbench.bench.experiment.findings import Finding, Findings, Path, only_for, show, unknown
from chunkbench.bench.experiment.point import Case, Point, PointT
from chunkbench.bench.experiment.sweep import Required, Rules, Sweep
from chunkbench.bench.experiment.terms import Device, Dtype
from chunkbench.text_file import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_TITLE = 200
BASELINE = "the implementation that ratios refer to"
CASE_LIMIT = "a case that would take longer is a timeout"
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


N_P = Required(frozenset({"n_p"}), "n_p is missing, here and under defaults")
N_S = Required(
    frozenset({"n_s", "tree"}), "n_s is missing (0 for nothing shared), here and under defaults; or give a tree"
)
FROM_MODEL = dict.fromkeys(("heads", "kv_heads", "head_dim"), "follows from model; leave it out")


class Experiment(BaseModel, ABC, Generic[PointT]):
    """One experiment as its file states it, with defaults filled in.

    Durations are in seconds: the keys `budget` and `case_limit` (such as `5m`) become `budget_s` and `case_limit_s`.
    Each kind of work adds its own fields in a subclass. All problems of a file are raised together, as `Findings` with
    their paths.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    POINT: ClassVar[type[Point]]
    REQUIRED: ClassVar[tuple[Required, ...]] = ()
    """Axes that a file must give."""
    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Key or axis that this kind refuses -> message. Without an entry, the message names the kinds that have the
    key."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="name of the run directory; default: the file's name"
    )
    title: str = Field("", max_length=MAX_TITLE, description="heading of tables and figures")
    order: Whole | None = Field(
        None, ge=1, exclude=True, description="position of a bundled experiment in lists and reports"
    )
    kind: str = Field(default_factory=workload.default, description="the kind of work", validate_default=True)
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto (CUDA where PyTorch sees a GPU), cpu, cuda"
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto",
        description="auto (float16 on CUDA, bfloat16 on a CPU that multiplies it, else float32), or one of these",
    )
    seed: Whole = Field(0, ge=0, description="decides token ids, values, lengths, and the order inside rounds")
    paper: Literal["table1", "table3", "figure3", "figure4"] | None = Field(
        None,
        description="part of the paper to reproduce: table1, table3, figure3, figure4 (figures show token rates)",
    )
    implementations: Implementations = Field(
        description="what is measured: ids of `chunkbench list implementations`; for modules by default all three"
    )
    baseline: ImplementationId = Field("chunk_attn", validate_default=True, description=BASELINE)
    budget_s: Seconds = Field(300.0, alias="budget", description="approximate wall time of the whole run")
    case_limit_s: Seconds = Field(60.0, alias="case_limit", description=CASE_LIMIT)
    defaults: Axes = Field(default_factory=dict, description="axes for blocks that do not set them")
    sweep: Blocks = Field(description="list of blocks; a block gives all combinations of its values")
    exclude: tuple[Axes, ...] = Field((), description="filters; combinations that match a filter are left out")
    source: str = Field("", exclude=True, repr=False)
    path: str = Field("", exclude=True, repr=False)
    """The file as the caller named it."""
    _sweep: Sweep = PrivateAttr()

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        """Contradictions in one combination of axes. The path of a finding begins with the axis to blame.

        `given` has only the axes of the file, `values` also the defaults (`Point.completed`).
        """
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, raw: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Validate keys and sweep, and raise everything that is wrong as one `Findings`.

        A file comes with a context. If `overridden` is set there, options replaced axes, and filters may match no
        point.
        """
        if isinstance(raw, cls):
            return raw
        findings: list[Finding] = []
        experiment: Self | None = None
        try:
            experiment = handler(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                findings += _findings(cls, detail)
        report_unused = info.context is not None and not info.context["overridden"]
        sweep = Sweep(cls.POINT, Rules(cls.REQUIRED, cls.REFUSED, cls.conflicts))
        if isinstance(raw, Mapping):
            sweep.read(raw.get("defaults"), raw.get("sweep"), raw.get("exclude"), report_unused)
            findings += sweep.findings
            findings += cls._more_findings(raw, sweep, report_unused and not findings)
        if findings or experiment is None:
            raise Findings(*findings)
        experiment._sweep = sweep
        return experiment

    @classmethod
    def _more_findings(cls, raw: Mapping[str, Any], sweep: Sweep, report_unused: bool) -> Iterator[Finding]:
        """Findings about contradictions between the sweep and the keys that a subclass adds."""
        return iter(())

    @classmethod
    def nested_keys(cls) -> tuple[str, ...]:
        """The keys that a mapping inside the file may have, apart from axes."""
        return ()

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind not in workload.names():
            raise ValueError(f"{show(kind)} is not known here{did_you_mean(kind[:60], workload.names())}")
        return kind

    @field_validator("baseline")
    @classmethod
    def _baseline_is_measured(cls, baseline: str, info: ValidationInfo) -> str:
        measured = info.data.get("implementations", (baseline,))
        if baseline not in measured:
            raise ValueError(f"{baseline} is not among implementations; add it there, or set baseline to one of them")
        return baseline

    def points(self, device: Device, dtype: Dtype) -> tuple[PointT, ...]:
        """All points in the order of the file, without repetitions. `device` and `dtype` replace `auto`.

        Blocks keep their order. Inside a block, the first axis of `AXES` varies slowest.
        """
        resolved: Device = device if self.device == "auto" else self.device
        usual = dtype if self.dtype == "auto" else self.dtype
        return cast("tuple[PointT, ...]", tuple(dict.fromkeys(self._sweep.points(resolved, dtype, usual))))

    def cases(self, point: PointT) -> tuple[Case[PointT], ...]:
        return tuple(Case(point, name) for name in self.implementations)


def yaml_keys(model: type[Experiment[Any]]) -> dict[str, Any]:
    """The keys that a file of this kind may hold, with their fields."""
    return {field.alias or name: field for name, field in model.model_fields.items() if name not in ("source", "path")}


def _findings(model: type[Experiment[Any]], error: ErrorDetails) -> list[Finding]:
    """An error of pydantic in plain words, at its path in the file."""
    about_key = error["loc"][-1:] == ("[key]",)
    path: Path = tuple(step for step in error["loc"] if step != "[key]")
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, Findings):
        return [finding.below(*path) for finding in cause.findings]
    if error["type"] == "missing":
        return [Finding(path, "is missing")]
    if error["type"] == "extra_forbidden":
        return [Finding(path, _unknown_key(model, path), True)]
    return [Finding(path, _in_words(error), about_key)]


def _unknown_key(model: type[Experiment[Any]], path: Path) -> str:
    key = str(path[-1])
    if len(path) > 1:
        return unknown("key", key, list(model.nested_keys()))
    having = [kind.name for kind in workload.all_kinds() if key in yaml_keys(kind.experiment)]
    if having:
        return model.REFUSED.get(key, only_for(having))
    return unknown("key", key, list(yaml_keys(model)))


def _in_words(error: ErrorDetails) -> str:
    kind, value = error["type"], error["input"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _WANTED and value is None:
        return "has no value; give one or leave the key out"
    if kind in _WANTED:
        quoted = "; put it in quotes" if kind == "string_type" and isinstance(value, bool | int | float) else ""
        return f"must be {_WANTED[kind]}, not {show(value)}{quoted}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        hint = did_you_mean(value[:60], choices) if isinstance(value, str) else f"; one of {', '.join(choices)}"
        return f"{show(value)} is not known here{hint}"
    if kind == "string_pattern_mismatch":
        return f"{show(value)} may hold only lower-case letters, digits, dots, dashes and underscores, at most 64"
    return f"{show(value)} {error['msg'].removeprefix('Input ').removeprefix('String ')}"
