"""Verdicts between machines, speeds of a machine, settings and versions that differ, on invented facts."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.store import Calibration, Peaks, Run
from chunkbench.report.compare.compare import Options, compare
from chunkbench.report.compare.document import output
from chunkbench.report.formats import render
from tests.report.compare.conftest import ENVIRONMENT, RunMaker, only, run_of


def peaks_at(slowness: float) -> Peaks:
    """Peak rates of a machine that takes `slowness` times as long for everything."""
    return Peaks(
        read_bytes_per_s=1e9 / slowness, matrix_flops_per_s=1e12 / slowness, matrix_torch_flops_per_s=1e12 / slowness
    )


def other_machine(**changes: Any) -> dict[str, Any]:
    return {"environment": ENVIRONMENT | changes, "device": "cpu"}


def on_another_machine(make: RunMaker, factor: float, machine_factor: float, **changes: Any) -> list[Run]:
    """Ten processes on another machine, where fixed work takes `machine_factor` times as long."""
    manifest = other_machine(cpu={"model": "Other", "threads": 2, "isa": ["avx2"]})
    values: dict[str, Any] = {
        "calibration": (Calibration(arithmetic_us=60.0 * machine_factor),) * 20,
        "peaks": (peaks_at(machine_factor),) * 20,
        "disturbed": 0.0,
    }
    return [run_of([make.case(factor, **(values | changes))], **manifest) for _ in range(10)]


def on_this_machine(make: RunMaker) -> list[Run]:
    return make.runs(30, disturbed=0.0, calibration=(Calibration(arithmetic_us=60.0),) * 20)


@pytest.mark.parametrize(
    ("factor", "metric", "verdict"),
    [
        (2.0, "latency", "same"),
        (3.0, "latency", "slower"),
        (1.0, "latency", "faster"),
        (2.0, "token_rate", "same"),
        (3.0, "token_rate", "slower"),
    ],
)
def test_across_machines_the_verdict_is_on_the_ratio_without_calibration(
    make: RunMaker, factor: float, metric: str, verdict: str
) -> None:
    """The other machine takes twice as long for fixed work."""
    comparison = compare(on_this_machine(make), on_another_machine(make, factor, 2.0), Options(metric=metric))
    case, power = only(comparison), 1 if metric == "latency" else -1
    assert case.verdict == verdict
    assert case.ratio == pytest.approx(factor**power, rel=0.05)
    assert (case.calibration_low, case.calibration_high) == pytest.approx((2.0**power, 2.0**power))
    assert any("different machines" in warning for warning in comparison.warnings)
    assert [difference.what for difference in comparison.differences if difference.machine] == ["CPU"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # The machine reads at half the speed, and its arithmetic is equally fast.
        ({"calibration": (Calibration(arithmetic_us=60.0),) * 20}, "the calibration ratio leaves"),
        ({"calibration": (), "peaks": ()}, "the calibration ratio of the machines is unknown"),
    ],
)
def test_across_machines_no_time_is_judged_without_one_calibration_ratio(
    make: RunMaker, changes: dict[str, Any], reason: str
) -> None:
    base, head = on_this_machine(make), on_another_machine(make, 1.5, 2.0, **changes)
    case = only(compare(base, head, Options()))
    assert case.verdict == "inconclusive"
    assert case.ratio == pytest.approx(1.5, rel=0.05)
    assert reason in case.reason
    assert only(compare(base, head, Options(cross_machine=True))).verdict == "slower"


def test_across_machines_counts_are_judged(make: RunMaker) -> None:
    comparison = compare(on_this_machine(make), on_another_machine(make, 2.0, 2.0, kv_bytes=8192), Options())
    assert {case.metric: case.verdict for case in comparison.cases} == {"latency": "same", "kv_bytes": "slower"}


@pytest.mark.parametrize(
    ("manifest", "case_changes", "verdict", "what", "machine"),
    [
        (other_machine(huge_pages="never"), {}, "inconclusive", "huge pages", True),
        ({"experiment": {"pages": "small"}}, {}, "inconclusive", "memory pages", True),
        (other_machine(python="CPython 3.12.1"), {}, "slower", "Python", False),
        (other_machine(native={"isa": "portable"}), {"isa": "portable"}, "slower", "native instruction set", False),
    ],
)
def test_a_setting_of_the_machine_makes_times_inconclusive_and_a_version_does_not(
    make: RunMaker, manifest: dict[str, Any], case_changes: dict[str, Any], verdict: str, what: str, machine: bool
) -> None:
    head = [run_of([make.case(2.0, **case_changes)], **manifest) for _ in range(10)]
    comparison = compare(make.runs(30), head, Options())
    assert only(comparison).verdict == verdict
    assert [(difference.what, difference.machine) for difference in comparison.differences] == [(what, machine)]
    assert any("not judged unless requested" in warning for warning in comparison.warnings) == machine


def test_different_thread_counts_are_not_comparable(make: RunMaker) -> None:
    case = only(compare(make.runs(30), make.runs(10, threads=1), Options()))
    assert (case.verdict, case.reason) == ("inconclusive", "threads: 2 and 1")


def at_speed(make: RunMaker, machine: float, code: float, **changes: Any) -> Run:
    """A run of a machine that takes `machine` times as long for everything, of code that takes `code` times as long."""
    case = make.case(machine * code, disturbed=0.0, **changes)
    calibration = tuple(Calibration(arithmetic_us=machine * entry.arithmetic_us) for entry in case.calibration)
    peaks = (peaks_at(machine),) * len(case.groups)
    return run_of([case.model_copy(update={"calibration": calibration, "peaks": peaks})])


@pytest.mark.parametrize(("code", "verdict"), [(1.0, "same"), (1.3, "slower"), (0.7, "faster")])
def test_ordinary_runs_of_one_machine_at_two_speeds_are_judged_without_its_calibration_ratio(
    make: RunMaker, code: float, verdict: str
) -> None:
    base, head = at_speed(make, 1.0, 1.0, rounds=60), at_speed(make, 2.4, code, rounds=60)
    comparison = compare([base], [head], Options())
    case = only(comparison)
    assert case.verdict == verdict
    assert case.ratio == pytest.approx(2.4 * code, rel=0.03)
    assert case.calibration_low == pytest.approx(2.4, rel=0.02)
    speeds = {entry.work: entry.speed for entry in comparison.machine}
    assert speeds == {work: pytest.approx(0.417, abs=0.01) for work in ("arithmetic", "read bandwidth", "matrix rate")}
    told = render(output(comparison, "table"), "table").splitlines()[1].strip()
    assert told.startswith("the machine itself ran at 0.42x")


def test_variables_that_change_speed_are_named(make: RunMaker) -> None:
    base = [run_of([make.case()], environment=ENVIRONMENT | {"variables": {"ONEDNN_MAX_CPU_ISA": "AVX2"}})]
    head = [run_of([make.case()], environment=ENVIRONMENT | {"variables": {"MKL_NUM_THREADS": "1"}})]
    named = [(diff.what, diff.base, diff.head) for diff in compare(base, head, Options()).differences]
    assert named == [("MKL_NUM_THREADS", "not set", "1"), ("ONEDNN_MAX_CPU_ISA", "AVX2", "not set")]
