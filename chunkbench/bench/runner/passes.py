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
    """A time limit in seconds, which starts when this object is made, and the share of the work that is done."""

    seconds: float
    share_done: float = 0.0

    def __post_init__(self) -> None:
        self._began = monotonic()

    @property
    def spent_s(self) -> float:
        return monotonic() - self._began

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - self.spent_s)

    def fits_another(self, done: int) -> bool:
        """Whether the time limit has room for one more part of the work. `done` is the number of finished parts. The
        next part is expected to take their mean time."""
        return self.spent_s / done * (done + 1) <= self.seconds


@dataclass(frozen=True)
class Workplace(Generic[ResultT]):
    """What a run gives to a measurer: a log file, earlier results, and a way to inform the user."""

    log: Path
    """The file for the output of workers and servers."""
    earlier: Sequence[ResultT] = ()
    """Results that a resumed run already has."""
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
        """Measure all cases of the points of a pass, in about the time of the budget. Update `budget.share_done`
        meanwhile.

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
    """Statuses of results. A resumed run repeats a pass if one of the pass's results has such a status."""
    start_worker: Callable[[Path, str, Pages], WorkerClient] = WorkerProcess
    """Starts a worker, given the file for its standard error, the kind of work and the size of memory pages."""
