"""Results: the facts that a run directory records for one case. `bench/analysis` computes all other figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, AllowInfNan, BaseModel, ConfigDict, Field, NonNegativeFloat, model_validator

from chunkbench.bench.experiment.axes import AXES
from chunkbench.bench.experiment.point import AttentionPoint, Case
from chunkbench.bench.experiment.terms import Cache, Count, Device, Dtype, Mode, Protocol, Size

Status = Literal["ok", "noisy", "incorrect", "error", "timeout", "crashed", "oom", "unsupported", "unavailable"]
MEASURED: tuple[Status, ...] = ("ok", "noisy")
FAILED: frozenset[Status] = frozenset({"incorrect", "error", "crashed", "timeout"})
"""Statuses of a faulty implementation. Statuses that the machine causes (`unavailable`, `unsupported`, `oom`) are no
failures."""


Positive = Annotated[float, Field(gt=0)]
Samples = tuple[Annotated[tuple[Positive, ...], Field(min_length=1)], ...]


class Facts(BaseModel):
    """Base of recorded values: all numbers are finite, no value changes, and no undeclared field is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Peaks(Facts):
    """Peak rates of the machine, probed inside one round."""

    read_bytes_per_s: Positive
    matrix_flops_per_s: Positive
    """The higher of `matrix_torch_flops_per_s` and `matrix_native_flops_per_s`, for the dtype of the point."""
    matrix_torch_flops_per_s: Positive
    matrix_native_flops_per_s: Positive | None = None
    kernel_read_bytes_per_s: Positive | None = None
    """CPU only: the rate of reads in the order of the native kernels, without arithmetic. None in schema versions
    before 6."""
    sum_bytes_per_s: Positive | None = None
    copy_bytes_per_s: Positive | None = None
    """GPU only: the rate of copying, where bytes read and bytes written both count. `sum_bytes_per_s` is the rate of
    reading alone."""


class Noise(Facts):
    """Other activity of the machine while the case was measured."""

    steal_fraction: float = 0.0
    """Share of CPU time that the hypervisor took."""
    foreign_cpus: float = 0.0
    """Mean number of CPUs that other processes kept busy."""
    load_average: float = 0.0


class Calibration(Facts):
    """Times of the calibration kernels: fixed pieces of work, measured with one round of one case."""

    arithmetic_us: Positive
    """Microseconds of one batch of small matrix products, one for each thread. The matrices fit in a core's own
    cache."""
    memory_us: Positive | None = None
    """Microseconds of one sweep of the caches; None for warm caches."""


class GpuState(Facts):
    """State of the GPU during one round of one case. A value is None if the driver does not report it."""

    sm_mhz: Count | None = None
    """Median clock of the multiprocessors in MHz, read after every kept sample."""
    sm_mhz_lowest: Count | None = None
    slow_samples: Count = 0
    """Number of samples that were kept although the GPU's clock was below 75% of its usual rate. Such a sample is
    repeated first, and kept if the clock is still low in the third repeat."""
    memory_mhz: Count | None = None
    power_w: float | None = None
    temperature_c: Count | None = None
    throttled_by: tuple[str, ...] = ()
    """All reasons that the driver gave for a lower clock, after any sample."""
    other_processes: Count | None = None
    """Number of processes on the device other than ours, at the end of the round."""
    other_bytes: Count | None = None
    """Bytes of device memory that other processes hold."""


class GpuSampling(Facts):
    copies: Count
    """Number of sessions that took turns. Each session found the L2 cache filled by the others."""
    calls: Count
    """Number of calls in a sample. The sample is the mean of their times."""
    swept: bool
    """Whether a buffer was read before each call to clear the cache, because the copies did not fit or were too
    many."""
    l2_bytes: Count


_OLDER_FIELDS = frozenset(
    (
        *AXES,
        *("protocol", "cache", "mode", "samples_us", "steps", "append_samples_us", "plan_samples_us", "groups"),
        *("longest_n_c", "discarded", "peaks", "yardsticks", "gpu", "sampling", "noise", "kv_bytes", "unique_bytes"),
        *("read_bytes", "flops", "huge_share", "work_items", "max_error", "tolerance", "isa"),
    )
)
"""Fields that the lines of all kinds of work had before schema version 8: all axes, and the fields of timed results."""


class Result(Facts):
    """One line of `cases.jsonl`: the axes and names of a case, its status, and where it was measured.

    The result class of a kind of work also inherits from the kind's point class, whose fields are the axes. `threads`
    is the number of threads that were used.
    """

    VERB: ClassVar[str] = "measured"
    """The verb of reports for a case of this kind: measured, replayed, ..."""
    REPEATED: ClassVar[str] = "round"
    """What reports call one entry of `rounds`: round, arrival seed, ..."""
    TIMED: ClassVar[str] = "latency"
    """What reports call the time of a round: latency, normalized latency, ..."""

    key: str
    experiment: str
    implementation: str
    label: str
    device: Device
    dtype: Dtype
    batch_size: Size
    threads: Size | None = None
    status: Status
    reason: str = ""
    package_version: str | None = None
    note: str = ""
    seed: Count = 0
    started_at: str = ""
    machine: str = ""
    """Id of the machine that measured the case; empty in schema versions before 5, whose runs have one machine."""

    @classmethod
    def of_case(cls, case: Case[Any], **values: Any) -> Self:
        """Make the result of a case from its axes, its names and these values."""
        return cls(**dict(case.point) | {"key": case.key, "implementation": case.implementation} | values)

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the values of a line of a schema version before 8 to this version. `rounds` stay the same."""
        return {name: value for name, value in values.items() if name in cls.model_fields or name not in _OLDER_FIELDS}

    @property
    def rounds(self) -> Samples:
        """Microseconds of each sample, `[round][sample]`; empty if nothing was timed.

        Latency, intervals and ratios are computed from these samples.
        """
        return ()

    @property
    def round_groups(self) -> tuple[int, ...]:
        """Number of the group in which each round ran. Only rounds of the same group may be compared."""
        return ()

    @property
    def round_steps(self) -> tuple[int, ...]:
        """The step of each sample of a round."""
        return (1,) if self.rounds else ()

    def axis(self, name: str) -> Any:
        """The value of an axis, or of device, weights, protocol, cache or mode; None if this kind of work does not have
        it."""
        return getattr(self, name) if name in type(self).model_fields else None


class SessionResult(Result):
    """The result of a session in a worker: its memory and its error against the reference."""

    noise: Noise | None = None
    kv_bytes: Count | None = None
    huge_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of huge pages in the memory of the implementation's tensors. None on a GPU, without visible tensors, in
    schema versions before 6, or if the system does not report it."""
    work_items: Count | None = None
    max_error: Annotated[float, AllowInfNan(True)] | None = None
    tolerance: float | None = None
    deviation: NonNegativeFloat | None = None
    """Norm of (last checked output - attention over all tokens), divided by the norm of attention over all tokens. None
    if the implementation attends to all tokens."""
    isa: str | None = None


class TimedResult(SessionResult):
    """A session whose calls were timed. Per-round lists have one entry per round, per-step lists one per timed step."""

    protocol: Protocol
    cache: Cache
    mode: Mode
    samples_us: Samples = ()
    """Microseconds of `decode`, or of a module's call: `[round][timed step]`."""
    steps: tuple[Annotated[Count, Field(ge=1)], ...] = ()
    """The timed steps, numbers between 1 and n_c."""
    append_samples_us: tuple[tuple[NonNegativeFloat, ...], ...] = ()
    """Microseconds of `append` for every step: `[round][step]`."""
    plan_samples_us: tuple[tuple[NonNegativeFloat, ...], ...] = ()
    groups: tuple[Count, ...] = ()
    """For each round, the number of its memory group: implementations that fit in memory together. Ratios use rounds of
    the same group."""
    longest_n_c: Count | None = None
    """n_c of the longest point of the pass, from whose steps this result was taken. None if this point is the
    longest."""
    discarded: Count = 0
    """Number of samples that were discarded and repeated, because the clock was throttled or the process was
    suspended."""
    peaks: tuple[Peaks, ...] = ()
    calibration: tuple[Calibration, ...] = Field(default=(), validation_alias=AliasChoices("calibration", "yardsticks"))
    """One entry per round; empty on a GPU and in runs of schema version 1. Older runs call this field `yardsticks`."""
    gpu: tuple[GpuState, ...] = ()
    """One entry per round; empty on a CPU, and without nvidia-ml-py."""
    sampling: GpuSampling | None = None
    """None on a CPU, where a sample is one call."""
    unique_bytes: tuple[Count, ...] = ()
    """For each timed step, the bytes that every implementation must move: K, V, q and out, where a shared token counts
    once. For a module: all bytes that the module moves."""
    read_bytes: tuple[Count, ...] = ()
    """For each timed step, the bytes that the implementation itself must read and write."""
    flops: tuple[Count, ...] = ()
    """For each timed step, the FLOPs of the call."""

    @classmethod
    def of_case(cls, case: Case[Any], **values: Any) -> Self:
        return super().of_case(case, protocol=case.protocol, cache=case.cache, mode=case.mode, **values)

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_older({"calibration": values.get("yardsticks", ())} | dict(values))

    @property
    def rounds(self) -> Samples:
        return self.samples_us

    @property
    def round_groups(self) -> tuple[int, ...]:
        return self.groups

    @property
    def round_steps(self) -> tuple[int, ...]:
        return self.steps

    @model_validator(mode="after")
    def _lists_fit(self) -> Self:
        """Raise ValueError where a list does not have one entry per round, or one per timed step."""
        rounds, steps = len(self.samples_us), len(self.steps)
        if any(len(samples) != steps for samples in self.samples_us):
            raise ValueError(f"a round of samples_us does not have one sample for each of the {steps} steps")
        if len(self.groups) != rounds:
            raise ValueError(f"groups has {len(self.groups)} entries for {rounds} rounds")
        for name in ("append_samples_us", "plan_samples_us", "peaks", "calibration"):
            if len(getattr(self, name)) not in (0, rounds):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {rounds} rounds")
        for name in ("unique_bytes", "read_bytes", "flops"):
            if len(getattr(self, name)) not in (0, steps):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {steps} steps")
        return self


class DecodeResult(AttentionPoint, TimedResult):
    pass
