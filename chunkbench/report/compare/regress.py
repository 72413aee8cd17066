"""Measures whether HEAD is slower than BASE, in interleaved pairs of processes, until each case has a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from chunkbench.bench.environment.revision import PROJECT
from chunkbench.bench.measure.caches import sweep_file
from chunkbench.bench.store import Run
from chunkbench.report.compare.compare import Options, compare
from chunkbench.report.compare.interleaved import Interleaved, InterleavedJob
from chunkbench.report.compare.ratios import FEWEST_PROCESSES
from chunkbench.report.compare.sides import Side
from chunkbench.report.compare.verdicts import Comparison
from chunkbench.run_error import RunError

LIMIT = 6
"""The time limit divided by the experiment's budget. A budget of 20 s gives two minutes."""


@dataclass(frozen=True)
class RegressOutcome:
    comparison: Comparison | None
    """The comparison of all complete pairs. None if the measurement was interrupted before the first pair was
    complete."""
    interrupted: bool


def regress(job: InterleavedJob, base: Side, head: Side, options: Options) -> RegressOutcome:
    """Measure pairs of processes until each case has a verdict, or until the time limit. At least `job.processes` pairs
    are measured.

    A case with a verdict is not measured again. If cases are tested several times, the tests share the allowed error
    probability. The folder `job.out` must exist. After `KeyboardInterrupt` the complete pairs are compared. Raises
    `RunError` and `NothingToCompare`.
    """
    pairs: list[tuple[Run, Run]] = []
    try:
        with sweep_file() if job.target.device == "cpu" else nullcontext("") as swept:
            return RegressOutcome(_measure(Interleaved(job, base, head), pairs, job, options, swept), interrupted=False)
    except KeyboardInterrupt:
        return RegressOutcome(_compare(pairs, options) if pairs else None, interrupted=True)


def looks(pairs: int, first_s: float, limit_s: float) -> list[float]:
    """The times of the tests, in seconds after the start. The first test is at `first_s`, when `pairs` pairs are
    measured. The last of several tests is at `limit_s`.

    Between two tests the number of pairs about doubles. If `pairs` is at least `FEWEST_PROCESSES`, there are at least
    two tests, even if the last test is after `limit_s`.
    """
    growth = limit_s / first_s
    if pairs >= FEWEST_PROCESSES:
        growth = max(2.0, growth)
    more = max(0, round(math.log2(growth))) if growth > 1 else 0
    return [first_s * growth ** (number / more) for number in range(more + 1)] if more else [first_s]


def default_experiment(project: Path) -> str:
    """Name or path of the default experiment of a project. Raises `RunError` if the project has none."""
    if project.resolve() == PROJECT:
        return "gate"
    if not (project / "gate.yaml").is_file():
        raise RunError(f"{project}: has no gate.yaml; name the EXPERIMENT that measures its implementations")
    return str(project / "gate.yaml")


def _measure(
    measuring: Interleaved, pairs: list[tuple[Run, Run]], job: InterleavedJob, options: Options, swept: str
) -> Comparison:
    """Measure pairs into `pairs`, and compare them at the times of `looks`. Returns the last comparison."""
    began = monotonic()
    for number in range(1, 1 + job.processes):
        pairs.append(measuring.pair(number, None, swept))
    schedule = looks(len(pairs), monotonic() - began, LIMIT * job.experiment.budget_s)
    options = replace(options, looks=len(schedule))
    comparison = _compare(pairs, options)
    for look_s in schedule[1:]:
        unsettled = _unsettled(comparison)
        if not unsettled:
            break
        # The last pair before a look may start if half of its time is left: so looks are on time on average.
        while (monotonic() - began) * (1 + 0.5 / len(pairs)) < look_s:
            pairs.append(measuring.pair(1 + len(pairs), unsettled, swept))
        comparison = _compare(pairs, options)
    return comparison


def _compare(pairs: Sequence[tuple[Run, Run]], options: Options) -> Comparison:
    return compare([base for base, _ in pairs], [head for _, head in pairs], options)


def _unsettled(comparison: Comparison) -> frozenset[str]:
    """Keys of the cases whose verdict more pairs can change."""
    return frozenset(case.key for case in comparison.cases if case.verdict == "inconclusive" and case.ratio is not None)
