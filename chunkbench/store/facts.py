"""What a run directory records of one case: facts only. Everything derived is computed by `chunkbench.analysis`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from chunkbench.experiment.point import AxisFields
from chunkbench.experiment.terms import Cache, Mode, Protocol

Status = Literal["ok", "noisy", "incorrect", "error", "timeout", "crashed", "oom", "unsupported", "unavailable"]
MEASURED: tuple[Status, ...] = ("ok", "noisy")
FAILED: frozenset[Status] = frozenset({"incorrect", "error", "crashed", "timeout"})
"""An implementation's own faults. What a machine cannot do (`unavailable`, `unsupported`, `oom`) is a finding."""


class Peaks(BaseModel):
    """What the machine could do in one round, probed inside the round like an implementation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read_bytes_per_s: float
    matrix_flops_per_s: float
    """The higher of the two below, for the dtype of the point."""
    matrix_torch_flops_per_s: float
    matrix_native_flops_per_s: float | None = None
    sum_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None
    """Of a GPU, reading alone, and copying, bytes read and written together; the higher one is `read_bytes_per_s`."""


class Noise(BaseModel):
    """What else the machine did while the case was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steal_fraction: float = 0.0
    """Share of CPU time that the hypervisor took."""
    foreign_cpus: float = 0.0
    """CPUs kept busy by other processes, on average."""
    load_average: float = 0.0


class Yardsticks(BaseModel):
    """How long fixed pieces of work took beside one round of one case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arithmetic_us: float
    """Matrix products inside a core's own cache, on every thread."""
    memory_us: float | None = None
    """One sweep of the caches; None where caches were left warm."""


class GpuState(BaseModel):
    """What the GPU did during one round of one case; None where the driver does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sm_mhz: int | None = None
    """Clock of the multiprocessors, read after every sample that was kept: the median."""
    sm_mhz_lowest: int | None = None
    slow_samples: int = 0
    """Samples that were kept although the clock was below 75% of its usual, because taking them again did not help."""
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled_by: tuple[str, ...] = ()
    """Every reason that the driver gave for a lower clock after some sample."""
    other_processes: int | None = None
    """Processes on the device besides ours, at the end of the round."""
    other_bytes: int | None = None
    """Memory of the device that they hold."""


class Sampling(BaseModel):
    """How samples were taken on a GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    copies: int
    """Sessions that took turns, so that each found the L2 cache full of the others."""
    calls: int
    """Calls that a sample is the mean of."""
    swept: bool
    """Whether a buffer was read before each call instead, because so many copies did not fit."""
    l2_bytes: int


class CaseName(BaseModel):
    """What a case is called."""

    key: str
    experiment: str
    implementation: str
    label: str


class CaseFacts(AxisFields, CaseName):
    """One line of `cases.jsonl`. Per-round lists have one entry per round, per-step lists one per timed step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Protocol
    cache: Cache
    mode: Mode
    status: Status
    reason: str = ""
    samples_us: tuple[tuple[float, ...], ...] = ()
    """[round][timed step] microseconds of `decode`, or of a module's call."""
    steps: tuple[int, ...] = ()
    """Timed steps s, 1..n_c."""
    append_samples_us: tuple[tuple[float, ...], ...] = ()
    """[round][step], every step."""
    plan_samples_us: tuple[tuple[float, ...], ...] = ()
    groups: tuple[int, ...] = ()
    """[round] memory group in which the round ran; ratios are formed only inside a group."""
    longest_n_c: int | None = None
    """n_c of the pass that the steps are from, where points that differ in n_c alone shared a longer one."""
    discarded: int = 0
    """Samples thrown away, and taken again, because the clock was throttled."""
    peaks: tuple[Peaks, ...] = ()
    yardsticks: tuple[Yardsticks, ...] = ()
    """[round]; none on a GPU, and none in runs of schema version 1."""
    gpu: tuple[GpuState, ...] = ()
    """[round]; none on a CPU, and none without nvidia-ml-py."""
    sampling: Sampling | None = None
    """None on a CPU, where a sample is one call."""
    noise: Noise | None = None
    kv_bytes: int | None = None
    unique_bytes: tuple[int, ...] = ()
    """[timed step] K and V of the distinct token prefixes, plus q and out; all that a module moves."""
    read_bytes: tuple[int, ...] = ()
    """[timed step] bytes that the implementation itself must read and write."""
    flops: tuple[int, ...] = ()
    """[timed step]"""
    work_items: int | None = None
    max_error: float | None = None
    tolerance: float | None = None
    threads: int | None = None
    isa: str | None = None
    package_version: str | None = None
    note: str = ""
    seed: int = 0
    started_at: str = ""
    machine: str = ""
    """Id of the machine that measured it; empty in runs of schema versions before 5, which know one machine."""
