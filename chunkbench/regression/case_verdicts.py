"""The verdicts on one case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkbench.analysis.points import AXES, counted, measured
from chunkbench.experiment.values import show_value
from chunkbench.regression.own_ratio import OwnRatio, own_ratio
from chunkbench.regression.rank_intervals import Shift, fewest_apart, fewest_in_pairs
from chunkbench.regression.time_ratios import Timed, timed, timed_across, value_of
from chunkbench.regression.verdicts import EXACT, CaseVerdict, FailOn, Metric, Verdict, judge, units_to_settle
from chunkbench.store.facts import FAILED

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts

_SAME = OwnRatio(1.0, 1.0)
"""Of one machine; and of two where their ratio is judged as it is."""


@dataclass(frozen=True)
class Options:
    """How to compare."""

    metric: Metric = "latency"
    threshold: float = 0.05
    confidence: float = 0.99
    cross_machine: bool = False
    fail_on: tuple[FailOn, ...] = ("slower", "incorrect", "missing")
    command: str = ""
    """Repeats the comparison."""
    looks: int = 1
    """How often a case may be measured: looks share the errors that are allowed to it."""
    settle: Callable[[str, float], str] | None = None
    """The command that measures an implementation again, so many times longer."""


@dataclass(frozen=True)
class Judging:
    """What the verdicts of a comparison have in common."""

    options: Options
    confidence: float
    in_turns: bool
    barred: str
    """What differs between the conditions, where that forbids to compare times."""
    across: bool
    """Whether two machines measured the sides. Ratios are raw then, and the verdict is on what the machines' own ratio
    leaves of them, unless raw ratios are to be judged."""

    def judge(
        self, base: Sequence[CaseFacts], head: Sequence[CaseFacts], again: Sequence[Sequence[CaseFacts]]
    ) -> list[CaseVerdict]:
        """Verdicts on one case: one by the metric asked for, and one for each count that changed. None where neither
        side measured it."""
        some = (*head, *base)[0]
        metric = self.options.metric
        identity: dict[str, Any] = {
            "key": some.key,
            "name": name_of(some),
            "implementation": some.implementation,
            "label": some.label,
            "axes": {axis: getattr(some, axis) for axis in AXES},
            "metric": metric,
            "remeasured": len(again),
            "command": self._command(some.implementation, 1),
        }
        if self.in_turns:
            base, head, *again = _whole_pairs(base, [head, *again])
        seen = counted if metric in EXACT else measured
        ours = [case for case in base if seen(case)]
        theirs = [case for case in head if seen(case)]
        failed = [case for several in (head, *again) for case in several if case.status in FAILED]
        if failed and (ours or not base or failed[0].status == "incorrect"):
            verdict: Verdict = "incorrect" if failed[0].status == "incorrect" else "missing"
            return [CaseVerdict(**identity, verdict=verdict, failed=True, reason=_status(failed[0]))]
        if not ours:
            if not theirs:
                return []
            reason = _status(base[0]) if base else "not there"
            return [CaseVerdict(**identity, verdict="new", reason=f"BASE: {reason}", head=value_of(theirs, metric))]
        if not theirs:
            reason = _status(head[0]) if head else "not there"
            return [CaseVerdict(**identity, verdict="missing", reason=f"HEAD: {reason}", base=value_of(ours, metric))]
        if metric in EXACT:
            return [self._count(identity, ours, theirs, metric)]
        counts = [self._count(identity | {"metric": name}, ours, theirs, name) for name in sorted(EXACT)]
        repeats = [several for cases in again if (several := [case for case in cases if measured(case)])]
        return [self._time(identity, ours, theirs, repeats), *(count for count in counts if count.verdict != "same")]

    def _count(
        self, identity: dict[str, Any], base: Sequence[CaseFacts], head: Sequence[CaseFacts], metric: Metric
    ) -> CaseVerdict:
        one, other = value_of(base, metric), value_of(head, metric)
        values: dict[str, Any] = {"base": one, "head": other}
        if one is None or other is None:
            stated = {getattr(case, metric) for case in (*base, *head)}
            if stated == {None}:
                return CaseVerdict(**identity, **values, verdict="same")
            reason = "not stated by both, or not the same in every process"
            return CaseVerdict(**identity, **values, verdict="inconclusive", reason=reason)
        if one == other:
            return CaseVerdict(**identity, **values, verdict="same")
        unlike = self._unlike(base[0], head[0])
        if unlike and metric == "work_items":
            return CaseVerdict(**identity, **values, verdict="inconclusive", reason=unlike)
        ratio = other / one if one else None
        what = "bytes of K/V" if metric == "kv_bytes" else "work items"
        return CaseVerdict(
            **identity,
            **values,
            verdict="slower" if other > one else "faster",
            ratio=ratio,
            low=ratio,
            high=ratio,
            reason=f"{'more' if other > one else 'fewer'} {what}",
        )

    def _time(
        self,
        identity: dict[str, Any],
        base: Sequence[CaseFacts],
        head: Sequence[CaseFacts],
        again: Sequence[Sequence[CaseFacts]],
    ) -> CaseVerdict:
        metric = self.options.metric
        if self.across:
            found = timed_across(base, [head, *again], metric, self.confidence)
        else:
            found = timed(base, [head, *again], metric, self.confidence, self.in_turns)
        values: dict[str, Any] = {
            "base": value_of(base, metric),
            "head": value_of(head, metric),
            "unit": found.unit,
            "base_units": found.base,
            "head_units": found.head,
            "base_rounds": found.base_rounds,
            "head_rounds": found.head_rounds,
        }
        shift = found.shift
        if shift is not None:
            values |= _as_ratio(metric, shift)
        judged_raw = self.options.cross_machine or not self.across
        own = None if judged_raw else own_ratio(base, [*head, *(case for cases in again for case in cases)])
        if own is not None:
            sign = -1 if metric == "token_rate" else 1
            values["machine_low"], values["machine_high"] = sorted((own.low**sign, own.high**sign))
        unlike = self._unlike(base[0], head[0])
        if unlike:
            return CaseVerdict(**identity, **values, verdict="inconclusive", reason=unlike)
        if shift is None:
            reason = "no round of HEAD ran while the machine ran as for BASE"
            if found.disturbed:
                reason = f"other processes were busy all the while {found.disturbed} was measured"
            return self._inconclusive(identity, values, reason, None)
        if own is None and not judged_raw:
            reason = (
                "another machine, and no fixed work was timed on both: what the machine itself changed is not known"
            )
            return CaseVerdict(**identity, **values, verdict="inconclusive", reason=reason)
        return self._judged(identity, values, found, shift, own or _SAME, bool(again))

    def _judged(
        self, identity: dict[str, Any], values: dict[str, Any], found: Timed, shift: Shift, own: OwnRatio, again: bool
    ) -> CaseVerdict:
        """The verdict on a shift, less what the machines explain of it."""
        threshold = self.options.threshold
        fewest = fewest_in_pairs(self.confidence) if self.in_turns else fewest_apart(self.confidence, found.base)
        if not shift.enough:
            units = "processes" if found.unit == "process" else "rounds"
            reason = f"{found.base} and {found.head} {units} may be compared, too few for this confidence"
            # Spread over classes of their own, even more than the fewest can be too few.
            needed = fewest if fewest > found.head else 2 * found.head
            return self._inconclusive(identity, values, reason, _rounds_for(found, needed))
        low, high = own.left(shift.low, shift.high)
        verdict = judge(low, high, threshold)
        if verdict in ("slower", "faster"):
            if all(judge(*own.left(part, part), threshold) == verdict for part in found.parts):
                return CaseVerdict(**identity, **values, verdict=verdict)
            told = ", ".join("nothing" if math.isnan(part) else f"{math.exp(part):.3f}x" for part in found.parts)
            what = "measured again" if again else "its two halves"
            return self._inconclusive(identity, values, f"looks {verdict}, but {what}: {told}", None)
        if verdict == "inconclusive" and own != _SAME:
            reason = f"the machine's own ratio leaves {math.exp(low):.3f}x to {math.exp(high):.3f}x"
            return CaseVerdict(**identity, **values, verdict="inconclusive", reason=reason)
        if verdict == "inconclusive":
            settling = units_to_settle(shift.value, shift.low, shift.high, threshold, found.head)
            if settling is None:
                reason = "it lies on the threshold: no affordable number of rounds settles it"
                return self._inconclusive(identity, values, reason, None)
            needed = _rounds_for(found, max(settling, fewest))
            return self._inconclusive(identity, values, "its interval reaches across the threshold", needed)
        return CaseVerdict(**identity, **values, verdict=verdict)

    def _inconclusive(
        self, identity: dict[str, Any], values: dict[str, Any], reason: str, needed: int | None
    ) -> CaseVerdict:
        factor = max(1.0, needed / max(1, values["head_rounds"])) if needed else 2.0
        identity = identity | {"command": self._command(identity["implementation"], factor)}
        return CaseVerdict(**identity, **values, verdict="inconclusive", reason=reason, rounds_needed=needed)

    def _unlike(self, base: CaseFacts, head: CaseFacts) -> str:
        """Why the two cannot be compared at all."""
        if self.options.cross_machine:
            return ""
        if self.barred:
            return f"measured under other conditions ({self.barred})"
        return "" if base.threads == head.threads else f"threads: {base.threads} and {head.threads}"

    def _command(self, implementation: str, factor: float) -> str:
        return self.options.settle(implementation, factor) if self.options.settle else ""


def _whole_pairs(base: Sequence[CaseFacts], heads: Sequence[Sequence[CaseFacts]]) -> list[list[CaseFacts]]:
    """BASE's processes, and HEAD's of every measurement, without those whose partner measured nothing. HEAD's failures
    stay, for they are a verdict."""
    partners = iter(base)
    kept: list[list[CaseFacts]] = [[] for _ in range(1 + len(heads))]
    for number, head in enumerate(heads, start=1):
        for case, partner in zip(head, partners, strict=False):
            if measured(case) == measured(partner):
                kept[0].append(partner)
                kept[number].append(case)
            elif not measured(case):
                kept[number].append(case)
    return kept if any(map(measured, kept[0])) else [list(base), *map(list, heads)]


def name_of(case: CaseFacts) -> str:
    """Implementation and every axis, for people and for JUnit: it depends on nothing else in the run."""
    axes = ",".join(f"{axis}={show_value(getattr(case, axis))}" for axis in AXES if axis != "threads")
    return f"{case.implementation}[{axes}]"


def _status(case: CaseFacts) -> str:
    return f"{case.status}: {case.reason}" if case.reason else case.status


def _as_ratio(metric: Metric, shift: Shift) -> dict[str, float | None]:
    """The shift of times as a ratio of the metric: rates are its inverse."""
    sign = -1 if metric == "token_rate" else 1
    ratio = math.exp(sign * shift.value)
    if not shift.enough:
        return {"ratio": ratio, "low": None, "high": None}
    low, high = sorted((math.exp(sign * shift.low), math.exp(sign * shift.high)))
    return {"ratio": ratio, "low": low, "high": high}


def _rounds_for(found: Timed, units: int) -> int:
    """Rounds of HEAD to measure for so many units that may be compared."""
    return math.ceil(units * max(1, found.head_rounds) / max(1, found.head))
