"""Measures schemes of several ranks: all schemes of a point take turns on the same ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from chunkbench.bench.environment.memory import available_memory
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.experiment.sessions import TOLERANCE
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.memory_guard import lacking, usable
from chunkbench.bench.runner.passes import Budget, Workplace
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store.results import Status
from chunkbench.workloads.ring.launch import RankLostError, Ranks, world_from_environment
from chunkbench.workloads.ring.methods import METHODS, RingMethod
from chunkbench.workloads.ring.rank import Answer
from chunkbench.workloads.ring.result import RankFacts, RankTimes, RingPoint, RingResult
from chunkbench.workloads.ring.spec import RingExperiment
from chunkbench.workloads.ring.task import Task

_LEAST_S = 0.1
"""Short passes are repeated until a sample takes this many seconds."""
_WARM_S = 1.0
"""Passes shorter than this number of seconds are warmed up: an untimed pass runs before each timed pass. The first pass
of such a scheme, which is checked, is not timed.
"""
_MOST_REPEATS = 200


@dataclass
class _Tried:
    """A scheme at a point: its status and the answers of its ranks so far."""

    method: RingMethod
    status: Status = "ok"
    reason: str = ""
    rounds: list[list[Answer]] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.status == "ok"

    def failed(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason


class RingMeasurer:
    """Measures the points of a run. If the next point needs the same number of ranks, it uses the same processes."""

    def __init__(self, experiment: RingExperiment, target: Target, place: Workplace[RingResult]) -> None:
        self._experiment, self._target, self._place = experiment, target, place
        self.styles = METHODS.styles(experiment.implementations)
        self._given = world_from_environment()
        self._ranks: Ranks | None = None
        self._started = False
        self._lost: RankLostError | None = None
        """The error with which the probe lost a rank, until a pass reports the error."""

    def measure(
        self,
        points: Sequence[RingPoint],
        cases_of: Mapping[RingPoint, Sequence[Case[RingPoint]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Mapping[RingPoint, Sequence[RingResult]]:
        """Run passes of all schemes in rounds, in seeded random order. The first pass of each scheme is checked."""
        (point,) = points
        started_at = now()
        tried = {case.implementation: self._survey(case.implementation, point) for case in cases_of[point]}
        rng = random.Random(f"{self._experiment.seed} {point.as_json()}")
        probe = self._probe(point, tried, announce)
        for number in range(self._experiment.ring_rounds):
            order = [name for name, one in tried.items() if one.runs]
            rng.shuffle(order)
            for place, name in enumerate(order):
                announce(f"round {number + 1} of {self._experiment.ring_rounds}: {tried[name].method.label}")
                self._pass(tried[name], point, first=number == 0)
                budget.share_done = (number + (place + 1) / len(order)) / self._experiment.ring_rounds
            if number >= 2 and not budget.fits_another(number + 1):
                break
        return {point: [self._facts(case, tried[case.implementation], probe, started_at) for case in cases_of[point]]}

    def close(self) -> None:
        if self._given is not None and not self._started:
            self._given.dismiss()
            self._given = None
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _survey(self, name: str, point: RingPoint) -> _Tried:
        method = METHODS.load(name)
        state, answer = _Tried(method), method.availability(point.device)
        size = point.ranks if self._given is None else self._given.size
        if not answer.ok:
            state.failed("unavailable", answer.reason)
        elif point.device == "cuda" and len(self._target.environment.gpus) < point.ranks and self._given is None:
            state.failed("unavailable", f"{point.ranks} ranks need as many GPUs")
        elif told := lacking(task_of(point).bytes(method.scheme, point.ranks), usable(available_memory())):
            state.failed("oom", told)
        elif size != point.ranks:
            state.failed("unsupported", f"this run was started with WORLD_SIZE={size}")
        elif reason := method.supports(point):
            state.failed("unsupported", reason)
        return state

    def _world(self, point: RingPoint) -> Ranks:
        """The ranks for a point, started if necessary. Raises `RankLostError`."""
        if self._ranks is not None and self._ranks.ranks != point.ranks:
            self._ranks.close()
            self._ranks = None
        if self._ranks is None:
            if self._given is not None and self._started:
                lost, self._lost = self._lost, None
                raise lost or RankLostError("the ranks of this run have ended; start all of them again")
            self._started = True
            self._ranks = Ranks(point.ranks, point.threads, point.device, self._place.log, self._given)
        self._ranks.threads = point.threads
        return self._ranks

    def _probe(
        self, point: RingPoint, tried: Mapping[str, _Tried], announce: Callable[[str], None]
    ) -> list[Mapping[str, float]]:
        """Measure rates of the ranks. Empty if no scheme can run, or if a rank is lost; the first pass then reports the
        loss.
        """
        if not any(one.runs for one in tried.values()):
            return []
        announce(f"starting {point.ranks} ranks")
        kernel = "native" if point.device == "cpu" else "flash"
        try:
            return self._world(point).probe(task_of(point), kernel, point.link, self._experiment.case_limit_s)
        except RankLostError as error:
            self._ranks, self._lost = None, error
            return []

    def _pass(self, state: _Tried, point: RingPoint, first: bool) -> None:
        took = min((max(answer.seconds for answer in answers) for answers in state.rounds), default=_LEAST_S)
        try:
            answers = self._world(point).run(
                state.method.scheme,
                task_of(point),
                point.link,
                self._experiment.seed,
                self._experiment.case_limit_s,
                check=first,
                warm=not first and took < _WARM_S,
                repeats=min(_MOST_REPEATS, math.ceil(_LEAST_S / took)),
            )
        except RankLostError as error:
            self._ranks = None
            state.failed(error.status, str(error))
            return
        state.rounds.append(answers)
        if first:
            self._judge(state, point)

    @staticmethod
    def _judge(state: _Tried, point: RingPoint) -> None:
        for rank, answer in enumerate(state.rounds[0]):
            if answer.error is None or not answer.error <= TOLERANCE[point.dtype]:
                what = "NaN" if answer.error is None or math.isnan(answer.error) else f"an error of {answer.error:.2g}"
                state.failed("incorrect", f"rank {rank} returned {what}; allowed is {TOLERANCE[point.dtype]:g}")
                return

    def _facts(
        self, case: Case[RingPoint], state: _Tried, probe: Sequence[Mapping[str, float]], started_at: str
    ) -> RingResult:
        point = case.point
        short = state.rounds and min(max(answer.seconds for answer in answers) for answers in state.rounds) < _WARM_S
        timed = state.rounds[1:] if short else state.rounds
        rates = {name: median(rank[name] for rank in probe) for rank in probe[:1] for name in rank}
        errors = [answer.error for answer in state.rounds[0] if answer.error is not None] if state.rounds else []
        return RingResult.of_case(
            case,
            experiment=self._experiment.name,
            label=state.method.label,
            status=state.status,
            reason=state.reason,
            seed=self._experiment.seed,
            started_at=started_at,
            machine=self._target.machine,
            times=tuple(tuple(map(_times, answers)) for answers in timed) if state.runs else (),
            ranks_facts=self._rank_facts(state, point) if state.rounds else (),
            timeline=tuple(answer.events for answer in state.rounds[-1]) if state.rounds else (),
            flops_per_s=rates.get("flops_per_s"),
            bytes_per_s=rates.get("bytes_per_s"),
            max_error=max(errors, key=lambda error: math.inf if math.isnan(error) else error) if errors else None,
            tolerance=TOLERANCE[point.dtype],
            hosts=len({answer.host for answer in state.rounds[0]}) if state.rounds else 1,
        )

    @staticmethod
    def _rank_facts(state: _Tried, point: RingPoint) -> tuple[RankFacts, ...]:
        scheme, facts = state.method.scheme, []
        peaks = [[answers[rank].peak_bytes for answers in state.rounds] for rank in range(point.ranks)]
        for rank, answer in enumerate(state.rounds[-1]):
            ranks = scheme.ranks or point.ranks
            computed = task_of(point).pairs(scheme, ranks, rank) if rank < ranks else 0
            known = [peak for peak in peaks[rank] if peak is not None]
            facts.append(
                RankFacts(
                    sent_bytes=None if state.method.is_peer and scheme.ranks is None else answer.sent_bytes,
                    peak_bytes=int(median(known)) if known else None,
                    pairs=computed,
                )
            )
        return tuple(facts)


def task_of(point: RingPoint) -> Task:
    """The task of a point."""
    return Task(
        point.heads,
        point.kv_heads,
        point.head_dim,
        point.dtype,
        point.phase,
        point.n_p,
        point.mask != "full",
        point.batch_size,
        point.n_s or 0,
    )


def _times(answer: Answer) -> RankTimes:
    return RankTimes(
        total_s=answer.seconds, compute_s=answer.compute_s, wait_s=answer.wait_s, transfer_s=answer.transfer_s
    )
