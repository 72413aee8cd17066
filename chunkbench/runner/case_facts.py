"""What is known of each implementation while a point is being measured, and the facts made of it in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from chunkbench.analysis.noise import complaint
from chunkbench.analysis.statistics import relative_half_width, round_means
from chunkbench.experiment.point import AxisFields, Case, Point
from chunkbench.runner.session_work import SessionWork
from chunkbench.runner.survey import Traits
from chunkbench.store.facts import CaseFacts, GpuState, Noise, Peaks, Sampling, Status, Yardsticks


def now() -> str:
    """The time as facts and manifests state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Failable:
    """What can fail, once."""

    status: Status | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether there is nothing more to measure."""
        return self.status is not None

    def fail(self, status: Status, reason: str) -> None:
        """Record the first failure; later ones are consequences."""
        if self.status is None:
            self.status, self.reason = status, reason


@dataclass
class CaseRounds(Failable):
    """Rounds of one case, which can fail by itself: a decode that no graph captures may still be called."""

    samples_us: list[list[float]] = field(default_factory=list)
    append_us: list[list[float]] = field(default_factory=list)
    plan_us: list[list[float]] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    peaks: list[Peaks] = field(default_factory=list)
    yardsticks: list[Yardsticks] = field(default_factory=list)
    gpu: list[GpuState] = field(default_factory=list)
    sampling: Sampling | None = None
    discarded: int = 0
    max_error: float | None = None
    """Of a graph's replays, where those were checked."""
    capture_s: float = 0.0
    """What capturing one call takes."""

    def add(self, reply: Mapping[str, Any], group: int) -> None:
        """Take in one round as the worker reports it."""
        self.samples_us.append(reply["samples_us"])
        self.append_us.append(reply["append_us"])
        self.plan_us.append(reply["plan_us"])
        self.groups.append(group)
        if reply.get("yardsticks"):
            self.yardsticks.append(Yardsticks.model_validate(reply["yardsticks"]))
        if reply.get("gpu"):
            self.gpu.append(GpuState.model_validate(reply["gpu"]))
        if reply.get("sampling"):
            self.sampling = Sampling.model_validate(reply["sampling"])
        self.discarded += reply.get("discarded", 0)

    def of(self, steps: Sequence[int], chosen: Sequence[int]) -> CaseRounds:
        """The part of a pass, whose timed `steps` these are, that a shorter n_c would have had: the `chosen` steps."""
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
        """Round means of one memory group."""
        return round_means([s for s, g in zip(self.samples_us, self.groups, strict=True) if g == group])


@dataclass
class ImplementationState(Failable):
    """One implementation at one point: its failure is that of all its cases."""

    max_error: float | None = None
    kv_bytes: int | None = None
    visible_bytes: int = 0
    """Bytes of the tensors that the session can be seen to hold."""
    work_items: int | None = None
    decode_s: float = 0.0
    append_s: float = 0.0


@dataclass(frozen=True)
class Context:
    """What the cases of a point have in common."""

    experiment: str
    machine: str
    work: SessionWork
    point: Point
    seed: int
    steps: tuple[int, ...]
    threads: int | None
    tolerance: float
    confidence: float
    noise: Noise
    started_at: str
    longest_n_c: int | None = None
    """Of the pass that the steps are from, where that is longer than the point's."""


def facts(context: Context, case: Case, traits: Traits, entry: ImplementationState, timing: CaseRounds) -> CaseFacts:
    """The line of `cases.jsonl` for one case."""
    point = context.point
    status, reason = (entry.status, entry.reason) if entry.failed else (timing.status, timing.reason)
    if status is None and not timing.samples_us:
        status = "ok"  # nothing was to be timed
    if status is None:
        width = relative_half_width(round_means(timing.samples_us), context.confidence)
        # What other processes did to the host is no part of a time that the device took.
        noise = context.noise if case.mode == "eager" else Noise()
        reason = complaint(noise, width if len(timing.samples_us) > 1 else 0.0, timing.gpu)
        status = "noisy" if reason else "ok"
    steps = context.steps if timing.samples_us else ()
    amounts = context.work.amounts(point, context.seed, case.implementation, traits.reads_shared_once, steps)
    return CaseFacts(
        key=case.key,
        experiment=context.experiment,
        implementation=case.implementation,
        label=traits.label,
        **{name: getattr(point, name) for name in AxisFields.model_fields},
        protocol=case.protocol,
        cache=case.cache,
        mode=case.mode,
        status=status,
        reason=reason,
        samples_us=tuple(map(tuple, timing.samples_us)),
        steps=steps,
        append_samples_us=tuple(map(tuple, timing.append_us)),
        plan_samples_us=tuple(map(tuple, timing.plan_us)),
        groups=tuple(timing.groups),
        peaks=tuple(timing.peaks),
        yardsticks=tuple(timing.yardsticks),
        discarded=timing.discarded,
        gpu=tuple(timing.gpu),
        sampling=timing.sampling,
        noise=context.noise,
        # What was held is known at the end of the pass alone.
        kv_bytes=entry.kv_bytes if context.longest_n_c is None else None,
        longest_n_c=context.longest_n_c,
        **amounts._asdict(),
        work_items=entry.work_items if context.longest_n_c is None else None,
        max_error=entry.max_error if timing.max_error is None else timing.max_error,
        tolerance=context.tolerance,
        threads=context.threads,
        isa=traits.isa,
        package_version=traits.package_version,
        note=traits.note,
        seed=context.seed,
        started_at=context.started_at,
        machine=context.machine,
    )
