"""The verdicts on one case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from chunkbench.analysis.points import AXES, counted, measured
from chunkbench.experiment.values import show_value
from chunkbench.regression.by_far import by_far
from chunkbench.regression.matching import calm
from chunkbench.regression.own_ratio import NO_CHANGE, OwnRatio, own_ratio
from chunkbench.regression.rank_intervals import Shift, fewest_apart, fewest_in_pairs
from chunkbench.regression.time_ratios import TimeRatio, counts_of, time_ratio, time_ratio_apart, value_of
from chunkbench.regression.verdicts import EXACT, WORDS, CaseVerdict, FailOn, Metric, Verdict, judge, units_to_settle
from chunkbench.store.results import FAILED

if TYPE_CHECKING:
    from chunkbench.store.results import Result

_LONGEST_ADVICE_S = 3600.0
"""No advice to measure for longer than this."""


@dataclass(frozen=True)
class Options:
    """How to compare."""

    metric: Metric = "latency"
    threshold: float = 0.05
    confidence: float = 0.99
    cross_machine: bool = False
    fail_on: tuple[FailOn, ...] = ("slower", "incorrect", "missing")
    command: str = ""
    """Command line that repeats the comparison."""
    looks: int = 1
    """How many times a case may be measured and judged. All looks share the error probability of the case."""
    settling_command: Callable[[str, float], str] | None = None
    """(implementation, factor) -> the command that measures the implementation again, `factor` times as long."""
    budget_s: float = 0.0
    """Seconds for which HEAD was measured."""


@dataclass(frozen=True)
class CaseJudge:
    """Judges the cases of one comparison."""

    options: Options
    confidence: float
    in_turns: bool
    blocking_differences: str
    """Differences between the two environments that forbid to compare times. Empty if there are none."""
    across_machines: bool
    """Whether two machines measured the sides. Then ratios are raw, and the verdict is on what the machines' own ratio
    leaves of them, unless the options say to judge raw ratios."""

    def judge(
        self, base: Sequence[Result], head: Sequence[Result], again: Sequence[Sequence[Result]]
    ) -> list[CaseVerdict]:
        """Verdicts on one case: one by the chosen metric, and one for each count that changed.

        The list is empty if neither side measured the case.
        """
        metric = self.options.metric
        identity = self._identity((*head, *base)[0], len(again))
        if self.in_turns:
            base, head, *again = _whole_pairs(base, [head, *again])
        has_values = counted if metric in EXACT else measured
        base_cases = [case for case in base if has_values(case)]
        head_cases = [case for case in head if has_values(case)]
        failed = [case for cases in (head, *again) for case in cases if case.status in FAILED]
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
        if metric in EXACT:
            return [self._judge_count(identity, base_cases, head_cases, metric)]
        repeats = [timed for cases in again if (timed := [case for case in cases if measured(case)])]
        time = self._judge_time(identity, base_cases, head_cases, repeats)
        everything_of_head = [*head_cases, *(case for cases in repeats for case in cases)]
        verdicts = [self._by_far(time, base_cases, everything_of_head)]
        for name in sorted(EXACT):
            verdicts.append(self._judge_count(identity | {"metric": name}, base_cases, head_cases, name))
        return [verdict for verdict in verdicts if verdict.metric == metric or verdict.verdict != "same"]

    def _identity(self, case: Result, remeasured: int) -> dict[str, Any]:
        return {
            "key": case.key,
            "name": name_of(case),
            "implementation": case.implementation,
            "label": case.label,
            "axes": {axis: case.axis(axis) for axis in AXES},
            "metric": self.options.metric,
            "remeasured": remeasured,
            "command": self._command(case.implementation, 1),
        }

    def _judge_count(
        self, identity: dict[str, Any], base: Sequence[Result], head: Sequence[Result], metric: Metric
    ) -> CaseVerdict:
        base_count, head_count = value_of(base, metric), value_of(head, metric)
        fields = identity | {"base": base_count, "head": head_count}
        if base_count is None or head_count is None:
            if counts_of([*base, *head], metric) == {None}:
                return CaseVerdict(**fields, verdict="same")
            reason = "one side does not state it, or its processes state different counts"
            return CaseVerdict(**fields, verdict="inconclusive", reason=reason)
        if base_count == head_count:
            return CaseVerdict(**fields, verdict="same")
        obstacle = self._why_not_comparable(base[0], head[0])
        if obstacle and metric == "work_items":
            return CaseVerdict(**fields, verdict="inconclusive", reason=obstacle)
        ratio = head_count / base_count if base_count else None
        noun = "bytes of K/V" if metric == "kv_bytes" else "work items"
        return CaseVerdict(
            **fields,
            verdict="slower" if head_count > base_count else "faster",
            ratio=ratio,
            low=ratio,
            high=ratio,
            reason=f"{'more' if head_count > base_count else 'fewer'} {noun}",
        )

    def _judge_time(
        self,
        identity: dict[str, Any],
        base: Sequence[Result],
        head: Sequence[Result],
        again: Sequence[Sequence[Result]],
    ) -> CaseVerdict:
        metric = self.options.metric
        times, apart = self._comparable_times(base, [head, *again])
        fields = identity | {
            "base": value_of(base, metric),
            "head": value_of(head, metric),
            "unit": times.unit,
            "base_units": times.base_units,
            "head_units": times.head_units,
            "base_rounds": times.base_rounds,
            "head_rounds": times.head_rounds,
        }
        shift = times.shift
        if shift is not None:
            fields |= _as_ratio(metric, shift)
        elif fields["base"] and fields["head"]:
            fields["ratio"] = fields["head"] / fields["base"]
        judge_raw = self.options.cross_machine or not apart
        own = None if judge_raw else own_ratio(base, [*head, *(case for cases in again for case in cases)])
        if own is not None:
            sign = -1 if metric == "token_rate" else 1
            fields["machine_low"], fields["machine_high"] = sorted((own.low**sign, own.high**sign))
        obstacle = self._why_not_comparable(base[0], head[0])
        if obstacle:
            return CaseVerdict(**fields, verdict="inconclusive", reason=obstacle)
        if shift is None:
            reason = "no round of HEAD ran while the machine was in the same state as for BASE"
            if times.disturbed:
                reason = f"other processes were busy during every measurement of {times.disturbed}"
            return self._inconclusive(fields, reason, None)
        if own is None and not judge_raw:
            reason = "no fixed work was timed on both sides: the machine's own ratio is unknown"
            return CaseVerdict(**fields, verdict="inconclusive", reason=reason)
        return self._judge_shift(fields, times, shift, own or NO_CHANGE, bool(again))

    def _comparable_times(self, base: Sequence[Result], heads: Sequence[Sequence[Result]]) -> tuple[TimeRatio, bool]:
        """The ratio over the rounds that can be compared, and whether the machine's own ratio is still in it."""
        metric = self.options.metric
        if self.across_machines:
            return time_ratio_apart(base, heads, metric, self.confidence), True
        times = time_ratio(base, heads, metric, self.confidence, self.in_turns)
        enough = times.shift is not None and times.shift.enough
        if enough or self.in_turns or times.disturbed:
            return times, False
        # The machine was in other states: all calm rounds are compared, as those of another machine would be.
        calm_base, *calm_heads = [[case for case in side if calm(case)] for side in (base, *heads)]
        whole = time_ratio_apart(calm_base, calm_heads, metric, self.confidence)
        apart = whole.shift is not None and (whole.shift.enough or times.shift is None)
        return (whole, True) if apart else (times, False)

    def _by_far(self, verdict: CaseVerdict, base: Sequence[Result], head: Sequence[Result]) -> CaseVerdict:
        """The verdict; slower or faster instead of inconclusive if the sides differ by far."""
        same_steps = len({case.round_steps for case in (*base, *head)}) == 1
        if verdict.verdict != "inconclusive" or not same_steps or self._why_not_comparable(base[0], head[0]):
            return verdict
        undisturbed = [[case for case in cases if calm(case)] for cases in (base, head)]
        own = None
        if all(undisturbed):
            base, head = undisturbed
            own = own_ratio(base, head)
        if self.across_machines and own is None:
            return verdict
        values = [[value for case in cases if (value := value_of([case], verdict.metric))] for cases in (base, head)]
        if not all(values):
            return verdict
        sign = -1 if verdict.metric == "token_rate" else 1
        times = [[value**sign for value in side] for side in values]
        far = by_far(times[0], times[1], own, self.options.threshold, 1 - self.confidence)
        if far is None:
            return verdict
        low, high = sorted((far.low**sign, far.high**sign))
        reason = (
            f"every process of HEAD lies beyond every process of BASE, by {far.low:.2f}x to {far.high:.2f}x in time; "
            f"the machine's own change explains {far.explained:.2f}x at most"
        )
        changes = {"verdict": far.verdict, "reason": reason, "ratio": far.ratio**sign, "low": low, "high": high}
        return verdict.model_copy(update=changes | {"rounds_needed": None})

    def _judge_shift(
        self, fields: dict[str, Any], times: TimeRatio, shift: Shift, own: OwnRatio, again: bool
    ) -> CaseVerdict:
        """The verdict on a shift, after the machines' own ratio is taken out of it."""
        threshold = self.options.threshold
        fewest = fewest_in_pairs(self.confidence) if self.in_turns else fewest_apart(self.confidence, times.base_units)
        if not shift.enough:
            units = "processes" if times.unit == "process" else "rounds"
            reason = f"{times.base_units} and {times.head_units} {units} can be compared, too few for this confidence"
            # If the units are spread over yardstick classes, even more than the fewest can be too few.
            needed = fewest if fewest > times.head_units else 2 * times.head_units
            return self._inconclusive(fields, reason, _rounds_for(times, needed))
        low, high = own.remove_from(shift.low, shift.high)
        verdict = judge(low, high, threshold)
        if verdict in ("slower", "faster"):
            if all(judge(*own.remove_from(part, part), threshold) == verdict for part in times.parts):
                return CaseVerdict(**fields, verdict=verdict)
            ratios = ", ".join("nothing" if math.isnan(part) else f"{math.exp(part):.3f}x" for part in times.parts)
            parts = "measured again" if again else "its two halves"
            return self._inconclusive(fields, f"looks {WORDS[verdict]}, but {parts}: {ratios}", None)
        if verdict == "inconclusive" and own != NO_CHANGE:
            reason = f"without the machine's own ratio, {math.exp(low):.3f}x to {math.exp(high):.3f}x is left"
            return CaseVerdict(**fields, verdict="inconclusive", reason=reason)
        if verdict == "inconclusive":
            settling = units_to_settle(shift.value, shift.low, shift.high, threshold, times.head_units)
            if settling is None:
                reason = "the ratio lies on the threshold: no affordable number of rounds settles it"
                return self._inconclusive(fields, reason, None)
            needed = _rounds_for(times, max(settling, fewest))
            return self._inconclusive(fields, "the threshold lies inside its interval", needed, self._noise(times))
        return CaseVerdict(**fields, verdict=verdict)

    def _inconclusive(self, fields: dict[str, Any], reason: str, needed: int | None, noise: str = "") -> CaseVerdict:
        """An inconclusive verdict, with the rounds and the command that would probably settle it, if an hour is enough.

        `noise` says what makes it inconclusive.
        """
        factor = max(1.0, needed / max(1, fields["head_rounds"])) if needed else 2.0
        if self.options.budget_s * factor > _LONGEST_ADVICE_S:
            why = f"this cannot be settled by measuring longer: {noise}" if noise else "an hour would not settle it"
            reason = f"{reason}; {why}"
            return CaseVerdict(**(fields | {"command": ""}), verdict="inconclusive", reason=reason)
        fields = fields | {"command": self._command(fields["implementation"], factor)}
        return CaseVerdict(**fields, verdict="inconclusive", reason=reason, rounds_needed=needed)

    def _noise(self, times: TimeRatio) -> str:
        """How much the units of a comparison scatter, as its interval tells."""
        assert times.shift is not None
        units = times.head_units if self.in_turns else 1 / (1 / times.base_units + 1 / times.head_units)
        half = (times.shift.high - times.shift.low) / 2
        scatter = math.expm1(half * math.sqrt(units) / NormalDist().inv_cdf((1 + self.confidence) / 2))
        return f"noise of {scatter:.0%} between {'processes' if times.unit == 'process' else 'rounds'}"

    def _why_not_comparable(self, base: Result, head: Result) -> str:
        """Why the two cannot be compared at all. Empty if they can."""
        if self.options.cross_machine:
            return ""
        if self.blocking_differences:
            return f"measured under other conditions ({self.blocking_differences})"
        return "" if base.threads == head.threads else f"threads: {base.threads} and {head.threads}"

    def _command(self, implementation: str, factor: float) -> str:
        settling_command = self.options.settling_command
        return settling_command(implementation, factor) if settling_command else ""


def _whole_pairs(base: Sequence[Result], heads: Sequence[Sequence[Result]]) -> list[list[Result]]:
    """BASE's processes, then HEAD's processes of each measurement, without those whose partner measured nothing.

    HEAD's failures stay, since they decide the verdict.
    """
    partners = iter(base)
    kept: list[list[Result]] = [[] for _ in range(1 + len(heads))]
    for number, head in enumerate(heads, start=1):
        for case, partner in zip(head, partners, strict=False):
            if measured(case) == measured(partner):
                kept[0].append(partner)
                kept[number].append(case)
            elif not measured(case):
                kept[number].append(case)
    return kept if any(map(measured, kept[0])) else [list(base), *map(list, heads)]


def name_of(case: Result) -> str:
    """Implementation and every axis, for people and for JUnit. It depends on nothing else in the run."""
    axes = ",".join(f"{axis}={show_value(case.axis(axis))}" for axis in AXES if axis != "threads")
    return f"{case.implementation}[{axes}]"


def _status(case: Result) -> str:
    return f"{case.status}: {case.reason}" if case.reason else case.status


def _as_ratio(metric: Metric, shift: Shift) -> dict[str, float | None]:
    """The shift of times as a ratio of the metric: a ratio of rates is the inverse of a ratio of times."""
    sign = -1 if metric == "token_rate" else 1
    ratio = math.exp(sign * shift.value)
    if not shift.enough:
        return {"ratio": ratio, "low": None, "high": None}
    low, high = sorted((math.exp(sign * shift.low), math.exp(sign * shift.high)))
    return {"ratio": ratio, "low": low, "high": high}


def _rounds_for(times: TimeRatio, units: int) -> int:
    """Rounds that HEAD has to measure to get `units` units that can be compared."""
    return math.ceil(units * max(1, times.head_rounds) / max(1, times.head_units))
