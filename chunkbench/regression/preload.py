"""Workers that others are forked from: everything is imported and made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.experiment import TimedExperiment
from chunkbench.runner.client import WorkerCrashed, WorkerProcess, WorkerTimeout
from chunkbench.runner.target import Target

_IMPORT_LIMIT_S = 300.0


def preloaded(start: Callable[[], WorkerProcess], experiment: TimedExperiment, target: Target) -> WorkerProcess:
    """A worker that has imported the experiment's implementations and made its inputs.

    Implementations that take it down are left out: they will do so to a child, and be a row that says so. Raises what
    `start` raises, and `WorkerError`.
    """
    names = list(experiment.implementations)
    while True:
        worker = start()
        try:
            lost = _import(worker, names)
            if lost is None:
                worker.ask("warm", _IMPORT_LIMIT_S, seed=experiment.seed, dtype=target.dtype, device=target.device)
                return worker
        except BaseException:
            worker.kill()
            raise
        worker.kill()
        names.remove(lost)


def _import(worker: WorkerProcess, names: Sequence[str]) -> str | None:
    """The implementation that took the worker down, if one did."""
    for name in names:
        try:
            worker.ask("preload", _IMPORT_LIMIT_S, implementations=[name])
        except (WorkerCrashed, WorkerTimeout):
            return name
    return None
