"""What a run directory records of one case: facts only. Everything derived is computed by `chunkbench.analysis`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from chunkbench.experiment.llama import LlamaShape
from chunkbench.experiment.point import Cache, Device, Dtype, Mode, Protocol, TreeNode

Status = Literal["ok", "noisy", "incorrect", "error", "timeout", "crashed", "oom", "unsupported", "unavailable"]
MEASURED: tuple[Status, ...] = ("ok", "noisy")


class Peaks(BaseModel):
    """What the machine could do in one round, probed inside the round like an implementation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read_bytes_per_s: float
    matrix_flops_per_s: float
    """The higher of the two below, for the dtype of the point."""
    matrix_torch_flops_per_s: float
    matrix_native_flops_per_s: float | None = None


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


class CaseFacts(BaseModel):
    """One line of `cases.jsonl`. Per-round lists have one entry per round, per-step lists one per timed step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    experiment: str
    implementation: str
    label: str
    n_p: int | tuple[int, int]
    n_s: int | None
    n_c: int
    batch_size: int
    heads: int
    kv_heads: int
    head_dim: int
    chunk_size: int
    block_size: int
    prompts: int
    tree: tuple[TreeNode, ...] | None
    model: LlamaShape | None = None
    """Whose decoder layer, where modules are measured."""
    dtype: Dtype
    device: Device
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
    """Samples thrown away because the clock was throttled."""
    peaks: tuple[Peaks, ...] = ()
    yardsticks: tuple[Yardsticks, ...] = ()
    """[round]; none on a GPU, and none in runs of schema version 1."""
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
