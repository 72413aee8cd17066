"""Measures points whose implementations are sessions in a worker. A lost worker is replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from chunkbench.bench.environment import NoiseMeter, available_memory
from chunkbench.bench.experiment import SessionExperiment, TimedExperiment
from chunkbench.bench.experiment.point import Case, SessionPoint
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.attempt import Attempt, TimedAttempt
from chunkbench.bench.runner.case_facts import Context, facts, now
from chunkbench.bench.runner.client import LOST, WorkerClient
from chunkbench.bench.runner.passes import Budget, RunOptions
from chunkbench.bench.runner.point_driver import WorkerLost
from chunkbench.bench.runner.survey import survey
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store.results import Noise, SessionResult
from chunkbench.run_error import RunError

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import SessionWorkload


PointT = TypeVar("PointT", bound=SessionPoint)
ResultT = TypeVar("ResultT", bound=SessionResult)
_RESERVE_LIMIT_S = 300.0


class SessionMeasurer(Generic[PointT, ResultT]):
    """Measures the points of a run. The worker stays alive between points, and `close` ends it."""

    def __init__(
        self,
        work: SessionWorkload[Any, PointT, ResultT, Any],
        experiment: SessionExperiment[PointT],
        target: Target,
        points: Sequence[PointT],
        log: Path,
        options: RunOptions,
    ) -> None:
        """Start a worker and survey the implementations. Raises `RunError` if no worker starts."""
        self._experiment, self._work, self._machine = experiment, work, target.machine
        self._points, self._log, self._options = points, log, options
        self._probing = work.timed
        self._reserved: WorkerClient | None = None
        self._worker, self._traits = survey(experiment.implementations, target.device, self._start_worker)

    def _start_worker(self) -> WorkerClient:
        try:
            return self._options.start_worker(self._log, self._experiment.kind, self._experiment.pages)
        except LOST as error:
            message = f"{self._log.parent}: a worker process does not start: {error}"
            raise RunError(message, remedy="resume") from None

    @property
    def styles(self) -> dict[str, Mapping[str, Any]]:
        """Implementation id -> style in reports. Implementations with the default style are left out."""
        return {name: traits.style for name, traits in self._traits.items() if traits.style}

    def measure(
        self,
        points: Sequence[PointT],
        cases_of: Mapping[PointT, Sequence[Case[PointT]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> dict[PointT, list[ResultT]]:
        """Measure all cases of a pass. Returns point -> results.

        Only the last and longest point is measured. Shorter points get their results from steps of the longest point.
        After a crash or a timeout, the pass is measured again without the implementation that caused the failure.
        """
        started_at = now()
        point = points[-1]
        cases = cases_of[point]
        losses: list[WorkerLost] = []
        retried = False
        while True:
            self._reserve(announce)
            attempt = self._attempt(points, cases, budget, announce)
            for earlier in losses:
                assert earlier.implementation is not None
                attempt.fail(earlier.implementation, earlier.status, earlier.reason, earlier.mode)
            meter = NoiseMeter([self._worker.pid])
            meter.start()
            try:
                attempt.run()
            except WorkerLost as lost:
                self._worker.kill()
                self._worker = self._start_worker()
                if lost.implementation is not None:
                    losses.append(lost)
                    continue
                if lost.status in ("crashed", "oom") and not retried:
                    retried = True  # nobody is to blame, the cause may be outside: try the point again
                    continue
                for state in attempt.states.values():
                    state.fail(lost.status, lost.reason)
            noise = Noise.model_validate(meter.stop())
            break
        return {member: self._facts(member, cases_of[member], cases, attempt, noise, started_at) for member in points}

    def _attempt(
        self,
        points: Sequence[PointT],
        cases: Sequence[Case[PointT]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Attempt[Any]:
        experiment = self._experiment
        more = (self._work, self._traits, self._worker, points, cases, budget, announce, self._probing)
        if isinstance(experiment, TimedExperiment):
            return TimedAttempt(experiment, *more)
        return Attempt(experiment, *more)

    def _facts(
        self,
        point: PointT,
        cases: Sequence[Case[PointT]],
        measured: Sequence[Case[PointT]],
        attempt: Attempt[Any],
        noise: Noise,
        started_at: str,
    ) -> list[ResultT]:
        """Facts of a point. `measured` are the cases of the longest point of the pass, in the same order."""
        context = Context(
            experiment=self._experiment.name,
            machine=self._machine,
            work=self._work,
            point=point,
            seed=self._experiment.seed,
            steps=attempt.steps_of[point.n_c],
            threads=attempt.threads,
            tolerance=self._experiment.tolerance[point.dtype],
            # Only rounds have an interval.
            confidence=self._experiment.confidence if isinstance(self._experiment, TimedExperiment) else 0.0,
            noise=noise,
            started_at=started_at,
            longest_n_c=attempt.point.n_c if attempt.point.n_c > point.n_c else None,
        )
        return [
            facts(
                context,
                case,
                self._traits[case.implementation],
                attempt.states[case.implementation],
                attempt.rounds_of[timed.key].of(attempt.steps, context.steps),
            )
            for case, timed in zip(cases, measured, strict=True)
        ]

    def _reserve(self, announce: Callable[[str], None]) -> None:
        """Let a new worker allocate the memory that the largest memory group of any point needs."""
        if not self._probing or self._worker is self._reserved or self._points[0].device != "cpu":
            return
        self._reserved = self._worker
        free = memory_guard.room_of(available_memory() + self._worker.resident_bytes)
        probe = memory_guard.probe_bytes(free)
        shares_storage = {name: traits.shares_storage for name, traits in self._traits.items() if traits.ok}
        largest = 0
        for point in self._points:
            needs = {
                name: self._work.needs(point, self._experiment.seed, name, shared)
                for name, shared in shares_storage.items()
            }
            groups = memory_guard.group(needs, list(needs), self._experiment.baseline, free - probe).groups
            largest = max(largest, *(sum(needs[name] for name in names) for names in groups), 0)
        announce(f"reserving {memory_guard.gigabytes(largest + probe)} of memory")
        # A failed reservation costs only time. If the worker is lost, the next request reports it.
        with contextlib.suppress(*LOST):
            self._worker.ask("reserve", _RESERVE_LIMIT_S, size=largest + probe)

    def close(self) -> None:
        self._worker.kill()
