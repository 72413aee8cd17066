"""Workers that others are forked from: everything is imported and made once."""

from __future__ import annotations

from collections.abc import Callable

from chunkbench.experiment import Experiment
from chunkbench.runner.client import WorkerCrashed, WorkerProcess, WorkerTimeout
from chunkbench.runner.run import Target

_IMPORT_LIMIT_S = 300.0


def preloaded(start: Callable[[], WorkerProcess], experiment: Experiment, target: Target) -> WorkerProcess:
    """A worker that has imported the experiment's implementations and made its inputs.

    Implementations that take it down are left out: they will do so to a child, and be a row that says so. Raises what
    `start` raises, and `WorkerError`.
    """
    left_out: set[str] = set()
    while True:
        worker = start()
        name = ""
        try:
            for name in experiment.implementations:
                if name not in left_out:
                    worker.ask("preload", _IMPORT_LIMIT_S, implementations=[name])
            name = ""
            worker.ask("warm", _IMPORT_LIMIT_S, seed=experiment.seed, dtype=target.dtype, device=target.device)
            return worker
        except (WorkerCrashed, WorkerTimeout):
            worker.kill()
            if not name:
                raise
            left_out.add(name)
        except BaseException:
            worker.kill()
            raise
