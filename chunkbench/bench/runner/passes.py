"""The objects that a run and a kind of work exchange: passes, options of a run, and the measurers of passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from chunkbench.bench.experiment.point import Case, Point
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.runner.client import WorkerClient, WorkerProcess
from chunkbench.bench.store import Result
from chunkbench.bench.store.results import Status

PointT = TypeVar("PointT", bound=Point)
ResultT = TypeVar("ResultT", bound=Result)
MeasuredT = TypeVar("MeasuredT", bound=Result, covariant=True)


class Pass(NamedTuple):
    """Points that are measured together, the longest last, and the kind of machine that measures them."""

    points: tuple[Point, ...]
    machine_kind: str


@dataclass
class Budget:
    """The seconds that some work may take, counted from now, and the share of the work that is done."""

    seconds: float
    share_done: float = 0.0
    """Share of the work that is done, 0 to 1."""

    def __post_init__(self) -> None:
        self._began = monotonic()

    @property
    def spent_s(self) -> float:
        return monotonic() - self._began

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - self.spent_s)

    def fits_another(self, done: int) -> bool:
        """Whether one more part fits, if it takes as long as each of the `done` parts so far."""
        return self.spent_s / done * (done + 1) <= self.seconds


@dataclass(frozen=True)
class Workplace(Generic[ResultT]):
    """The part of a run that a measurer uses: files, earlier rows, and a way to tell the user something."""

    log: Path
    """The file for the output of workers and servers."""
    earlier: Sequence[ResultT] = ()
    """Rows that a resumed run already has."""
    notify: Callable[[str], None] = lambda text: None
    """Receives texts that the user should read before the measurement starts."""


class PointMeasurer(Protocol[PointT, MeasuredT]):
    """Measures the points of one run, pass by pass."""

    @property
    def styles(self) -> Mapping[str, Mapping[str, Any]]:
        """Implementation id -> how reports show it (`chunkbench.bench.experiment.terms`)."""
        ...

    def measure(
        self,
        points: Sequence[PointT],
        cases_of: Mapping[PointT, Sequence[Case[PointT]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Mapping[PointT, Sequence[MeasuredT]]:
        """Measure all cases of the points of a pass, about within the budget, and keep `budget.share_done` up to date.

        `announce` receives a text about the current work.
        """
        ...

    def close(self) -> None:
        """Release what the measurer holds between points."""
        ...


@dataclass(frozen=True)
class RunOptions:
    """Options of a run: what a resumed run measures again, and how workers start."""

    retry: frozenset[Status] = frozenset()
    """A resumed run measures points again that have a row of such a status."""
    start_worker: Callable[[Path, str, Pages], WorkerClient] = WorkerProcess
    """Starts a worker: (file for its standard error, kind of work, memory pages) -> worker."""
