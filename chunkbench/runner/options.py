"""Options of a run that its experiment does not state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunkbench.experiment.terms import Pages
from chunkbench.runner.client import WorkerClient, WorkerProcess
from chunkbench.store.results import Status


@dataclass(frozen=True)
class RunOptions:
    """What a resumed run measures again, and how workers start."""

    retry: frozenset[Status] = frozenset()
    """A resumed run measures points again that have a row of such a status."""
    start_worker: Callable[[Path, str, Pages], WorkerClient] = WorkerProcess
    """Starts a worker for a kind of work, with such pages; its standard error goes to the file."""
