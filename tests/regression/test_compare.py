"""Verdicts on invented facts, where the right answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkbench.regression.compare import NothingToCompare, Options, compare
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
    found = Manifest.model_validate(values)
    here = [case.model_copy(update={"machine": found.only_machine}) for case in cases]
    return Run(Path("run"), found, here, torn)


class Bench:
    """Invents processes of one case: `factor` is what HEAD differs by."""

    def __init__(self, facts: MakeFacts, seed: int = 0) -> None:
        self._facts, self._dice = facts, np.random.default_rng(seed)

    def case(self, factor: float = 1.0, rounds: int = 20, disturbed: float = 0.3, **changes: Any) -> CaseFacts:
        """Rounds of which a share ran while another tenant slowed arithmetic and the case down by 40%."""
        slow = self._dice.random(rounds) < disturbed
        times = 100 * factor * self._dice.lognormal(0.0, 0.03, rounds) * np.where(slow, 1.4, 1.0)
        meter = 60 * self._dice.lognormal(0.0, 0.004, rounds) * np.where(slow, 1.4, 1.0)
        values: dict[str, Any] = {
            "key": "k",
            "samples_us": tuple((float(t), float(t)) for t in times),
            "yardsticks": tuple(Yardsticks(arithmetic_us=float(y)) for y in meter),
            "kv_bytes": 4096,
            "work_items": 8,
            "threads": 2,
            "isa": "avx2",
        }
        return self._facts(**(values | changes))

    def runs(self, processes: int, factor: float = 1.0, **changes: Any) -> list[Run]:
        return [run_of([self.case(factor, **changes)]) for _ in range(processes)]


@pytest.fixture
def bench(facts: MakeFacts) -> Bench:
    return Bench(facts)


def only(comparison: Comparison) -> CaseVerdict:
    assert len(comparison.cases) == 1, comparison.cases
    return comparison.cases[0]


def test_a_slower_kernel_is_slower(bench: Bench) -> None:
    found = compare(bench.runs(30), bench.runs(10, 1.2), Options())
    case = only(found)
    assert case.verdict == "slower"
    assert case.unit == "process"
    assert case.low is not None
    assert case.ratio == pytest.approx(1.2, rel=0.03)
    assert case.low > 1.05
    assert found.exit_code == 1
    assert found.counts == {"slower": 1}


def test_a_faster_kernel_is_faster_and_passes(bench: Bench) -> None:
    found = compare(bench.runs(30), bench.runs(10, 1 / 1.2), Options())
    assert only(found).verdict == "faster"
    assert found.exit_code == 0


def test_an_unchanged_kernel_is_the_same_though_the_machine_was_slow(bench: Bench) -> None:
    found = compare(bench.runs(30, disturbed=0.1), bench.runs(10, disturbed=0.8), Options())
    case = only(found)
    assert case.verdict == "same", case
    assert case.head is not None
    assert case.base is not None
    assert case.head / case.base > 1.2  # what the medians alone would have said


def test_a_change_below_the_threshold_is_the_same(bench: Bench) -> None:
    assert only(compare(bench.runs(30), bench.runs(20, 1.02), Options())).verdict == "same"
    assert only(compare(bench.runs(30), bench.runs(20, 1.02), Options(threshold=0.0))).verdict != "same"


def test_the_interval_across_the_threshold_is_inconclusive_and_says_what_would_settle_it(bench: Bench) -> None:
    def settle(implementation: str, factor: float) -> str:
        return f"again {implementation} x{factor}"

    found = compare(bench.runs(10), bench.runs(4, 1.055), Options(settle=settle))
    case = only(found)
    assert case.verdict == "inconclusive"
    assert case.rounds_needed is not None
    assert case.rounds_needed > case.head_rounds
    assert case.command.startswith("again chunk_attn x")
    assert found.exit_code == 0
    assert compare(bench.runs(10), bench.runs(4, 1.055), Options(fail_on=("inconclusive",))).exit_code == 4


def test_too_few_are_inconclusive_by_rule(bench: Bench) -> None:
    case = only(compare(bench.runs(1, rounds=3), bench.runs(1, 2.0, rounds=3), Options()))
    assert case.verdict == "inconclusive"
    assert "may be compared, too few for this confidence" in case.reason
    assert case.rounds_needed is not None
    assert case.low is None


def test_single_runs_are_compared_by_rounds_with_a_warning(bench: Bench) -> None:
    found = compare(bench.runs(1, rounds=80), bench.runs(1, 1.3, rounds=80), Options())
    assert only(found).verdict == "slower"
    assert only(found).unit == "round"
    assert any("one process measured each side" in warning for warning in found.warnings)


def test_a_re_measurement_that_disagrees_makes_it_inconclusive(bench: Bench) -> None:
    base, head = bench.runs(30), bench.runs(10, 1.3)
    assert only(compare(base, head, Options(), [bench.runs(10, 1.3)])).verdict == "slower"
    case = only(compare(base, head, Options(), [bench.runs(3, 1.0)]))
    assert case.verdict == "inconclusive"
    assert case.remeasured == 1


def test_halves_that_disagree_make_it_inconclusive(bench: Bench) -> None:
    head = [*bench.runs(11, 1.0), *bench.runs(29, 1.6)]
    case = only(compare(bench.runs(30), head, Options()))
    assert case.low is not None
    assert case.low > 1.05
    assert case.verdict == "inconclusive"
    assert "looks slower, but its two halves: 1.0" in case.reason


def test_measured_in_turns_pairs_are_compared(bench: Bench) -> None:
    mark = {"in_turns_with": "x", "environment": ENVIRONMENT}
    base, head = [], []
    for process in range(12):  # the machine is another one each time, and no yardstick tells
        level = 1.0 + process / 4
        base.append(run_of([bench.case(level, yardsticks=())], **mark))
        head.append(run_of([bench.case(level * 1.15, yardsticks=())], **mark))
    found = compare(base, head, Options())
    assert found.settings.in_turns
    assert only(found).verdict == "slower"
    assert only(found).ratio == pytest.approx(1.15, rel=0.06)


def test_a_partner_that_crashed_takes_its_pair_along_and_no_other(bench: Bench) -> None:
    mark = {"in_turns_with": "x", "environment": ENVIRONMENT}
    base = [run_of([bench.case(1.0 + n)], **mark) for n in range(12)]
    head = [run_of([bench.case((1.0 + n) * 1.3)], **mark) for n in range(12)]
    base[3] = run_of([bench.case(status="error", samples_us=(), yardsticks=())], **mark)
    case = only(compare(base, head, Options()))
    assert case.verdict == "slower"
    assert case.base_units == case.head_units == 11


def test_what_ran_while_others_were_busy_is_not_compared(bench: Bench) -> None:
    busy = Noise(foreign_cpus=0.9)
    head = [*bench.runs(8), *bench.runs(8, 1.5, noise=busy)]
    assert only(compare(bench.runs(30), head, Options())).verdict == "same"
    case = only(compare(bench.runs(30), bench.runs(8, 1.5, noise=busy), Options()))
    assert case.verdict == "inconclusive"
    assert "other processes were busy all the while HEAD" in case.reason


@pytest.mark.parametrize(
    ("status", "verdict", "code"),
    [("incorrect", "incorrect", 3), ("crashed", "missing", 3), ("timeout", "missing", 3), ("error", "missing", 3)],
)
def test_head_that_fails(bench: Bench, status: str, verdict: str, code: int) -> None:
    head = [*bench.runs(3), run_of([bench.case(status=status, reason="why", samples_us=(), yardsticks=())])]
    found = compare(bench.runs(3), head, Options())
    assert only(found).verdict == verdict
    assert only(found).reason == f"{status}: why"
    assert found.exit_code == code


@pytest.mark.parametrize("status", ["unavailable", "unsupported", "oom"])
def test_head_that_cannot_is_missing(bench: Bench, status: str) -> None:
    other = bench.case(key="other")
    head = [run_of([other, bench.case(status=status, reason="no", samples_us=(), yardsticks=())])]
    found = compare([run_of([other, bench.case()])], head, Options())
    assert {case.key: case.verdict for case in found.cases}["k"] == "missing"
    assert found.exit_code == 1


def test_missing_and_new_cases(bench: Bench) -> None:
    both = bench.case(key="both")
    found = compare([run_of([both, bench.case(key="old")])], [run_of([both, bench.case(key="new")])], Options())
    assert {case.key: case.verdict for case in found.cases if case.key != "both"} == {"old": "missing", "new": "new"}
    assert found.exit_code == 1


def test_cases_that_neither_measured_are_counted(bench: Bench) -> None:
    absent = bench.case(key="absent", status="unavailable", samples_us=(), yardsticks=())
    found = compare([run_of([bench.case(), absent])], [run_of([bench.case(), absent])], Options())
    assert found.unmeasured == 1
    assert only(found).key == "k"


@pytest.mark.parametrize(("name", "value", "verdict"), [("kv_bytes", 8192, "slower"), ("work_items", 4, "faster")])
def test_a_count_that_changed_is_a_verdict_of_its_own(bench: Bench, name: str, value: int, verdict: str) -> None:
    found = compare(bench.runs(10), bench.runs(10, **{name: value}), Options())
    assert {case.metric: case.verdict for case in found.cases}[name] == verdict
    assert found.exit_code == (1 if verdict == "slower" else 0)
    assert only(compare(bench.runs(2), bench.runs(2, kv_bytes=1), Options(metric="kv_bytes"))).verdict == "faster"


def test_token_rate_turns_the_ratio_round(bench: Bench) -> None:
    case = only(compare(bench.runs(30), bench.runs(10, 1.25), Options(metric="token_rate")))
    assert case.verdict == "slower"
    assert case.ratio == pytest.approx(0.8, rel=0.03)
    assert case.low is not None
    assert case.high is not None
    assert case.low < case.ratio < case.high < 1


def test_append_and_plan_are_metrics(bench: Bench) -> None:
    slow = {"append_samples_us": ((3.0, 5.0),) * 20}
    found = compare(bench.runs(30), bench.runs(10, **slow), Options(metric="append"))
    assert only(found).verdict == "slower"
    assert only(compare(bench.runs(30), bench.runs(10, **slow), Options(metric="plan"))).verdict == "same"


def test_only_steps_that_both_timed_are_compared(bench: Bench) -> None:
    # BASE timed steps 1 and 64, HEAD 1 and 32: step 1 is compared, and costs the same.
    base = bench.runs(30, samples_us=tuple((100.0 + i % 3, 900.0) for i in range(20)))
    head = bench.runs(10, samples_us=tuple((100.0 + i % 3, 500.0) for i in range(20)), steps=(1, 32))
    assert only(compare(base, head, Options())).verdict == "same"
    assert only(compare(base, bench.runs(10, steps=(2, 3)), Options())).verdict == "inconclusive"


def other_machine(**changes: Any) -> dict[str, Any]:
    return {"environment": ENVIRONMENT | changes, "device": "cpu"}


def elsewhere(bench: Bench, factor: float, machine_factor: float, **changes: Any) -> list[Run]:
    """Ten processes on another machine, on which all fixed work takes `machine_factor` of the time."""
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
    return [run_of([bench.case(factor, **(values | changes))], **manifest) for _ in range(10)]


def calm_here(bench: Bench) -> list[Run]:
    return bench.runs(30, disturbed=0.0, yardsticks=(Yardsticks(arithmetic_us=60.0),) * 20)


def test_across_machines_the_ratio_is_raw_and_the_verdict_is_on_what_the_machine_leaves(bench: Bench) -> None:
    found = compare(calm_here(bench), elsewhere(bench, 2.0, 2.0), Options())
    case = only(found)
    assert case.ratio == pytest.approx(2.0, rel=0.05)
    assert (case.machine_low, case.machine_high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert case.verdict == "same"
    assert any("different machines" in warning for warning in found.warnings)
    assert [one.what for one in found.differences if one.machine] == ["CPU"]
    assert only(compare(calm_here(bench), elsewhere(bench, 3.0, 2.0), Options())).verdict == "slower"
    assert only(compare(calm_here(bench), elsewhere(bench, 1.0, 2.0), Options())).verdict == "faster"


def test_across_machines_rates_are_told_the_other_way_round(bench: Bench) -> None:
    case = only(compare(calm_here(bench), elsewhere(bench, 2.0, 2.0), Options(metric="token_rate")))
    assert case.ratio == pytest.approx(0.5, rel=0.05)
    assert (case.machine_low, case.machine_high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert case.verdict == "same"


def test_a_machine_that_changed_unevenly_leaves_a_wide_remainder(bench: Bench) -> None:
    """Twice as slow at reading, just as fast at arithmetic: a case that takes 1.5 of the time is neither."""
    uneven = (Yardsticks(arithmetic_us=60.0),) * 20
    case = only(compare(calm_here(bench), elsewhere(bench, 1.5, 2.0, yardsticks=uneven), Options()))
    assert (case.machine_low, case.machine_high) == (pytest.approx(1.0), pytest.approx(2.0))
    assert case.verdict == "inconclusive"
    assert "the machine's own ratio leaves" in case.reason


def test_across_machines_without_fixed_work_nothing_is_judged(bench: Bench) -> None:
    case = only(compare(calm_here(bench), elsewhere(bench, 2.0, 2.0, yardsticks=(), peaks=()), Options()))
    assert case.verdict == "inconclusive"
    assert case.ratio == pytest.approx(2.0, rel=0.05)
    assert "what the machine itself changed is not known" in case.reason


def test_across_machines_raw_ratios_are_judged_where_that_is_asked_for(bench: Bench) -> None:
    found = compare(calm_here(bench), elsewhere(bench, 2.0, 2.0), Options(cross_machine=True))
    assert only(found).verdict == "slower"


def test_across_machines_counts_are_judged_as_ever(bench: Bench) -> None:
    found = compare(calm_here(bench), elsewhere(bench, 2.0, 2.0, kv_bytes=8192), Options())
    assert {case.metric: case.verdict for case in found.cases} == {"latency": "same", "kv_bytes": "slower"}


def test_another_setting_of_the_same_machine_makes_times_inconclusive(bench: Bench) -> None:
    manifest = other_machine(huge_pages="never")
    found = compare(bench.runs(30), [run_of([bench.case(2.0)], **manifest) for _ in range(10)], Options())
    assert only(found).verdict == "inconclusive"
    assert [one.what for one in found.differences if one.machine] == ["huge pages"]
    assert any("not judged unless that is asked for" in warning for warning in found.warnings)


def test_another_version_is_stated_and_judged(bench: Bench) -> None:
    head = [run_of([bench.case()], **other_machine(python="CPython 3.12.1")) for _ in range(10)]
    found = compare(bench.runs(30), head, Options())
    assert only(found).verdict == "same"
    assert [(one.what, one.machine) for one in found.differences] == [("Python", False)]


def test_other_threads_are_not_comparable(bench: Bench) -> None:
    case = only(compare(bench.runs(30), bench.runs(10, threads=1), Options()))
    assert case.verdict == "inconclusive"
    assert case.reason == "threads: 2 and 1"


def test_an_instruction_set_that_was_lost_is_a_regression(bench: Bench) -> None:
    manifest = other_machine(native={"isa": "portable"})
    head = [run_of([bench.case(2.0, isa="portable")], **manifest) for _ in range(10)]
    found = compare(bench.runs(30), head, Options())
    assert only(found).verdict == "slower"
    assert [one.what for one in found.differences] == ["native instruction set"]


def test_a_re_measurement_without_data_agrees_with_nothing(bench: Bench) -> None:
    busy = Noise(foreign_cpus=0.9)
    base, head = bench.runs(30), bench.runs(10, 1.3)
    case = only(compare(base, head, Options(), [bench.runs(10, 1.3, noise=busy)]))
    assert case.verdict == "inconclusive"
    assert "measured again: nothing" in case.reason
    unlike = bench.runs(10, 1.3, yardsticks=(Yardsticks(arithmetic_us=900.0),) * 20)
    assert only(compare(base, head, Options(), [unlike])).verdict == "inconclusive"


def test_one_calm_process_of_many_is_no_reason_to_count_rounds(bench: Bench) -> None:
    busy = Noise(foreign_cpus=0.9)
    head = [*bench.runs(1, 1.5), *bench.runs(9, 1.5, noise=busy)]
    case = only(compare(bench.runs(30), head, Options()))
    assert (case.verdict, case.unit) == ("inconclusive", "process")


def test_a_head_that_fails_everywhere_is_a_verdict(bench: Bench) -> None:
    found = compare(bench.runs(3), [run_of([bench.case(status="incorrect", samples_us=(), yardsticks=())])], Options())
    assert only(found).verdict == "incorrect"
    assert found.exit_code == 3
    assert (
        compare(
            bench.runs(3),
            [run_of([bench.case(status="crashed", samples_us=(), yardsticks=())])],
            Options(fail_on=("incorrect",)),
        ).exit_code
        == 3
    )


def test_without_yardsticks_on_one_side_rounds_are_compared_as_they_are(bench: Bench) -> None:
    found = compare(bench.runs(30, yardsticks=(), disturbed=0.0), bench.runs(10, 2.0, disturbed=0.0), Options())
    assert only(found).verdict == "slower"
    assert any("no yardsticks" in warning for warning in found.warnings)


def test_looks_share_the_errors(bench: Bench) -> None:
    for looks, confidence in ((1, 0.99), (2, 0.99), (4, 1 - 0.01 / 3)):
        found = compare(bench.runs(30), bench.runs(10), Options(looks=looks))
        assert found.settings.case_confidence == pytest.approx(confidence)


def test_threads_are_named_where_they_alone_tell_cases_apart(bench: Bench) -> None:
    def runs() -> list[Run]:
        return [run_of([bench.case(key="1", threads=1), bench.case(key="2", threads=2)])]

    names = {case.name for case in compare(runs(), runs(), Options()).cases}
    assert len(names) == 2
    assert all(name.endswith(("threads=1]", "threads=2]")) for name in names)


def test_a_count_that_is_gone_or_wavers_is_not_the_same(bench: Bench) -> None:
    for head in (bench.runs(4, kv_bytes=None), [*bench.runs(3), *bench.runs(1, kv_bytes=1)]):
        assert only(compare(bench.runs(4), head, Options(metric="kv_bytes"))).verdict == "inconclusive"


def test_finding_nothing_to_compare_is_no_pass(bench: Bench) -> None:
    with pytest.raises(NothingToCompare, match="no case was measured"):
        compare([run_of([])], bench.runs(1), Options())
    with pytest.raises(NothingToCompare, match="no case was measured"):
        compare(bench.runs(1), [run_of([bench.case(status="unavailable", samples_us=(), yardsticks=())])], Options())
    with pytest.raises(NothingToCompare, match="no case in common"):
        compare(bench.runs(1), bench.runs(1, key="other"), Options())


def test_confidence_is_shared_out_among_the_cases(bench: Bench) -> None:
    def runs(n: int) -> list[Run]:
        return [run_of([bench.case(key=str(k)) for k in range(10)]) for _ in range(n)]

    found = compare(runs(4), runs(4), Options())
    assert found.settings.timed_cases == 10
    assert found.settings.case_confidence == pytest.approx(0.999)


def test_the_summary_is_the_geometric_mean(bench: Bench) -> None:
    def runs(n: int, *factors: float) -> list[Run]:
        return [run_of([bench.case(f, key=str(k), disturbed=0.0) for k, f in enumerate(factors)]) for _ in range(n)]

    summary = compare(runs(30, 1, 1), runs(12, 1.0, 1.21), Options()).summaries[0]
    assert summary.ratio == pytest.approx(1.1, rel=0.02)
    assert summary.low is not None
    assert summary.high is not None
    assert summary.low < 1.1 < summary.high


def test_warnings_for_torn_and_interrupted_runs(bench: Bench) -> None:
    torn = [run_of([bench.case()], torn=True)]
    cut = [run_of([bench.case()], interrupted=True)]
    whole = bench.runs(1)
    assert any("HEAD" in warning and "cut short" in warning for warning in compare(whole, torn, Options()).warnings)
    assert any("HEAD" in warning and "interrupted" in warning for warning in compare(whole, cut, Options()).warnings)
    for base in (torn, cut):  # what it lacks would come out as new, and pass
        with pytest.raises(NothingToCompare, match="not fit for a BASE"):
            compare(base, whole, Options())
