"""Runs a whole experiment: points in order within the budget, run directory, resume, interruption."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkbench.bench import workload
from chunkbench.bench.environment import git_state
from chunkbench.bench.experiment import Experiment
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.executor import Executor, Listener, MeasuredPass, RunJob
from chunkbench.bench.runner.pace import Pace
from chunkbench.bench.runner.passes import Pass, RunOptions
from chunkbench.bench.runner.target import Target, differences, identity
from chunkbench.bench.store import TORN, Run, RunWriter, open_run
from chunkbench.bench.store.results import Status
from chunkbench.run_error import RunError
from chunkbench.version import __version__

DEFAULT_OPTIONS = RunOptions()


@dataclass(frozen=True)
class RunOutcome:
    run: Run
    interrupted: bool


def run_experiment(
    experiment: Experiment,
    executor: Executor,
    out: Path,
    resume: bool,
    command: Sequence[str],
    listener: Listener,
    options: RunOptions = DEFAULT_OPTIONS,
) -> RunOutcome:
    """Measure the points that the run directory lacks, and the points that the options select again.

    Ctrl-C and SIGTERM end the run early and keep the finished points. Raises `RunError` if the directory cannot be
    used. A run can be resumed only with the same experiment, revision and machine.
    """
    passes = _passes(experiment, executor.targets)
    points = sum(len(pass_.points) for pass_ in passes)
    writer = _open_writer(experiment, executor.targets, out, resume, command, points)
    try:
        finished = _finished(writer, experiment, passes, options.retry)
        if writer.torn:
            listener.problem(f"{out}: {TORN}; it is removed, and its point is measured again")
        listener.started(out, points, sum(len(pass_.points) for pass_ in finished))
        # `interrupted` stays true if the run is killed.
        writer.update_manifest(interrupted=True, finished_at=None)
        pending = [pass_ for pass_ in passes if pass_ not in finished]
        try:
            with signals_as_interrupt():
                if pending:
                    _measure(experiment, executor, writer, passes, pending, listener, options)
        except KeyboardInterrupt:
            return RunOutcome(open_run(out), interrupted=True)
        writer.update_manifest(interrupted=False, finished_at=now())
    finally:
        writer.close()
    return RunOutcome(open_run(out), interrupted=False)


def _passes(experiment: Experiment, targets: Sequence[Target]) -> list[Pass]:
    """The passes of the run, for each kind of machine."""
    passes = []
    for target in targets:
        points = experiment.points(target.device, target.dtype)
        passes += [Pass(group, target.machine_kind) for group in workload.of(experiment).passes(points)]
    return passes


def _measure(
    experiment: Experiment,
    executor: Executor,
    writer: RunWriter,
    passes: Sequence[Pass],
    pending: Sequence[Pass],
    listener: Listener,
    options: RunOptions,
) -> None:
    kind = workload.of(experiment)
    weights = {pass_: kind.weight(pass_.points[-1], experiment.seed) for pass_ in passes}
    pace = Pace(weights, pending, experiment.budget_s * len(executor.targets))
    job = RunJob(experiment, pending, writer.worker_log, tuple(writer.cases), options)
    with contextlib.closing(executor.measure(job, pace, listener)) as results:
        for measured in results:
            _record_machine(writer, measured)
            writer.append([case for point in measured.pass_.points for case in measured.cases[point]])
            for number, point in enumerate(measured.pass_.points):
                took_s = 0.0 if number else measured.took_s
                listener.point_finished(point, measured.cases[point], took_s, pace.done, pace.left_s)


def _record_machine(writer: RunWriter, measured: MeasuredPass) -> None:
    """Make sure that the manifest has the machine of these rows, and the styles of their implementations."""
    known = writer.manifest.model_dump(mode="json")
    styles = {**known["styles"], **measured.styles}
    machines = {**known["machines"]}
    machines.setdefault(measured.machine, {**measured.environment})
    if styles != known["styles"] or machines != known["machines"]:
        writer.update_manifest(styles=styles, machines=machines)


def _open_writer(
    experiment: Experiment, targets: Sequence[Target], out: Path, resume: bool, command: Sequence[str], points: int
) -> RunWriter:
    current = identity(experiment, targets)
    if resume:
        writer = RunWriter.resume(out)
        reasons = differences(writer.manifest.identity, current)
        if reasons:
            writer.close()
            raise RunError(f"{out}: cannot be resumed: {'; '.join(reasons)}. Start a new run", remedy="start again")
        return writer
    return RunWriter.create(
        out, manifest_of(experiment, targets, points) | {"identity": current, "command": [*command]}
    )


def manifest_of(experiment: Experiment, targets: Sequence[Target], points: int) -> dict[str, Any]:
    devices, dtypes = {target.device for target in targets}, {target.dtype for target in targets}
    return {
        "chunkbench_version": __version__,
        "experiment": experiment.model_dump(mode="json", exclude={"path"}) | {"source": experiment.source},
        "device": devices.pop() if len(devices) == 1 else None,
        "dtype": dtypes.pop() if len(dtypes) == 1 else None,
        "machines": {
            target.machine: target.environment.model_dump(mode="json") for target in targets if not target.machine_kind
        },
        "git": git_state(),
        "python": sys.version.split()[0],
        "seed": experiment.seed,
        "points": points,
        "started_at": now(),
        "finished_at": None,
        "interrupted": True,
    }


def _finished(
    writer: RunWriter, experiment: Experiment, passes: Iterable[Pass], retry: Collection[Status]
) -> set[Pass]:
    """Passes whose cases are all on disk, none with a status in `retry`."""
    done = {writer.place_of(case) for case in writer.cases if case.status not in retry}
    return {
        pass_
        for pass_ in passes
        if all((case.key, pass_.machine_kind) in done for point in pass_.points for case in experiment.cases(point))
    }


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end work as Ctrl-C does. SIGHUP stays ignored under nohup."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
