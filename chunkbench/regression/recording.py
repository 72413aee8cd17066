"""Recordings: runs of one experiment in many processes, kept together with the build that was measured."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.regression.build import BuildFacts, digest_of, pack, read_facts
from chunkbench.regression.job import Job
from chunkbench.regression.side_build import SideBuild, check_loads, installed_build
from chunkbench.runner.executor import LocalExecutor
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.options import RunOptions
from chunkbench.runner.run import run_experiment
from chunkbench.runner.target import Target
from chunkbench.store import FAILED, MEASURED, WORKER_LOG, Run, RunError, open_runs, writing

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
    """Measures an experiment several times, each time in a new process that is started from a build.

    Processes differ: in where their libraries and their memory lie, and in when they ran. A measurement in one process
    can be wrong by more than a threshold, whatever the number of rounds.
    """

    def __init__(self, job: Job, side: SideBuild) -> None:
        self.job, self.side = job, side

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
        side = self.side
        options = RunOptions(brief=True, points=points, manifest=side.manifest, start_worker=side.start)
        runs: list[Run] = []
        for number in range(first, first + processes):
            path = out / str(number)
            outcome = run_experiment(
                per_process, LocalExecutor(job.target), path, False, job.command, job.listener, options
            )
            if outcome.interrupted:
                shutil.rmtree(path, ignore_errors=True)  # half a process would lack cases that the others have
                return runs, True
            runs.append(outcome.run)
            if number == first:
                self._report_failures(outcome.run)
        return runs, False

    def _report_failures(self, run: Run) -> None:
        """Say at once why a run does not measure a case: a fault, or a package under test that is unavailable."""
        for case in run.cases:
            tested = case.implementation in self.side.build.facts.provided
            if case.status in FAILED or (tested and case.status not in MEASURED):
                text = f"{case.implementation}: {case.status}: {case.reason}; see {run.path / WORKER_LOG}"
                self.job.listener.problem(text)


@contextmanager
def repeater(job: Job, program: Sequence[str] = ()) -> Iterator[Repeater]:
    """A repeater that measures what is installed. `program` is a script that takes the place of the worker's program.

    Raises `RunError` if the job's folder cannot be written, or if a package cannot be copied.
    """
    with writing(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    with installed_build(job.experiment, program) as side:
        yield Repeater(job, side)


def record(repeater: Repeater, processes: int, first: int) -> tuple[list[Run], bool]:
    """Measure the repeater's job into `out`/`first` and the numbers that follow; a new recording also keeps the build.

    Returns the runs, and whether the measurement was interrupted. Raises `RunError`, also if a package under test is
    not the one that the recording keeps.
    """
    job, side, archive = repeater.job, repeater.side, repeater.job.out / BUILD
    with writing(job.out):
        if first == 1:
            check_loads(side, job.experiment, job.target.device, job.out / "worker.log")
            pack(side.build, archive)
        elif archive.exists():
            _check_same_packages(job.out, read_facts(archive), side.build.facts)
        kept = {"build": digest_of(archive)} if archive.exists() else {}
    return Repeater(job, replace(side, manifest=kept)).measure(job.experiment, job.out, processes, first=first)


def _check_same_packages(recording: Path, kept: BuildFacts, installed: BuildFacts) -> None:
    """Raise `RunError` if a package of another project is no longer the one that the recording keeps."""
    folders = {package.name: package.folder for package in (*kept.packages, *installed.packages)}
    changed = [name for name, folder in folders.items() if kept.digest(folder) != installed.digest(folder)]
    if changed:
        raise RunError(
            f"{recording}: cannot be added to: the files of {', '.join(changed)} are no longer those that it keeps. "
            "Choose a new folder"
        )


def next_number(recording: Path, experiment: TimedExperiment, target: Target) -> int:
    """Number of the next run of a recording: 1 for a new recording.

    Raises `RunError` if the folder holds something else, or runs of another experiment, revision or machine.
    """
    if not recording.exists() or not any(recording.iterdir()):
        return 1
    runs = open_runs(recording)
    if runs[0].path == recording:
        raise RunError(f"{recording}: is a run, not a recording; choose another folder")
    current = identity(_one_process(experiment, 1), (target,))
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
