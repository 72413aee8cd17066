"""What the runner has to know of a kind of work: its part for this room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chunkbench import kinds
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner.options import RunOptions
from chunkbench.store import CaseFacts, RunWriter

if TYPE_CHECKING:
    from chunkbench.runner.session_work import SessionWork
    from chunkbench.runner.target import Target


class PointMeasurer(Protocol):
    """Measures points of one run, one pass after the other."""

    def measure(
        self,
        points: Sequence[Point],
        cases_of: Mapping[Point, Sequence[Case]],
        budget_s: float,
        announce: Callable[[str], None],
        advance: Callable[[float], None],
    ) -> Mapping[Point, Sequence[CaseFacts]]:
        """All cases of the points of a pass, in about `budget_s` seconds.

        `announce` is told what is being done, `advance` which share of the pass is done (0 to 1).
        """
        ...

    def close(self) -> None:
        """Give back whatever is held between points."""
        ...


class Measuring(Protocol):
    """How points of a kind are measured."""

    @property
    def sessions(self) -> SessionWork | None:
        """What can be measured in turns with another revision; None where nothing of this kind can."""
        ...

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Points that are measured together; the last of a pass stands for it."""
        ...

    def weight(self, point: Point, seed: int) -> int:
        """Relative cost of a point, by which points share the budget."""
        ...

    def start(
        self, experiment: Any, target: Target, points: Sequence[Point], writer: RunWriter, options: RunOptions
    ) -> PointMeasurer:
        """Get ready to measure these points. Raises `RunError` where that is impossible."""
        ...

    def describe(self, experiment: Any, target: Target) -> str:
        """What a run would do, as text."""
        ...


def measuring(experiment: Experiment) -> Measuring:
    """How the points of an experiment are measured."""
    found: Measuring = kinds.get(experiment.kind).measuring()
    return found
