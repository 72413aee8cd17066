"""The state of each implementation while a point is measured, and the facts that are made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from chunkbench.bench.analysis.noise import complaint
from chunkbench.bench.analysis.statistics import relative_half_width, round_means
from chunkbench.bench.experiment.point import Case, SessionPoint
from chunkbench.bench.runner.survey import Traits
from chunkbench.bench.store.results import Calibration, GpuSampling, GpuState, Noise, Peaks, SessionResult, Status

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import SessionWorkload


PointT = TypeVar("PointT", bound=SessionPoint)
ResultT = TypeVar("ResultT", bound=SessionResult)


def now() -> str:
    """The current time (UTC) as ISO text."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Failable:
    """An object that can fail and keeps its first failure."""

    status: Status | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.status is not None

    def fail(self, status: Status, reason: str) -> None:
        """Record a failure. Only the first one is kept, because later failures are its consequences."""
        if self.status is None:
            self.status, self.reason = status, reason


@dataclass
class CaseRounds(Failable):
    """The rounds of one case. A case can fail alone, for example if no graph can capture its decode."""

    samples_us: list[list[float]] = field(default_factory=list)
    append_us: list[list[float]] = field(default_factory=list)
    plan_us: list[list[float]] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    peaks: list[Peaks] = field(default_factory=list)
    calibration: list[Calibration] = field(default_factory=list)
    gpu: list[GpuState] = field(default_factory=list)
    sampling: GpuSampling | None = None
    discarded: int = 0
    max_error: float | None = None
    """Largest relative error of the graph's replay; None if it was not checked."""
    capture_s: float = 0.0
    """Seconds to capture one call in a graph."""

    def add(self, reply: Mapping[str, Any], group: int) -> None:
        self.samples_us.append(reply["samples_us"])
        self.append_us.append(reply["append_us"])
        self.plan_us.append(reply["plan_us"])
        self.groups.append(group)
        if reply.get("calibration"):
            self.calibration.append(Calibration.model_validate(reply["calibration"]))
        if reply.get("gpu"):
            self.gpu.append(GpuState.model_validate(reply["gpu"]))
        if reply.get("sampling"):
            self.sampling = GpuSampling.model_validate(reply["sampling"])
        self.discarded += reply.get("discarded", 0)

    def of(self, steps: Sequence[int], chosen: Sequence[int]) -> CaseRounds:
        """The rounds of a shorter point of the same pass.

        `steps`: the timed steps of the pass. `chosen`: the timed steps of the shorter point.
        """
        if tuple(steps) == tuple(chosen):
            return self
        places, n_c = [steps.index(step) for step in chosen], chosen[-1]
        return replace(
            self,
            samples_us=[[samples[place] for place in places] for samples in self.samples_us],
            append_us=[samples[:n_c] for samples in self.append_us],
            plan_us=[samples[:n_c] for samples in self.plan_us],
        )

    def means(self, group: int) -> list[float]:
        """Mean microseconds of each round in one memory group."""
        return round_means([s for s, g in zip(self.samples_us, self.groups, strict=True) if g == group])


@dataclass
class ImplementationState(Failable):
    """The state of one implementation at one point. If the implementation fails, all its cases fail."""

    max_error: float | None = None
    deviation: float | None = None
    kv_bytes: int | None = None
    visible_bytes: int = 0
    """Bytes of the tensors that the worker finds in the session."""
    huge_share: float | None = None
    work_items: int | None = None
    decode_s: float = 0.0
    append_s: float = 0.0


@dataclass(frozen=True)
class Context(Generic[PointT, ResultT]):
    """Values that the cases of one point have in common."""

    experiment: str
    machine: str
    work: SessionWorkload[Any, PointT, ResultT, Any]
    point: PointT
    seed: int
    steps: tuple[int, ...]
    threads: int | None
    tolerance: float
    confidence: float
    noise: Noise
    started_at: str
    longest_n_c: int | None = None
    """Largest n_c of the points of the pass; None if the point of these cases has this n_c."""


def facts(
    context: Context[PointT, ResultT], case: Case, traits: Traits, state: ImplementationState, rounds: CaseRounds
) -> ResultT:
    """Make the line of `cases.jsonl` for one case."""
    status, reason = (state.status, state.reason) if state.failed else (rounds.status, rounds.reason)
    if status is None and rounds.samples_us:
        width = relative_half_width(round_means(rounds.samples_us), context.confidence)
        # Other processes on the host do not change times that the device measured.
        noise = context.noise if case.mode == "eager" else Noise()
        reason = complaint(noise, width if len(rounds.samples_us) > 1 else 0.0, rounds.gpu)
        status = "noisy" if reason else "ok"
    timing = _timing(context, case, traits, rounds) if context.work.timed else {}
    return context.work.result.of_case(
        case,
        experiment=context.experiment,
        label=traits.label,
        status=status or "ok",
        reason=reason,
        noise=context.noise,
        # The held bytes are measured only at the end of the pass, so only the longest n_c has them.
        kv_bytes=state.kv_bytes if context.longest_n_c is None else None,
        huge_share=state.huge_share,
        work_items=state.work_items if context.longest_n_c is None else None,
        max_error=state.max_error if rounds.max_error is None else rounds.max_error,
        tolerance=context.tolerance,
        deviation=state.deviation,
        threads=context.threads,
        isa=traits.isa,
        package_version=traits.package_version,
        note=traits.note,
        seed=context.seed,
        started_at=context.started_at,
        machine=context.machine,
        **timing,
    )


def _timing(context: Context[Any, Any], case: Case, traits: Traits, rounds: CaseRounds) -> dict[str, Any]:
    """The fields that only results of timed kinds have."""
    steps = context.steps if rounds.samples_us else ()
    amounts = context.work.amounts(context.point, context.seed, case.implementation, traits.reads_shared_once, steps)
    return {
        "samples_us": tuple(map(tuple, rounds.samples_us)),
        "steps": steps,
        "append_samples_us": tuple(map(tuple, rounds.append_us)),
        "plan_samples_us": tuple(map(tuple, rounds.plan_us)),
        "groups": tuple(rounds.groups),
        "peaks": tuple(rounds.peaks),
        "calibration": tuple(rounds.calibration),
        "discarded": rounds.discarded,
        "gpu": tuple(rounds.gpu),
        "sampling": rounds.sampling,
        "longest_n_c": context.longest_n_c,
        **amounts._asdict(),
    }
