"""The manifest of a run: its experiment, the machines that measured it, and its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    model_validator,
)

from chunkbench.bench import workload
from chunkbench.bench.environment.machine import hardware_id
from chunkbench.bench.experiment.terms import Count, Style


def _nothing_if_none(raw: object) -> object:
    return {} if raw is None else raw


class _Part(BaseModel):
    """A part of a manifest. Extra fields of other versions are kept; a missing field gets its default."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class CpuFacts(_Part):
    model: str = ""
    cores: Count | None = None
    generation: str = ""
    isa: tuple[str, ...] = ()
    """The instruction sets that kernels may use, from the oldest to the newest."""

    @property
    def name(self) -> str:
        return f"{self.model} ({self.generation})" if self.generation else self.model


class TorchFacts(_Part):
    version: str = ""
    note: str = ""


class GpuFacts(_Part):
    name: str
    compute_capability: str | None = None


class MachineFacts(_Part):
    """One machine: hardware and software, as `chunkbench.bench.environment` read them."""

    cpu: CpuFacts = CpuFacts()
    memory_bytes: NonNegativeFloat | None = None
    memory_limit_bytes: NonNegativeFloat | None = None
    gpus: tuple[GpuFacts, ...] = ()
    python: str = ""
    torch: TorchFacts = TorchFacts()
    packages: dict[str, str] = {}
    kind: str = ""
    """The kind of machine in a run on a Ray cluster; empty in other runs. All machines of a kind share the points."""

    @property
    def name(self) -> str:
        """The GPUs, if any, and the processor, in a few words; empty if nothing was recorded."""
        return ", ".join(part for part in (*(gpu.name for gpu in self.gpus), self.cpu.name) if part)


class ExpectationFacts(_Part):
    where: dict[str, Any] = {}
    implementation: str
    metric: str
    against: str | None = None
    bar: float | None = None
    aim: float | None = None


class ExperimentFacts(_Part):
    """The experiment that was run, with its defaults filled in."""

    name: str = ""
    title: str = ""
    kind: str = Field(default_factory=workload.default)
    implementations: tuple[str, ...] = ()
    baseline: str = "chunk_attn"
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    figure: str = "speedup"
    paper: str | None = None
    pages: str | None = None
    """The workers' memory pages: `huge` or `small`. None in schema versions before 6, whose workers did not ask for
    huge pages."""
    budget_s: NonNegativeFloat = 0.0
    arrival_seeds: Count = 0
    """Number of arrival seeds of each point; 0 for kinds without requests."""
    expect: tuple[ExpectationFacts, ...] = ()
    accelerators: tuple[Mapping[str, Any], ...] = ()
    """Devices for which `kind: ring` computes times from rates."""
    source: str = ""

    @property
    def heading(self) -> str:
        """The name of the experiment in reports."""
        return self.title or self.name or "ChunkBench run"


class GitFacts(_Part):
    commit: str | None = None
    dirty: bool = False

    def named(self, digits: int) -> str:
        """The first `digits` characters of the commit, then `(modified)` if files differ from it; empty without a
        commit."""
        return f"{self.commit[:digits]}{' (modified)' if self.dirty else ''}" if self.commit else ""


class Manifest(_Part):
    """The contents of `manifest.json`. Schema versions before 5 have `environment` instead of `machines`."""

    schema_version: int
    chunkbench_version: str = "?"
    experiment: Annotated[ExperimentFacts, BeforeValidator(_nothing_if_none)] = Field(default_factory=ExperimentFacts)
    device: str | None = None
    dtype: str | None = None
    seed: Count | None = None
    machines: dict[str, MachineFacts] = {}
    """Machine id -> hardware and software."""
    git: Annotated[GitFacts, BeforeValidator(_nothing_if_none)] = GitFacts()
    styles: dict[str, Style] = Field(default={}, validation_alias=AliasChoices("styles", "looks"))
    """Implementation id -> how reports show it."""
    points: Count | None = None
    started_at: str | None = None
    finished_at: str | None = None
    interrupted: bool | None = None
    command: tuple[str, ...] = ()
    identity: dict[str, str] = {}
    interleaved_with: str | None = Field(None, validation_alias=AliasChoices("interleaved_with", "in_turns_with"))
    """An id that runs share if pairs of processes measured them, taking turns round by round; None for other runs."""

    @model_validator(mode="before")
    @classmethod
    def _upgrade_environment(cls, raw: object) -> object:
        if not isinstance(raw, Mapping) or "machines" in raw or not isinstance(raw.get("environment"), Mapping):
            return raw
        # Validate first: the id is computed from values that must have the right types.
        machine = MachineFacts.model_validate(raw["environment"])
        return {**raw, "machines": {hardware_id(machine.model_dump(mode="json")): raw["environment"]}}

    @property
    def only_machine(self) -> str:
        """The id of the machine, if exactly one is recorded; otherwise empty."""
        return next(iter(self.machines)) if len(self.machines) == 1 else ""

    @property
    def machine_names(self) -> tuple[str, ...]:
        """Short names of the machines, each name once."""
        return tuple(dict.fromkeys(machine.name or "machine not recorded" for machine in self.machines.values()))
