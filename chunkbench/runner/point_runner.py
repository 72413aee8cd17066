"""Measures points one after the other, replacing the worker when an implementation takes it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic

from chunkbench.environment import NoiseMeter
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner.attempt import Attempt, Culprit
from chunkbench.runner.client import WorkerClient
from chunkbench.runner.ledger import Context, Traits, facts
from chunkbench.store.facts import CaseFacts, Noise, Status


class PointRunner:
    """Holds the worker between points. `close` ends it."""

    def __init__(
        self,
        experiment: Experiment,
        survey: Mapping[str, Traits],
        worker: WorkerClient,
        start_worker: Callable[[], WorkerClient],
        largest: int,
    ) -> None:
        """`largest` are the bytes of K and V that the largest point would take all at once."""
        self._experiment, self._survey, self._largest = experiment, survey, largest
        self._worker, self._start_worker = worker, start_worker

    def measure(
        self,
        point: Point,
        cases: Sequence[Case],
        budget_s: float,
        announce: Callable[[str], None],
        advance: Callable[[float], None],
    ) -> list[CaseFacts]:
        """All cases of a point; after a crash or a timeout it is measured again without the culprit."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        culprits: dict[str, tuple[Status, str]] = {}
        lost = False
        while True:
            attempt = Attempt(
                self._experiment, self._survey, self._worker, point, cases, self._largest, announce, advance
            )
            for name, (status, reason) in culprits.items():
                attempt.entries[name].fail(status, reason)
            meter = NoiseMeter([self._worker.pid])
            meter.start()
            try:
                attempt.run(monotonic() + budget_s)
            except Culprit as culprit:
                self._worker.kill()
                self._worker = self._start_worker()
                if culprit.implementation is not None:
                    culprits[culprit.implementation] = (culprit.status, culprit.reason)
                    continue
                if culprit.status == "crashed" and not lost:
                    lost = True  # nobody in particular, perhaps something outside: no reason yet to give the point up
                    continue
                for entry in attempt.entries.values():
                    entry.fail(culprit.status, culprit.reason)
            noise = Noise.model_validate(meter.stop())
            break
        context = Context(
            experiment=self._experiment.name,
            point=point,
            seed=self._experiment.seed,
            steps=attempt.steps,
            threads=attempt.threads,
            tolerance=self._experiment.tolerance[point.dtype],
            confidence=self._experiment.confidence,
            noise=noise,
            started_at=started_at,
        )
        return [
            facts(
                context,
                case,
                self._survey[case.implementation],
                attempt.entries[case.implementation],
                attempt.timings[case.key],
            )
            for case in cases
        ]

    def close(self) -> None:
        """End the worker."""
        self._worker.kill()
