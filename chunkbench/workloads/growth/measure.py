"""Measures how the time of operations grows: each operation at each size, in a process beside this one."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from chunkbench import workloads
from chunkbench.bench.environment import available_memory
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.passes import Budget
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store.results import Status
from chunkbench.bench.workers import pages
from chunkbench.lifetime import follow
from chunkbench.pins import SERVING_INSTALL
from chunkbench.workloads.growth.methods import OPERATIONS, Sample
from chunkbench.workloads.growth.result import GrowthPoint, GrowthResult
from chunkbench.workloads.growth.spec import GrowthExperiment

_MOST_SAMPLES = 31
_MEMORY_SHARE = 0.8
"""Largest share of the available memory that an operation may need."""


class Outcome(NamedTuple):
    """What became of an operation at a size."""

    seconds: list[float]
    """[sample] times. Empty if it failed."""
    status: Status = "ok"
    reason: str = ""


class GrowthMeasurer:
    """Measures the operations of a run."""

    def __init__(self, experiment: GrowthExperiment, target: Target) -> None:
        self._experiment, self._target = experiment, target
        self.styles = OPERATIONS.styles(experiment.implementations)
        self._process: ProcessPoolExecutor | None = None

    def measure(
        self,
        points: Sequence[GrowthPoint],
        cases_of: Mapping[GrowthPoint, Sequence[Case[GrowthPoint]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Mapping[GrowthPoint, Sequence[GrowthResult]]:
        """Measure all operations of a size. They share the time equally; each has at least one sample."""
        (point,) = points
        cases, results = cases_of[point], list[GrowthResult]()
        for number, case in enumerate(cases):
            announce(OPERATIONS.load(case.implementation).label)
            results.append(self._measure(case, budget.left_s / (len(cases) - number)))
            budget.share_done = (number + 1) / len(cases)
        return {point: results}

    def close(self) -> None:
        """End the process, also one that computes."""
        pool, self._process = self._process, None
        if pool is not None:
            for process in [*pool._processes.values()]:
                process.kill()
            pool.shutdown()

    def _sampled(self, name: str, point: GrowthPoint, seconds: float) -> Outcome:
        """Samples of an operation in the other process."""
        if self._process is None:
            # Forked processes would inherit the locks of this process's threads.
            context = multiprocessing.get_context("spawn")
            self._process = ProcessPoolExecutor(1, context, _begin, (os.getpid(),))
        try:
            # With huge pages, as the workers of other kinds of work. The first call starts the process.
            with _huge_pages():
                future = self._process.submit(_measured, name, point, seconds)
            return Outcome(future.result(self._experiment.case_limit_s))
        except BrokenProcessPool:
            self.close()
            return Outcome([], "crashed", "its process died")
        except TimeoutError:
            self.close()
            return Outcome([], "timeout", f"took longer than the limit of {self._experiment.case_limit_s:.0f} s")
        except ModuleNotFoundError as error:
            return Outcome([], "unavailable", f"{error.name} is missing: {SERVING_INSTALL}")
        except MemoryError as error:
            return Outcome([], "oom", str(error) or "there is no memory left")
        except Exception as error:  # the other operations go on
            return Outcome([], "error", f"{type(error).__name__}: {error}")

    def _measure(self, case: Case[GrowthPoint], seconds: float) -> GrowthResult:
        operation, point, started_at = OPERATIONS.load(case.implementation), case.point, now()
        need, free = operation.bytes_each * point.element_bytes * point.size, available_memory()
        answer = operation.availability(point.device)
        if not answer.ok:
            outcome = Outcome([], "unavailable", answer.reason)
        elif need > _MEMORY_SHARE * free:
            reason = f"predicted: needs about {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
            outcome = Outcome([], "oom", reason)
        else:
            outcome = self._sampled(case.implementation, point, seconds)
        return GrowthResult.of_case(
            case,
            experiment=self._experiment.name,
            label=operation.label,
            status=outcome.status,
            reason=outcome.reason,
            seed=self._experiment.seed,
            started_at=started_at,
            machine=self._target.machine,
            seconds=tuple(outcome.seconds),
        )


@contextmanager
def _huge_pages() -> Iterator[None]:
    """Give processes that start here the variables that ask for huge pages."""
    before = dict(os.environ)
    os.environ.update(pages.environment("huge", before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _begin(parent: int) -> None:
    follow(parent)
    workloads.register()


def _measured(name: str, point: GrowthPoint, seconds: float) -> list[float]:
    """Seconds of samples of an operation. Runs in the other process."""
    try:
        with OPERATIONS.load(name).begin(point) as sample:
            return _samples(sample, seconds)
    finally:
        gc.collect()


def _samples(sample: Sample, seconds: float) -> list[float]:
    """Samples for this time, at least one. The first one warms caches and memory up; if there is time for others, it
    does not count."""
    begun = perf_counter()
    first = sample()
    times = list[float]()
    while len(times) < _MOST_SAMPLES and perf_counter() - begun < seconds:
        times.append(sample())
    return times or [first]
