"""Executors measure the passes of a run. `LocalExecutor` measures on this machine, one pass after the other."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chunkbench.bench import workload
from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.point import Case, Point
from chunkbench.bench.runner.pace import Pace
from chunkbench.bench.runner.passes import Pass, RunOptions, Workplace
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store import Result


@dataclass(frozen=True)
class RunJob:
    """An experiment to measure, and the folder and options of the run."""

    experiment: Experiment
    passes: Sequence[Pass]
    log: Path
    """The file for the output of workers and servers."""
    earlier: Sequence[Result] = ()
    """Results that a resumed run already has."""
    options: RunOptions = field(default_factory=RunOptions)


@dataclass(frozen=True)
class MeasuredPass:
    """The results of a pass, and the machine that measured it."""

    pass_: Pass
    cases: Mapping[Point, Sequence[Result]]
    machine: str
    environment: Mapping[str, Any]
    styles: Mapping[str, Mapping[str, Any]]
    took_s: float


class Listener(Protocol):
    """Receives the progress of a run. `left_s` is the estimated time left."""

    def started(self, path: Path, points: int, finished: int) -> None: ...

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None: ...

    def point_finished(self, point: Point, cases: Sequence[Result], took_s: float, done: float, left_s: float) -> None:
        """All results of a point are there.

        `took_s`: seconds of the whole pass for its first point, 0 for its other points.
        """

    def problem(self, text: str) -> None:
        """Receive a text that the user should see at once. Texts may repeat."""


class Executor(Protocol):
    """Measures passes, on this machine or elsewhere."""

    @property
    def targets(self) -> Sequence[Target]:
        """One target for each kind of machine. The machines of each kind measure the whole experiment."""
        ...

    def measure(self, job: RunJob, pace: Pace, listener: Listener) -> Generator[MeasuredPass, None, None]:
        """Measure the passes of a job, and yield each pass when its results are complete.

        Raises `RunError` if nothing more can be measured. Passes that were yielded before stay valid.
        """
        ...


class LocalExecutor:
    """Measures on this machine, in this process."""

    def __init__(self, target: Target) -> None:
        self.targets = (target,)

    def measure(self, job: RunJob, pace: Pace, listener: Listener) -> Generator[MeasuredPass, None, None]:
        (target,) = self.targets
        experiment = job.experiment
        cases: dict[Point, tuple[Case, ...]] = {
            point: experiment.cases(point) for pass_ in job.passes for point in pass_.points
        }
        place = Workplace(job.log, job.earlier, listener.problem)
        measurer = workload.of(experiment).start(experiment, target, list(cases), place, job.options)
        environment = target.environment.model_dump(mode="json")
        try:
            for pass_ in job.passes:

                def announce(text: str, point: Point = pass_.points[-1]) -> None:
                    listener.activity(point, text, pace.done, pace.left_s)

                measured = measurer.measure(pass_.points, cases, pace.begin(pass_), announce)
                yield MeasuredPass(pass_, measured, target.machine, environment, measurer.styles, pace.end(pass_))
        finally:
            measurer.close()
