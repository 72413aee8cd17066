"""Verdicts on invented facts, for which the right verdict is known."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.store import Noise, Run
from chunkbench.report.compare.case_verdicts import CaseJudge
from chunkbench.report.compare.compare import NothingToCompare, Options, compare
from chunkbench.report.metric import NUMBER, Better, Metric, one
from chunkbench.run_error import RunError
from tests.report.compare.conftest import ENVIRONMENT, RunMaker, only, run_of

UNTIMED: dict[str, Any] = {"samples_us": (), "calibration": ()}


@pytest.mark.parametrize(
    ("processes", "factor", "options", "verdict", "exit_code"),
    [
        (10, 1.2, {}, "slower", 1),
        (10, 1 / 1.2, {}, "faster", 0),
        (20, 1.02, {}, "same", 0),
        (10, 1.25, {"metric": "token_rate"}, "slower", 1),
        (10, 1.055, {}, "inconclusive", 0),  # the threshold lies inside the interval
        (10, 1.055, {"fail_on": ("inconclusive",)}, "inconclusive", 4),
    ],
)
def test_a_change_of_speed_is_judged(
    make: RunMaker, processes: int, factor: float, options: dict[str, Any], verdict: str, exit_code: int
) -> None:
    comparison = compare(
        make.runs(30), make.runs(processes, factor), Options(case_command=lambda name: f"again {name}", **options)
    )
    case = only(comparison)
    expected = 1 / factor if options.get("metric") == "token_rate" else factor
    assert (case.verdict, case.unit, case.command) == (verdict, "process", "again chunk_attn")
    assert case.ratio == pytest.approx(expected, rel=0.03)
    assert case.low is not None
    assert case.high is not None
    assert case.low < case.ratio < case.high
    assert verdict != "slower" or max(case.low, 1 / case.high) > 1.05
    assert (comparison.exit_code, comparison.counts) == (exit_code, {verdict: 1})


def test_a_crash_drops_one_pair_only(make: RunMaker) -> None:
    mark = {"interleaved_with": "x", "environment": ENVIRONMENT}
    base = [run_of([make.case(1.0 + n)], **mark) for n in range(12)]
    head = [run_of([make.case((1.0 + n) * 1.3)], **mark) for n in range(12)]
    base[3] = run_of([make.case(status="error", **UNTIMED)], **mark)
    case = only(compare(base, head, Options()))
    assert (case.verdict, case.base_units, case.head_units) == ("slower", 11, 11)


def test_runs_beside_busy_processes_are_not_compared(make: RunMaker) -> None:
    busy = Noise(foreign_cpus=0.9)
    head = [*make.runs(8), *make.runs(8, 1.5, noise=busy)]
    assert only(compare(make.runs(30), head, Options())).verdict == "same"
    case = only(compare(make.runs(1, disturbed=0.0), make.runs(1, 1.4, disturbed=0.0, noise=busy), Options()))
    assert (case.verdict, case.low) == ("inconclusive", None)
    assert case.ratio == pytest.approx(1.4, rel=0.03)
    assert "other processes were busy during every measurement of HEAD" in case.reason


@pytest.mark.parametrize(
    ("status", "verdict", "code"),
    [
        ("incorrect", "incorrect", 3),
        *((status, "missing", 3) for status in ("crashed", "timeout", "error")),
        *((status, "missing", 1) for status in ("unavailable", "unsupported", "oom")),
    ],
)
def test_a_head_that_fails(make: RunMaker, status: str, verdict: str, code: int) -> None:
    other, failed = make.case(key="other"), make.case(status=status, reason="why", **UNTIMED)
    comparison = compare([run_of([other, make.case()])], [run_of([other, failed])], Options())
    case = next(case for case in comparison.cases if case.key == "k")
    assert (case.verdict, comparison.exit_code) == (verdict, code)
    assert case.reason.endswith(f"{status}: why")
    if code == 3:  # not a single case of HEAD was measured
        assert compare(make.runs(3), [run_of([failed])], Options(fail_on=("incorrect",))).exit_code == 3


def test_missing_and_new_cases_and_those_that_neither_side_measured(make: RunMaker) -> None:
    both, absent = make.case(key="both"), make.case(key="absent", status="unavailable", **UNTIMED)
    sides = ([run_of([both, absent, make.case(key=key)])] for key in ("old", "new"))
    comparison = compare(*sides, Options())
    verdicts = {case.key: case.verdict for case in comparison.cases if case.key != "both"}
    assert verdicts == {"old": "missing", "new": "new"}
    assert (comparison.unmeasured, comparison.exit_code) == (1, 1)


@pytest.mark.parametrize(("name", "value", "verdict"), [("kv_bytes", 8192, "slower"), ("work_items", 4, "faster")])
def test_a_changed_count_is_a_separate_verdict(make: RunMaker, name: str, value: int, verdict: str) -> None:
    comparison = compare(make.runs(10), make.runs(10, **{name: value}), Options())
    assert {case.metric: case.verdict for case in comparison.cases}[name] == verdict
    assert comparison.exit_code == (1 if verdict == "slower" else 0)
    assert only(compare(make.runs(2), make.runs(2, kv_bytes=1), Options(metric="kv_bytes"))).verdict == "faster"
    for head in (make.runs(4, kv_bytes=None), [*make.runs(3), *make.runs(1, kv_bytes=1)]):
        assert only(compare(make.runs(4), head, Options(metric="kv_bytes"))).verdict == "inconclusive"


def test_only_steps_that_both_sides_timed_are_compared(make: RunMaker) -> None:
    # BASE timed steps 1 and 64, HEAD 1 and 32: only step 1 is compared, and its time did not change.
    base = make.runs(30, samples_us=tuple((100.0 + i % 3, 900.0) for i in range(20)))
    head = make.runs(10, samples_us=tuple((100.0 + i % 3, 500.0) for i in range(20)), steps=(1, 32))
    assert only(compare(base, head, Options())).verdict == "same"
    assert only(compare(base, make.runs(10, steps=(2, 3)), Options())).verdict == "inconclusive"


def test_threads_are_in_the_name_if_cases_differ_in_nothing_else(make: RunMaker) -> None:
    def runs() -> list[Run]:
        return [run_of([make.case(key="1", threads=1), make.case(key="2", threads=2)])]

    names = {case.name for case in compare(runs(), runs(), Options()).cases}
    assert len(names) == 2
    assert all(name.endswith(("threads=1]", "threads=2]")) for name in names)


@pytest.mark.parametrize(
    ("metric", "base", "head", "verdict"),
    [
        ("token_rate", {}, {"factor": 1.3}, "slower"),
        ("roofline_fraction", {"peaks": ()}, {"peaks": ()}, "nothing"),
        ("deviation", {"deviation": 0.0}, {"deviation": 0.0}, "same"),
        ("deviation", {"deviation": 0.0}, {"deviation": 0.1}, "inconclusive"),
        ("deviation", {"deviation": 0.1}, {"deviation": 0.2}, "slower"),
        ("append", {}, {"append_samples_us": ((50.0, 50.0),) * 20}, "slower"),
        ("plan", {}, {"append_samples_us": ((50.0, 50.0),) * 20}, "same"),
        ("append", {"append_samples_us": ((0.0, 0.0),) * 20}, {}, "slower"),
    ],
)
def test_every_figure_of_the_kind_is_compared(
    make: RunMaker, metric: str, base: dict[str, Any], head: dict[str, Any], verdict: str
) -> None:
    steps = {"append_samples_us": ((10.0, 10.0),) * 20}
    sides = [make.runs(12, **(steps | changes)) for changes in (base, head)]
    if verdict == "nothing":
        with pytest.raises(NothingToCompare, match=f"no case has {metric}.*known are latency"):
            compare(*sides, Options(metric=metric))
        return
    found = only(compare(*sides, Options(metric=metric)))
    assert (found.verdict, found.metric) == (verdict, metric), found


@pytest.mark.parametrize(
    ("better", "values", "verdict", "reason"),
    [
        ("lower", (4, 8), "slower", ""),
        ("higher", (4, 8), "faster", ""),
        ("", (4, 8), "slower", "HEAD has more; for this figure neither is better"),
        ("", (8, 4), "faster", "HEAD has less; for this figure neither is better"),
        ("lower", (0, 0), "same", ""),
        ("lower", (0, 4), "inconclusive", "a value is 0 or less: there is no ratio"),
    ],
)
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_figure_says_what_is_better(
    make: RunMaker, interleaved: bool, better: Better, values: tuple[int, int], verdict: str, reason: str
) -> None:
    metric = Metric("figure", "figure", one(lambda result: result.work_items), NUMBER, better)
    judge = CaseJudge(Options(), metric, (), 0.99, interleaved, "", False)
    (found,) = judge.judge(*([make.case(work_items=value) for _ in range(12)] for value in values))
    assert (found.verdict, found.reason) == (verdict, reason)
    assert (found.base, found.head) == values
    assert found.ratio == (pytest.approx(values[1] / values[0]) if values[0] else None)


def test_figures_that_are_no_time_are_not_compared_across_machines(make: RunMaker) -> None:
    runs = [make.runs(12, deviation=value) for value in (0.1, 0.2)]
    base, head = (
        [Run(run.path, run.manifest, [case.model_copy(update={"machine": name}) for case in run.cases]) for run in side]
        for name, side in zip("ab", runs, strict=True)
    )
    case = only(compare(base, head, Options(metric="deviation")))
    assert (case.verdict, case.calibration_low) == ("inconclusive", None)
    assert "measured on different machines" in case.reason
    assert only(compare(base, head, Options(metric="deviation", cross_machine=True))).verdict == "slower"


def test_nothing_to_compare_is_an_error(make: RunMaker) -> None:
    runs, absent = make.runs(1), run_of([make.case(status="unavailable", **UNTIMED)])
    memory = run_of([make.case()], experiment={"kind": "memory"})
    with pytest.raises(RunError, match="no case was measured"):
        compare(runs, [absent], Options())
    with pytest.raises(RunError, match="no case in common: kind: memory and kind: decode"):
        compare([memory], runs, Options(metric="append"))


def test_the_error_probability_is_divided_among_the_cases(make: RunMaker) -> None:
    def runs(n: int) -> list[Run]:
        return [run_of([make.case(key=str(k)) for k in range(10)]) for _ in range(n)]

    comparison = compare(runs(4), runs(4), Options())
    assert comparison.settings.timed_cases == 10
    assert comparison.settings.case_confidence == pytest.approx(0.999)


def test_the_summary_is_the_geometric_mean(make: RunMaker) -> None:
    def runs(n: int, *factors: float) -> list[Run]:
        return [run_of([make.case(f, key=str(k), disturbed=0.0) for k, f in enumerate(factors)]) for _ in range(n)]

    summary = compare(runs(30, 1, 1), runs(12, 1.0, 1.21), Options()).summaries[0]
    assert summary.ratio == pytest.approx(1.1, rel=0.02)
    assert summary.low is not None
    assert summary.high is not None
    assert summary.low < 1.1 < summary.high


def test_warnings_for_torn_and_interrupted_runs(make: RunMaker) -> None:
    torn = [run_of([make.case()], torn=True)]
    cut = [run_of([make.case()], interrupted=True)]
    whole = make.runs(1)
    assert any("HEAD" in warning and "incomplete" in warning for warning in compare(whole, torn, Options()).warnings)
    assert any("HEAD" in warning and "interrupted" in warning for warning in compare(whole, cut, Options()).warnings)
    for base in (torn, cut):  # a case that BASE lacks would be new, and pass
        with pytest.raises(NothingToCompare, match="not fit for a BASE"):
            compare(base, whole, Options())


def test_the_process_is_the_unit_from_five_on_either_side(make: RunMaker) -> None:
    comparison = compare(make.runs(5), make.runs(5, 1.3), Options())
    assert (only(comparison).verdict, only(comparison).unit, only(comparison).head_units) == ("slower", "process", 5)
    assert not any("Each side was measured in" in warning for warning in comparison.warnings)
    comparison = compare(make.runs(30), make.runs(4, 1.5), Options())
    assert (only(comparison).verdict, only(comparison).unit) == ("slower", "round")
    assert any("Each side was measured in" in text for text in comparison.warnings)


@pytest.mark.parametrize("looks", [1, 3])
def test_interleaved_pairs_are_compared_and_looks_share_the_error_probability(make: RunMaker, looks: int) -> None:
    mark = {"interleaved_with": "x", "environment": ENVIRONMENT}
    base, head = [], []
    for process in range(12):  # the machine's speed differs each time, and no calibration kernel shows it
        level = 1.0 + process / 4
        base.append(run_of([make.case(level, calibration=())], **mark))
        head.append(run_of([make.case(level * 1.2, calibration=())], **mark))
    comparison = compare(base, head, Options(looks=looks))
    assert comparison.settings.interleaved
    assert comparison.settings.case_confidence == pytest.approx(1 - 0.01 / looks)
    assert (only(comparison).verdict, only(comparison).unit) == ("slower", "pair")
    assert only(comparison).ratio == pytest.approx(1.2, rel=0.06)


def test_without_calibration_on_one_side_raw_ratios_of_one_machine_are_judged(make: RunMaker) -> None:
    comparison = compare(make.runs(30, calibration=(), disturbed=0.0), make.runs(10, 2.0, disturbed=0.0), Options())
    assert only(comparison).verdict == "slower"
    assert any("no calibration kernels" in warning for warning in comparison.warnings)
