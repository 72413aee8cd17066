"""The ratio of one case's times in HEAD and in BASE, over the rounds that may be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

import numpy as np

from chunkbench.regression.matching import UNMETERED, Class, calm, classes, strata
from chunkbench.regression.rank_intervals import Shift, between, between_strata, centre

if TYPE_CHECKING:
    from chunkbench.regression.verdicts import Metric
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
    compared. Otherwise only rounds of calm processes, beside which the yardsticks read alike, are. Processes are the
    unit wherever a side was measured in several, however few of them were calm.
    """
    steps = _common_steps(base, heads)
    # With yardsticks on one side only there is nothing to tell alike from unlike by.
    metered = all(case.yardsticks for side in (base, *heads) for case in side)
    ours = [_rounds(case, metric, steps, metered) for case in base]
    theirs = [[_rounds(case, metric, steps, metered) for case in head] for head in heads]
    counts = sum(map(len, ours)), sum(len(rounds) for head in theirs for rounds in head)
    if in_turns:
        return _in_turns(ours, theirs, confidence, counts)
    ours = [rounds for case, rounds in zip(base, ours, strict=True) if calm(case)]
    theirs = [
        [rounds for case, rounds in zip(head, several, strict=True) if calm(case)]
        for head, several in zip(heads, theirs, strict=True)
    ]
    disturbed = "BASE" if not ours else "HEAD" if not any(theirs) else ""
    if disturbed:
        return Timed("process", None, (), 0, 0, *counts, disturbed)
    single = len(base) == 1 and all(len(head) == 1 for head in heads)
    compared = _by_rounds if single else _by_processes
    return compared(ours, theirs, confidence, counts)


def timed_across(
    base: Sequence[CaseFacts], heads: Sequence[Sequence[CaseFacts]], metric: Metric, confidence: float
) -> Timed:
    """Compare a case that two machines measured: all rounds of either, whatever the yardsticks read."""
    steps = _common_steps(base, heads)
    ours = [_rounds(case, metric, steps, False) for case in base]
    theirs = [[_rounds(case, metric, steps, False) for case in head] for head in heads]
    counts = sum(map(len, ours)), sum(len(rounds) for head in theirs for rounds in head)
    compared = _by_rounds if len(ours) == 1 and all(len(head) == 1 for head in theirs) else _by_processes
    return compared(ours, theirs, confidence, counts)


def _common_steps(base: Sequence[CaseFacts], heads: Sequence[Sequence[CaseFacts]]) -> set[int]:
    """Steps that every process of either side timed."""
    return set.intersection(*(set(case.steps) for side in (base, *heads) for case in side))


def _in_turns(
    ours: Sequence[_Rounds], theirs: Sequence[Sequence[_Rounds]], confidence: float, counts: tuple[int, int]
) -> Timed:
    behind, parted = 0, []
    for head in theirs:
        parted.append(_differences(ours[behind : behind + len(head)], head))
        behind += len(head)
    single = len(ours) == 1
    values = [value for part in parted for pair in part for value in (pair if single else [median(pair)])]
    unit: Unit = "round" if single else "process"
    if not values:
        return Timed(unit, None, (), 0, 0, *counts)
    again = [[median(pair) for pair in part] for part in parted[1:]]
    parts = _parts(values, again, 0.0)
    return Timed(unit, centre(values, confidence), parts, len(values), len(values), *counts)


def _by_processes(
    ours: Sequence[_Rounds], theirs: Sequence[Sequence[_Rounds]], confidence: float, counts: tuple[int, int]
) -> Timed:
    base = _levels([([*ours[:i], *ours[i + 1 :]], rounds) for i, rounds in enumerate(ours)])
    parted = [_levels([(ours, rounds) for rounds in head]) for head in theirs]
    values = [value for part in parted for value in part]
    if not base or not values:
        return Timed("process", None, (), len(base), len(values), *counts)
    parts = _parts(values, parted[1:], median(base))
    return Timed("process", between(base, values, confidence), parts, len(base), len(values), *counts)


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
    levels = [_level([base], part) for part in agreeing]
    parts = tuple(math.nan if level is None else level for level in levels)
    return Timed("round", between_strata(matched, confidence), parts, *used, *counts)


def _parts(values: Sequence[float], again: Sequence[Sequence[float]], level: float) -> tuple[float, ...]:
    """Shifts of the re-measurements, or of either half where there was none; not a number where one has no data, so
    that it agrees with nothing."""
    parted = again or [values[: len(values) // 2], values[len(values) // 2 :]]
    return tuple(median(part) - level if part else math.nan for part in parted)


def value_of(cases: Sequence[CaseFacts], metric: Metric) -> float | None:
    """The metric over all rounds of the given processes, alike or not: the median, or the count itself, None where
    it is not stated or differs from process to process."""
    if metric in ("kv_bytes", "work_items"):
        found = {case.kv_bytes if metric == "kv_bytes" else case.work_items for case in cases}
        count = found.pop() if len(found) == 1 else None
        return None if count is None else float(count)
    times = [math.exp(value) for case in cases for _, value in _rounds(case, metric, set(case.steps), False)]
    if not times:
        return None
    return cases[0].batch_size * 1e6 / median(times) if metric == "token_rate" else median(times)


def _differences(ours: Sequence[_Rounds], theirs: Sequence[_Rounds]) -> list[list[float]]:
    """[pair of processes][round] differences of rounds measured in turns."""
    pairs = [
        [other - one for (_, one), (_, other) in zip(base, head, strict=False)]
        for base, head in zip(ours, theirs, strict=False)
    ]
    return [pair for pair in pairs if pair]


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


def _rounds(case: CaseFacts, metric: Metric, steps: set[int], metered: bool) -> _Rounds:
    """Means over the given timed steps, or over all steps of append and plan; all of one class unless `metered`."""
    if metric in ("append", "plan"):
        samples = case.append_samples_us if metric == "append" else case.plan_samples_us
        means = [fmean(one) for one in samples]
    else:
        columns = [index for index, step in enumerate(case.steps) if step in steps]
        means = [fmean(one[index] for index in columns) for one in case.samples_us] if columns else []
    names = classes(case) if metered else [UNMETERED] * len(means)
    # A clock that did not advance gives 0, of which there is no logarithm.
    return [(name, math.log(max(mean, 1e-3))) for name, mean in zip(names, means, strict=False)]
