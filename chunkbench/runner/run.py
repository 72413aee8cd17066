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

from chunkbench import __version__
from chunkbench.environment import Environment, git_state, read_environment
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Device, Dtype, Point, passes
from chunkbench.runner.client import LOST, WorkerClient
from chunkbench.runner.conduct import Conduct
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.ledger import now
from chunkbench.runner.point_runner import PointRunner
from chunkbench.runner.survey import survey
from chunkbench.store import CaseFacts, Run, RunError, RunWriter, open_run
from chunkbench.store.facts import Status

_NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags of instructions that multiply bfloat16."""


DEFAULT_CONDUCT = Conduct()


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


@dataclass(frozen=True)
class Target:
    """The device and dtype that `auto` came to."""

    device: Device
    dtype: Dtype
    environment: Environment


def resolve(experiment: Experiment, describing: bool = False) -> Target:
    """Resolve `device: auto` and `dtype: auto` on this machine.

    float16 on CUDA; on a CPU bfloat16 where it has instructions for it, else float32. Raises `RunError` where the
    device is not there, unless the run is only to be described.
    """
    environment = read_environment()
    detected: Device = "cuda" if environment.gpus else "cpu"
    device = detected if experiment.device == "auto" else experiment.device
    if device == "cuda" and not environment.gpus and not describing:
        raise RunError("device: cuda, but PyTorch sees no NVIDIA GPU here; `chunkbench doctor` says more")
    native: Dtype = "bfloat16" if {*environment.cpu.isa} & _NATIVE_BFLOAT16 else "float32"
    suited: Dtype = "float16" if device == "cuda" else native
    return Target(device, suited if experiment.dtype == "auto" else experiment.dtype, environment)


def weight(point: Point, seed: int) -> int:
    """Relative cost of a point: tokens that all sequences hold, times heads and head size, and a constant."""
    tokens = sum(point.prompt_lengths(seed)) + point.batch_size * point.n_c
    return tokens * point.token_bytes + (1 << 24)


def run_experiment(
    experiment: Experiment,
    target: Target,
    out: Path,
    resume: bool,
    command: Sequence[str],
    listener: Listener,
    conduct: Conduct = DEFAULT_CONDUCT,
) -> Outcome:
    """Measure every point that the run directory does not hold yet, or that `conduct` wants to be measured again.

    Raises `RunError` when the directory cannot be used, or `resume` meets another experiment, revision or machine.
    Ctrl-C and SIGTERM end it early: points that were finished are kept.
    """
    points = experiment.points(target.device, target.dtype)
    if conduct.points is not None:
        points = tuple(point for point in points if point in conduct.points)
    cases = {point: experiment.cases(point) for point in points}
    writer = _open_writer(experiment, target, out, resume, command, len(points))
    try:
        finished = _finished_points(writer, cases, _together(experiment, cases), conduct.retry)
        listener.started(out, len(points), len(finished))
        writer.update_manifest(interrupted=True, finished_at=None)  # true until proven otherwise: a kill leaves it so
        todo = [point for point in points if point not in finished]
        try:
            with sigterm_as_interrupt():
                _measure(experiment, target, writer, todo, cases, listener, conduct)
        except KeyboardInterrupt:
            return Outcome(open_run(out), interrupted=True)
        writer.update_manifest(interrupted=False, finished_at=now())
    finally:
        writer.close()
    return Outcome(open_run(out), interrupted=False)


def _measure(
    experiment: Experiment,
    target: Target,
    writer: RunWriter,
    todo: Sequence[Point],
    cases: Mapping[Point, Sequence[Case]],
    listener: Listener,
    conduct: Conduct,
) -> None:
    if not todo:
        return

    def start() -> WorkerClient:
        try:
            return conduct.start_worker(writer.worker_log)
        except LOST as error:
            raise RunError(f"{writer.path}: a worker process does not start: {error}; --resume goes on") from None

    worker, traits = survey(experiment.implementations, target.device, start)
    runner = PointRunner(experiment, todo, traits, worker, start, conduct.brief)
    weights = {several[-1]: weight(several[-1], experiment.seed) for several in _together(experiment, cases)}
    several_todo = _together(experiment, todo)
    pace = _Pace(weights, [several[-1] for several in several_todo], experiment.budget_s)
    try:
        for several in several_todo:
            longest = several[-1]

            def announce(text: str, point: Point = longest) -> None:
                listener.activity(point, text, pace.done, pace.left_s)

            measured = runner.measure(several, cases, pace.begin(longest), announce, pace.advance)
            writer.append([case for point in several for case in measured[point]])
            pace.end()
            for point in several:
                listener.point_finished(point, measured[point], pace.done, pace.left_s)
    finally:
        runner.close()


def _together(experiment: Experiment, points: Iterable[Point]) -> list[tuple[Point, ...]]:
    """Points that are measured in one pass, or each by itself."""
    return passes(points) if experiment.kind == "decode" else [(point,) for point in points]


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
    current = identity(experiment, target.environment, target.device, target.dtype)
    if resume:
        writer = RunWriter.resume(out)
        reasons = differences(writer.manifest.get("identity", {}), current)
        if reasons:
            writer.close()
            raise RunError(f"{out}: cannot be resumed: {'; '.join(reasons)}. Start a new run without --resume")
        return writer
    return RunWriter.create(out, manifest_of(experiment, target, points) | {"identity": current, "command": [*command]})


def manifest_of(experiment: Experiment, target: Target, points: int) -> dict[str, Any]:
    """What the manifest says of a run that begins now."""
    return {
        "chunkbench_version": __version__,
        "experiment": experiment.model_dump(mode="json", exclude={"path"}) | {"source": experiment.source},
        "device": target.device,
        "dtype": target.dtype,
        "environment": target.environment.model_dump(mode="json"),
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
    together: Iterable[Sequence[Point]],
    retry: Collection[Status],
) -> set[Point]:
    """Points of passes all of whose cases are on disk, none with a status that is to be retried."""
    done = {case.key for case in writer.cases if case.status not in retry}
    return {
        point
        for several in together
        if all(case.key in done for point in several for case in cases[point])
        for point in several
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
