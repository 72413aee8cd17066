"""The data of a comparison, and the rule that gives a verdict. The JSON report is a `Comparison`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal["faster", "same", "slower", "inconclusive", "incorrect", "missing", "new"]
VERDICTS: tuple[Verdict, ...] = ("incorrect", "slower", "missing", "inconclusive", "faster", "new", "same")
"""All verdicts, from the worst to the best."""
Between = Literal["machines", "dtypes", "implementations"]
"""What differs between two measurements, so that only their speed-ups can be compared."""
FailOn = Literal["slower", "incorrect", "missing", "inconclusive"]

COMPARISON_SCHEMA = 2


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaseVerdict(_Frozen):
    """The verdict on one figure of one case."""

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
    """The figure of BASE, in its unit. `head`: the figure of HEAD."""
    head: float | None = None
    ratio: float | None = None
    """`head` divided by `base`, with the interval `low` to `high`; not divided by the calibration ratio. If HEAD is
    slower, the ratio is above 1 for times and below 1 for rates."""
    low: float | None = None
    high: float | None = None
    calibration_low: float | None = None
    calibration_high: float | None = None
    """`calibration_low`, `calibration_high`: range of the calibration ratio, which is how much slower the machine
    itself was for HEAD. The verdict rests on `ratio` divided by this range. Both are None for interleaved sides."""
    unit: Literal["pair", "process", "round"] = "round"
    """What was repeated to get the compared values: pairs of processes, processes, or rounds."""
    base_units: int = 0
    head_units: int = 0
    """Number of compared values of HEAD. `base_units`: number of compared values of BASE."""
    command: str = ""
    """Command line that measures only this implementation again."""
    failed: bool = False
    """Whether HEAD gave a wrong result, raised an error, crashed or ran out of time."""


class Summary(_Frozen):
    """Geometric mean of the ratios of one implementation over all its cases that have a ratio."""

    implementation: str
    label: str
    cases: int
    ratio: float
    low: float | None
    high: float | None


class EnvironmentDifference(_Frozen):
    what: str
    base: str
    head: str
    machine: bool
    """Whether the difference forbids to compare times. False for different versions of software."""


class FixedWork(_Frozen):
    """The speed of the machine itself, measured with work that does not depend on implementations."""

    work: str
    """The kind of work: arithmetic, memory sweep, read bandwidth or matrix rate."""
    speed: float
    """The machine's speed for HEAD divided by its speed for BASE."""


class SideSummary(_Frozen):
    path: str
    experiment: str
    commit: str | None
    version: str
    started_at: str | None
    cases: int
    processes: int
    rounds: int


class Settings(_Frozen):
    metric: str
    label: str = ""
    """Name of the figure in tables."""
    unit: str = ""
    threshold: float
    confidence: float
    """Probability that all verdicts together are right."""
    case_confidence: float
    """Confidence of each interval. The timed cases share the allowed error probability equally (Bonferroni)."""
    timed_cases: int
    looks: int = 1
    """Number of tests of each case. Each test gets an equal share of the allowed error probability."""
    interleaved: bool
    """Whether both sides were measured in interleaved pairs of processes."""
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
    """Speed of the machine with each kind of fixed work. Empty if both sides were interleaved, or if they timed no
    common work."""
    warnings: tuple[str, ...]
    differences: tuple[EnvironmentDifference, ...]
    summaries: tuple[Summary, ...]
    cases: tuple[CaseVerdict, ...]
    unmeasured: int
    """Number of cases that neither side measured."""
    command: str
    """Command line that repeats the comparison."""


def judge(low: float, high: float, threshold: float) -> Verdict:
    """The verdict on the interval `low` to `high` of the logarithm of HEAD / BASE, a ratio of times.

    Ratios from 1 / (1 + threshold) to 1 + threshold mean "same". If the interval contains an end of this range, the
    verdict is "inconclusive".
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
    """Sort cases by their verdict. Cases with the same verdict are sorted by the distance of their ratio from 1."""

    def rank(case: CaseVerdict) -> tuple[int, float, str]:
        return VERDICTS.index(case.verdict), -abs(math.log(case.ratio)) if case.ratio else 0.0, case.name

    return tuple(sorted(cases, key=rank))


def comparison_exit_code(cases: Sequence[CaseVerdict], fail_on: Collection[FailOn]) -> int:
    """The exit code of a command that compares.

    3: HEAD gave a wrong result, raised an error, crashed or ran out of time. 1: HEAD is slower or lacks a case. 4: a
    case is inconclusive. 0: everything else, also verdicts that `fail_on` does not name.
    """
    failing = [case for case in cases if case.verdict in fail_on]
    if any(case.failed for case in cases) and {"incorrect", "missing"} & set(fail_on):
        return 3
    if any(case.verdict in ("slower", "missing") for case in failing):
        return 1
    return 4 if failing else 0
