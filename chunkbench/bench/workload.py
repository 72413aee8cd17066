"""What a kind of work is (`Workload`), and the registry of all kinds.

A kind is one class. It names the classes of its experiments, points and results. It has the methods that the run loop,
the worker and the reports call. `chunkbench.workloads.register` registers the kinds; the command line, the worker and
`chunkbench.load` call this function. This module imports other modules of ChunkBench only for the type checker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, cast

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from chunkbench.bench.experiment.point import Point
    from chunkbench.bench.experiment.spec import Experiment
    from chunkbench.bench.registry import Listed, Registry
    from chunkbench.bench.runner.estimate import Estimate
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.bench.store.results import Result
    from chunkbench.report.layout import Layout

ExperimentT = TypeVar("ExperimentT", bound="Experiment[Any]")
PointT = TypeVar("PointT", bound="Point")
ResultT = TypeVar("ResultT", bound="Result")


class Workload(ABC, Generic[ExperimentT, PointT, ResultT]):
    """A kind of work. Its methods import what they need when they are called, so that a command loads only its own
    part."""

    name: ClassVar[str]
    """The name of the kind in experiment files."""
    summary: ClassVar[str]
    """A few words for the description of the key `kind`."""
    experiment: type[ExperimentT]
    """Class of the experiments of this kind. It checks and holds the content of a YAML file."""
    result: type[ResultT]
    """The model of a line of `cases.jsonl`."""

    @property
    def point(self) -> type[PointT]:
        """The class of the kind's points. The fields of this class are the axes."""
        return cast("type[PointT]", self.experiment.POINT)

    @abstractmethod
    def implementations(self) -> Registry[Listed]:
        """The implementations that the kind can measure."""

    def passes(self, points: Iterable[PointT]) -> list[tuple[PointT, ...]]:
        """Group the points that are measured together, the point with the most work last."""
        return [(point,) for point in points]

    @abstractmethod
    def weight(self, point: PointT, seed: int) -> int:
        """Relative cost of a point. Points share the budget in proportion to this cost."""

    @abstractmethod
    def start(
        self,
        experiment: ExperimentT,
        target: Target,
        points: Sequence[PointT],
        place: Workplace[ResultT],
        options: RunOptions,
    ) -> PointMeasurer[PointT, ResultT]:
        """Prepare to measure these points. Raises `RunError` if that is impossible."""

    def follow(self, experiment: ExperimentT) -> bool:
        """Take part in a run that another process leads, until the run ends. Returns whether this process took part.

        A launcher may start several processes for one run. The leading process returns False at once.
        """
        return False

    @abstractmethod
    def describe(self, experiment: ExperimentT, target: Target) -> str:
        """The plan of a run, as text."""

    @abstractmethod
    def estimate(self, experiment: ExperimentT, target: Target) -> Estimate | str:
        """Estimate the memory and the time of a run on this machine. Returns a text if no estimate is possible."""

    @abstractmethod
    def layout(self) -> Layout:
        """How reports show, compare and judge the runs of this kind."""


AnyWorkload: TypeAlias = "Workload[Any, Any, Any]"
_workloads: dict[str, AnyWorkload] = {}


def add(workload: AnyWorkload) -> None:
    """Register a kind under its name. Does nothing if the kind is already registered. Raises `ValueError` if another
    kind has the name."""
    if type(_workloads.setdefault(workload.name, workload)) is not type(workload):
        raise ValueError(f"there is another kind of work called {workload.name!r}")


def all_kinds() -> tuple[AnyWorkload, ...]:
    return tuple(_workloads.values())


def names() -> tuple[str, ...]:
    return tuple(_workloads)


def default() -> str:
    """The kind of an experiment file without the key `kind`. Raises `LookupError` if there is no kind."""
    return next(iter(_workloads)) if _workloads else get("").name


def get(name: str) -> AnyWorkload:
    """The kind with this name. Raises `LookupError`, whose message lists the known kinds."""
    try:
        return _workloads[name]
    except KeyError:
        known = ", ".join(_workloads) or "none: call chunkbench.workloads.register() first"
        raise LookupError(f"there is no kind of work called {name!r}; there are {known}") from None


def implementations(name: str | None = None) -> tuple[str, ...]:
    """Ids of the implementations of one kind of work, or of all kinds if `name` is None. Imports no implementation."""
    kinds = all_kinds() if name is None else (get(name),)
    return tuple(dict.fromkeys(id_ for kind in kinds for id_ in kind.implementations().names()))


def of(experiment: Experiment[PointT]) -> Workload[Experiment[PointT], PointT, Result]:
    return cast("Workload[Experiment[PointT], PointT, Result]", get(experiment.kind))
