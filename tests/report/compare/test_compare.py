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


def test_a_slower_kernel_is_slower(make: RunMaker) -> None:
    comparison = compare(make.runs(30), make.runs(10, 1.2), Options())
    case = only(comparison)
    assert case.verdict == "slower"
    assert case.unit == "process"
    assert case.low is not None
    assert case.ratio == pytest.approx(1.2, rel=0.03)
    assert case.low > 1.05
    assert comparison.exit_code == 1
    assert comparison.counts == {"slower": 1}


def test_a_faster_kernel_is_faster_and_passes(make: RunMaker) -> None:
    comparison = compare(make.runs(30), make.runs(10, 1 / 1.2), Options())
    assert only(comparison).verdict == "faster"
    assert comparison.exit_code == 0


def test_a_change_below_the_threshold_is_the_same(make: RunMaker) -> None:
    assert only(compare(make.runs(30), make.runs(20, 1.02), Options())).verdict == "same"
    assert only(compare(make.runs(30), make.runs(20, 1.02), Options(threshold=0.0))).verdict != "same"


def test_a_crash_drops_one_pair_only(make: RunMaker) -> None:
    mark = {"interleaved_with": "x", "environment": ENVIRONMENT}
    base = [run_of([make.case(1.0 + n)], **mark) for n in range(12)]
    head = [run_of([make.case((1.0 + n) * 1.3)], **mark) for n in range(12)]
    base[3] = run_of([make.case(status="error", samples_us=(), calibration=())], **mark)
    case = only(compare(base, head, Options()))
    assert case.verdict == "slower"
    assert case.base_units == case.head_units == 11


def test_runs_beside_busy_processes_are_not_compared(make: RunMaker) -> None:
    busy = Noise(foreign_cpus=0.9)
    head = [*make.runs(8), *make.runs(8, 1.5, noise=busy)]
    assert only(compare(make.runs(30), head, Options())).verdict == "same"
    case = only(compare(make.runs(30), make.runs(8, 1.5, noise=busy), Options()))
    assert case.verdict == "inconclusive"
    assert "other processes were busy during every measurement of HEAD" in case.reason


@pytest.mark.parametrize(
    ("status", "verdict", "code"),
    [("incorrect", "incorrect", 3), ("crashed", "missing", 3), ("timeout", "missing", 3), ("error", "missing", 3)],
)
def test_a_head_that_fails(make: RunMaker, status: str, verdict: str, code: int) -> None:
    head = [*make.runs(3), run_of([make.case(status=status, reason="why", samples_us=(), calibration=())])]
    comparison = compare(make.runs(3), head, Options())
    assert only(comparison).verdict == verdict
    assert only(comparison).reason == f"{status}: why"
    assert comparison.exit_code == code


@pytest.mark.parametrize("status", ["unavailable", "unsupported", "oom"])
def test_a_head_that_is_unavailable_is_missing(make: RunMaker, status: str) -> None:
    other = make.case(key="other")
    head = [run_of([other, make.case(status=status, reason="no", samples_us=(), calibration=())])]
    comparison = compare([run_of([other, make.case()])], head, Options())
    assert {case.key: case.verdict for case in comparison.cases}["k"] == "missing"
    assert comparison.exit_code == 1


def test_missing_and_new_cases(make: RunMaker) -> None:
    both = make.case(key="both")
    comparison = compare([run_of([both, make.case(key="old")])], [run_of([both, make.case(key="new")])], Options())
    assert {case.key: case.verdict for case in comparison.cases if case.key != "both"} == {
        "old": "missing",
        "new": "new",
    }
    assert comparison.exit_code == 1


def test_cases_that_neither_side_measured_are_counted(make: RunMaker) -> None:
    absent = make.case(key="absent", status="unavailable", samples_us=(), calibration=())
    comparison = compare([run_of([make.case(), absent])], [run_of([make.case(), absent])], Options())
    assert comparison.unmeasured == 1
    assert only(comparison).key == "k"


@pytest.mark.parametrize(("name", "value", "verdict"), [("kv_bytes", 8192, "slower"), ("work_items", 4, "faster")])
def test_a_changed_count_is_a_separate_verdict(make: RunMaker, name: str, value: int, verdict: str) -> None:
    comparison = compare(make.runs(10), make.runs(10, **{name: value}), Options())
    assert {case.metric: case.verdict for case in comparison.cases}[name] == verdict
    assert comparison.exit_code == (1 if verdict == "slower" else 0)
    assert only(compare(make.runs(2), make.runs(2, kv_bytes=1), Options(metric="kv_bytes"))).verdict == "faster"


def test_the_ratio_of_token_rates_is_inverted(make: RunMaker) -> None:
    case = only(compare(make.runs(30), make.runs(10, 1.25), Options(metric="token_rate")))
    assert case.verdict == "slower"
    assert case.ratio == pytest.approx(0.8, rel=0.03)
    assert case.low is not None
    assert case.high is not None
    assert case.low < case.ratio < case.high < 1


def test_append_and_plan_are_metrics(make: RunMaker) -> None:
    slow = {"append_samples_us": ((3.0, 5.0),) * 20}
    comparison = compare(make.runs(30), make.runs(10, **slow), Options(metric="append"))
    assert only(comparison).verdict == "slower"
    assert only(compare(make.runs(30), make.runs(10, **slow), Options(metric="plan"))).verdict == "same"


def test_only_steps_that_both_sides_timed_are_compared(make: RunMaker) -> None:
    # BASE timed steps 1 and 64, HEAD 1 and 32: only step 1 is compared, and its time did not change.
    base = make.runs(30, samples_us=tuple((100.0 + i % 3, 900.0) for i in range(20)))
    head = make.runs(10, samples_us=tuple((100.0 + i % 3, 500.0) for i in range(20)), steps=(1, 32))
    assert only(compare(base, head, Options())).verdict == "same"
    assert only(compare(base, make.runs(10, steps=(2, 3)), Options())).verdict == "inconclusive"


def test_a_head_that_fails_everywhere_is_a_verdict(make: RunMaker) -> None:
    comparison = compare(
        make.runs(3), [run_of([make.case(status="incorrect", samples_us=(), calibration=())])], Options()
    )
    assert only(comparison).verdict == "incorrect"
    assert comparison.exit_code == 3
    assert (
        compare(
            make.runs(3),
            [run_of([make.case(status="crashed", samples_us=(), calibration=())])],
            Options(fail_on=("incorrect",)),
        ).exit_code
        == 3
    )


def test_threads_are_in_the_name_if_cases_differ_in_nothing_else(make: RunMaker) -> None:
    def runs() -> list[Run]:
        return [run_of([make.case(key="1", threads=1), make.case(key="2", threads=2)])]

    names = {case.name for case in compare(runs(), runs(), Options()).cases}
    assert len(names) == 2
    assert all(name.endswith(("threads=1]", "threads=2]")) for name in names)


def test_a_count_that_is_missing_or_varies_is_inconclusive(make: RunMaker) -> None:
    for head in (make.runs(4, kv_bytes=None), [*make.runs(3), *make.runs(1, kv_bytes=1)]):
        assert only(compare(make.runs(4), head, Options(metric="kv_bytes"))).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("metric", "base", "head", "verdict"),
    [
        ("token_rate", {}, {"factor": 1.3}, "slower"),
        ("roofline_fraction", {"peaks": ()}, {"peaks": ()}, "nothing"),
        ("deviation", {"deviation": 0.0}, {"deviation": 0.0}, "same"),
        ("deviation", {"deviation": 0.0}, {"deviation": 0.1}, "inconclusive"),
        ("deviation", {"deviation": 0.1}, {"deviation": 0.2}, "slower"),
        ("append", {}, {"append_samples_us": ((50.0, 50.0),) * 20}, "slower"),
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
        ("", (4, 8), "slower", "more, and neither is better"),
        ("", (8, 4), "faster", "less, and neither is better"),
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


def test_runs_of_two_kinds_have_nothing_in_common(make: RunMaker) -> None:
    memory = run_of([make.case()], experiment={"kind": "memory"})
    with pytest.raises(NothingToCompare, match="no case in common: kind: memory and kind: decode"):
        compare([memory], make.runs(1), Options(metric="append"))


def test_an_unknown_figure_lists_the_known_ones(make: RunMaker) -> None:
    with pytest.raises(
        RunError, match=r"--metric kv_byte: no figure of kind: decode; did you mean kv_bytes\? .*latency"
    ):
        compare(make.runs(1), make.runs(1), Options(metric="kv_byte"))


def test_nothing_to_compare_is_an_error(make: RunMaker) -> None:
    with pytest.raises(NothingToCompare, match="no case was measured"):
        compare([run_of([])], make.runs(1), Options())
    with pytest.raises(NothingToCompare, match="no case was measured"):
        compare(make.runs(1), [run_of([make.case(status="unavailable", samples_us=(), calibration=())])], Options())
    with pytest.raises(NothingToCompare, match="no case in common"):
        compare(make.runs(1), make.runs(1, key="other"), Options())


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


def test_the_raw_ratio_is_shown_even_where_nothing_can_be_compared(make: RunMaker) -> None:
    busy = Noise(foreign_cpus=0.9)
    case = only(compare(make.runs(1, disturbed=0.0), make.runs(1, 1.4, disturbed=0.0, noise=busy), Options()))
    assert case.verdict == "inconclusive"
    assert case.ratio == pytest.approx(1.4, rel=0.03)
    assert case.low is None


def test_the_process_is_the_unit_from_five_on_either_side(make: RunMaker) -> None:
    comparison = compare(make.runs(5), make.runs(5, 1.3), Options())
    assert (only(comparison).verdict, only(comparison).unit, only(comparison).head_units) == ("slower", "process", 5)
    assert not any("rounds are the unit" in warning for warning in comparison.warnings)
    comparison = compare(make.runs(30), make.runs(4, 1.5), Options())
    assert (only(comparison).verdict, only(comparison).unit) == ("slower", "round")
    assert any("so rounds are the unit: no interval covers the differences" in text for text in comparison.warnings)


def test_too_few_rounds_are_inconclusive(make: RunMaker) -> None:
    case = only(compare(make.runs(1, rounds=3), make.runs(1, 2.0, rounds=3), Options()))
    assert (case.verdict, case.low) == ("inconclusive", None)
    assert case.reason == "3 and 3 rounds are too few for this confidence"


def test_a_threshold_inside_the_interval_is_inconclusive(make: RunMaker) -> None:
    options = Options(case_command=lambda name: f"again {name}")
    comparison = compare(make.runs(10), make.runs(10, 1.055), options)
    assert only(comparison).verdict == "inconclusive"
    assert only(comparison).command == "again chunk_attn"
    assert comparison.exit_code == 0
    assert compare(make.runs(10), make.runs(10, 1.055), Options(fail_on=("inconclusive",))).exit_code == 4


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
