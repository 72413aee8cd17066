"""What a kind of work provides so that the runner can measure its points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chunkbench import kinds
from chunkbench.experiment import Experiment
from chunkbench.experiment.point import Case, Point
from chunkbench.runner.options import RunOptions
from chunkbench.store import CaseFacts

if TYPE_CHECKING:
    from chunkbench.runner.estimate import Estimate
    from chunkbench.runner.session_work import SessionWork
    from chunkbench.runner.target import Target


class Pass(NamedTuple):
    """Points that are measured together, the longest last, and the kind of machine that measures them."""

    points: tuple[Point, ...]
    machine_kind: str


@dataclass(frozen=True)
class Workplace:
    """What a measurer finds on its machine."""

    log: Path
    """The file for what workers and servers print."""
    earlier: Sequence[CaseFacts] = ()
    """Rows that the run has already, if it is resumed."""


class PointMeasurer(Protocol):
    """Measures the points of one run, pass by pass."""

    @property
    def looks(self) -> Mapping[str, Mapping[str, Any]]:
        """Implementation id -> how reports show it (`chunkbench.experiment.look`)."""
        ...

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
        self, experiment: Any, target: Target, points: Sequence[Point], place: Workplace, options: RunOptions
    ) -> PointMeasurer:
        """Prepare to measure these points. Raises `RunError` if that is impossible."""
        ...

    def describe(self, experiment: Any, target: Target) -> str:
        """The plan of a run, as text."""
        ...

    def estimate(self, experiment: Any, target: Target) -> Estimate | str:
        """The memory and the time that a run on this machine will take, or in words what is known instead."""
        ...


def measuring(experiment: Experiment) -> Measuring:
    """How the points of an experiment are measured."""
    kind_measuring: Measuring = kinds.get(experiment.kind).measuring()
    return kind_measuring
