"""How a run goes, beyond what its experiment says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunkbench.experiment.point import Point
from chunkbench.runner.client import WorkerClient, WorkerProcess
from chunkbench.store.facts import Status


@dataclass(frozen=True)
class RunOptions:
    """What a gate does differently from a run whose table is to be read, and a run that is resumed from a new one."""

    brief: bool = False
    """Whether seconds count: the machine's peaks are not probed, which no comparison needs, and no memory is taken
    beforehand."""
    points: frozenset[Point] | None = None
    """Only these; None: all of the experiment."""
    retry: frozenset[Status] = frozenset()
    """Points with a row of such a status are measured again where a run is resumed."""
    start_worker: Callable[[Path, str], WorkerClient] = WorkerProcess
    """Starts a worker for a kind of work, whose standard error goes to the file."""
