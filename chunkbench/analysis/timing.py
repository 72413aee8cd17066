"""The ratio of one case's times in HEAD and in BASE, over the rounds that may be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

import numpy as np

from chunkbench.analysis.alike import Class, calm, classes, strata
from chunkbench.analysis.shift import Shift, between, between_strata, centre

if TYPE_CHECKING:
    from chunkbench.analysis.verdict import Metric
    from chunkbench.store.facts import CaseFacts

Unit = Literal["process", "round"]
_Rounds = list[tuple[Class, float]]
"""[round] what the yardsticks read, and the logarithm of the time."""


@dataclass(frozen=True)
class Timed:
    """What came of comparing one case; shifts are logarithms of ratios, head over base."""

    unit: Unit
    """What is repeated: processes, if either side measured in several, else rounds."""
    shift: Shift | None
    """None where nothing of one side may be compared with anything of the other."""
    parts: tuple[float, ...]
    """Shifts of the parts that have to agree: each time that HEAD was measured again, else either half of it."""
    base: int
    head: int
    """Units compared."""
    base_rounds: int
    head_rounds: int
    """All rounds that were measured, alike or not."""
    disturbed: str = ""
    """The side, if any, all of which was measured while other processes were busy."""


def timed(
    base: Sequence[CaseFacts],
    heads: Sequence[Sequence[CaseFacts]],
    metric: Metric,
    confidence: float,
    in_turns: bool,
) -> Timed:
    """Compare a case. `base` has one entry for each process that measured it, `heads` such a list for the first
    measurement and one for each that followed.

    `in_turns`: the n-th process of either side ran in turns with the other's, round by round, and pairs of rounds are
    compared. Otherwise only rounds of calm processes, beside which the yardsticks read alike, are.
    """
    everybody = [*base, *(case for head in heads for case in head)]
    steps = set(everybody[0].steps).intersection(*(case.steps for case in everybody))
    ours = [_rounds(case, metric, steps) for case in base]
    theirs = [[_rounds(case, metric, steps) for case in head] for head in heads]
    flat = [rounds for head in theirs for rounds in head]
    counts = sum(map(len, ours)), sum(map(len, flat))
    unit: Unit = "process"
    base_values: list[float] = []
    if not in_turns:
        quiet = [rounds for case, rounds in zip(base, ours, strict=True) if calm(case)]
        quiet_heads = [
            [rounds for case, rounds in zip(head, several, strict=True) if calm(case)]
            for head, several in zip(heads, theirs, strict=True)
        ]
        disturbed = "BASE" if not quiet else "HEAD" if not any(quiet_heads) else ""
        if disturbed:
            return Timed("process", None, (), 0, 0, *counts, disturbed)
        ours, theirs = quiet, [several for several in quiet_heads if several]
        flat = [rounds for head in theirs for rounds in head]
    if in_turns:
        values, unit = _paired(ours, flat)
        level = 0.0
    elif len(ours) > 1 and len(flat) > 1:
        base_values = _levels([(ours[:i] + ours[i + 1 :], rounds) for i, rounds in enumerate(ours)])
        values = _levels([(ours, rounds) for rounds in flat])
        level = median(base_values) if base_values else 0.0
    else:
        return _by_rounds(ours, theirs, confidence, counts)
    if not values or not (in_turns or base_values):
        return Timed(unit, None, (), len(base_values), len(values), *counts)
    shift = centre(values, confidence) if in_turns else between(base_values, values, confidence)
    if len(theirs) > 1 and in_turns:
        parts, behind = [], len(theirs[0])
        for head in theirs[1:]:
            parts.append(_paired(ours[behind : behind + len(head)], head)[0])
            behind += len(head)
    elif len(theirs) > 1:
        parts = [_levels([(ours, rounds) for rounds in head]) for head in theirs[1:]]
    else:
        parts = [values[: len(values) // 2], values[len(values) // 2 :]]
    agreeing = tuple(median(part) - level for part in parts if part)
    return Timed(unit, shift, agreeing, len(values) if in_turns else len(base_values), len(values), *counts)


def value_of(cases: Sequence[CaseFacts], metric: Metric) -> float | None:
    """The metric over all rounds of the given processes, alike or not: the median, or the count itself."""
    if metric in ("kv_bytes", "work_items"):
        found = [case.kv_bytes if metric == "kv_bytes" else case.work_items for case in cases]
        return next((float(count) for count in found if count is not None), None)
    times = [math.exp(value) for case in cases for _, value in _rounds(case, metric, set(case.steps))]
    if not times:
        return None
    return cases[0].batch_size * 1e6 / median(times) if metric == "token_rate" else median(times)


def _by_rounds(
    ours: Sequence[_Rounds], theirs: Sequence[Sequence[_Rounds]], confidence: float, counts: tuple[int, int]
) -> Timed:
    base = [one for rounds in ours for one in rounds]
    parted = [[one for rounds in head for one in rounds] for head in theirs]
    head = [one for part in parted for one in part]
    matched = strata(base, head)
    used = sum(len(one) for one, _ in matched), sum(len(other) for _, other in matched)
    if not matched:
        return Timed("round", None, (), *used, *counts)
    agreeing = parted[1:] if len(parted) > 1 else [head[: len(head) // 2], head[len(head) // 2 :]]
    parts = [_level([base], part) for part in agreeing]
    shift = between_strata(matched, confidence)
    return Timed("round", shift, tuple(part for part in parts if part is not None), *used, *counts)


def _paired(ours: Sequence[_Rounds], theirs: Sequence[_Rounds]) -> tuple[list[float], Unit]:
    """Differences of rounds measured in turns: one for each pair of processes, or of rounds where there is one."""
    pairs = [
        [other - one for (_, one), (_, other) in zip(base, head, strict=False)]
        for base, head in zip(ours, theirs, strict=False)
    ]
    if len(pairs) == 1:
        return pairs[0], "round"
    return [median(one) for one in pairs if one], "process"


def _level(base: Sequence[_Rounds], rounds: _Rounds) -> float | None:
    """How far the rounds of one process lie above those of others that may be compared with them."""
    matched = strata([one for other in base for one in other], rounds)
    if not matched:
        return None
    return float(np.median(np.concatenate([(head[:, None] - base[None, :]).ravel() for base, head in matched])))


def _levels(pairs: Sequence[tuple[Sequence[_Rounds], _Rounds]]) -> list[float]:
    """The levels of those that can be compared."""
    found = [_level(base, rounds) for base, rounds in pairs]
    return [level for level in found if level is not None]


def _rounds(case: CaseFacts, metric: Metric, steps: set[int]) -> _Rounds:
    """Means over the given timed steps, or over all steps of append and plan."""
    if metric in ("append", "plan"):
        samples = case.append_samples_us if metric == "append" else case.plan_samples_us
        means = [fmean(one) for one in samples]
    else:
        columns = [index for index, step in enumerate(case.steps) if step in steps]
        means = [fmean(one[index] for index in columns) for one in case.samples_us] if columns else []
    # A clock that did not advance gives 0, of which there is no logarithm.
    return [(name, math.log(max(mean, 1e-3))) for name, mean in zip(classes(case), means, strict=False)]
