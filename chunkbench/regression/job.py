"""What to measure for a comparison, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkbench.experiment import TimedExperiment
from chunkbench.runner.executor import Listener
from chunkbench.runner.target import Target


@dataclass(frozen=True)
class Job:
    """An experiment to measure on this machine."""

    experiment: TimedExperiment
    target: Target
    out: Path
    """Folder for the runs."""
    listener: Listener
    command: Sequence[str] = ()
    """Words of the command line; the manifests of recorded runs keep them."""


@dataclass(frozen=True)
class Repeats:
    """How often each case is measured."""

    processes: int
    """Fewest processes that measure a case on each side."""
    again: int
    """How many times a case that looks changed may be measured again."""
