"""Options of a run that its experiment does not state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkbench.experiment.point import Point
from chunkbench.experiment.terms import Pages
from chunkbench.runner.client import WorkerClient, WorkerProcess
from chunkbench.store.results import Status


@dataclass(frozen=True)
class RunOptions:
    """How the runs of a gate differ from ordinary runs, and what a resumed run measures again."""

    brief: bool = False
    """For a gate, which must end in seconds: the machine's peaks are not probed, because comparisons do not need them,
    and no memory is reserved in advance."""
    points: frozenset[Point] | None = None
    """The points to measure; None: all points of the experiment."""
    retry: frozenset[Status] = frozenset()
    """A resumed run measures points again that have a row of such a status."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says beside what it says of every run."""
    start_worker: Callable[[Path, str, Pages], WorkerClient] = WorkerProcess
    """Starts a worker for a kind of work, with such pages; its standard error goes to the file."""
