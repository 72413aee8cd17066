"""Recordings: one experiment measured in many processes, kept together with the build that was measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.point import Point
from chunkbench.regression.preload import preloaded
from chunkbench.regression.recorded_build import keep
from chunkbench.runner.client import LOST, WorkerProcess
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.options import RunOptions
from chunkbench.runner.run import Listener, run_experiment
from chunkbench.runner.target import Target
from chunkbench.store import Run, RunError, open_runs, writing

BUILD = "build.zip"
"""Of a recording: the build that was recorded."""


class Repeater:
    """Measures an experiment several times, each time in a process of its own.

    Processes differ: in where their memory lies, and in when they ran. What is measured in one process only may be
    off by more than a threshold, whatever the number of rounds. They are forked from one that has imported everything,
    and so start at once.
    """

    def __init__(self, target: Target, parent: WorkerProcess, command: Sequence[str], listener: Listener) -> None:
        self._target, self._parent, self._command, self._listener = target, parent, command, listener

    def measure(
        self,
        experiment: TimedExperiment,
        out: Path,
        processes: int,
        points: frozenset[Point] | None = None,
        first: int = 1,
    ) -> tuple[list[Run], bool]:
        """Runs in `out`/`first` and the numbers that follow, which share the experiment's budget; and whether it was
        interrupted."""
        one = _repeated(experiment, processes)
        options = RunOptions(brief=True, points=points, start_worker=lambda *_: self._parent.fork())
        runs: list[Run] = []
        for number in range(first, first + processes):
            path = out / str(number)
            outcome = run_experiment(one, self._target, path, False, self._command, self._listener, options)
            if outcome.interrupted:
                shutil.rmtree(path, ignore_errors=True)  # half a process would lack cases that the others have
                return runs, True
            runs.append(outcome.run)
        return runs, False


@contextmanager
def repeater(
    experiment: TimedExperiment,
    target: Target,
    out: Path,
    command: Sequence[str],
    listener: Listener,
    worker: Sequence[str] | None = None,
) -> Iterator[Repeater]:
    """A repeater whose parent process has imported the experiment's implementations. `worker` is another command line
    for it. Raises `RunError` where `out` cannot be written or no worker starts."""
    try:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            parent = preloaded(lambda: WorkerProcess(out / "worker.log", experiment.kind, worker), experiment, target)
    except LOST as error:
        raise RunError(f"{out}: a worker process does not start: {error}") from None
    try:
        yield Repeater(target, parent, command, listener)
    finally:
        parent.kill()


def record(
    experiment: TimedExperiment, repeater: Repeater, path: Path, processes: int, first: int
) -> tuple[list[Run], bool]:
    """Measure into `path`/`first` and the numbers that follow; a new recording keeps this build beside its runs.

    Returns the runs, and whether it was interrupted. Raises `RunError`.
    """
    if first == 1:
        with writing(path):
            keep(path / BUILD)
    return repeater.measure(experiment, path, processes, first=first)


def next_number(recording: Path, experiment: TimedExperiment, target: Target) -> int:
    """Number of the run with which a recording goes on: 1 for a new one.

    Raises `RunError` where the folder holds something else, or runs of another experiment, revision or machine.
    """
    if not recording.exists() or not any(recording.iterdir()):
        return 1
    runs = open_runs(recording)
    if runs[0].path == recording:
        raise RunError(f"{recording}: is a run, not a recording; choose another folder")
    current = identity(_repeated(experiment, 1), target)
    reasons = differences(runs[0].manifest.identity, current)
    if reasons:
        raise RunError(f"{recording}: cannot be added to: {'; '.join(reasons)}. Choose a new folder")
    return max(int(run.path.name) for run in runs) + 1


def _repeated(experiment: TimedExperiment, processes: int) -> TimedExperiment:
    """The experiment as one of several processes measures it: rounds until its share of the budget is used up, since
    no interval is narrow enough to stop early."""
    changes = {"budget_s": experiment.budget_s / processes, "precision": 1e-6, "max_rounds": 1_000_000}
    return experiment.model_copy(update=changes)
