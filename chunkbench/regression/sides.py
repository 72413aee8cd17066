"""This revision against the build of another: both measured in turns, compared, and measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chunkbench.experiment import TimedExperiment
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.paired import Side, Turns
from chunkbench.regression.preload import preloaded
from chunkbench.regression.recorded_build import worker_command
from chunkbench.regression.remeasure import Gated, look_again
from chunkbench.regression.verdicts import Comparison
from chunkbench.runner.client import LOST, WorkerProcess
from chunkbench.runner.target import Target
from chunkbench.store import Run, RunError


@contextmanager
def sides(
    experiment: TimedExperiment,
    target: Target,
    out: Path,
    build: Path,
    name: str,
    manifest: dict[str, Any],
    head: Sequence[str] | None = None,
) -> Iterator[tuple[Side, Side]]:
    """BASE, a worker of the `build` in a folder, which messages call `name`; and HEAD, this revision's.

    `manifest`: what is known of BASE. `head` is another command line for HEAD's worker. Raises `RunError`, also where
    BASE speaks another protocol.
    """
    # PYTHONPATH may lead to this revision.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    parents: list[WorkerProcess] = []
    try:
        try:
            parents.append(_parent(out / "worker-base.log", worker_command(build), clean, experiment, target))
        except LOST as error:
            raise RunError(
                f"{name}: cannot be measured in turns with this revision: {error}. "
                "Record it with its own version and compare the recordings (chunkbench compare)"
            ) from None
        found = parents[0].package
        if not found.is_relative_to(build.resolve()):
            raise RunError(f"{name}: its worker found the package in {found} instead of its own")
        log = out / "worker-head.log"
        try:
            parents.append(_parent(log, list(head) if head else None, None, experiment, target))
        except LOST as error:
            raise RunError(f"a worker process does not start: {error}; see {log}") from None
        yield Side("base", parents[0], manifest), Side("head", parents[1], {})
    finally:
        for parent in parents:
            parent.kill()


def _parent(
    log: Path,
    command: list[str] | None,
    environment: dict[str, str] | None,
    experiment: TimedExperiment,
    target: Target,
) -> WorkerProcess:
    return preloaded(lambda: WorkerProcess(log, experiment.kind, command, environment), experiment, target)


def compared(
    turns: Turns,
    options: Options,
    processes: int,
    again: int,
    adjust: Callable[[list[Run]], None] = lambda _: None,
) -> Gated:
    """Measure, compare, and up to `again` times measure again what looks changed. `adjust` is given BASE's runs before
    they are compared. Raises `RunError` and `NothingToCompare`."""
    first = turns.measure(processes)
    if not first.head:
        return Gated(None, first.interrupted)
    adjust(first.base)
    base, repeats = list(first.base), []

    def measure(number: int, changed: frozenset[str]) -> bool:
        more = turns.measure(processes, changed, f"again-{number}")
        if more.head:
            base.extend(more.base)
            repeats.append(more.head)
        return more.interrupted

    def verdicts() -> Comparison:
        comparison = compare(base, first.head, options, repeats)
        side = comparison.base.model_copy(update={"path": str(first.base[0].path.parent), "processes": len(first.base)})
        return comparison.model_copy(update={"base": side})

    return look_again(verdicts, measure, again, options.threshold, first.interrupted)
