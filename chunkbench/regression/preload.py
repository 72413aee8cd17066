"""Parent workers: they import the implementations and make the inputs once, then other workers are forked from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.experiment import TimedExperiment
from chunkbench.runner.client import WorkerCrashed, WorkerProcess, WorkerTimeout
from chunkbench.runner.target import Target

_IMPORT_LIMIT_S = 300.0


def preloaded(start: Callable[[], WorkerProcess], experiment: TimedExperiment, target: Target) -> WorkerProcess:
    """A worker that has imported the experiment's implementations and made its inputs.

    An implementation that crashes the worker is left out here. It will crash the child that measures it, and its row
    will report that. Raises what `start` raises, and `WorkerError`.
    """
    names = list(experiment.implementations)
    while True:
        worker = start()
        try:
            crashing = _import(worker, names)
            if crashing is None:
                worker.ask("warm", _IMPORT_LIMIT_S, seed=experiment.seed, dtype=target.dtype, device=target.device)
                return worker
        except BaseException:
            worker.kill()
            raise
        worker.kill()
        names.remove(crashing)


def _import(worker: WorkerProcess, names: Sequence[str]) -> str | None:
    """Import the implementations; return the one that crashed the worker, if one did."""
    for name in names:
        try:
            worker.ask("preload", _IMPORT_LIMIT_S, implementations=[name])
        except (WorkerCrashed, WorkerTimeout):
            return name
    return None
