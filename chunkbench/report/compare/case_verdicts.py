"""Gives verdicts on one case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkbench.bench.analysis.points import AXES, measured
from chunkbench.bench.experiment.values import spell_value
from chunkbench.bench.store.results import FAILED
from chunkbench.report.compare.calibration import NO_CHANGE, CalibrationRatio, calibration_ratio
from chunkbench.report.compare.metrics import has
from chunkbench.report.compare.rank_intervals import Shift
from chunkbench.report.compare.ratios import (
    TimeRatio,
    counts_of,
    interleaved_ratio,
    separate_ratio,
    sign_of,
    undisturbed,
    value_of,
    values_of,
)
from chunkbench.report.compare.verdicts import CaseVerdict, FailOn, Verdict, judge

if TYPE_CHECKING:
    from chunkbench.bench.store.results import Result
    from chunkbench.report.metric import Metric


@dataclass(frozen=True)
class Options:
    metric: str = "latency"
    threshold: float = 0.05
    confidence: float = 0.99
    cross_machine: bool = False
    """Whether to give verdicts on times even if the machines or their settings differ."""
    fail_on: tuple[FailOn, ...] = ("slower", "incorrect", "missing")
    command: str = ""
    """Command line that repeats the comparison."""
    looks: int = 1
    """Number of tests of each case. Each test gets an equal share of the allowed error probability."""
    case_command: Callable[[str], str] = lambda implementation: ""
    """Implementation -> command line that measures only this implementation again."""


@dataclass(frozen=True)
class CaseJudge:
    """Gives the verdicts on all cases of one comparison."""

    options: Options
    metric: Metric
    """The figure that is compared."""
    counts: Sequence[Metric]
    """Figures that are counted exactly. Each change of one gets its own verdict."""
    confidence: float
    interleaved: bool
    blocking_differences: str
    """Names of the environment differences that forbid to compare times; empty if there are none."""
    across_machines: bool

    def judge(self, base: Sequence[Result], head: Sequence[Result]) -> list[CaseVerdict]:
        """The verdicts on one case: one on the metric, and one on each changed count. Empty if neither side measured
        the case.
        """
        metric = self.metric
        identity = self._identity((*head, *base)[0])
        if self.interleaved:
            base, head = _whole_pairs(base, head)
        base_cases = [case for case in base if has(case, metric)]
        head_cases = [case for case in head if has(case, metric)]
        failed = [case for case in head if case.status in FAILED]
        if failed and (base_cases or not base or failed[0].status == "incorrect"):
            verdict: Verdict = "incorrect" if failed[0].status == "incorrect" else "missing"
            return [CaseVerdict(**identity, verdict=verdict, failed=True, reason=_status(failed[0]))]
        if not base_cases:
            if not head_cases:
                return []
            reason = _status(base[0]) if base else "not there"
            value = value_of(head_cases, metric)
            return [CaseVerdict(**identity, verdict="new", reason=f"BASE: {reason}", head=value)]
        if not head_cases:
            reason = _status(head[0]) if head else "not there"
            value = value_of(base_cases, metric)
            return [CaseVerdict(**identity, verdict="missing", reason=f"HEAD: {reason}", base=value)]
        if metric.exact:
            return [self._judge_count(identity, base_cases, head_cases, metric)]
        changed = [
            self._judge_count(identity | {"metric": count.name}, base_cases, head_cases, count) for count in self.counts
        ]
        return [
            self._judge_ratio(identity, base_cases, head_cases),
            *(verdict for verdict in changed if verdict.verdict != "same"),
        ]

    def _identity(self, case: Result) -> dict[str, Any]:
        return {
            "key": case.key,
            "name": name_of(case),
            "implementation": case.implementation,
            "label": case.label,
            "axes": {axis: case.axis(axis) for axis in AXES},
            "metric": self.metric.name,
            "command": self.options.case_command(case.implementation),
        }

    def _judge_count(
        self, identity: dict[str, Any], base: Sequence[Result], head: Sequence[Result], metric: Metric
    ) -> CaseVerdict:
        base_count, head_count = value_of(base, metric), value_of(head, metric)
        fields = identity | {"base": base_count, "head": head_count}
        if base_count is None or head_count is None:
            if counts_of([*base, *head], metric) == {None}:
                return CaseVerdict(**fields, verdict="same")
            reason = "one side has no such count, or its processes have different counts"
            return CaseVerdict(**fields, verdict="inconclusive", reason=reason)
        if base_count == head_count:
            return CaseVerdict(**fields, verdict="same")
        obstacle = self._why_not_comparable(base[0], head[0])
        if obstacle and metric.name == "work_items":
            return CaseVerdict(**fields, verdict="inconclusive", reason=obstacle)
        ratio = head_count / base_count if base_count else None
        worse = sign_of(metric) * (head_count - base_count) > 0
        return CaseVerdict(
            **fields,
            verdict="slower" if worse else "faster",
            ratio=ratio,
            low=ratio,
            high=ratio,
            reason=f"{'more' if head_count > base_count else 'fewer'} {metric.label.strip()}",
        )

    def _judge_ratio(self, identity: dict[str, Any], base: Sequence[Result], head: Sequence[Result]) -> CaseVerdict:
        metric = self.metric
        compare = interleaved_ratio if self.interleaved else separate_ratio
        times = compare(base, head, metric, self.confidence)
        fields = identity | {
            "base": value_of(base, metric),
            "head": value_of(head, metric),
            "unit": times.unit,
            "base_units": times.base_units,
            "head_units": times.head_units,
        }
        if any(value <= 0 for case in (*base, *head) for value in values_of(case, metric)):
            return _without_ratio(fields)
        if times.shift is not None:
            fields |= _as_ratio(metric, times.shift)
        elif fields["base"] and fields["head"]:
            fields["ratio"] = fields["head"] / fields["base"]
        judge_raw = self.interleaved or self.options.cross_machine
        calibration = (
            None
            if judge_raw or not _is_of_time(metric)
            else calibration_ratio(*([c for c in s if undisturbed(c)] for s in (base, head)))
        )
        if calibration is not None:
            ends = calibration.low ** sign_of(metric), calibration.high ** sign_of(metric)
            fields["calibration_low"], fields["calibration_high"] = sorted(ends)
        obstacle = self._why_not_comparable(base[0], head[0]) or self._why_too_little(times)
        if not obstacle and calibration is None and self.across_machines and not judge_raw:
            obstacle = (
                "no fixed work was timed on both sides, so the calibration ratio of the machines is unknown"
                if _is_of_time(metric)
                else f"measured on different machines, and fixed work does not show how a machine changes {metric.name}"
            )
        if obstacle:
            return CaseVerdict(**fields, verdict="inconclusive", reason=obstacle)
        assert times.shift is not None
        low, high = (calibration or NO_CHANGE).remove_from(times.shift.low, times.shift.high)
        verdict = judge(low, high, self.options.threshold)
        return CaseVerdict(**fields, verdict=verdict, reason=self._reason(verdict, low, high, calibration))

    def _reason(self, verdict: Verdict, low: float, high: float, calibration: CalibrationRatio | None) -> str:
        if verdict in ("slower", "faster") and not self.metric.better:
            return f"HEAD has {'more' if verdict == 'slower' else 'less'}; for this figure neither is better"
        if verdict != "inconclusive":
            return ""
        if calibration is not None:
            return f"the calibration ratio leaves {math.exp(low):.3f}x to {math.exp(high):.3f}x of the time"
        return "the threshold lies inside the interval"

    @staticmethod
    def _why_too_little(times: TimeRatio) -> str:
        """The reason why there is no interval; empty if there is an interval."""
        if times.disturbed:
            return f"other processes were busy during every measurement of {times.disturbed}"
        if times.shift is None:
            return "the two sides timed no step in common"
        if not times.shift.enough:
            units = {"pair": "pairs", "process": "processes", "round": "rounds"}[times.unit]
            return f"{times.base_units} and {times.head_units} {units} are too few for this confidence"
        return ""

    def _why_not_comparable(self, base: Result, head: Result) -> str:
        """The reason why the two cases cannot be compared; empty if they can be compared."""
        if self.options.cross_machine:
            return ""
        if self.blocking_differences:
            return f"measured under other conditions ({self.blocking_differences})"
        return "" if base.threads == head.threads else f"threads: {base.threads} and {head.threads}"


def name_of(case: Result) -> str:
    """The implementation and the values of all axes as text. The name is the same in every run."""
    axes = ",".join(f"{axis}={spell_value(case.axis(axis))}" for axis in AXES if axis != "threads")
    return f"{case.implementation}[{axes}]"


def _whole_pairs(base: Sequence[Result], head: Sequence[Result]) -> tuple[Sequence[Result], Sequence[Result]]:
    """Both sides, without pairs of processes of which one process measured nothing. Failures of HEAD stay, because they
    decide the verdict."""
    pairs = list(zip(base, head, strict=False))
    whole = [pair for pair in pairs if measured(pair[0]) and measured(pair[1])]
    if not whole:
        return base, head
    failed = [mine for _, mine in pairs if mine.status in FAILED]
    return [other for other, _ in whole], [*(mine for _, mine in whole), *failed]


def _status(case: Result) -> str:
    return f"{case.status}: {case.reason}" if case.reason else case.status


def _is_of_time(metric: Metric) -> bool:
    """Whether a machine's speed changes the metric in the same way as the times of the calibration kernels."""
    return metric.unit.word in ("us", "tokens/s")


def _without_ratio(fields: Mapping[str, Any]) -> CaseVerdict:
    """The verdict if a round has a value of 0 or less, so that there is no ratio: equal figures over all rounds are
    `same`."""
    if fields["base"] == fields["head"]:
        return CaseVerdict(**fields, verdict="same")
    return CaseVerdict(**fields, verdict="inconclusive", reason="a value is 0 or less: there is no ratio")


def _as_ratio(metric: Metric, shift: Shift) -> dict[str, float | None]:
    """The shift of times as a ratio of the metric."""
    ratio = math.exp(sign_of(metric) * shift.value)
    if not shift.enough:
        return {"ratio": ratio, "low": None, "high": None}
    low, high = sorted((math.exp(sign_of(metric) * shift.low), math.exp(sign_of(metric) * shift.high)))
    return {"ratio": ratio, "low": low, "high": high}
