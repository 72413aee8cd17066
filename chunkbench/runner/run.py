"""A whole run: survey, points in order within the budget, the run directory, resume, interruption."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from chunkbench import __version__
from chunkbench.environment import Environment, git_state, read_environment
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Device, Dtype, Point
from chunkbench.runner.client import WorkerClient
from chunkbench.runner.identity import differences, identity
from chunkbench.runner.ledger import Traits
from chunkbench.runner.point_runner import PointRunner
from chunkbench.store import CaseFacts, Run, RunError, RunWriter, open_run

_SURVEY_LIMIT_S = 300.0
_NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags of instructions that multiply bfloat16."""


class Listener(Protocol):
    """Who watches a run. `left_s` is the estimated time left, None while nothing is known."""

    def started(self, path: Path, points: int, finished: int) -> None: ...

    def activity(self, point: Point, text: str, done: float, left_s: float | None) -> None: ...

    def point_finished(self, point: Point, cases: Sequence[CaseFacts], done: float, left_s: float | None) -> None: ...


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


def resolve(experiment: Experiment) -> Target:
    """Resolve `device: auto` and `dtype: auto` on this machine.

    float16 on CUDA; on a CPU bfloat16 where it has instructions for it, else float32.
    """
    environment = read_environment()
    detected: Device = "cuda" if environment.gpus else "cpu"
    device = detected if experiment.device == "auto" else experiment.device
    if device == "cuda" and not environment.gpus:
        raise RunError("device: cuda, but PyTorch sees no NVIDIA GPU here; `chunkbench doctor` says more")
    native: Dtype = "bfloat16" if {*environment.cpu.isa} & _NATIVE_BFLOAT16 else "float32"
    suited: Dtype = "float16" if device == "cuda" else native
    return Target(device, suited if experiment.dtype == "auto" else experiment.dtype, environment)


def weight(point: Point, seed: int) -> int:
    """Relative cost of a point: tokens that all sequences hold, times heads and head size, and a constant."""
    tokens = sum(point.prompt_lengths(seed)) + point.batch_size * point.n_c
    return tokens * point.token_bytes + (1 << 24)


def run_experiment(
    experiment: Experiment, target: Target, out: Path, resume: bool, command: Sequence[str], listener: Listener
) -> Outcome:
    """Measure every point that the run directory does not hold yet.

    Raises `RunError` when the directory cannot be used, or `resume` meets another experiment, revision or machine.
    Ctrl-C and SIGTERM end it early: points that were finished are kept.
    """
    points = experiment.points(target.device, target.dtype)
    cases = {point: experiment.cases(point) for point in points}
    writer = _open_writer(experiment, target, out, resume, command, len(points))
    try:
        finished = _finished_points(writer, cases)
        listener.started(out, len(points), len(finished))
        writer.update_manifest(interrupted=True, finished_at=None)  # true until proven otherwise: a kill leaves it so
        todo = [point for point in points if point not in finished]
        try:
            with _sigterm_as_interrupt():
                _measure(experiment, target, writer, todo, cases, len(points), listener)
        except KeyboardInterrupt:
            return Outcome(open_run(out), interrupted=True)
        writer.update_manifest(interrupted=False, finished_at=_now())
    finally:
        writer.close()
    return Outcome(open_run(out), interrupted=False)


def _measure(
    experiment: Experiment,
    target: Target,
    writer: RunWriter,
    todo: Sequence[Point],
    cases: dict[Point, Sequence[Case]],
    points: int,
    listener: Listener,
) -> None:
    if not todo:
        return

    def start() -> WorkerClient:
        return WorkerClient(writer.worker_log)

    worker = start()
    try:
        reply = worker.ask(
            "survey", _SURVEY_LIMIT_S, implementations=list(experiment.implementations), device=target.device
        )
        survey = {name: Traits(**traits) for name, traits in reply.items()}
    except BaseException:
        worker.kill()
        raise
    runner = PointRunner(experiment, survey, worker, start)
    weights = {point: weight(point, experiment.seed) for point in cases}
    whole = sum(weights.values())
    budget = experiment.budget_s * sum(weights[point] for point in todo) / whole
    started = monotonic()
    before = sum(weights[point] for point in cases if point not in todo)
    behind = 0

    def left(extra: float) -> float | None:
        """Time left, from the pace so far once there is one."""
        done = behind + extra
        if done < 0.02 * whole:
            return max(0.0, budget - (monotonic() - started))
        return (monotonic() - started) / done * (whole - before - done)

    try:
        for position, point in enumerate(todo):
            ahead = sum(weights[later] for later in todo[position:])
            share = max(0.0, budget - (monotonic() - started)) * weights[point] / ahead
            progress = 0.0

            def announce(text: str, point: Point = point) -> None:
                extra = progress * weights[point]
                listener.activity(point, text, (before + behind + extra) / whole, left(extra))

            def advance(fraction: float) -> None:
                nonlocal progress
                progress = fraction

            measured = runner.measure(point, cases[point], share, announce, advance)
            writer.append(measured)
            behind += weights[point]
            listener.point_finished(point, measured, (before + behind) / whole, left(0.0))
    finally:
        runner.close()


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
    manifest: dict[str, Any] = {
        "chunkbench_version": __version__,
        "experiment": experiment.model_dump(mode="json", exclude={"path"}) | {"source": experiment.source},
        "device": target.device,
        "dtype": target.dtype,
        "environment": target.environment.model_dump(mode="json"),
        "git": git_state(Path(__file__).parent),
        "identity": current,
        "command": list(command),
        "python": sys.version.split()[0],
        "seed": experiment.seed,
        "points": points,
        "started_at": _now(),
        "finished_at": None,
        "interrupted": True,
    }
    return RunWriter.create(out, manifest)


def _finished_points(writer: RunWriter, cases: dict[Point, Sequence[Case]]) -> set[Point]:
    """Points all of whose cases are on disk; the rest of a half-written one is dropped."""
    written = {case.key for case in writer.cases}
    finished = set()
    for point, expected in cases.items():
        keys = {case.key for case in expected}
        if keys <= written:
            finished.add(point)
        elif keys & written:
            writer.discard(keys)
    return finished


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat a polite kill like Ctrl-C for the time of a run."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
