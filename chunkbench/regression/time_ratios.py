"""The ratio of one case's times in HEAD and in BASE, over the rounds that can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

import numpy as np

from chunkbench.regression.matching import UNMETERED, Class, calm, classes, strata, yardsticks_of
from chunkbench.regression.rank_intervals import Shift, between, between_strata, centre
from chunkbench.store.results import Result, SessionResult, TimedResult

if TYPE_CHECKING:
    from chunkbench.regression.verdicts import Metric

Unit = Literal["process", "round"]
_Rounds = list[tuple[Class, float]]
"""[round] the yardstick class, and the logarithm of the time."""


@dataclass(frozen=True)
class TimeRatio:
    """The time ratio of one case. Shifts are logarithms of ratios, head over base."""

    unit: Unit
    """What is repeated: processes if either side measured in several, else rounds."""
    shift: Shift | None
    """None if nothing of one side can be compared with anything of the other."""
    parts: tuple[float, ...]
    """Shifts that have to agree: of each re-measurement of HEAD, or of the two halves of HEAD if there was none."""
    base_units: int
    head_units: int
    """Units compared."""
    base_rounds: int
    head_rounds: int
    """All rounds that were measured, comparable or not."""
    disturbed: str = ""
    """The side, if any, for which other processes were busy during every measurement."""


def time_ratio(
    base: Sequence[Result],
    heads: Sequence[Sequence[Result]],
    metric: Metric,
    confidence: float,
    in_turns: bool,
) -> TimeRatio:
    """Compare the times of a case.

    `base` has one entry for each process that measured the case. `heads` has one such list for the first measurement
    and one for each re-measurement.
    With `in_turns`, the n-th processes of both sides ran in turns, round by round, and pairs of rounds are compared.
    Otherwise only rounds of calm processes with equal yardstick readings are compared. Processes are the unit if a side
    was measured in several, even if only one of them was calm.
    """
    steps = _common_steps(base, heads)
    # If one side has no yardsticks, nothing can select comparable rounds.
    metered = all(yardsticks_of(case) for side in (base, *heads) for case in side)
    base_processes = [_rounds(case, metric, steps, metered) for case in base]
    head_processes = [[_rounds(case, metric, steps, metered) for case in head] for head in heads]
    counts = _count_rounds(base_processes, head_processes)
    if in_turns:
        return _by_pairs(base_processes, head_processes, confidence, counts)
    base_processes = _of_calm(base, base_processes)
    head_processes = [_of_calm(head, processes) for head, processes in zip(heads, head_processes, strict=True)]
    disturbed = "BASE" if not base_processes else "HEAD" if not any(head_processes) else ""
    if disturbed:
        return TimeRatio("process", None, (), 0, 0, *counts, disturbed)
    single = len(base) == 1 and all(len(head) == 1 for head in heads)
    compare = _by_rounds if single else _by_processes
    return compare(base_processes, head_processes, confidence, counts)


def time_ratio_apart(
    base: Sequence[Result], heads: Sequence[Sequence[Result]], metric: Metric, confidence: float
) -> TimeRatio:
    """Compare the times of a case that two machines measured, or one machine in two states: all rounds of both,
    whatever the yardsticks read."""
    steps = _common_steps(base, heads)
    base_processes = [_rounds(case, metric, steps, False) for case in base]
    head_processes = [[_rounds(case, metric, steps, False) for case in head] for head in heads]
    counts = _count_rounds(base_processes, head_processes)
    single = len(base) == 1 and all(len(head) == 1 for head in heads)
    compare = _by_rounds if single else _by_processes
    return compare(base_processes, head_processes, confidence, counts)


def _count_rounds(base: Sequence[_Rounds], heads: Sequence[Sequence[_Rounds]]) -> tuple[int, int]:
    return sum(map(len, base)), sum(len(rounds) for head in heads for rounds in head)


def _of_calm(cases: Sequence[Result], processes: Sequence[_Rounds]) -> list[_Rounds]:
    """The rounds of the processes that were calm."""
    return [rounds for case, rounds in zip(cases, processes, strict=True) if calm(case)]


def _common_steps(base: Sequence[Result], heads: Sequence[Sequence[Result]]) -> set[int]:
    """Steps that every process of both sides timed."""
    return set.intersection(*(set(case.round_steps) for side in (base, *heads) for case in side))


def _by_pairs(
    base: Sequence[_Rounds], heads: Sequence[Sequence[_Rounds]], confidence: float, counts: tuple[int, int]
) -> TimeRatio:
    first, differences = 0, []  # differences: [measurement][pair of processes][round]
    for head in heads:
        differences.append(_differences(base[first : first + len(head)], head))
        first += len(head)
    single = len(base) == 1
    values = [value for pairs in differences for pair in pairs for value in (pair if single else [median(pair)])]
    unit: Unit = "round" if single else "process"
    if not values:
        return TimeRatio(unit, None, (), 0, 0, *counts)
    again = [[median(pair) for pair in pairs] for pairs in differences[1:]]
    parts = _parts(values, again, 0.0)
    return TimeRatio(unit, centre(values, confidence), parts, len(values), len(values), *counts)


def _by_processes(
    base: Sequence[_Rounds], heads: Sequence[Sequence[_Rounds]], confidence: float, counts: tuple[int, int]
) -> TimeRatio:
    base_levels = _levels([([*base[:i], *base[i + 1 :]], rounds) for i, rounds in enumerate(base)])
    levels_of_heads = [_levels([(base, rounds) for rounds in head]) for head in heads]
    head_levels = [level for levels in levels_of_heads for level in levels]
    if not base_levels or not head_levels:
        return TimeRatio("process", None, (), len(base_levels), len(head_levels), *counts)
    parts = _parts(head_levels, levels_of_heads[1:], median(base_levels))
    shift = between(base_levels, head_levels, confidence)
    return TimeRatio("process", shift, parts, len(base_levels), len(head_levels), *counts)


def _by_rounds(
    base: Sequence[_Rounds], heads: Sequence[Sequence[_Rounds]], confidence: float, counts: tuple[int, int]
) -> TimeRatio:
    base_rounds = _joined(base)
    rounds_of_heads = [_joined(head) for head in heads]
    head_rounds = _joined(rounds_of_heads)
    matched = strata(base_rounds, head_rounds)
    units = sum(len(base) for base, _ in matched), sum(len(head) for _, head in matched)
    if not matched:
        return TimeRatio("round", None, (), *units, *counts)
    half = len(head_rounds) // 2
    agreeing = rounds_of_heads[1:] or [head_rounds[:half], head_rounds[half:]]
    levels = [_level([base_rounds], rounds) for rounds in agreeing]
    parts = tuple(math.nan if level is None else level for level in levels)
    return TimeRatio("round", between_strata(matched, confidence), parts, *units, *counts)


def _joined(processes: Sequence[_Rounds]) -> _Rounds:
    return [entry for rounds in processes for entry in rounds]


def _parts(values: Sequence[float], again: Sequence[Sequence[float]], level: float) -> tuple[float, ...]:
    """Shifts of the re-measurements over `level`, or of the two halves of `values` if there was no re-measurement.

    A part without data is not a number, so that it agrees with nothing.
    """
    parts = again or [values[: len(values) // 2], values[len(values) // 2 :]]
    return tuple(median(part) - level if part else math.nan for part in parts)


def counts_of(cases: Sequence[Result], metric: Metric) -> set[int | None]:
    """What the processes state of `kv_bytes` or `work_items`; None where a kind of work has no such count."""
    return {getattr(case, metric) if isinstance(case, SessionResult) else None for case in cases}


def value_of(cases: Sequence[Result], metric: Metric) -> float | None:
    """The metric over all rounds of these processes, comparable or not.

    The median of times and rates. A count itself, or None if no process states it or the processes state different
    counts.
    """
    if metric in ("kv_bytes", "work_items"):
        counts = counts_of(cases, metric)
        count = counts.pop() if len(counts) == 1 else None
        return None if count is None else float(count)
    times = [math.exp(value) for case in cases for _, value in _rounds(case, metric, set(case.round_steps), False)]
    if not times:
        return None
    return cases[0].batch_size * 1e6 / median(times) if metric == "token_rate" else median(times)


def _differences(base: Sequence[_Rounds], head: Sequence[_Rounds]) -> list[list[float]]:
    """[pair of processes][round] differences between rounds that were measured in turns."""
    pairs = [
        [head_time - base_time for (_, base_time), (_, head_time) in zip(base_rounds, head_rounds, strict=False)]
        for base_rounds, head_rounds in zip(base, head, strict=False)
    ]
    return [pair for pair in pairs if pair]


def _level(base: Sequence[_Rounds], rounds: _Rounds) -> float | None:
    """How far the rounds of one process lie above the comparable rounds of the processes `base`. None without any."""
    matched = strata(_joined(base), rounds)
    if not matched:
        return None
    return float(np.median(np.concatenate([(head[:, None] - base[None, :]).ravel() for base, head in matched])))


def _levels(pairs: Sequence[tuple[Sequence[_Rounds], _Rounds]]) -> list[float]:
    """The levels of the processes that can be compared."""
    levels = [_level(base, rounds) for base, rounds in pairs]
    return [level for level in levels if level is not None]


def _rounds(case: Result, metric: Metric, steps: set[int], metered: bool) -> _Rounds:
    """Mean times of the rounds: over the steps `steps`, or over all steps of append and plan.

    Unless `metered`, all rounds have one class.
    """
    if metric in ("append", "plan"):
        if not isinstance(case, TimedResult):
            return []
        rounds = case.append_samples_us if metric == "append" else case.plan_samples_us
        means = [fmean(samples) for samples in rounds]
    else:
        columns = [index for index, step in enumerate(case.round_steps) if step in steps]
        means = [fmean(samples[index] for index in columns) for samples in case.rounds] if columns else []
    names = classes(case) if metered else [UNMETERED] * len(means)
    # A clock that did not advance gives 0, which has no logarithm.
    return [(name, math.log(max(mean, 1e-3))) for name, mean in zip(names, means, strict=False)]
