"""Recordings: runs of one experiment in many processes, kept together with the build that was measured."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.regression.job import Job
from chunkbench.regression.preload import preloaded
from chunkbench.regression.recorded_build import save_build
from chunkbench.runner.client import LOST, WorkerProcess
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.options import RunOptions
from chunkbench.runner.run import run_experiment
from chunkbench.runner.target import Target
from chunkbench.store import Run, RunError, open_runs, writing

BUILD = "build.zip"
"""File of a recording: the build that was measured."""


@dataclass(frozen=True)
class Recording:
    """A recording that a gate compares with."""

    path: Path
    runs: Sequence[Run]

    @property
    def build(self) -> Path:
        """The archive with the build that was measured. It may be missing."""
        return self.path / BUILD

    def keep_implementations(self, names: Collection[str]) -> None:
        """Drop the cases of all other implementations."""
        for run in self.runs:
            run.cases = [case for case in run.cases if case.implementation in names]


class Repeater:
    """Measures an experiment several times, each time in a new process.

    Processes differ: in where their memory lies, and in when they ran. A measurement in one process can be wrong by
    more than a threshold, whatever the number of rounds. The processes are forked from one that has imported
    everything, so they start at once.
    """

    def __init__(self, job: Job, parent: WorkerProcess) -> None:
        self.job, self._parent = job, parent

    def measure(
        self,
        experiment: TimedExperiment,
        out: Path,
        processes: int,
        points: frozenset[Point] | None = None,
        first: int = 1,
    ) -> tuple[list[Run], bool]:
        """Measure into `out`/`first` and the numbers that follow; the processes share the experiment's budget. Returns
        the runs, and whether the measurement was interrupted."""
        job, per_process = self.job, _one_process(experiment, processes)
        options = RunOptions(brief=True, points=points, start_worker=lambda *_: self._parent.fork())
        runs: list[Run] = []
        for number in range(first, first + processes):
            path = out / str(number)
            outcome = run_experiment(per_process, job.target, path, False, job.command, job.listener, options)
            if outcome.interrupted:
                shutil.rmtree(path, ignore_errors=True)  # half a process would lack cases that the others have
                return runs, True
            runs.append(outcome.run)
        return runs, False


@contextmanager
def repeater(job: Job, worker: Sequence[str] | None = None) -> Iterator[Repeater]:
    """A repeater whose parent process has imported the experiment's implementations.

    `worker` replaces the command line of the parent process. Raises `RunError` if the job's folder cannot be written,
    or if no worker starts.
    """
    out, kind = job.out, job.experiment.kind
    try:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            parent = preloaded(lambda: WorkerProcess(out / "worker.log", kind, worker), job.experiment, job.target)
    except LOST as error:
        raise RunError(f"{out}: a worker process does not start: {error}") from None
    try:
        yield Repeater(job, parent)
    finally:
        parent.kill()


def record(repeater: Repeater, processes: int, first: int) -> tuple[list[Run], bool]:
    """Measure the repeater's job into `out`/`first` and the numbers that follow; a new recording also keeps this build.

    Returns the runs, and whether the measurement was interrupted. Raises `RunError`.
    """
    job = repeater.job
    if first == 1:
        with writing(job.out):
            save_build(job.out / BUILD)
    return repeater.measure(job.experiment, job.out, processes, first=first)


def next_number(recording: Path, experiment: TimedExperiment, target: Target) -> int:
    """Number of the next run of a recording: 1 for a new recording.

    Raises `RunError` if the folder holds something else, or runs of another experiment, revision or machine.
    """
    if not recording.exists() or not any(recording.iterdir()):
        return 1
    runs = open_runs(recording)
    if runs[0].path == recording:
        raise RunError(f"{recording}: is a run, not a recording; choose another folder")
    current = identity(_one_process(experiment, 1), target)
    reasons = differences(runs[0].manifest.identity, current)
    if reasons:
        raise RunError(f"{recording}: cannot be added to: {'; '.join(reasons)}. Choose a new folder")
    return max(int(run.path.name) for run in runs) + 1


def _one_process(experiment: TimedExperiment, processes: int) -> TimedExperiment:
    """The experiment as one of several processes measures it.

    It has rounds until its share of the budget is used up, since no interval is narrow enough to stop it early.
    """
    changes = {"budget_s": experiment.budget_s / processes, "precision": 1e-6, "max_rounds": 1_000_000}
    return experiment.model_copy(update=changes)
