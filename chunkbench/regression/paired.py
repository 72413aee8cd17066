"""Two revisions measured in turns: the same case in a worker of either, round by round, on one machine."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from chunkbench.analysis.statistics import MIN_TIMED_STEPS, timed_steps
from chunkbench.environment import NoiseMeter
from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner import memory_guard
from chunkbench.runner.case_facts import Context, ImplementationState, facts, now
from chunkbench.runner.client import LOST, WorkerClient, WorkerProcess
from chunkbench.runner.measuring import measuring
from chunkbench.runner.point_driver import AFTER, BEFORE, Culprit, PointDriver
from chunkbench.runner.run import Listener, manifest_of, sigterm_as_interrupt
from chunkbench.runner.survey import survey
from chunkbench.runner.target import Target
from chunkbench.store import SCHEMA_VERSION, CaseFacts, Manifest, Noise, Run, RunError, RunWriter, open_run

_FEWEST_ROUNDS, _MOST_PAIRS = 3, 200


@dataclass(frozen=True)
class Side:
    """One revision: the worker that its measuring processes are forked from, and what the manifest says of it."""

    name: str
    parent: WorkerProcess
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """Runs of BASE and of HEAD, the n-th in turns with each other."""

    base: list[Run]
    head: list[Run]
    interrupted: bool


class Turns:
    """Measures an experiment with two revisions."""

    def __init__(
        self, experiment: TimedExperiment, target: Target, base: Side, head: Side, out: Path, listener: Listener
    ) -> None:
        self._experiment, self._target, self._sides = experiment, target, (base, head)
        self._out, self._listener = out, listener
        self._points = experiment.points(target.device, target.dtype)
        how = measuring(experiment)
        assert how.sessions is not None, "only what is measured in sessions can take turns"
        self._work, self._weight = how.sessions, how.weight
        self._dice = random.Random(f"turns {experiment.seed}")
        self._ready_s: dict[str, float] = {}  # by case key: how long its last pair took to get to a second round
        # The mark is the same on both sides: a comparison sees by it that the n-th rounds belong together.
        self._common = manifest_of(experiment, target, len(self._points)) | {"in_turns_with": uuid.uuid4().hex}
        """What the manifests of all runs have in common, made once: asking git takes as long as a kernel's rounds."""

    @property
    def manifest(self) -> Manifest:
        """What the manifests of all runs have in common."""
        return Manifest.model_validate({"schema_version": SCHEMA_VERSION, **self._common})

    def measure(self, processes: int, only: frozenset[str] | None = None, folder: str = "") -> Measured:
        """Cases, all or those with these keys, in as many pairs of processes as the budget holds, at least `processes`.

        Runs go to `out`/`folder`/base/1, `out`/`folder`/head/1 and so on. Ctrl-C keeps the pairs that are complete.
        """
        found: tuple[list[Run], list[Run]] = ([], [])
        try:
            with sigterm_as_interrupt():
                started = monotonic()
                # The last pair may begin if half of it fits: then the budget is kept on average.
                while (number := len(found[0]) + 1) <= processes or (
                    number <= _MOST_PAIRS
                    and (monotonic() - started) * (1 + 0.5 / len(found[0])) < self._experiment.budget_s
                ):
                    for runs, path in zip(found, self._pair(processes, number, only, folder), strict=True):
                        runs.append(open_run(path))
        except KeyboardInterrupt:
            complete = min(map(len, found))
            return Measured(found[0][:complete], found[1][:complete], interrupted=True)
        return Measured(*found, interrupted=False)

    def _pair(self, processes: int, number: int, only: frozenset[str] | None, folder: str) -> tuple[Path, Path]:
        """One pair of processes for each case, in order."""
        wanted = [
            (point, case)
            for point in self._points
            for case in self._experiment.cases(point)
            if only is None or case.key in only
        ]
        whole = sum(self._weight(point, self._experiment.seed) for point, _ in wanted)
        pair_s = self._experiment.budget_s / processes
        # What is left beside the preparations; a first pair does not know.
        rounds_share = max(0.0, pair_s / (sum(self._ready_s.get(case.key, 0.0) for _, case in wanted) or pair_s) - 1)
        measured: tuple[list[CaseFacts], list[CaseFacts]] = ([], [])
        paths = tuple(self._out / folder / side.name / str(number) for side in self._sides)
        self._listener.started(paths[1], len({point for point, _ in wanted}), 0)
        for point, case in wanted:
            budget_s = pair_s * self._weight(point, self._experiment.seed) / whole
            self._listener.activity(point, case.implementation, 0.0, 0.0)
            for several, one in zip(measured, self._case(point, case, budget_s, rounds_share, number), strict=True):
                several.append(one)
        for side, path, several in zip(self._sides, paths, measured, strict=True):
            writer = RunWriter.create(path, self._common | {"started_at": now()} | side.manifest)
            writer.append(several)
            writer.update_manifest(interrupted=False, finished_at=now())
            writer.close()
        return paths[0], paths[1]

    def _case(
        self, point: Point, case: Case, budget_s: float, rounds_share: float, number: int
    ) -> tuple[CaseFacts, CaseFacts]:
        """One case in a fresh process of either revision.

        Rounds go on for as long as it took to get to the second, since processes differ as well as rounds; for
        `rounds_share` of that where the budget holds no more. All rows are checked, before and after the rounds, in the
        first pair of processes; a sample of them, before the rounds, in others.
        """
        started_at = now()
        workers: list[WorkerClient] = []

        def start(side: Side) -> Callable[[], WorkerClient]:
            def fork() -> WorkerClient:
                try:
                    workers.append(side.parent.fork())
                except LOST as error:
                    raise RunError(f"{self._out}: the worker of {side.name.upper()} is lost: {error}") from None
                return workers[-1]

            return fork

        drivers: list[PointDriver] = []
        try:
            for side in self._sides:
                worker, traits = survey([case.implementation], point.device, start(side))
                drivers.append(PointDriver(self._experiment, self._work, traits, worker, point, [case]))
            # Who takes its memory first gets other pages than who comes second: a percent, if always the same.
            in_order = self._dice.sample(drivers, len(drivers))
            meter = NoiseMeter([worker.pid for worker in workers])
            meter.start()
            began = monotonic()
            with ThreadPoolExecutor(len(in_order)) as pool:
                well = list(pool.map(lambda driver: self._went_well(self._prepare, driver, case, number), in_order))
            # Where one side failed, the other is measured alone: that it works is part of the verdict.
            ready = [driver for driver, prepared in zip(in_order, well, strict=True) if prepared]
            self._pin([driver.worker for driver in ready], point)
            self._rounds(ready, case, budget_s, rounds_share, began)
            for driver in ready if number == 1 else ():
                self._went_well(self._finish, driver, case, number)
            noise = Noise.model_validate(meter.stop())
        finally:
            for worker in workers:
                worker.kill()
        return tuple(self._facts(driver, case, noise, started_at) for driver in drivers)  # type: ignore[return-value]

    def _pin(self, workers: Sequence[WorkerClient], point: Point) -> None:
        """Let both sides use the same CPUs, drawn by chance: those of one machine differ in what they share with
        others."""
        if point.device != "cpu" or point.threads is None or not hasattr(psutil.Process, "cpu_affinity"):
            return
        usable = psutil.Process().cpu_affinity()
        if point.threads < len(usable):
            chosen = self._dice.sample(usable, point.threads)
            for worker in workers:
                psutil.Process(worker.pid).cpu_affinity(chosen)

    def _went_well(
        self, work: Callable[[PointDriver, Case, int], None], driver: PointDriver, case: Case, number: int
    ) -> bool:
        """Do it; what took the worker down is in the state then."""
        try:
            work(driver, case, number)
        except Culprit as culprit:
            driver.fail(case.implementation, culprit.status, culprit.reason, culprit.mode)
        return not driver.lost_in(case)

    def _prepare(self, driver: PointDriver, case: Case, number: int) -> None:
        name, point, seed = case.implementation, driver.point, self._experiment.seed
        found = driver.housekeeping("room") if point.device == "cuda" else None
        opened = driver.housekeeping("open", point=point.as_json(), seed=seed, probe_bytes=0)
        driver.threads = opened["threads"]
        if driver.usable(name):
            needs = {name: self._work.needs(point, seed, name, driver.survey[name].shares_storage)}
            if found is not None:  # the other side takes as much
                room = memory_guard.room_of(found["free_bytes"]) // 2
                needs = driver.plan_copies(needs, room, found["l2_bytes"])
            if driver.prepare(name, needs[name]):
                driver.check(name, 1, BEFORE + number, sample=number > 1)

    def _rounds(
        self, drivers: Sequence[PointDriver], case: Case, budget_s: float, rounds_share: float, began: float
    ) -> None:
        """Rounds in turns, who begins decided by chance, until the time is used up; who fails drops out."""
        name, deadline = case.implementation, 0.0
        states = [driver.states[name] for driver in drivers]
        alive, number = list(drivers), 0
        sample_s = sum(driver.sample_s(case) for driver in drivers)
        steps = self._steps(drivers[0].point.n_c, states, budget_s, sample_s) if drivers else ()
        while alive and (number < _FEWEST_ROUNDS or monotonic() < deadline):
            self._dice.shuffle(alive)
            for driver in list(alive):
                reply: dict[str, Any] | None = None
                try:
                    reply = driver.round(case, steps, 1 + number)
                except Culprit as culprit:
                    driver.fail(name, culprit.status, culprit.reason, culprit.mode)
                if reply is None:
                    alive.remove(driver)
                    continue
                driver.rounds_of[case.key].add(reply, 0)
                driver.steps = steps
            number += 1
            if number == 1:  # the first also maps the memory that a forked process only inherited
                ready_s = self._ready_s[case.key] = monotonic() - began
                deadline = monotonic() + ready_s * min(1.0, rounds_share)

    def _steps(
        self, n_c: int, states: Sequence[ImplementationState], budget_s: float, sample_s: float
    ) -> tuple[int, ...]:
        """As many steps as the fewest rounds can time, where a sample of all sides takes `sample_s`."""
        left = max(0.0, budget_s / _FEWEST_ROUNDS - sum(state.append_s for state in states) * n_c)
        count = int(left / max(1e-9, sample_s))
        return timed_steps(n_c, min(n_c, max(MIN_TIMED_STEPS, count)))

    def _finish(self, driver: PointDriver, case: Case, number: int) -> None:
        driver.check(case.implementation, driver.point.n_c, AFTER + number)
        driver.check_bytes(case.implementation)

    def _facts(self, driver: PointDriver, case: Case, noise: Noise, started_at: str) -> CaseFacts:
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
        return facts(context, case, driver.survey[name], driver.states[name], driver.rounds_of[case.key])
