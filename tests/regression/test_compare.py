"""Verdicts on invented facts, for which the right verdict is known."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkbench.regression.compare import NothingToCompare, Options, compare
from chunkbench.regression.report import render
from chunkbench.regression.verdicts import CaseVerdict, Comparison
from chunkbench.store import CaseFacts, Manifest, Noise, Peaks, Run, Yardsticks
from tests.invented_facts import MakeFacts

ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "Invented", "threads": 2, "isa": ["avx2"]},
    "memory_bytes": 2**34,
    "gpus": [],
    "python": "CPython 3.11.7",
    "torch": {"version": "2.13.0", "threads": 2},
    "packages": {},
}


def run_of(cases: Sequence[CaseFacts], torn: bool = False, **manifest: Any) -> Run:
    values = {"schema_version": 4, "environment": ENVIRONMENT, "device": "cpu"} | manifest
    made = Manifest.model_validate(values)
    measured_here = [case.model_copy(update={"machine": made.only_machine}) for case in cases]
    return Run(Path("run"), made, measured_here, torn)


class RunMaker:
    """Makes runs of one case with invented times of about 100 us times `factor`."""

    def __init__(self, facts: MakeFacts, seed: int = 0) -> None:
        self._facts, self._dice = facts, np.random.default_rng(seed)

    def case(self, factor: float = 1.0, rounds: int = 20, disturbed: float = 0.3, **changes: Any) -> CaseFacts:
        """The case. In a share `disturbed` of its rounds, another tenant slows the arithmetic and the case by 40%."""
        is_slow = self._dice.random(rounds) < disturbed
        times = 100 * factor * self._dice.lognormal(0.0, 0.03, rounds) * np.where(is_slow, 1.4, 1.0)
        arithmetic = 60 * self._dice.lognormal(0.0, 0.004, rounds) * np.where(is_slow, 1.4, 1.0)
        values: dict[str, Any] = {
            "key": "k",
            "samples_us": tuple((float(t), float(t)) for t in times),
            "yardsticks": tuple(Yardsticks(arithmetic_us=float(y)) for y in arithmetic),
            "kv_bytes": 4096,
            "work_items": 8,
            "threads": 2,
            "isa": "avx2",
        }
        return self._facts(**(values | changes))

    def runs(self, processes: int, factor: float = 1.0, **changes: Any) -> list[Run]:
        return [run_of([self.case(factor, **changes)]) for _ in range(processes)]


@pytest.fixture
def make(facts: MakeFacts) -> RunMaker:
    return RunMaker(facts)


def only(comparison: Comparison) -> CaseVerdict:
    assert len(comparison.cases) == 1, comparison.cases
    return comparison.cases[0]


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


def test_an_unchanged_kernel_is_the_same_on_a_slow_machine(make: RunMaker) -> None:
    comparison = compare(make.runs(30, disturbed=0.1), make.runs(10, disturbed=0.8), Options())
    case = only(comparison)
    assert case.verdict == "same", case
    assert case.head is not None
    assert case.base is not None
    assert case.head / case.base > 1.2  # the ratio of the medians


def test_a_change_below_the_threshold_is_the_same(make: RunMaker) -> None:
    assert only(compare(make.runs(30), make.runs(20, 1.02), Options())).verdict == "same"
    assert only(compare(make.runs(30), make.runs(20, 1.02), Options(threshold=0.0))).verdict != "same"


def test_a_threshold_inside_the_interval_is_inconclusive_with_a_command_that_settles_it(make: RunMaker) -> None:
    def settling_command(implementation: str, factor: float) -> str:
        return f"again {implementation} x{factor}"

    comparison = compare(make.runs(10), make.runs(4, 1.055), Options(settling_command=settling_command))
    case = only(comparison)
    assert case.verdict == "inconclusive"
    assert case.rounds_needed is not None
    assert case.rounds_needed > case.head_rounds
    assert case.command.startswith("again chunk_attn x")
    assert comparison.exit_code == 0
    assert compare(make.runs(10), make.runs(4, 1.055), Options(fail_on=("inconclusive",))).exit_code == 4


def test_too_few_rounds_are_inconclusive(make: RunMaker) -> None:
    case = only(compare(make.runs(1, rounds=3), make.runs(1, 2.0, rounds=3), Options()))
    assert case.verdict == "inconclusive"
    assert "can be compared, too few for this confidence" in case.reason
    assert case.rounds_needed is not None
    assert case.low is None


def test_single_runs_are_compared_by_rounds_with_a_warning(make: RunMaker) -> None:
    comparison = compare(make.runs(1, rounds=80), make.runs(1, 1.3, rounds=80), Options())
    assert only(comparison).verdict == "slower"
    assert only(comparison).unit == "round"
    assert any("one process measured each side" in warning for warning in comparison.warnings)


def test_a_re_measurement_that_disagrees_makes_a_case_inconclusive(make: RunMaker) -> None:
    base, head = make.runs(30), make.runs(10, 1.3)
    assert only(compare(base, head, Options(), [make.runs(10, 1.3)])).verdict == "slower"
    case = only(compare(base, head, Options(), [make.runs(3, 1.0)]))
    assert case.verdict == "inconclusive"
    assert case.remeasured == 1


def test_halves_that_disagree_make_a_case_inconclusive(make: RunMaker) -> None:
    head = [*make.runs(11, 1.0), *make.runs(29, 1.6)]
    case = only(compare(make.runs(30), head, Options()))
    assert case.low is not None
    assert case.low > 1.05
    assert case.verdict == "inconclusive"
    assert "looks slower, but its two halves: 1.0" in case.reason


def test_pairs_are_compared_if_both_sides_ran_in_turns(make: RunMaker) -> None:
    mark = {"in_turns_with": "x", "environment": ENVIRONMENT}
    base, head = [], []
    for process in range(12):  # the machine's speed differs each time, and no yardstick shows it
        level = 1.0 + process / 4
        base.append(run_of([make.case(level, yardsticks=())], **mark))
        head.append(run_of([make.case(level * 1.15, yardsticks=())], **mark))
    comparison = compare(base, head, Options())
    assert comparison.settings.in_turns
    assert only(comparison).verdict == "slower"
    assert only(comparison).ratio == pytest.approx(1.15, rel=0.06)


def test_a_crash_drops_one_pair_only(make: RunMaker) -> None:
    mark = {"in_turns_with": "x", "environment": ENVIRONMENT}
    base = [run_of([make.case(1.0 + n)], **mark) for n in range(12)]
    head = [run_of([make.case((1.0 + n) * 1.3)], **mark) for n in range(12)]
    base[3] = run_of([make.case(status="error", samples_us=(), yardsticks=())], **mark)
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
    head = [*make.runs(3), run_of([make.case(status=status, reason="why", samples_us=(), yardsticks=())])]
    comparison = compare(make.runs(3), head, Options())
    assert only(comparison).verdict == verdict
    assert only(comparison).reason == f"{status}: why"
    assert comparison.exit_code == code


@pytest.mark.parametrize("status", ["unavailable", "unsupported", "oom"])
def test_a_head_that_is_unavailable_is_missing(make: RunMaker, status: str) -> None:
    other = make.case(key="other")
    head = [run_of([other, make.case(status=status, reason="no", samples_us=(), yardsticks=())])]
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
    absent = make.case(key="absent", status="unavailable", samples_us=(), yardsticks=())
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


def other_machine(**changes: Any) -> dict[str, Any]:
    return {"environment": ENVIRONMENT | changes, "device": "cpu"}


def on_another_machine(make: RunMaker, factor: float, machine_factor: float, **changes: Any) -> list[Run]:
    """Ten processes on another machine, where fixed work takes `machine_factor` times as long."""
    manifest = other_machine(cpu={"model": "Other", "threads": 2, "isa": ["avx2"]})
    peaks = Peaks(
        read_bytes_per_s=1e9 / machine_factor,
        matrix_flops_per_s=1e12 / machine_factor,
        matrix_torch_flops_per_s=1e12 / machine_factor,
    )
    values: dict[str, Any] = {
        "yardsticks": (Yardsticks(arithmetic_us=60.0 * machine_factor),) * 20,
        "peaks": (peaks,) * 20,
        "disturbed": 0.0,
    }
    return [run_of([make.case(factor, **(values | changes))], **manifest) for _ in range(10)]


def on_this_machine(make: RunMaker) -> list[Run]:
    return make.runs(30, disturbed=0.0, yardsticks=(Yardsticks(arithmetic_us=60.0),) * 20)


def test_across_machines_the_verdict_is_on_the_ratio_without_the_machines_own(make: RunMaker) -> None:
    comparison = compare(on_this_machine(make), on_another_machine(make, 2.0, 2.0), Options())
    case = only(comparison)
    assert case.ratio == pytest.approx(2.0, rel=0.05)
    assert (case.machine_low, case.machine_high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert case.verdict == "same"
    assert any("different machines" in warning for warning in comparison.warnings)
    assert [difference.what for difference in comparison.differences if difference.machine] == ["CPU"]
    assert only(compare(on_this_machine(make), on_another_machine(make, 3.0, 2.0), Options())).verdict == "slower"
    assert only(compare(on_this_machine(make), on_another_machine(make, 1.0, 2.0), Options())).verdict == "faster"


def test_across_machines_the_own_ratio_of_token_rates_is_inverted(make: RunMaker) -> None:
    case = only(compare(on_this_machine(make), on_another_machine(make, 2.0, 2.0), Options(metric="token_rate")))
    assert case.ratio == pytest.approx(0.5, rel=0.05)
    assert (case.machine_low, case.machine_high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert case.verdict == "same"


def test_an_own_ratio_with_a_wide_range_makes_a_case_inconclusive(make: RunMaker) -> None:
    """The machine reads at half the speed, and its arithmetic is equally fast. The case takes 1.5 times as long."""
    uneven = (Yardsticks(arithmetic_us=60.0),) * 20
    case = only(compare(on_this_machine(make), on_another_machine(make, 1.5, 2.0, yardsticks=uneven), Options()))
    assert (case.machine_low, case.machine_high) == (pytest.approx(1.0), pytest.approx(2.0))
    assert case.verdict == "inconclusive"
    assert "without the machine's own ratio" in case.reason


def test_across_machines_without_fixed_work_no_time_is_judged(make: RunMaker) -> None:
    case = only(compare(on_this_machine(make), on_another_machine(make, 2.0, 2.0, yardsticks=(), peaks=()), Options()))
    assert case.verdict == "inconclusive"
    assert case.ratio == pytest.approx(2.0, rel=0.05)
    assert "the machine's own ratio is unknown" in case.reason


def test_across_machines_raw_ratios_are_judged_on_request(make: RunMaker) -> None:
    comparison = compare(on_this_machine(make), on_another_machine(make, 2.0, 2.0), Options(cross_machine=True))
    assert only(comparison).verdict == "slower"


def test_across_machines_counts_are_judged(make: RunMaker) -> None:
    comparison = compare(on_this_machine(make), on_another_machine(make, 2.0, 2.0, kv_bytes=8192), Options())
    assert {case.metric: case.verdict for case in comparison.cases} == {"latency": "same", "kv_bytes": "slower"}


def test_another_setting_of_the_same_machine_makes_times_inconclusive(make: RunMaker) -> None:
    manifest = other_machine(huge_pages="never")
    comparison = compare(make.runs(30), [run_of([make.case(2.0)], **manifest) for _ in range(10)], Options())
    assert only(comparison).verdict == "inconclusive"
    assert [difference.what for difference in comparison.differences if difference.machine] == ["huge pages"]
    assert any("not judged unless requested" in warning for warning in comparison.warnings)


def test_other_memory_pages_make_times_inconclusive(make: RunMaker) -> None:
    small = [run_of([make.case(2.0)], experiment={"pages": "small"}) for _ in range(10)]
    comparison = compare(make.runs(30), small, Options())
    assert only(comparison).verdict == "inconclusive"
    assert [difference.what for difference in comparison.differences if difference.machine] == ["memory pages"]


def test_a_different_version_is_listed_and_the_case_is_judged(make: RunMaker) -> None:
    head = [run_of([make.case()], **other_machine(python="CPython 3.12.1")) for _ in range(10)]
    comparison = compare(make.runs(30), head, Options())
    assert only(comparison).verdict == "same"
    assert [(difference.what, difference.machine) for difference in comparison.differences] == [("Python", False)]


def test_different_thread_counts_are_not_comparable(make: RunMaker) -> None:
    case = only(compare(make.runs(30), make.runs(10, threads=1), Options()))
    assert case.verdict == "inconclusive"
    assert case.reason == "threads: 2 and 1"


def test_a_lost_instruction_set_is_a_regression(make: RunMaker) -> None:
    manifest = other_machine(native={"isa": "portable"})
    head = [run_of([make.case(2.0, isa="portable")], **manifest) for _ in range(10)]
    comparison = compare(make.runs(30), head, Options())
    assert only(comparison).verdict == "slower"
    assert [difference.what for difference in comparison.differences] == ["native instruction set"]


def test_a_re_measurement_without_data_confirms_nothing(make: RunMaker) -> None:
    busy = Noise(foreign_cpus=0.9)
    base, head = make.runs(30), make.runs(10, 1.3)
    case = only(compare(base, head, Options(), [make.runs(10, 1.3, noise=busy)]))
    assert case.verdict == "inconclusive"
    assert "measured again: nothing" in case.reason
    unlike = make.runs(10, 1.3, yardsticks=(Yardsticks(arithmetic_us=900.0),) * 20)
    assert only(compare(base, head, Options(), [unlike])).verdict == "inconclusive"


def test_with_one_calm_process_of_many_the_unit_is_still_the_process(make: RunMaker) -> None:
    busy = Noise(foreign_cpus=0.9)
    head = [*make.runs(1, 1.5), *make.runs(9, 1.5, noise=busy)]
    case = only(compare(make.runs(30), head, Options()))
    assert (case.verdict, case.unit) == ("inconclusive", "process")


def test_a_head_that_fails_everywhere_is_a_verdict(make: RunMaker) -> None:
    comparison = compare(
        make.runs(3), [run_of([make.case(status="incorrect", samples_us=(), yardsticks=())])], Options()
    )
    assert only(comparison).verdict == "incorrect"
    assert comparison.exit_code == 3
    assert (
        compare(
            make.runs(3),
            [run_of([make.case(status="crashed", samples_us=(), yardsticks=())])],
            Options(fail_on=("incorrect",)),
        ).exit_code
        == 3
    )


def test_without_yardsticks_on_one_side_all_rounds_are_compared(make: RunMaker) -> None:
    comparison = compare(make.runs(30, yardsticks=(), disturbed=0.0), make.runs(10, 2.0, disturbed=0.0), Options())
    assert only(comparison).verdict == "slower"
    assert any("no yardsticks" in warning for warning in comparison.warnings)


def test_looks_share_the_error_probability(make: RunMaker) -> None:
    for looks, confidence in ((1, 0.99), (2, 0.99), (4, 1 - 0.01 / 3)):
        comparison = compare(make.runs(30), make.runs(10), Options(looks=looks))
        assert comparison.settings.case_confidence == pytest.approx(confidence)


def test_threads_are_in_the_name_if_cases_differ_in_nothing_else(make: RunMaker) -> None:
    def runs() -> list[Run]:
        return [run_of([make.case(key="1", threads=1), make.case(key="2", threads=2)])]

    names = {case.name for case in compare(runs(), runs(), Options()).cases}
    assert len(names) == 2
    assert all(name.endswith(("threads=1]", "threads=2]")) for name in names)


def test_a_count_that_is_missing_or_varies_is_inconclusive(make: RunMaker) -> None:
    for head in (make.runs(4, kv_bytes=None), [*make.runs(3), *make.runs(1, kv_bytes=1)]):
        assert only(compare(make.runs(4), head, Options(metric="kv_bytes"))).verdict == "inconclusive"


def test_nothing_to_compare_is_an_error(make: RunMaker) -> None:
    with pytest.raises(NothingToCompare, match="no case was measured"):
        compare([run_of([])], make.runs(1), Options())
    with pytest.raises(NothingToCompare, match="no case was measured"):
        compare(make.runs(1), [run_of([make.case(status="unavailable", samples_us=(), yardsticks=())])], Options())
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
    assert any("HEAD" in warning and "cut short" in warning for warning in compare(whole, torn, Options()).warnings)
    assert any("HEAD" in warning and "interrupted" in warning for warning in compare(whole, cut, Options()).warnings)
    for base in (torn, cut):  # a case that BASE lacks would be new, and pass
        with pytest.raises(NothingToCompare, match="not fit for a BASE"):
            compare(base, whole, Options())


def at_speed(make: RunMaker, machine: float, code: float, **changes: Any) -> Run:
    """A run of a machine that takes `machine` times as long for everything, of code that takes `code` times as long."""
    case = make.case(machine * code, disturbed=0.0, **changes)
    yardsticks = tuple(Yardsticks(arithmetic_us=machine * entry.arithmetic_us) for entry in case.yardsticks)
    peaks = Peaks(
        read_bytes_per_s=1e9 / machine, matrix_flops_per_s=1e12 / machine, matrix_torch_flops_per_s=1e12 / machine
    )
    return run_of([case.model_copy(update={"yardsticks": yardsticks, "peaks": (peaks,) * len(case.groups)})])


@pytest.mark.parametrize(("code", "verdict"), [(1.0, "same"), (1.3, "slower"), (0.7, "faster")])
def test_ordinary_runs_of_one_machine_at_two_speeds_are_judged_without_its_own_ratio(
    make: RunMaker, code: float, verdict: str
) -> None:
    base, head = at_speed(make, 1.0, 1.0, rounds=60), at_speed(make, 2.4, code, rounds=60)
    comparison = compare([base], [head], Options())
    case = only(comparison)
    assert case.verdict == verdict
    assert case.ratio == pytest.approx(2.4 * code, rel=0.03)
    assert case.machine_low == pytest.approx(2.4, rel=0.02)
    speeds = {entry.work: entry.speed for entry in comparison.machine}
    assert speeds == {
        work: pytest.approx(0.417, abs=0.01) for work in ("arithmetic yardstick", "read bandwidth", "matrix rate")
    }
    (summary,) = comparison.summaries
    assert summary.left_low == pytest.approx(code, rel=0.04)
    assert render(comparison, "table").splitlines()[1].strip().startswith("the machine itself ran at 0.42x")


def test_the_raw_ratio_is_shown_even_where_nothing_can_be_compared(make: RunMaker) -> None:
    busy = Noise(foreign_cpus=0.9)
    case = only(compare(make.runs(1, disturbed=0.0), make.runs(1, 1.4, disturbed=0.0, noise=busy), Options()))
    assert case.verdict == "inconclusive"
    assert case.ratio == pytest.approx(1.4, rel=0.03)
    assert case.low is None


def test_no_advice_is_above_an_hour(make: RunMaker) -> None:
    base, head = make.runs(12, disturbed=0.0), make.runs(12, 1.048, disturbed=0.0)
    options = Options(settling_command=lambda name, factor: f"measure {name} {factor:.1f} times", budget_s=10.0)
    case = only(compare(base, head, options))
    assert case.verdict == "inconclusive"
    assert case.command.startswith("measure chunk_attn")
    case = only(compare(base, head, dataclasses.replace(options, budget_s=3500.0)))
    assert case.command == ""
    assert case.rounds_needed is None
    assert re.search(r"cannot be settled by measuring longer: noise of \d+% between processes", case.reason)
