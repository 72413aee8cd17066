"""Is this revision slower than another? Both are measured in turns on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import chunkbench
from chunkbench.analysis.compare import Options, compare
from chunkbench.experiment import Experiment
from chunkbench.runner.base_revision import built
from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.gate import Gated, look_again, preloaded
from chunkbench.runner.run import Listener, Target, sigterm_as_interrupt
from chunkbench.runner.turns import Side, Turns
from chunkbench.store import RunError


def regress(
    experiment: Experiment,
    target: Target,
    ref: str,
    options: Options,
    processes: int,
    again: int,
    out: Path,
    listener: Listener,
) -> Gated:
    """Build `ref`, measure it and this revision in turns into `out`, then again, up to `again` times, what looks
    changed. Raises `RunError`, and `NothingToCompare`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}") from error
    parents: list[WorkerClient] = []
    try:
        with sigterm_as_interrupt(), built(ref, out / "build.log") as revision:
            names = list(experiment.implementations)
            for name, python, which in (("base", str(revision.python), ref), ("head", sys.executable, "")):
                parents.append(_parent(out / f"worker-{name}.log", python, names, which))
            git = {"git": {"commit": revision.commit, "dirty": False}}
            sides = Side("base", parents[0], git), Side("head", parents[1], {})
            turns = Turns(experiment, target, *sides, out, listener)
            return _compared(turns, options, processes, again)
    except KeyboardInterrupt:
        return Gated(None, interrupted=True)
    finally:
        for parent in parents:
            parent.kill()


def _compared(turns: Turns, options: Options, processes: int, again: int) -> Gated:
    first = turns.measure(processes)
    if not first.head:
        return Gated(None, first.interrupted)
    base, repeats = list(first.base), []

    def measure(number: int, changed: frozenset[str]) -> bool:
        more = turns.measure(processes, changed, f"again-{number}")
        if more.head:
            base.extend(more.base)
            repeats.append(more.head)
        return more.interrupted

    found = look_again(
        lambda: compare(base, first.head, options, repeats), measure, again, options.threshold, first.interrupted
    )
    comparison = found.comparison
    assert comparison is not None
    side = comparison.base.model_copy(update={"path": str(first.base[0].path.parent), "processes": len(first.base)})
    return Gated(comparison.model_copy(update={"base": side}), found.interrupted)


def _parent(log: Path, python: str, implementations: list[str], ref: str) -> WorkerClient:
    """A worker to fork from: this revision's, or that of `ref`. Raises `RunError`, also where that is too old."""
    # PYTHONPATH may lead to this revision.
    environment = {name: value for name, value in os.environ.items() if not ref or name != "PYTHONPATH"}

    def start() -> WorkerClient:
        return WorkerClient(log, [python, "-m", "chunkbench.runner.worker"], environment)

    try:
        worker = preloaded(start, implementations)
    except (WorkerCrashed, WorkerTimeout, WorkerError) as error:
        if not ref:
            raise RunError(f"a worker process does not start: {error}; see {log}") from None
        raise RunError(
            f"--base {ref}: too old to be measured in turns: {error}. "
            "Record it with its own version and compare the recordings (chunkbench compare)"
        ) from None
    if ref and worker.package.is_relative_to(Path(chunkbench.__file__).parent.parent):
        worker.kill()
        raise RunError(f"--base {ref}: its worker found this revision in {worker.package} instead of its own")
    return worker
