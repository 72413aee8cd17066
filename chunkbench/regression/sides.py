"""BASE, the build of another revision, against HEAD, this revision: measured in turns, compared, measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkbench.regression.compare import Options, compare
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.paired import Side, Turns
from chunkbench.regression.preload import preloaded
from chunkbench.regression.recorded_build import worker_command
from chunkbench.regression.remeasure import GateResult, remeasure_changed
from chunkbench.regression.verdicts import Comparison
from chunkbench.runner.client import LOST, WorkerProcess
from chunkbench.store import Run, RunError


@dataclass(frozen=True)
class BaseBuild:
    """A build to measure as BASE."""

    folder: Path
    """The folder that holds its package."""
    name: str
    """What messages call it."""
    manifest: dict[str, Any]
    """What the manifests of its runs say about it: commit and version."""


@contextmanager
def sides(job: Job, build: BaseBuild, head_command: Sequence[str] | None = None) -> Iterator[tuple[Side, Side]]:
    """Start the worker of BASE, from `build`, and the worker of HEAD, from this revision.

    `head_command` replaces the command line of HEAD's worker. Raises `RunError` if a worker does not start, or if BASE
    speaks another protocol.
    """
    workers: list[WorkerProcess] = []
    try:
        workers.append(_start_base(job, build))
        workers.append(_start_head(job, head_command))
        yield Side("base", workers[0], build.manifest), Side("head", workers[1], {})
    finally:
        for worker in workers:
            worker.kill()


def _start_base(job: Job, build: BaseBuild) -> WorkerProcess:
    # PYTHONPATH may lead to this revision.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        worker = _preloaded(job, "worker-base.log", worker_command(build.folder), environment)
    except LOST as error:
        raise RunError(
            f"{build.name}: cannot be measured in turns with this revision: {error}. "
            "Record it with its own version and compare the recordings (chunkbench compare)"
        ) from None
    if not worker.package.is_relative_to(build.folder.resolve()):
        worker.kill()
        raise RunError(f"{build.name}: its worker imports the package from {worker.package}, not from its own folder")
    return worker


def _start_head(job: Job, command: Sequence[str] | None) -> WorkerProcess:
    try:
        return _preloaded(job, "worker-head.log", list(command) if command else None, None)
    except LOST as error:
        raise RunError(f"a worker process does not start: {error}; see {job.out / 'worker-head.log'}") from None


def _preloaded(job: Job, log: str, command: list[str] | None, environment: dict[str, str] | None) -> WorkerProcess:
    kind = job.experiment.kind
    return preloaded(lambda: WorkerProcess(job.out / log, kind, command, environment), job.experiment, job.target)


def measure_and_compare(
    turns: Turns,
    options: Options,
    repeats: Repeats,
    adjust_base: Callable[[list[Run]], None] = lambda _: None,
) -> GateResult:
    """Measure both sides, compare them, and measure again what looks changed.

    `adjust_base` may change the first runs of BASE before they are compared. Raises `RunError`, `NothingToCompare`.
    """
    first = turns.measure(repeats.processes)
    if not first.head:
        return GateResult(None, first.interrupted)
    adjust_base(first.base)
    base, head_again = list(first.base), []

    def measure(number: int, changed: frozenset[str]) -> bool:
        pairs = turns.measure(repeats.processes, changed, f"again-{number}")
        if pairs.head:
            base.extend(pairs.base)
            head_again.append(pairs.head)
        return pairs.interrupted

    def compare_all() -> Comparison:
        comparison = compare(base, first.head, options, head_again)
        side = comparison.base.model_copy(update={"path": str(first.base[0].path.parent), "processes": len(first.base)})
        return comparison.model_copy(update={"base": side})

    return remeasure_changed(compare_all, measure, repeats.again, options.threshold, first.interrupted)
