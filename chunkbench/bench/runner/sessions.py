"""Base class of the kinds of work whose implementations are sessions in a worker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

from typing_extensions import TypeVar

from chunkbench.bench.store.results import TimedResult
from chunkbench.bench.workload import Workload

if TYPE_CHECKING:
    from chunkbench.bench.contract import AnyImplementation
    from chunkbench.bench.experiment import SessionExperiment
    from chunkbench.bench.experiment.point import SessionPoint
    from chunkbench.bench.registry import Registry
    from chunkbench.bench.runner.estimate import Estimate
    from chunkbench.bench.runner.passes import PointMeasurer, RunOptions, Workplace
    from chunkbench.bench.runner.target import Target
    from chunkbench.bench.store.results import SessionResult
    from chunkbench.bench.workers.checks import Check
    from chunkbench.bench.workers.inputs import PointInputs, PooledInputs

SessionT = TypeVar("SessionT", bound="SessionExperiment[Any]")
PointT = TypeVar("PointT", bound="SessionPoint")
ResultT = TypeVar("ResultT", bound="SessionResult")
InputsT = TypeVar("InputsT", bound="PointInputs", default="PooledInputs")


class Amounts(NamedTuple):
    """Bytes and FLOPs of the calls. Each list has one entry for each timed step."""

    unique_bytes: tuple[int, ...] = ()
    """Bytes that every implementation must move."""
    read_bytes: tuple[int, ...] = ()
    """Bytes that this implementation itself moves."""
    flops: tuple[int, ...] = ()


class SessionWorkload(Workload[SessionT, PointT, ResultT], Generic[SessionT, PointT, ResultT, InputsT]):
    """A kind whose implementations take turns in a worker, each checked against float64."""

    @property
    def timed(self) -> bool:
        """Whether calls are timed. If so, each round also probes the machine's peaks."""
        return issubclass(self.result, TimedResult)

    @abstractmethod
    def implementations(self) -> Registry[AnyImplementation]: ...

    @abstractmethod
    def needs(self, point: PointT, seed: int, implementation: str, shares_storage: bool) -> int:
        """Predicted bytes that a session will hold."""

    @abstractmethod
    def touched(self, point: PointT, seed: int, implementation: str, shares_storage: bool) -> int:
        """Distinct bytes that the first timed call reads."""

    def given(self, inputs: InputsT, implementation: str) -> InputsT:
        """The inputs of a point for an implementation that may have its own form of K and V."""
        return inputs

    def definition(self, implementation: str) -> str:
        """The name of the function that an implementation computes. Implementations with the same name share one
        check."""
        return ""

    @abstractmethod
    def least_kv_bytes(self, point: PointT, seed: int, implementation: str) -> int:
        """Bytes of K/V that an implementation must hold at the end; 0 if an implementation may hold none."""

    @abstractmethod
    def amounts(
        self, point: PointT, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        """Bytes and FLOPs of the call at each of these steps."""

    @abstractmethod
    def inputs(self, point: PointT, seed: int) -> InputsT: ...

    @abstractmethod
    def check(self, inputs: InputsT, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        """Make a check: random queries, and an implementation's expected output after `steps` completion tokens.

        `nonce` seeds the queries. With `sample`, `nonce` also selects the part of the output that is compared.
        """

    def start(
        self,
        experiment: SessionT,
        target: Target,
        points: Sequence[PointT],
        place: Workplace[ResultT],
        options: RunOptions,
    ) -> PointMeasurer[PointT, ResultT]:
        """Start a worker and survey the implementations. Raises `RunError` if no worker starts."""
        from chunkbench.bench.runner.session_measurer import SessionMeasurer

        return SessionMeasurer(self, experiment, target, points, place.log, options)

    def describe(self, experiment: SessionT, target: Target) -> str:
        from chunkbench.bench.runner.dry_run import describe_plan

        return describe_plan(experiment, self, target)

    def estimate(self, experiment: SessionT, target: Target) -> Estimate | str:
        from chunkbench.bench.runner.dry_run import sharing_of
        from chunkbench.bench.runner.estimate import estimate

        sharing = sharing_of(experiment, self.implementations(), target)
        if not sharing:
            return "no implementation of this experiment is available here"
        return estimate(experiment, self, target, sharing)


AnySessions: TypeAlias = "SessionWorkload[Any, Any, Any, Any]"
