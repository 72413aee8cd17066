"""Compares speed-ups between two measurements whose times cannot be compared.

Times of different machines, dtypes or implementations say little about each other. Speed-ups over a common
implementation can be compared. Each speed-up comes from rounds in which both implementations were measured side by
side. So a disturbance of the machine slows both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from chunkbench.bench.analysis.points import AXES, measured
from chunkbench.bench.analysis.ratio import paired_ratios
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.store import Result, Run
from chunkbench.report.compare.compare import NothingToCompare, side_of
from chunkbench.report.compare.rank_intervals import between as shift_between
from chunkbench.report.compare.verdicts import Between, SideSummary, judge

Change = Literal["larger", "same", "smaller", "inconclusive"]
_CHANGES: Mapping[str, Change] = {  # the rules are made for times, so a larger value is "slower"
    "slower": "larger",
    "same": "same",
    "faster": "smaller",
    "inconclusive": "inconclusive",
}

_FREE_AXES: Mapping[Between, frozenset[str]] = {
    "machines": frozenset({"device", "threads", "mode"}),
    "dtypes": frozenset({"dtype"}),
    "implementations": frozenset(),
}
"""Axes that may have different values in two compared cases."""
_USUAL = "naive"
"""The implementation over which the paper states its speed-ups."""


class Speedup(BaseModel):
    """The speed-ups of BASE and HEAD at one point, and their ratio."""

    model_config = ConfigDict(frozen=True)

    axes: dict[str, Any]
    base_implementation: str
    head_implementation: str
    base: float
    """Speed-up of BASE: time of the common implementation divided by time of `base_implementation`."""
    head: float
    ratio: float
    """The speed-up of HEAD divided by the speed-up of BASE."""
    low: float | None
    high: float | None
    change: Change


class Speedups(BaseModel):
    model_config = ConfigDict(frozen=True)

    between: Between
    over: str
    """The common implementation: both sides measured it, and all speed-ups are relative to it."""
    base: SideSummary
    head: SideSummary
    threshold: float
    confidence: float
    """Probability that all intervals together are right."""
    speedups: tuple[Speedup, ...]


def speedups(
    base: Sequence[Run], head: Sequence[Run], between: Between, over: str | None, threshold: float, confidence: float
) -> Speedups:
    """Compare the speed-ups of two measurements over the implementation `over`.

    If `over` is None, it is `naive` if both sides measured it, else the baseline of BASE's experiment. The compared
    cases have equal axes, except for the axes that `between` names. Raises `NothingToCompare`.
    """
    common = _common(base, head, over)
    sides = [_cases(runs, _FREE_AXES[between]) for runs in (base, head)]
    chosen = list(_chosen(_names(sides[0]) - {common}, _names(sides[1]) - {common}, between))
    matched = [
        (places, names, values)
        for places in sides[0]
        if places in sides[1]
        for names in chosen
        if all(values := [_log_speedups(side[places], name, common) for side, name in zip(sides, names, strict=True)])
    ]
    if not matched:
        raise NothingToCompare(
            f"{base[0].path} and {head[0].path} have no point in common at which {common} and another implementation "
            f"were measured (compared between {between}){_apart(base, head, _FREE_AXES[between])}"
        )
    each = 1 - (1 - confidence) / len(matched)
    results = []
    for places, names, (base_values, head_values) in matched:
        shift = shift_between(base_values, head_values, each)
        verdict = judge(shift.low, shift.high, threshold)
        case = next(members[names[1]] for members in sides[1][places] if names[1] in members)
        results.append(
            Speedup(
                axes={axis: case.axis(axis) for axis in AXES},
                base_implementation=names[0],
                head_implementation=names[1],
                base=math.exp(median(base_values)),
                head=math.exp(median(head_values)),
                ratio=math.exp(shift.value),
                low=math.exp(shift.low) if shift.enough else None,
                high=math.exp(shift.high) if shift.enough else None,
                change=_CHANGES[verdict],
            )
        )
    return Speedups(
        between=between,
        over=common,
        base=side_of(base),
        head=side_of(head),
        threshold=threshold,
        confidence=confidence,
        speedups=tuple(results),
    )


_Point = tuple[Any, ...]
_Cases = dict[_Point, list[dict[str, Result]]]
"""For each point and each process: implementation -> case."""


def _common(base: Sequence[Run], head: Sequence[Run], over: str | None) -> str:
    both = [{case.implementation for run in runs for case in run.cases if measured(case)} for runs in (base, head)]
    shared = both[0] & both[1]
    baseline = base[0].manifest.experiment.baseline
    name = over or (_USUAL if _USUAL in shared else baseline)
    if name in shared:
        return name
    listed = f"both measured {', '.join(sorted(shared))}" if shared else "they have no implementation in common"
    raise NothingToCompare(
        f"{name or 'the common implementation'}: not measured in {base[0].path} and in {head[0].path}; {listed}",
        remedy="name the common implementation",
    )


def _cases(runs: Sequence[Run], free: Collection[str]) -> _Cases:
    """The measured cases by point. Raises `NothingToCompare` if one run has a point with two values of a free axis."""
    fixed = [axis for axis in AXES if axis not in free]
    cases: _Cases = {}
    for run in runs:
        by_point: dict[_Point, dict[str, Result]] = {}
        for case in filter(measured, run.cases):
            members = by_point.setdefault(tuple(repr(case.axis(axis)) for axis in fixed), {})
            if case.implementation in members:
                raise NothingToCompare(
                    f"{run.path}: measured {case.implementation} more than once at a point, with different values of "
                    f"{', '.join(sorted(free)) or 'nothing'}: measure them in runs of their own"
                )
            members[case.implementation] = case
        for point, members in by_point.items():
            cases.setdefault(point, []).append(members)
    return cases


def _names(cases: _Cases) -> set[str]:
    return {name for processes in cases.values() for members in processes for name in members}


def _chosen(base: set[str], head: set[str], between: Between) -> Iterator[tuple[str, str]]:
    """Pairs (BASE's implementation, HEAD's implementation) to compare: equal ids, or for `implementations` ids that
    only one side measured."""
    if between != "implementations":
        yield from ((name, name) for name in sorted(base & head))
        return
    if not (base - head and head - base):
        raise NothingToCompare(
            "at least one side measured no implementation that the other lacks: name runs that differ in an "
            "implementation"
        )
    yield from ((mine, other) for mine in sorted(base - head) for other in sorted(head - base))


def _apart(base: Sequence[Run], head: Sequence[Run], free: frozenset[str]) -> str:
    """The axes that have no value in common, so that the sides share no point; with the values of both sides."""
    differences = []
    for axis in sorted(set(AXES) - free):
        sides = [sorted({show_value(case.axis(axis)) for run in runs for case in run.cases}) for runs in (base, head)]
        if not {*sides[0]} & {*sides[1]}:
            differences.append(f"{axis} is {', '.join(sides[0])} and {', '.join(sides[1])}")
    return f": {'; '.join(differences)}" if differences else ""


def _log_speedups(processes: Sequence[Mapping[str, Result]], name: str, over: str) -> list[float]:
    """Logarithms of the speed-up of `name` over `over`: one for each round, or one for each process if there are
    several."""
    both = [members for members in processes if name in members and over in members]
    rounds = [[-math.log(value) for value in paired_ratios(members[name], members[over])] for members in both]
    rounds = [values for values in rounds if values]
    return rounds[0] if len(rounds) == 1 else [median(values) for values in rounds]
