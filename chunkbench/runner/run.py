"""A whole run: survey, points in order within the budget, the run directory, resume, interruption."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from chunkbench.environment import git_state
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner.case_facts import now
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.measuring import Measuring, measuring
from chunkbench.runner.options import RunOptions
from chunkbench.runner.target import Target
from chunkbench.store import CaseFacts, Run, RunError, RunWriter, open_run
from chunkbench.store.facts import Status
from chunkbench.version import __version__

DEFAULT_OPTIONS = RunOptions()


class Listener(Protocol):
    """Who watches a run. `left_s` is the estimated time left."""

    def started(self, path: Path, points: int, finished: int) -> None: ...

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None: ...

    def point_finished(self, point: Point, cases: Sequence[CaseFacts], done: float, left_s: float) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    run: Run
    interrupted: bool


def run_experiment(
    experiment: Experiment,
    target: Target,
    out: Path,
    resume: bool,
    command: Sequence[str],
    listener: Listener,
    options: RunOptions = DEFAULT_OPTIONS,
) -> Outcome:
    """Measure every point that the run directory does not hold yet, or that the options want to be measured again.

    Raises `RunError` when the directory cannot be used, or `resume` meets another experiment, revision or machine.
    Ctrl-C and SIGTERM end it early: points that were finished are kept.
    """
    points = experiment.points(target.device, target.dtype)
    if options.points is not None:
        points = tuple(point for point in points if point in options.points)
    cases = {point: experiment.cases(point) for point in points}
    how = measuring(experiment)
    writer = _open_writer(experiment, target, out, resume, command, len(points))
    try:
        finished = _finished_points(writer, cases, how.passes(cases), options.retry)
        listener.started(out, len(points), len(finished))
        writer.update_manifest(interrupted=True, finished_at=None)  # true until proven otherwise: a kill leaves it so
        todo = [point for point in points if point not in finished]
        try:
            with sigterm_as_interrupt():
                _measure(experiment, how, target, writer, todo, cases, listener, options)
        except KeyboardInterrupt:
            return Outcome(open_run(out), interrupted=True)
        writer.update_manifest(interrupted=False, finished_at=now())
    finally:
        writer.close()
    return Outcome(open_run(out), interrupted=False)


def _measure(
    experiment: Experiment,
    how: Measuring,
    target: Target,
    writer: RunWriter,
    todo: Sequence[Point],
    cases: Mapping[Point, Sequence[Case]],
    listener: Listener,
    options: RunOptions,
) -> None:
    if not todo:
        return
    measurer = how.start(experiment, target, todo, writer, options)
    weights = {group[-1]: how.weight(group[-1], experiment.seed) for group in how.passes(cases)}
    passes = how.passes(todo)
    pace = _Pace(weights, [group[-1] for group in passes], experiment.budget_s)
    try:
        for group in passes:
            longest = group[-1]

            def announce(text: str, point: Point = longest) -> None:
                listener.activity(point, text, pace.done, pace.left_s)

            measured = measurer.measure(group, cases, pace.begin(longest), announce, pace.advance)
            writer.append([case for point in group for case in measured[point]])
            pace.end()
            for point in group:
                listener.point_finished(point, measured[point], pace.done, pace.left_s)
    finally:
        measurer.close()


class _Pace:
    """How the budget is shared among points by their weights, and how much of the run is behind us."""

    def __init__(self, weights: Mapping[Point, int], todo: Sequence[Point], budget_s: float) -> None:
        self._weights = weights
        self._whole = sum(weights.values())
        self._ahead = sum(weights[point] for point in todo)
        self._before = self._whole - self._ahead  # measured by an earlier run that this one resumes
        self._budget_s = budget_s * self._ahead / self._whole
        self._started = monotonic()
        self._current, self._share_done = 0, 0.0

    def begin(self, point: Point) -> float:
        """Seconds that this point may take: its share of what is left of the budget."""
        self._current, self._share_done = self._weights[point], 0.0
        return max(0.0, self._budget_s - (monotonic() - self._started)) * self._current / self._ahead

    def advance(self, share: float) -> None:
        """This share of the current point, 0 to 1, is done."""
        self._share_done = share

    def end(self) -> None:
        """The current point is done."""
        self._ahead -= self._current
        self._current, self._share_done = 0, 0.0

    @property
    def done(self) -> float:
        """Share of the whole run that is behind us, 0 to 1."""
        return (self._whole - self._left()) / self._whole

    @property
    def left_s(self) -> float:
        """Seconds left, at the pace so far; at first, what the budget says."""
        elapsed = monotonic() - self._started
        behind = self._whole - self._before - self._left()
        if behind < 0.02 * self._whole:
            return max(0.0, self._budget_s - elapsed)
        return elapsed / behind * self._left()

    def _left(self) -> float:
        return self._ahead - self._share_done * self._current


def _open_writer(
    experiment: Experiment, target: Target, out: Path, resume: bool, command: Sequence[str], points: int
) -> RunWriter:
    current = identity(experiment, target)
    if resume:
        writer = RunWriter.resume(out)
        reasons = differences(writer.manifest.identity, current)
        if reasons:
            writer.close()
            raise RunError(f"{out}: cannot be resumed: {'; '.join(reasons)}. Start a new run", remedy="start anew")
        return writer
    return RunWriter.create(out, manifest_of(experiment, target, points) | {"identity": current, "command": [*command]})


def manifest_of(experiment: Experiment, target: Target, points: int) -> dict[str, Any]:
    """What the manifest says of a run that begins now."""
    return {
        "chunkbench_version": __version__,
        "experiment": experiment.model_dump(mode="json", exclude={"path"}) | {"source": experiment.source},
        "device": target.device,
        "dtype": target.dtype,
        "machines": {target.machine: target.environment.model_dump(mode="json")},
        "git": git_state(),
        "python": sys.version.split()[0],
        "seed": experiment.seed,
        "points": points,
        "started_at": now(),
        "finished_at": None,
        "interrupted": True,
    }


def _finished_points(
    writer: RunWriter,
    cases: Mapping[Point, Sequence[Case]],
    passes: Iterable[Sequence[Point]],
    retry: Collection[Status],
) -> set[Point]:
    """Points of passes all of whose cases are on disk, none with a status that is to be retried."""
    done = {case.key for case in writer.cases if case.status not in retry}
    return {
        point
        for group in passes
        if all(case.key in done for point in group for case in cases[point])
        for point in group
    }


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat a polite kill like Ctrl-C for the time of a run."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
