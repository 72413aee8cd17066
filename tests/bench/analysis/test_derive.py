from __future__ import annotations

import pytest

from chunkbench.bench.analysis.derive import derive


def test_figures_of_a_measured_case(facts) -> None:
    (row,) = derive([facts(samples_us=((10.0, 20.0), (14.0, 26.0), (16.0, 16.0)))])
    derived = row.derived
    assert (derived.rounds, derived.latency_us, derived.low_us, derived.high_us) == (3, 16.0, 15.0, 20.0)
    assert derived.interval_kind == "range"
    assert (derived.append_us, derived.plan_us, derived.step_us) == (2.0, 0.5, 18.5)
    assert derived.token_rate == pytest.approx(32 / 16e-6)
    assert derived.ratio_to_baseline == 1.0


def test_ratios_refer_to_the_baseline_of_the_same_point(facts) -> None:
    cases = [
        facts("naive", n_s=0, samples_us=((30.0, 30.0),)),
        facts("chunk_attn", n_s=512, samples_us=((5.0, 5.0),)),
        facts("chunk_attn", n_s=0, samples_us=((10.0, 10.0),)),
        facts("naive", n_s=512, samples_us=((40.0, 40.0),)),
    ]
    rows = derive(cases)
    assert [row.facts for row in rows] == cases
    assert [row.derived.ratio_to_baseline for row in rows] == [3.0, 1.0, 1.0, 8.0]
    assert [row.derived.ratio_to_baseline for row in derive(cases, baseline="naive")] == [1.0, 0.125, 1 / 3, 1.0]


def test_a_case_that_was_not_measured_keeps_its_row(facts) -> None:
    absent = facts("xformers", status="unavailable", reason="no CPU operator", samples_us=())
    row = derive([facts(), absent])[1]
    assert row.facts.reason == "no CPU operator"
    assert row.derived.latency_us is None
    assert row.derived.ratio_to_baseline is None


def test_an_incorrect_case_has_no_latency(facts) -> None:
    assert derive([facts(status="incorrect")])[0].derived.latency_us is None


def test_without_a_baseline_there_are_no_ratios(facts) -> None:
    assert derive([facts("naive")])[0].derived.ratio_to_baseline is None
