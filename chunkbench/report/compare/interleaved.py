"""Measures BASE and HEAD in pairs of processes, one for each side. The two processes of a pair take turns, round by
round."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from chunkbench.bench import workload
from chunkbench.bench.analysis.statistics import MIN_TIMED_STEPS, timed_steps
from chunkbench.bench.environment import NoiseMeter
from chunkbench.bench.experiment import TimedExperiment
from chunkbench.bench.experiment.point import Case, SessionPoint
from chunkbench.bench.runner import memory_guard
from chunkbench.bench.runner.case_facts import Context, ImplementationState, facts, now
from chunkbench.bench.runner.client import LOST, WorkerClient, WorkerProcess
from chunkbench.bench.runner.executor import Listener
from chunkbench.bench.runner.point_driver import AFTER, BEFORE, PointDriver, WorkerLost
from chunkbench.bench.runner.run import manifest_of
from chunkbench.bench.runner.sessions import SessionWorkload
from chunkbench.bench.runner.survey import survey
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store import FAILED, MEASURED, Noise, Run, RunWriter, open_run
from chunkbench.bench.store.results import TimedResult
from chunkbench.report.compare.sides import Side, warm
from chunkbench.run_error import RunError

_FEWEST_ROUNDS = 3
_LEAST_ROUNDS = 0.25
"""Smallest time for the rounds of a case after the first, as a fraction of the time that the case took before its
second round."""


@dataclass(frozen=True)
class InterleavedJob:
    """An experiment to measure with BASE and HEAD on this machine."""

    experiment: TimedExperiment
    target: Target
    out: Path
    """Folder for the runs."""
    listener: Listener
    processes: int
    """Smallest number of pairs of processes. These pairs share the experiment's budget equally."""


class Interleaved:
    """Measures an experiment with BASE and HEAD, in pairs of processes that take turns."""

    def __init__(self, job: InterleavedJob, base: Side, head: Side) -> None:
        experiment, target = job.experiment, job.target
        self._experiment, self._target, self._sides = experiment, target, (base, head)
        self._out, self._listener, self._processes = job.out, job.listener, job.processes
        self._points = experiment.points(target.device, target.dtype)
        work = workload.get(experiment.kind)
        assert isinstance(work, SessionWorkload), "only experiments that are measured in sessions can be interleaved"
        self._work = work
        self._rng = random.Random(f"interleaved {experiment.seed}")
        self._ready_s: dict[str, float] = {}  # case key -> time from the start of its last pair to its second round
        # Both sides get the same mark, which tells a comparison that their n-th rounds belong together.
        self._common = manifest_of(experiment, (target,), len(self._points)) | {"interleaved_with": uuid.uuid4().hex}
        """The common part of all manifests, made once: asking git takes as long as the rounds of a kernel."""

    def pair(self, number: int, only: frozenset[str] | None, swept: str) -> tuple[Run, Run]:
        """Measure all cases, or those with the keys `only`, in one new pair of processes.

        Returns the runs of both sides, which it writes to `out`/base/`number` and `out`/head/`number`. `swept`: path of
        the memory that processes sweep to make caches cold. Raises `RunError`.

        Each pair has new parent processes. At its start, a program gets random memory addresses for its libraries
        and heap. Its forked children inherit these addresses. The addresses alone can make Python code or PyTorch's
        dispatcher 10 to 20% slower.
        """
        pending = [
            (point, case)
            for point in self._points
            for case in self._experiment.cases(point)
            if only is None or case.key in only
        ]
        total_weight = sum(self._work.weight(point, self._experiment.seed) for point, _ in pending)
        pair_s = self._experiment.budget_s / self._processes
        # Time left for rounds, relative to the time of the preparations, which the first pair does not know.
        rounds_share = max(0.0, pair_s / (sum(self._ready_s.get(case.key, 0.0) for _, case in pending) or pair_s) - 1)
        measured: tuple[list[TimedResult], list[TimedResult]] = ([], [])
        paths = [self._out / side.name / str(number) for side in self._sides]
        self._listener.started(paths[1], len({point for point, _ in pending}), 0)
        began = monotonic()
        with self._parents(swept) as parents:
            parents_s = (monotonic() - began) / max(1, len(pending))
            for point, case in pending:
                budget_s = pair_s * self._work.weight(point, self._experiment.seed) / total_weight
                self._listener.activity(point, case.implementation, 0.0, 0.0)
                facts_of_case = self._measure_case(parents, point, case, budget_s, rounds_share, parents_s, number)
                for side_cases, facts_of_side in zip(measured, facts_of_case, strict=True):
                    side_cases.append(facts_of_side)
                self._report_failures(facts_of_case)
        for side, path, side_cases in zip(self._sides, paths, measured, strict=True):
            writer = RunWriter.create(path, self._common | {"started_at": now()} | dict(side.manifest))
            writer.append(side_cases)
            writer.update_manifest(interrupted=False, finished_at=now())
            writer.close()
        return open_run(paths[0]), open_run(paths[1])

    def _report_failures(self, cases: tuple[TimedResult, TimedResult]) -> None:
        """Report at once the reason why a side does not measure a case, unless both sides fail for the same reason."""
        if cases[0].status not in FAILED and cases[0].status == cases[1].status and cases[0].reason == cases[1].reason:
            return
        for side, case in zip(self._sides, cases, strict=True):
            if case.status not in MEASURED:
                problem = f"{case.implementation}: {case.status}: {case.reason}"
                self._listener.problem(f"{side.name.upper()}: {problem}; see {self._log(side.name)}")

    def _log(self, side: str) -> Path:
        return self._out / f"worker-{side}.log"

    @contextmanager
    def _parents(self, swept: str) -> Iterator[dict[str, WorkerProcess]]:
        """Start a new parent for each side, both at the same time. Returns name of the side -> parent. Raises
        `RunError`."""
        # The pool stays open: a worker ends together with the thread that started the worker (`chunkbench.lifetime`).
        with ThreadPoolExecutor(len(self._sides)) as pool:
            in_order = self._rng.sample(self._sides, len(self._sides))
            starting = {side.name: pool.submit(side.start, self._log(side.name), self._experiment) for side in in_order}
            try:
                parents = {name: start.result() for name, start in starting.items()}
                list(pool.map(lambda name: self._warm(name, parents[name], swept), parents))
                yield parents
            finally:
                for start in starting.values():
                    if start.exception() is None:
                        start.result().kill()

    def _warm(self, name: str, parent: WorkerProcess, swept: str) -> None:
        try:
            warm(parent, self._experiment.seed, self._points[0], swept)
        except LOST as error:
            raise RunError(f"{name.upper()}: a worker cannot make the inputs: {error}; see {self._log(name)}") from None

    def _measure_case(
        self,
        parents: Mapping[str, WorkerProcess],
        point: SessionPoint,
        case: Case,
        budget_s: float,
        rounds_share: float,
        parents_s: float,
        number: int,
    ) -> tuple[TimedResult, TimedResult]:
        """Measure one case in a new process of each side, forked from its parent.

        Both processes and rounds vary. So the rounds get as much time as the start of the pair: they last as long as
        the time from the start of the pair to its second round, or `rounds_share` of that time if the budget allows no
        more. `parents_s` is the case's part of the time that the start of the parents took. The first pair checks all
        rows of the output before and after the rounds; other pairs check a sample of rows before the rounds.
        """
        started_at = now()
        workers: list[WorkerClient] = []

        def start(side: Side) -> Callable[[], WorkerClient]:
            def fork() -> WorkerClient:
                try:
                    workers.append(parents[side.name].fork())
                except LOST as error:
                    raise RunError(f"{self._out}: the worker of {side.name.upper()} ended: {error}") from None
                return workers[-1]

            return fork

        drivers: list[PointDriver] = []
        try:
            for side in self._sides:
                worker, traits = survey([case.implementation], point.device, start(side))
                drivers.append(PointDriver(self._experiment, self._work, traits, worker, point, [case]))
            # The side that allocates first gets other pages. If the same side always began, times would differ by 1%.
            in_order = self._rng.sample(drivers, len(drivers))
            meter = NoiseMeter([worker.pid for worker in workers])
            meter.start()
            began = monotonic() - parents_s
            with ThreadPoolExecutor(len(in_order)) as pool:
                prepared = list(pool.map(lambda driver: self._attempt(self._prepare, driver, case, number), in_order))
            # If one side fails, the other side is measured alone: the verdict depends on whether that side works.
            ready = [driver for driver, usable in zip(in_order, prepared, strict=True) if usable]
            self._pin([driver.worker for driver in ready], point)
            self._measure_rounds(ready, case, budget_s, rounds_share, began)
            for driver in ready if number == 1 else ():
                self._attempt(self._check_after, driver, case, number)
            noise = Noise.model_validate(meter.stop())
        finally:
            for worker in workers:
                worker.kill()
        return tuple(self._facts(driver, case, noise, started_at) for driver in drivers)  # type: ignore[return-value]

    def _pin(self, workers: Sequence[WorkerClient], point: SessionPoint) -> None:
        """Let both sides use the same CPUs, drawn at random: CPUs differ in the caches that they share with other
        CPUs."""
        if point.device != "cpu" or point.threads is None or not hasattr(psutil.Process, "cpu_affinity"):
            return
        available = psutil.Process().cpu_affinity()
        if point.threads < len(available):
            cpus = self._rng.sample(available, point.threads)
            for worker in workers:
                psutil.Process(worker.pid).cpu_affinity(cpus)

    def _attempt(
        self, step: Callable[[PointDriver, Case, int], None], driver: PointDriver, case: Case, number: int
    ) -> bool:
        """Do a step; if the step crashes the worker, record the crash. Returns whether the case can go on."""
        try:
            step(driver, case, number)
        except WorkerLost as lost:
            driver.fail(case.implementation, lost.status, lost.reason, lost.mode)
        return not driver.lost_in(case)

    def _prepare(self, driver: PointDriver, case: Case, number: int) -> None:
        name, point, seed = case.implementation, driver.point, self._experiment.seed
        gpu = driver.housekeeping("room") if point.device == "cuda" else None
        opened = driver.housekeeping("open", point=point.as_json(), seed=seed, probe_bytes=0)
        driver.threads = opened["threads"]
        if driver.usable(name):
            needs = {name: self._work.needs(point, seed, name, driver.survey[name].shares_storage)}
            if gpu is not None:  # the other side needs as much memory
                room = memory_guard.room_of(gpu["free_bytes"]) // 2
                needs = driver.plan_copies(needs, room, gpu["l2_bytes"])
            if driver.prepare(name, needs[name]):
                driver.check(name, 1, BEFORE + number, sample=number > 1)

    def _measure_rounds(
        self, drivers: Sequence[PointDriver], case: Case, budget_s: float, rounds_share: float, began: float
    ) -> None:
        """Measure interleaved rounds until the time is used up. The order of the sides is random; a side that fails
        stops."""
        name, deadline = case.implementation, 0.0
        states = [driver.states[name] for driver in drivers]
        alive, number = list(drivers), 0
        sample_s = sum(driver.sample_s(case) for driver in drivers)
        steps = self._steps(drivers[0].point.n_c, states, budget_s, sample_s) if drivers else ()
        while alive and (number < _FEWEST_ROUNDS or monotonic() < deadline):
            self._rng.shuffle(alive)
            for driver in list(alive):
                reply: dict[str, Any] | None = None
                try:
                    reply = driver.round(case, steps, 1 + number)
                except WorkerLost as lost:
                    driver.fail(name, lost.status, lost.reason, lost.mode)
                if reply is None:
                    alive.remove(driver)
                    continue
                driver.rounds_of[case.key].add(reply, 0)
                driver.steps = steps
            number += 1
            if number == 1:  # the first round also maps the memory that a forked process inherits
                ready_s = self._ready_s[case.key] = monotonic() - began
                deadline = monotonic() + ready_s * min(1.0, max(_LEAST_ROUNDS, rounds_share))

    def _steps(
        self, n_c: int, states: Sequence[ImplementationState], budget_s: float, sample_s: float
    ) -> tuple[int, ...]:
        """The steps to time: as many as the fewest rounds can time if one step of all sides takes `sample_s`."""
        left_s = max(0.0, budget_s / _FEWEST_ROUNDS - sum(state.append_s for state in states) * n_c)
        count = int(left_s / max(1e-9, sample_s))
        return timed_steps(n_c, min(n_c, max(MIN_TIMED_STEPS, count)))

    def _check_after(self, driver: PointDriver, case: Case, number: int) -> None:
        driver.check(case.implementation, driver.point.n_c, AFTER + number)
        driver.check_bytes(case.implementation)

    def _facts(self, driver: PointDriver, case: Case, noise: Noise, started_at: str) -> TimedResult:
        context = Context(
            experiment=self._experiment.name,
            machine=self._target.machine,
            work=self._work,
            point=driver.point,
            seed=self._experiment.seed,
            steps=driver.steps,
            threads=driver.threads,
            tolerance=self._experiment.tolerance[driver.point.dtype],
            confidence=self._experiment.confidence,
            noise=noise,
            started_at=started_at,
        )
        name = case.implementation
        result: TimedResult = facts(context, case, driver.survey[name], driver.states[name], driver.rounds_of[case.key])
        return result
