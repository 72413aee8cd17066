"""What a kind of work provides so that the runner can measure its points."""

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
    """Measures the points of one run, pass by pass."""

    def measure(
        self,
        points: Sequence[Point],
        cases_of: Mapping[Point, Sequence[Case]],
        budget_s: float,
        announce: Callable[[str], None],
        advance: Callable[[float], None],
    ) -> Mapping[Point, Sequence[CaseFacts]]:
        """Measure all cases of the points of a pass, in about `budget_s` seconds.

        `announce` receives a text about the current work, `advance` the share of the pass that is done (0 to 1).
        """
        ...

    def close(self) -> None:
        """Release what the measurer holds between points."""
        ...


class Measuring(Protocol):
    """How the points of one kind are measured."""

    @property
    def sessions(self) -> SessionWork | None:
        """The sessions that can take turns with another revision; None if this kind has none."""
        ...

    def passes(self, points: Iterable[Point]) -> list[tuple[Point, ...]]:
        """Group the points that are measured together; the last point of a pass represents it."""
        ...

    def weight(self, point: Point, seed: int) -> int:
        """Relative cost of a point; points share the budget by weight."""
        ...

    def start(
        self, experiment: Any, target: Target, points: Sequence[Point], writer: RunWriter, options: RunOptions
    ) -> PointMeasurer:
        """Prepare to measure these points. Raises `RunError` if that is impossible."""
        ...

    def describe(self, experiment: Any, target: Target) -> str:
        """The plan of a run, as text."""
        ...


def measuring(experiment: Experiment) -> Measuring:
    """How the points of an experiment are measured."""
    kind_measuring: Measuring = kinds.get(experiment.kind).measuring()
    return kind_measuring
