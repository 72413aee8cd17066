"""Parent workers: they import the implementations and make the inputs, then other workers are forked from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.bench.experiment import TimedExperiment
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.runner.client import WorkerCrashed, WorkerProcess, WorkerTimeout

_IMPORT_LIMIT_S = 300.0


def preloaded(start: Callable[[], WorkerProcess], experiment: TimedExperiment) -> WorkerProcess:
    """A worker that has imported the experiment's implementations.

    An implementation that crashes the worker is left out here. It will crash the child that measures it, and its row
    will report that. Raises what `start` raises, and `WorkerError`.
    """
    names = list(experiment.implementations)
    while True:
        worker = start()
        try:
            crashing = _import(worker, names)
            if crashing is None:
                return worker
        except BaseException:
            worker.kill()
            raise
        worker.kill()
        names.remove(crashing)


def warm(worker: WorkerProcess, seed: int, point: Point, sweep_file: str) -> None:
    """Let a parent make what its children only read. Points of another dtype than this one make inputs of their own.

    `sweep_file`: memory for the children's sweeps; empty if the parent is to take its own. Raises `LOST`.
    """
    arguments = {"seed": seed, "dtype": point.dtype, "device": point.device, "sweep_file": sweep_file}
    worker.ask("warm", _IMPORT_LIMIT_S, **arguments)


def _import(worker: WorkerProcess, names: Sequence[str]) -> str | None:
    """Import the implementations; return the one that crashed the worker, if one did."""
    for name in names:
        try:
            worker.ask("preload", _IMPORT_LIMIT_S, implementations=[name])
        except (WorkerCrashed, WorkerTimeout):
            return name
    return None
