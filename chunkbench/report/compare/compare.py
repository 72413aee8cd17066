"""Compares HEAD with BASE: which cases changed, by how much, and with which certainty."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from chunkbench.bench.store import TORN
from chunkbench.bench.store.results import FAILED, TimedResult
from chunkbench.report.compare.calibration import work_ratios
from chunkbench.report.compare.case_verdicts import CaseJudge, Options
from chunkbench.report.compare.environments import differences
from chunkbench.report.compare.metrics import LATENCY, exact_of, has, metric_of, metrics_of
from chunkbench.report.compare.verdicts import (
    VERDICTS,
    CaseVerdict,
    Comparison,
    EnvironmentDifference,
    FixedWork,
    Settings,
    SideSummary,
    Summary,
    comparison_exit_code,
    worst_first,
)
from chunkbench.report.numbers import count
from chunkbench.run_error import RunError

if TYPE_CHECKING:
    from chunkbench.bench.store import Result, Run
    from chunkbench.report.metric import Metric

__all__ = ["NothingToCompare", "Options", "compare"]


class NothingToCompare(RunError):
    """The two sides have no case in common, or one of them has no case. The message says which."""


def compare(base: Sequence[Run], head: Sequence[Run], options: Options) -> Comparison:
    """Compare two measurements. Each side is one run, or several runs of the same experiment in separate processes.

    Raises `NothingToCompare`, because a comparison of nothing must not look like one that found no change.
    """
    base_cases, head_cases = _by_key(base), _by_key(head)
    kind, base_kind = head[0].manifest.experiment.kind, base[0].manifest.experiment.kind
    if kind != base_kind:
        raise NothingToCompare(
            f"{base[0].path} and {head[0].path} have no case in common: kind: {base_kind} and kind: {kind}"
        )
    metric = metric_of(options.metric, [kind])
    _check_measured(base, metric, lambda case: has(case, metric))
    # If HEAD fails everywhere, that is a verdict.
    _check_measured(head, metric, lambda case: has(case, metric) or case.status in FAILED)
    _check_complete(base)
    environment = differences(base[0].manifest, head[0].manifest)
    if not base_cases.keys() & head_cases.keys():
        causes = "".join(f" {diff.what}: {diff.base} and {diff.head}." for diff in environment if diff.machine)
        raise NothingToCompare(
            f"{base[0].path} and {head[0].path} have no case in common. Times are compared only where both sides "
            f"measured the same points, implementations and protocols.{causes}",
            remedy="compare speed-ups",
        )
    common = [
        key
        for key in base_cases
        if all(any(has(case, metric) for case in cases.get(key, ())) for cases in (base_cases, head_cases))
    ]
    mark = base[0].manifest.interleaved_with
    interleaved = mark is not None and mark == head[0].manifest.interleaved_with
    # Each case and each look gets an equal share of the error probability (Bonferroni).
    confidence = 1 - (1 - options.confidence) / (max(1, len(common)) * options.looks)
    across = _machines(base) != _machines(head)
    blocking = [diff.what for diff in environment if diff.machine and not (across and diff.hardware)]
    blocked_by = "" if options.cross_machine else ", ".join(blocking)
    case_judge = CaseJudge(options, metric, exact_of(kind), confidence, interleaved, blocked_by, across)
    verdicts: list[CaseVerdict] = []
    unmeasured = 0
    for key in {**base_cases, **head_cases}:
        case_verdicts = case_judge.judge(base_cases.get(key, ()), head_cases.get(key, ()))
        verdicts += case_verdicts
        unmeasured += not case_verdicts
    verdicts = _with_distinct_names(verdicts)
    compared = [cases[key][0] for key in common for cases in (base_cases, head_cases)]
    counts = Counter(case.verdict for case in verdicts)
    settings = Settings(
        metric=metric.name,
        label=head[0].cases[0].TIMED if metric is LATENCY and head[0].cases else metric.label,
        unit=metric.unit.word,
        threshold=options.threshold,
        confidence=options.confidence,
        case_confidence=confidence,
        timed_cases=len(common),
        looks=options.looks,
        interleaved=interleaved,
        cross_machine=options.cross_machine,
        fail_on=options.fail_on,
    )
    return Comparison(
        base=side_of(base),
        head=side_of(head),
        settings=settings,
        exit_code=comparison_exit_code(verdicts, options.fail_on),
        counts={verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        machine=() if interleaved else _fixed_work(common, base_cases, head_cases),
        warnings=tuple(_warnings(base, head, compared, verdicts, case_judge)),
        differences=tuple(
            EnvironmentDifference(what=diff.what, base=diff.base, head=diff.head, machine=diff.machine)
            for diff in environment
        ),
        summaries=tuple(_summaries([] if metric.exact else verdicts, metric, options.confidence, confidence)),
        cases=worst_first(verdicts),
        unmeasured=unmeasured,
        command=options.command,
    )


def _fixed_work(
    common: Sequence[str], base: Mapping[str, Sequence[Result]], head: Mapping[str, Sequence[Result]]
) -> tuple[FixedWork, ...]:
    """The machine's speed while HEAD was measured divided by its speed while BASE was measured, over the cases that
    both sides measured."""
    sides = [[case for key in common for case in cases[key]] for cases in (base, head)]
    return tuple(FixedWork(work=work, speed=1 / ratio) for work, ratio in work_ratios(*sides).items())


_MOST_REASONS = 3


def _check_measured(runs: Sequence[Run], metric: Metric, has_values: Callable[[Result], bool]) -> None:
    cases = [case for run in runs for case in run.cases]
    if not any(map(has_values, cases)):
        others = metrics_of(runs[0].manifest.experiment.kind).values()
        known = [other.name for other in others if any(has(case, other) and other.value(case) for case in cases)]
        missing = "no case was measured" if metric is LATENCY else f"no case has {metric.name}"
        hint = f"; known are {', '.join(known)} (--metric)" if known else ""
        reasons = dict.fromkeys(f"{case.implementation}: {case.status}: {case.reason}" for case in cases if case.reason)
        why = f" ({'; '.join(list(reasons)[:_MOST_REASONS])})" if reasons else ""
        raise NothingToCompare(f"{runs[0].path}: {missing}{why}, there is nothing to compare{hint}")


def _check_complete(base: Sequence[Run]) -> None:
    for run in base:
        if run.torn or run.manifest.interrupted:
            cause = TORN if run.torn else "the run was interrupted"
            raise NothingToCompare(
                f"{run.path}: not fit for a BASE, since {cause}: a case that it lacks would count as new. Measure it "
                "again, or resume it"
            )


def _summaries(
    cases: Sequence[CaseVerdict], metric: Metric, confidence: float, case_confidence: float
) -> list[Summary]:
    """A summary for each implementation. The interval assumes that the errors of cases are independent and that their
    mean is normally distributed."""
    by_implementation: dict[str, list[CaseVerdict]] = {}
    for case in cases:
        if case.ratio is not None and case.metric == metric.name and math.isfinite(case.ratio):
            by_implementation.setdefault(case.implementation, []).append(case)
    normal, summaries = NormalDist().inv_cdf, []
    for implementation, members in by_implementation.items():
        mean = sum(math.log(case.ratio) for case in members if case.ratio) / len(members)
        halves = [math.log(case.high / case.low) / 2 for case in members if case.low and case.high]
        low = high = None
        if len(halves) == len(members):
            scale = normal((1 + confidence) / 2) / normal((1 + case_confidence) / 2)
            half = scale * math.sqrt(sum(half**2 for half in halves)) / len(members)
            low, high = math.exp(mean - half), math.exp(mean + half)
        summaries.append(
            Summary(
                implementation=implementation,
                label=members[0].label,
                cases=len(members),
                ratio=math.exp(mean),
                low=low,
                high=high,
            )
        )
    return summaries


def _with_distinct_names(cases: Sequence[CaseVerdict]) -> list[CaseVerdict]:
    """The cases, with the number of threads in the name if two cases differ in nothing else."""
    uses = Counter((case.name, case.metric) for case in cases)
    return [
        case.model_copy(update={"name": f"{case.name[:-1]},threads={case.axes['threads']}]"})
        if uses[case.name, case.metric] > 1
        else case
        for case in cases
    ]


def _warnings(
    base: Sequence[Run],
    head: Sequence[Run],
    cases: Sequence[Result],
    verdicts: Sequence[CaseVerdict],
    judge: CaseJudge,
) -> list[str]:
    warnings = []
    if any(run.torn for run in head):
        warnings.append(f"HEAD: {TORN}; its cases count as missing")
    if any(run.manifest.interrupted for run in head):
        warnings.append("HEAD: the run was interrupted; cases that it did not measure count as missing")
    if judge.across_machines and not judge.options.cross_machine:
        warnings.append(
            f"measured on different machines ({_machine_names(base)} and {_machine_names(head)}): ratios are raw, with "
            "the calibration ratio beside each; verdicts are on the ratio divided by the calibration ratio"
        )
    if judge.blocking_differences:
        warnings.append(f"other conditions ({judge.blocking_differences}): times are not judged unless requested")
    if judge.interleaved:
        return warnings
    if any(isinstance(case, TimedResult) and case.device == "cpu" and not case.calibration for case in cases):
        warnings.append("one side timed no calibration kernels (an older version measured it): raw ratios are judged")
    if any(case.unit == "round" and case.head_units for case in verdicts):
        least, most = sorted((len(base), len(head)))
        processes = count(most, "process") if least == most else f"{least} or {most} processes"
        warnings.append(
            f"Each side was measured in {processes}. The intervals do not include differences between processes or "
            "days. `chunkbench regress` measures in many processes"
        )
    return warnings


def _machines(runs: Sequence[Run]) -> set[str]:
    """Ids of the machines of these runs."""
    return {case.machine for run in runs for case in run.cases}


def _machine_names(runs: Sequence[Run]) -> str:
    """Names and ids of the machines of a side."""
    names = dict.fromkeys(name for run in runs for name in run.manifest.machine_names)
    return " and ".join(f"{name or 'a machine not recorded'}" for name in names) + f" [{', '.join(_machines(runs))}]"


def side_of(runs: Sequence[Run]) -> SideSummary:
    """Summarize the runs of one side for a report."""
    manifest = runs[0].manifest
    path = str(runs[0].path if len(runs) == 1 else runs[0].path.parent)
    kinds = {machine.kind for machine in manifest.machines.values()} - {""}
    return SideSummary(
        path=f"{path}, on {kinds.pop()}" if len(kinds) == 1 else path,
        experiment=manifest.experiment.name,
        commit=manifest.git.named(12) or None,
        version=manifest.chunkbench_version,
        started_at=manifest.started_at,
        cases=len({case.key for run in runs for case in run.cases}),
        processes=len(runs),
        rounds=sum(max((len(case.rounds) for case in run.cases), default=0) for run in runs),
    )


def _by_key(runs: Sequence[Run]) -> dict[str, list[Result]]:
    cases: dict[str, list[Result]] = {}
    for run in runs:
        for case in run.cases:
            cases.setdefault(case.key, []).append(case)
    return cases
