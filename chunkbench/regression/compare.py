"""HEAD against BASE: which cases changed, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from chunkbench.analysis.points import counted, measured
from chunkbench.regression.case_verdicts import Judging, Options
from chunkbench.regression.environments import differences
from chunkbench.regression.verdicts import (
    EXACT,
    VERDICTS,
    CaseVerdict,
    Comparison,
    EnvironmentDifference,
    Settings,
    Side,
    Summary,
    exit_code,
    worst_first,
)
from chunkbench.store.facts import FAILED

if TYPE_CHECKING:
    from chunkbench.store import CaseFacts, Run

__all__ = ["NothingToCompare", "Options", "compare"]


class NothingToCompare(ValueError):
    """The runs have no case in common, or one of them has none; the message says which."""


def compare(
    base: Sequence[Run], head: Sequence[Run], options: Options, again: Sequence[Sequence[Run]] = ()
) -> Comparison:
    """Compare two measurements, each of one run or of several that measured the same in processes of their own.

    `again` are measurements in which some cases of HEAD were measured once more.
    Raises `NothingToCompare`, since a comparison that finds nothing must not pass for one that found nothing wrong.
    """
    ours, theirs = _by_key(base), _by_key(head)
    seen = counted if options.metric in EXACT else measured
    for runs, cases in ((base, ours), (head, theirs)):
        known = [case for several in cases.values() for case in several]
        # A HEAD that fails everywhere is a verdict.
        if not any(seen(case) or (runs is head and case.status in FAILED) for case in known):
            hint = "; its bytes of K/V are known (metric kv_bytes)" if any(map(counted, known)) else ""
            raise NothingToCompare(f"{runs[0].path}: no case was measured, there is nothing to compare{hint}")
    for run in base:
        if run.torn or run.manifest.interrupted:
            how = "cases.jsonl is cut short" if run.torn else "the run was interrupted"
            raise NothingToCompare(
                f"{run.path}: not fit for a BASE, since {how}: what it lacks would pass unseen. Measure it again, "
                "or resume it"
            )
    found = differences(base[0].manifest, head[0].manifest)
    if not ours.keys() & theirs.keys():
        told = "; ".join(f"{one.what}: {one.base} and {one.head}" for one in found if one.machine)
        raise NothingToCompare(
            f"{base[0].path} and {head[0].path} have no case in common{f' ({told})' if told else ''}: "
            "both have to measure the same points, implementations and protocols"
        )
    both = [key for key in ours if any(map(seen, ours[key])) and any(map(seen, theirs.get(key, ())))]
    mark = base[0].manifest.in_turns_with
    in_turns = mark is not None and mark == head[0].manifest.in_turns_with
    confidence = 1 - (1 - options.confidence) / (max(1, len(both)) * _shares(options.looks))
    across = _machines(base) != _machines(head)
    forbidding = [one.what for one in found if one.machine and not (across and one.hardware)]
    barred = ", ".join(forbidding) if not options.cross_machine else ""
    judging = Judging(options, confidence, in_turns, barred, across)
    repeats = [_by_key(runs) for runs in again]
    verdicts: list[CaseVerdict] = []
    unmeasured = 0
    for key in {**ours, **theirs}:
        more = [cases[key] for cases in repeats if key in cases]
        judged = judging.judge(ours.get(key, ()), theirs.get(key, ()), more)
        verdicts += judged
        unmeasured += not judged
    verdicts = _told_apart(verdicts)
    first = [side[key][0] for key in both for side in (ours, theirs)]
    counts = Counter(case.verdict for case in verdicts)
    settings = Settings(
        metric=options.metric,
        threshold=options.threshold,
        confidence=options.confidence,
        case_confidence=confidence,
        timed_cases=len(both),
        in_turns=in_turns,
        cross_machine=options.cross_machine,
        fail_on=options.fail_on,
    )
    return Comparison(
        base=_side(base),
        head=_side(head),
        settings=settings,
        exit_code=exit_code(verdicts, options.fail_on),
        counts={verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        warnings=tuple(_warnings(base, head, first, judging)),
        differences=tuple(
            EnvironmentDifference(what=one.what, base=one.base, head=one.head, machine=one.machine) for one in found
        ),
        summaries=tuple(_summaries(verdicts, options.confidence, confidence)),
        cases=worst_first(verdicts),
        unmeasured=unmeasured,
        command=options.command,
    )


def _shares(looks: int) -> int:
    """Among how many looks at a case the errors that are allowed to it are shared out: one less than there may be.

    With tails of a / (2 (looks - 1)): nothing is called slower or faster by a first look, so that a case that did not
    change has looks - 1 occasions with two tails each, a in all. A case that did change has one tail in each look in
    which it could pass for the same: at most a, for two looks or more.
    """
    return max(1, looks - 1)


def _summaries(cases: Sequence[CaseVerdict], confidence: float, case_confidence: float) -> list[Summary]:
    """The interval takes the cases' errors for independent and nearly normal, as their mean's is."""
    by_implementation: dict[str, list[CaseVerdict]] = {}
    for case in cases:
        if case.ratio is not None and case.metric not in EXACT and math.isfinite(case.ratio):
            by_implementation.setdefault(case.implementation, []).append(case)
    normal, found = NormalDist().inv_cdf, []
    for implementation, members in by_implementation.items():
        mean = sum(math.log(case.ratio) for case in members if case.ratio) / len(members)
        halves = [math.log(case.high / case.low) / 2 for case in members if case.low and case.high]
        low = high = None
        if len(halves) == len(members):
            scale = normal((1 + confidence) / 2) / normal((1 + case_confidence) / 2)
            half = scale * math.sqrt(sum(half**2 for half in halves)) / len(members)
            low, high = math.exp(mean - half), math.exp(mean + half)
        label = members[0].label
        found.append(
            Summary(
                implementation=implementation, label=label, cases=len(members), ratio=math.exp(mean), low=low, high=high
            )
        )
    return found


def _told_apart(cases: Sequence[CaseVerdict]) -> list[CaseVerdict]:
    """With the number of threads in the name where that alone tells two cases apart."""
    seen = Counter((case.name, case.metric) for case in cases)
    return [
        case.model_copy(update={"name": f"{case.name[:-1]},threads={case.axes['threads']}]"})
        if seen[case.name, case.metric] > 1
        else case
        for case in cases
    ]


def _warnings(base: Sequence[Run], head: Sequence[Run], both: Sequence[CaseFacts], judging: Judging) -> list[str]:
    said = []
    if any(run.torn for run in head):
        said.append("HEAD: the last line of cases.jsonl is cut short; what it held counts as missing")
    if any(run.manifest.interrupted for run in head):
        said.append("HEAD: the run was interrupted; what it did not measure counts as missing")
    if judging.across and not judging.options.cross_machine:
        said.append(
            f"measured on different machines ({_named(base)} and {_named(head)}): ratios are raw, the machine's own "
            "ratio stands beside each, and verdicts are on what that leaves"
        )
    if judging.barred:
        said.append(f"other conditions ({judging.barred}): times are not judged unless that is asked for")
    if judging.in_turns:
        return said
    if any(case.device == "cpu" and not case.yardsticks for case in both):
        said.append("one side has no yardsticks (an older version measured it): rounds are compared as they are")
    if len(base) == len(head) == 1:
        said.append(
            "one process measured each side: what differs from one process to the next, or from one hour to the next, "
            "is in no interval; `chunkbench gate` and `chunkbench regress` measure in several"
        )
    elif len(base) == 1 or len(head) == 1:
        side = "BASE" if len(base) == 1 else "HEAD"
        said.append(f"{side} was measured in one process, which is too few to compare with several")
    return said


def _machines(runs: Sequence[Run]) -> set[str]:
    """Ids of the machines that measured these runs."""
    return {case.machine for run in runs for case in run.cases}


def _named(runs: Sequence[Run]) -> str:
    """The machines of a side, in words."""
    names = dict.fromkeys(name for run in runs for name in run.manifest.machine_names)
    return " and ".join(f"{name or 'a machine not recorded'}" for name in names) + f" [{', '.join(_machines(runs))}]"


def _side(runs: Sequence[Run]) -> Side:
    manifest = runs[0].manifest
    return Side(
        path=str(runs[0].path if len(runs) == 1 else runs[0].path.parent),
        experiment=manifest.experiment.name,
        commit=manifest.git.named(12) or None,
        version=manifest.chunkbench_version,
        started_at=manifest.started_at,
        cases=len({case.key for run in runs for case in run.cases}),
        processes=len(runs),
        rounds=sum(max((len(case.samples_us) for case in run.cases), default=0) for run in runs),
    )


def _by_key(runs: Sequence[Run]) -> dict[str, list[CaseFacts]]:
    found: dict[str, list[CaseFacts]] = {}
    for run in runs:
        for case in run.cases:
            found.setdefault(case.key, []).append(case)
    return found
