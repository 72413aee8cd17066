"""A whole run: the points in order within the budget, the run directory, resume, interruption."""

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
    """Receives the progress of a run. `left_s` is the estimated time left."""

    def started(self, path: Path, points: int, finished: int) -> None: ...

    def activity(self, point: Point, text: str, done: float, left_s: float) -> None: ...

    def point_finished(self, point: Point, cases: Sequence[CaseFacts], done: float, left_s: float) -> None: ...

    def problem(self, text: str) -> None:
        """Something that the user should know at once. The same text may come again."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

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
    """Measure every point that the run directory does not hold yet, or that the options select to be measured again.

    Raises `RunError` if the directory cannot be used, or on `resume` holds a run of another experiment, revision or
    machine. Ctrl-C and SIGTERM end the run early and keep the finished points.
    """
    points = experiment.points(target.device, target.dtype)
    if options.points is not None:
        points = tuple(point for point in points if point in options.points)
    cases = {point: experiment.cases(point) for point in points}
    kind_measuring = measuring(experiment)
    writer = _open_writer(experiment, target, out, resume, command, len(points))
    try:
        finished = _finished_points(writer, cases, kind_measuring.passes(cases), options.retry)
        listener.started(out, len(points), len(finished))
        # `interrupted` stays true if the run is killed.
        writer.update_manifest(interrupted=True, finished_at=None, **options.manifest)
        pending = [point for point in points if point not in finished]
        try:
            with sigterm_as_interrupt():
                _measure(experiment, kind_measuring, target, writer, pending, cases, listener, options)
        except KeyboardInterrupt:
            return Outcome(open_run(out), interrupted=True)
        writer.update_manifest(interrupted=False, finished_at=now())
    finally:
        writer.close()
    return Outcome(open_run(out), interrupted=False)


def _measure(
    experiment: Experiment,
    kind_measuring: Measuring,
    target: Target,
    writer: RunWriter,
    pending: Sequence[Point],
    cases: Mapping[Point, Sequence[Case]],
    listener: Listener,
    options: RunOptions,
) -> None:
    if not pending:
        return
    measurer = kind_measuring.start(experiment, target, pending, writer, options)
    weights = {group[-1]: kind_measuring.weight(group[-1], experiment.seed) for group in kind_measuring.passes(cases)}
    passes = kind_measuring.passes(pending)
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
    """Shares the budget among points by their weights, and knows how much of the run is done."""

    def __init__(self, weights: Mapping[Point, int], pending: Sequence[Point], budget_s: float) -> None:
        self._weights = weights
        self._total_weight = sum(weights.values())
        self._pending_weight = sum(weights[point] for point in pending)
        self._resumed_weight = self._total_weight - self._pending_weight  # measured before this run was resumed
        self._budget_s = budget_s * self._pending_weight / self._total_weight
        self._started = monotonic()
        self._current, self._share_done = 0, 0.0

    def begin(self, point: Point) -> float:
        """Seconds that this point may take: its share of the remaining budget."""
        self._current, self._share_done = self._weights[point], 0.0
        return max(0.0, self._budget_s - (monotonic() - self._started)) * self._current / self._pending_weight

    def advance(self, share: float) -> None:
        """Record which share of the current point is done, 0 to 1."""
        self._share_done = share

    def end(self) -> None:
        """Record that the current point is done."""
        self._pending_weight -= self._current
        self._current, self._share_done = 0, 0.0

    @property
    def done(self) -> float:
        """Share of the whole run that is done, 0 to 1."""
        return (self._total_weight - self._left()) / self._total_weight

    @property
    def left_s(self) -> float:
        """Seconds left at the pace so far; in the first 2% of the run, the rest of the budget."""
        elapsed = monotonic() - self._started
        measured = self._total_weight - self._resumed_weight - self._left()
        if measured < 0.02 * self._total_weight:
            return max(0.0, self._budget_s - elapsed)
        return elapsed / measured * self._left()

    def _left(self) -> float:
        return self._pending_weight - self._share_done * self._current


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
    """The manifest of a run that starts now."""
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
    """Points of those passes whose cases are all on disk, none with a status in `retry`."""
    done = {case.key for case in writer.cases if case.status not in retry}
    return {
        point
        for group in passes
        if all(case.key in done for point in group for case in cases[point])
        for point in group
    }


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C during a run."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
