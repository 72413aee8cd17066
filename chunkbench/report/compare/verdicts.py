"""The models of a comparison (the JSON report is a `Comparison`), and the rule that gives a verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal["faster", "same", "slower", "inconclusive", "incorrect", "missing", "new"]
VERDICTS: tuple[Verdict, ...] = ("incorrect", "slower", "missing", "inconclusive", "faster", "new", "same")
"""All verdicts, worst first; reports list cases in this order."""
Between = Literal["machines", "dtypes", "implementations"]
"""The difference between two measurements whose speed-ups are compared."""
FailOn = Literal["slower", "incorrect", "missing", "inconclusive"]

COMPARISON_SCHEMA = 2


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaseVerdict(_Frozen):
    """The verdict on one case by one metric. `ratio` and its interval are raw: not divided by the calibration ratio."""

    key: str
    name: str
    """The implementation and the values of all axes. A case has the same name in every comparison."""
    implementation: str
    label: str
    axes: dict[str, Any]
    metric: str
    verdict: Verdict
    reason: str = ""
    base: float | None = None
    """BASE's value, in the unit of the metric."""
    head: float | None = None
    ratio: float | None = None
    """The value of HEAD divided by the value of BASE. A slower case has a ratio above 1 for times, below 1 for token
    rates."""
    low: float | None = None
    high: float | None = None
    calibration_low: float | None = None
    calibration_high: float | None = None
    """`calibration_low`, `calibration_high`: the calibration ratio, lowest and highest, in the direction of `ratio`;
    None if both sides were interleaved. The verdict is on `ratio` divided by the calibration ratio."""
    unit: Literal["pair", "process", "round"] = "round"
    """The unit that is repeated and compared: pair, process or round."""
    base_units: int = 0
    head_units: int = 0
    """`base_units`, `head_units`: number of compared units of each side."""
    command: str = ""
    """Command line that measures only this implementation again."""
    failed: bool = False
    """Whether HEAD was incorrect, raised an error, crashed or ran out of time."""


class Summary(_Frozen):
    """Geometric mean of the ratios of one implementation, over its cases that have a ratio."""

    implementation: str
    label: str
    cases: int
    ratio: float
    low: float | None
    high: float | None


class EnvironmentDifference(_Frozen):
    """A difference between the environments of the two runs."""

    what: str
    base: str
    head: str
    machine: bool
    """Whether the difference forbids to compare times. A different version does not."""


class FixedWork(_Frozen):
    """The speed of the machine itself, measured with one kind of work that does not depend on any implementation."""

    work: str
    """The kind of work: arithmetic, memory sweep, read bandwidth or matrix rate."""
    speed: float
    """Speed while HEAD was measured divided by speed while BASE was measured."""


class SideSummary(_Frozen):
    """Facts about one side of a comparison."""

    path: str
    experiment: str
    commit: str | None
    version: str
    started_at: str | None
    cases: int
    processes: int
    rounds: int


class Settings(_Frozen):
    """The settings of a comparison."""

    metric: str
    unit: str = ""
    """Unit of the metric."""
    threshold: float
    confidence: float
    """Confidence of all verdicts together."""
    case_confidence: float
    """Confidence of each interval: the error probability is divided among the timed cases (Bonferroni)."""
    timed_cases: int
    looks: int = 1
    """Number of times that each case is tested. The allowed error probability is divided among these tests."""
    interleaved: bool
    """Whether both sides were measured in interleaved pairs of processes, so that pairs are compared."""
    cross_machine: bool
    fail_on: tuple[FailOn, ...]


class Comparison(_Frozen):
    """The result of comparing HEAD with BASE."""

    schema_version: int = COMPARISON_SCHEMA
    base: SideSummary
    head: SideSummary
    settings: Settings
    exit_code: int
    counts: dict[Verdict, int]
    machine: tuple[FixedWork, ...] = ()
    """The speed of the machine; empty if both sides were interleaved, or if no fixed work was timed on both sides."""
    warnings: tuple[str, ...]
    differences: tuple[EnvironmentDifference, ...]
    summaries: tuple[Summary, ...]
    cases: tuple[CaseVerdict, ...]
    """The verdicts on all cases, worst first."""
    unmeasured: int
    """Number of cases that neither side measured."""
    command: str
    """Command line that repeats the comparison."""


def judge(low: float, high: float, threshold: float) -> Verdict:
    """The verdict on the interval `low` to `high` of the logarithm of a ratio of times, head over base.

    Ratios from 1 / (1 + threshold) to 1 + threshold are no change. The whole interval has to lie on one side.
    """
    edge = math.log1p(threshold)
    if low > edge:
        return "slower"
    if high < -edge:
        return "faster"
    if low >= -edge and high <= edge:
        return "same"
    return "inconclusive"


def worst_first(cases: Sequence[CaseVerdict]) -> tuple[CaseVerdict, ...]:
    """The cases, sorted by verdict, then by the distance of the ratio from 1."""

    def rank(case: CaseVerdict) -> tuple[int, float, str]:
        return VERDICTS.index(case.verdict), -abs(math.log(case.ratio)) if case.ratio else 0.0, case.name

    return tuple(sorted(cases, key=rank))


def comparison_exit_code(cases: Sequence[CaseVerdict], fail_on: Collection[FailOn]) -> int:
    """Exit code of a command that compares.

    3 if HEAD gave a wrong result, raised an error, crashed or ran out of time; 1 if it is slower or lacks a case; 4 if
    a case is inconclusive. Each only if `fail_on` names the verdict. Otherwise 0.
    """
    failing = [case for case in cases if case.verdict in fail_on]
    if any(case.failed for case in cases) and {"incorrect", "missing"} & set(fail_on):
        return 3
    if any(case.verdict in ("slower", "missing") for case in failing):
        return 1
    return 4 if failing else 0
