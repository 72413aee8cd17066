"""What a node gets: an experiment and its points. It is pickled, and the node has the same revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Point
from chunkbench.runner.options import RunOptions
from chunkbench.runner.target import Target
from chunkbench.store import Result


@dataclass(frozen=True)
class NodeJob:
    """An experiment on one machine."""

    experiment: Experiment
    target: Target
    points: Sequence[Point]
    """All points that the machine may have to measure."""
    earlier: Sequence[Result]
    brief: bool

    def run_options(self) -> RunOptions:
        """The options that matter on a node."""
        return RunOptions(brief=self.brief)
