"""Is HEAD slower than BASE? Interleaved pairs of processes are measured until each case has a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from chunkbench.environment.revision import PROJECT
from chunkbench.measure.caches import sweep_file
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.interleaved import Interleaved, InterleavedJob
from chunkbench.regression.sides import Side
from chunkbench.regression.verdicts import EXACT, Comparison
from chunkbench.runner.run import sigterm_as_interrupt
from chunkbench.store import Run, RunError, writing

LIMIT = 6
"""Pairs go on for at most this many times the experiment's budget: two minutes for a budget of 20 s."""


@dataclass(frozen=True)
class RegressOutcome:
    """What `regress` found."""

    comparison: Comparison | None
    """None if an interruption came before there was anything to compare."""
    interrupted: bool


def regress(job: InterleavedJob, base: Side, head: Side, options: Options) -> RegressOutcome:
    """Measure pairs until each case has a verdict, or until the time is used up. There are at least `job.processes`.

    The verdicts are looked at more than once: then the looks share the error probability. A case with a verdict is not
    measured again. Ctrl-C keeps the complete pairs. Raises `RunError` and `NothingToCompare`.
    """
    with writing(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    measuring = Interleaved(job, base, head)
    runs: tuple[list[Run], list[Run]] = ([], [])
    interrupted = False
    try:
        with sigterm_as_interrupt(), sweep_file() if job.target.device == "cpu" else nullcontext("") as swept:
            options = _measure(measuring, runs, job, options, swept)
    except KeyboardInterrupt:
        interrupted = True
    if not runs[1]:
        return RegressOutcome(None, interrupted)
    complete = len(runs[1])
    return RegressOutcome(compare(runs[0][:complete], runs[1], options), interrupted)


def looks(first_s: float, limit_s: float) -> list[float]:
    """When to look at the verdicts, in seconds: the first time after `first_s`, the last time at `limit_s`.

    About twice as many pairs have been measured at a look as at the one before.
    """
    growth = limit_s / first_s
    more = max(0, round(math.log2(growth))) if growth > 1 else 0
    return [first_s * growth ** (number / more) for number in range(more + 1)] if more else [first_s]


def default_experiment(project: Path) -> str:
    """The experiment that measures a project if none is named. Raises `RunError` if it has none."""
    if project.resolve() == PROJECT:
        return "gate"
    if not (project / "gate.yaml").is_file():
        raise RunError(f"{project}: has no gate.yaml; name the EXPERIMENT that measures its implementations")
    return str(project / "gate.yaml")


def _measure(
    measuring: Interleaved, runs: tuple[list[Run], list[Run]], job: InterleavedJob, options: Options, swept: str
) -> Options:
    """Measure pairs into `runs`. Returns the options with the number of looks."""
    began, unsettled = monotonic(), None
    schedule: list[float] = []
    for number in range(1, 1 + job.processes):
        _add(runs, measuring.pair(number, None, swept))
    schedule = looks(monotonic() - began, LIMIT * job.experiment.budget_s)
    options = replace(options, looks=len(schedule))
    for look_s in schedule:
        # The last pair before a look may start if half of it fits: so the time is kept on average.
        while (monotonic() - began) * (1 + 0.5 / len(runs[0])) < look_s:
            _add(runs, measuring.pair(1 + len(runs[0]), unsettled, swept))
        unsettled = _unsettled(compare(*runs, options))
        if not unsettled:
            break
    return options


def _add(runs: tuple[list[Run], list[Run]], pair: Sequence[Run]) -> None:
    for side, run in zip(runs, pair, strict=True):
        side.append(run)


def _unsettled(comparison: Comparison) -> frozenset[str]:
    """Keys of the cases whose verdict more pairs can change."""
    return frozenset(
        case.key
        for case in comparison.cases
        if case.verdict == "inconclusive" and case.metric not in EXACT and case.ratio is not None
    )
