"""What a comparison of two runs says: models of it (the JSON report is one of these), and the rule of the verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal["faster", "same", "slower", "inconclusive", "incorrect", "missing", "new"]
VERDICTS: tuple[Verdict, ...] = ("incorrect", "slower", "missing", "inconclusive", "faster", "new", "same")
"""Worst first, as reports list them."""
Metric = Literal["latency", "token_rate", "kv_bytes", "work_items", "append", "plan"]
EXACT: frozenset[Metric] = frozenset({"kv_bytes", "work_items"})
"""Counts, not measurements: any change is a verdict."""
FailOn = Literal["slower", "incorrect", "missing", "inconclusive"]

COMPARISON_SCHEMA = 1
MOST_UNITS = 10_000
"""A case that would need more lies on the threshold: no number that anyone would measure settles it."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaseVerdict(_Frozen):
    """One case by one metric. Where two machines measured it, ratio and interval are raw."""

    key: str
    name: str
    """Implementation and every axis: the same for the same case in every comparison."""
    implementation: str
    label: str
    axes: dict[str, Any]
    metric: Metric
    verdict: Verdict
    reason: str = ""
    base: float | None = None
    """Latency, append and plan in microseconds, token_rate in tokens per second, counts as they are."""
    head: float | None = None
    ratio: float | None = None
    """Head over base, by the rounds that may be compared; times above 1 and token rates below 1 are slower."""
    low: float | None = None
    high: float | None = None
    machine_low: float | None = None
    machine_high: float | None = None
    """Where two machines measured the case: by how much the machines themselves differ, least and most, in the sense of
    the ratio. The verdict is on what this leaves of it."""
    unit: Literal["process", "round"] = "round"
    """What is repeated, and so what the interval is made of."""
    base_units: int = 0
    head_units: int = 0
    """Processes or rounds that were compared: those that ran while the machine ran alike."""
    base_rounds: int = 0
    head_rounds: int = 0
    """All rounds that were measured."""
    rounds_needed: int | None = None
    """Rounds of HEAD that would probably settle an inconclusive case."""
    remeasured: int = 0
    """How often HEAD was measured again."""
    command: str = ""
    """What would settle an inconclusive case, or repeats the measurement of any other."""
    failed: bool = False
    """Whether HEAD was incorrect, raised, crashed or ran out of time."""


class Summary(_Frozen):
    """Geometric mean of one implementation's ratios, over its cases that have one."""

    implementation: str
    label: str
    cases: int
    ratio: float
    low: float | None
    high: float | None


class EnvironmentDifference(_Frozen):
    """Something that is not the same for both runs."""

    what: str
    base: str
    head: str
    machine: bool
    """Whether it forbids to compare times; a version does not."""


class Side(_Frozen):
    """One of the two runs."""

    path: str
    experiment: str
    commit: str | None
    version: str
    started_at: str | None
    cases: int
    processes: int
    rounds: int


class Settings(_Frozen):
    """How verdicts were found."""

    metric: Metric
    threshold: float
    confidence: float
    """Of the comparison as a whole."""
    case_confidence: float
    """Of each interval: `confidence` shared out among the timed cases (Bonferroni)."""
    timed_cases: int
    in_turns: bool
    """Whether the two were measured in turns, round by round, and are compared so."""
    cross_machine: bool
    fail_on: tuple[FailOn, ...]


class Comparison(_Frozen):
    """Everything that can be said about HEAD against BASE."""

    schema_version: int = COMPARISON_SCHEMA
    base: Side
    head: Side
    settings: Settings
    exit_code: int
    counts: dict[Verdict, int]
    warnings: tuple[str, ...]
    differences: tuple[EnvironmentDifference, ...]
    summaries: tuple[Summary, ...]
    cases: tuple[CaseVerdict, ...]
    """Worst first."""
    unmeasured: int
    """Cases that neither run measured."""
    command: str
    """Repeats the comparison."""


def judge(low: float, high: float, threshold: float) -> Verdict:
    """Verdict on the logarithm of a ratio of times, head over base, by its whole interval.

    A change of `threshold` or less, either way, is no change: 1 / (1 + threshold) to 1 + threshold.
    """
    edge = math.log1p(threshold)
    if low > edge:
        return "slower"
    if high < -edge:
        return "faster"
    if low >= -edge and high <= edge:
        return "same"
    return "inconclusive"


def units_to_settle(value: float, low: float, high: float, threshold: float, units: int) -> int | None:
    """Processes or rounds with which the interval would probably lie on one side; None where no number would do.

    Widths shrink with the square root of the number.
    """
    half = (high - low) / 2
    distance = abs(abs(value) - math.log1p(threshold))
    if distance <= 0 or half <= 0:
        return None
    needed = math.ceil(units * (1.2 * half / distance) ** 2)
    return needed if needed <= MOST_UNITS else None


def worst_first(cases: Sequence[CaseVerdict]) -> tuple[CaseVerdict, ...]:
    """By verdict, then by how far the ratio lies from 1."""

    def rank(case: CaseVerdict) -> tuple[int, float, str]:
        return VERDICTS.index(case.verdict), -abs(math.log(case.ratio)) if case.ratio else 0.0, case.name

    return tuple(sorted(cases, key=rank))


def exit_code(cases: Sequence[CaseVerdict], fail_on: Collection[FailOn]) -> int:
    """3 where HEAD gave a wrong result, raised, crashed or ran out of time, 1 where it is slower or lacks a case, 4
    where it cannot be told; each only if `fail_on` asks for it. 0 otherwise."""
    found = [case for case in cases if case.verdict in fail_on]
    if any(case.failed for case in cases) and {"incorrect", "missing"} & set(fail_on):
        return 3
    if any(case.verdict in ("slower", "missing") for case in found):
        return 1
    return 4 if found else 0
