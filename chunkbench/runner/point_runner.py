"""Measures points one after the other, replacing the worker when an implementation takes it down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from chunkbench.environment import NoiseMeter, available_memory
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner import memory
from chunkbench.runner.attempt import Attempt
from chunkbench.runner.bench import Culprit
from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.ledger import Context, Traits, facts, now
from chunkbench.store.facts import CaseFacts, Noise

_RESERVE_LIMIT_S = 300.0


class PointRunner:
    """Holds the worker between points. `close` ends it."""

    def __init__(
        self,
        experiment: Experiment,
        points: Sequence[Point],
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        start_worker: Callable[[], WorkerClient],
        brief: bool,
    ) -> None:
        self._experiment, self._points, self._survey = experiment, points, survey
        self._reserved: WorkerClient | None = None
        self._worker, self._start_worker, self._probing = worker, start_worker, experiment.timed and not brief

    def measure(
        self,
        points: Sequence[Point],
        cases_of: Mapping[Point, Sequence[Case]],
        budget_s: float,
        announce: Callable[[str], None],
        advance: Callable[[float], None],
    ) -> dict[Point, list[CaseFacts]]:
        """All cases of `points`, which differ in n_c alone, shortest first: one pass over the longest one's steps.

        After a crash or a timeout they are measured again without the culprit.
        """
        started_at = now()
        point = points[-1]
        cases = cases_of[point]
        lengths = [one.n_c for one in points]
        culprits: list[Culprit] = []
        lost = False
        while True:
            self._reserve(announce)
            attempt = Attempt(
                self._experiment,
                self._survey,
                self._worker,
                point,
                cases,
                lengths,
                announce,
                advance,
                self._probing,
            )
            for known in culprits:
                assert known.implementation is not None
                attempt.fail(known.implementation, known.status, known.reason, known.mode)
            meter = NoiseMeter([self._worker.pid])
            meter.start()
            try:
                attempt.run(monotonic() + budget_s)
            except Culprit as culprit:
                self._worker.kill()
                self._worker = self._start_worker()
                if culprit.implementation is not None:
                    culprits.append(culprit)
                    continue
                if culprit.status == "crashed" and not lost:
                    lost = True  # nobody in particular, perhaps something outside: no reason yet to give the point up
                    continue
                for entry in attempt.entries.values():
                    entry.fail(culprit.status, culprit.reason)
            noise = Noise.model_validate(meter.stop())
            break
        return {one: self._facts(one, cases_of[one], cases, attempt, noise, started_at) for one in points}

    def _facts(
        self,
        point: Point,
        cases: Sequence[Case],
        measured: Sequence[Case],
        attempt: Attempt,
        noise: Noise,
        started_at: str,
    ) -> list[CaseFacts]:
        """Facts of a point; `measured` are the cases of the longest one, in the same order."""
        context = Context(
            experiment=self._experiment.name,
            point=point,
            seed=self._experiment.seed,
            steps=attempt.steps_of[point.n_c],
            threads=attempt.threads,
            tolerance=self._experiment.tolerance[point.dtype],
            confidence=self._experiment.confidence,
            noise=noise,
            started_at=started_at,
            longest_n_c=attempt.point.n_c if attempt.point.n_c > point.n_c else None,
        )
        return [
            facts(
                context,
                case,
                self._survey[case.implementation],
                attempt.entries[case.implementation],
                attempt.timings[timed.key].of(attempt.steps, context.steps),
            )
            for case, timed in zip(cases, measured, strict=True)
        ]

    def _reserve(self, announce: Callable[[str], None]) -> None:
        """Have a new worker take the memory that the largest group of any point needs."""
        if not self._probing or self._worker is self._reserved or self._points[0].device != "cpu":
            return
        self._reserved = self._worker
        free = memory.room_of(available_memory() + self._worker.resident_bytes)
        probe = memory.probe_bytes(free)
        shares = {name: traits.shares_storage for name, traits in self._survey.items() if traits.ok}
        largest = 0
        for point in self._points:
            needs = memory.needs(point, self._experiment.seed, shares)
            groups = memory.group(needs, list(needs), self._experiment.baseline, free - probe).groups
            largest = max(largest, *(sum(needs[name] for name in names) for names in groups), 0)
        announce(f"reserving {memory.gigabytes(largest + probe)} of memory")
        # Only time is lost without it; if the worker is, the next request says so.
        with contextlib.suppress(WorkerError, WorkerCrashed, WorkerTimeout):
            self._worker.ask("reserve", _RESERVE_LIMIT_S, size=largest + probe)

    def close(self) -> None:
        """End the worker."""
        self._worker.kill()
