"""Derived figures: points, ratios, roofline, sharing, traffic, expectations."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.analysis.expectations import outcomes
from chunkbench.bench.analysis.points import describe, group, varying
from chunkbench.bench.analysis.ratio import ratio
from chunkbench.bench.analysis.roofline import (
    bandwidth_fraction,
    flops,
    mean_roofline_us,
    moved_bytes,
    probe_error,
    roofline_fraction,
    roofline_us,
)
from chunkbench.bench.analysis.sharing import sharing
from chunkbench.bench.analysis.traffic import traffic_numbers
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.store.manifest import ExpectationFacts
from chunkbench.bench.store.results import Peaks
from tests.invented_runs import facts_of


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


def test_cases_of_a_point_are_a_group(facts) -> None:
    ran = facts("chunk_attn", threads=2)
    absent = facts("xformers", threads=None, status="unavailable", samples_us=())
    ((axes, members),) = group([ran, absent])
    assert (members, "threads" in axes) == ([ran, absent], False)
    swept = group([facts(name, threads=threads) for threads in (2, 1) for name in ("chunk_attn", "naive")])
    assert [axes["threads"] for axes, _ in swept] == [1, 2]
    assert varying(swept) == ["threads"]


def test_groups_are_sorted_by_their_axes(facts) -> None:
    ordered = [((512, 1024), 0), (1024, None), (1024, 0), (1024, 512), (4096, 0)]
    groups = group([facts(n_p=n_p, n_s=n_s) for n_p, n_s in reversed(ordered)])
    assert [(axes["n_p"], axes["n_s"]) for axes, _ in groups] == ordered
    assert varying(groups) == ["n_p", "n_s"]


def test_axes_as_text() -> None:
    assert describe({"n_p": 1024, "n_s": None}, ["n_p", "n_s"]) == "n_p=1024 n_s=-"
    assert show_value((512, 1024)) == "512-1024"
    assert show_value(((512, ((64, 2), (0, 2))), (128, 4))) == "512x(64x2 0x2) 128x4"


def rounds(*means: float) -> tuple[tuple[float, float], ...]:
    return tuple((mean - 1, mean + 1) for mean in means)


def test_only_rounds_of_shared_groups_count(facts) -> None:
    # The baseline ran in both groups, Naive only in group 1, where the machine was twice as slow.
    base = facts(samples_us=rounds(100, 110, 90, 200, 220, 180), groups=(0, 0, 0, 1, 1, 1))
    other = facts("naive", samples_us=rounds(400, 440, 360), groups=(1, 1, 1))
    result = ratio(other, base, 0.95)
    assert result is not None
    assert result.value == pytest.approx(2.0)
    assert result.kind == "range"


def test_rounds_are_paired_inside_their_group(facts) -> None:
    # The latencies drift by a factor of ten, the ratio stays.
    base = facts(samples_us=rounds(10, 100, 50), groups=(0, 1, 1))
    other = facts("naive", samples_us=rounds(200, 100, 20), groups=(1, 1, 0))
    assert ratio(other, base, 0.95) == pytest.approx((2.0, 2.0, 2.0, "range"))


@pytest.mark.parametrize("status", ["incorrect", "error", "timeout", "crashed", "oom", "unsupported", "unavailable"])
def test_only_measured_cases_have_figures(facts, status: str) -> None:
    # A failed case has none, even if it has samples.
    failed = facts("naive", status=status)
    assert ratio(failed, facts(), 0.95) is ratio(facts(), failed, 0.95) is None
    derived = derive([facts(), failed])[1].derived
    assert (derived.latency_us, derived.ratio_to_baseline) == (None, None)
    assert ratio(facts("naive", status="noisy"), facts(), 0.95) is not None
    assert ratio(facts("naive", groups=(1, 1, 1)), facts(), 0.95) is None  # no round beside the baseline


def test_six_paired_rounds_give_a_confidence_interval(facts) -> None:
    base = facts(samples_us=rounds(*[100.0] * 6))
    other = facts("naive", samples_us=rounds(200, 210, 220, 230, 240, 250))
    assert ratio(other, base, 0.95) == pytest.approx((2.25, 2.0, 2.5, "confidence"))


@given(st.lists(st.tuples(st.floats(2, 1e6), st.floats(2, 1e6)), min_size=1, max_size=12))
def test_the_interval_holds_the_ratio_and_inverts(pairs: list[tuple[float, float]]) -> None:
    groups = (0,) * len(pairs)
    a, b = (
        facts_of(samples_us=tuple((mean,) for mean in means), steps=(1,), groups=groups)
        for means in zip(*pairs, strict=True)
    )
    forward, inverse = ratio(a, b, 0.95), ratio(b, a, 0.95)
    assert forward is not None
    assert inverse is not None
    assert forward.low <= forward.value <= forward.high
    assert forward.value * inverse.value == pytest.approx(1)
    assert forward.low * inverse.high == pytest.approx(1)


def peaks(read: float, matrix: float = 1e15) -> Peaks:
    return Peaks(read_bytes_per_s=read, matrix_flops_per_s=matrix, matrix_torch_flops_per_s=matrix)


def test_roofline_of_table_3_without_sharing() -> None:
    # 32 sequences of 1024 tokens, 32 heads of 128, two bytes: 537 MB of K and V, half a megabyte of q and out.
    moved = moved_bytes(32 * 1024, 2 * 32 * 128 * 2, 32, 32, 128, 2)
    assert moved == 536_870_912 + 524_288
    # A GPU that reads 3.0 TB/s needs 179 us.
    assert roofline_us(moved, flops(32 * 1024, 32, 128), peaks(3.0e12)) == pytest.approx(179, abs=0.5)


def test_flops_of_the_papers_table_1() -> None:
    # Table 1: 33.57e6 for one sequence, 1074.27e6 for 32, of 2049 tokens each.
    assert flops(2049, 32, 128) == pytest.approx(33.57e6, rel=1e-4)
    assert flops(32 * 2049, 32, 128) == pytest.approx(1074.27e6, rel=1e-4)


def test_the_longer_of_memory_and_arithmetic_time_bounds_a_step() -> None:
    assert roofline_us(1000, 10, peaks(1e9, 1e12)) == pytest.approx(1.0)
    assert roofline_us(1000, 10_000_000, peaks(1e9, 1e12)) == pytest.approx(10.0)


def test_fraction_sums_bounds_and_latencies_over_the_steps(facts) -> None:
    case = facts()
    # Bounds of 6 and 9 us against 10 and 20 us.
    assert roofline_fraction(case) == pytest.approx(15 / 30)
    assert bandwidth_fraction(case) == pytest.approx(21 / 30)
    assert mean_roofline_us(case) == pytest.approx(7.5)


def test_every_round_uses_its_own_peaks(facts) -> None:
    # In the last two rounds the machine has half its speed and so has the kernel: the fraction stays.
    slow = ((20.0, 40.0),) * 2
    case = facts(samples_us=((10.0, 20.0), *slow), peaks=(peaks(1e9), peaks(0.5e9), peaks(0.5e9)))
    assert roofline_fraction(case) == pytest.approx(0.5)


def test_faster_than_the_machine_is_an_error_of_the_probe(facts) -> None:
    assert probe_error(facts(samples_us=((7.0, 7.85),))) is None  # 101%
    assert "107%" in (probe_error(facts(samples_us=((6.0, 8.0),))) or "")
    assert "warm" in (probe_error(facts(samples_us=((6.0, 8.0),), cache="warm")) or "")


def common(*sequences: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False)))


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 5))
def test_figures_follow_their_definitions(prompts: list[tuple[int, ...]], chunk_size: int, n_c: int) -> None:
    (figures,) = sharing({"all": prompts}, chunk_size, n_c)
    shared = [
        max((common(prompt, other) for j, other in enumerate(prompts) if j != i), default=0)
        for i, prompt in enumerate(prompts)
    ]
    assert figures.shared_mean == pytest.approx(sum(shared) / len(shared))
    assert figures.shared_max == max(shared)
    assert figures.common == (common(*prompts) if len(prompts) > 1 else 0)
    assert figures.ratio == pytest.approx(
        sum(s / (len(p) + n_c) for s, p in zip(shared, prompts, strict=True)) / len(shared)
    )
    assert figures.tokens == sum(map(len, prompts)) + n_c * len(prompts)
    # Memory holds the nodes of a forest of whole chunks, and the tokens of each prompt that fill no chunk.
    chunks = {p[: (i + 1) * chunk_size] for p in prompts for i in range(len(p) // chunk_size)}
    private = sum(len(p) % chunk_size + n_c for p in prompts)
    assert figures.held == len(chunks) * chunk_size + private
    assert 0 <= figures.saved < 1


PROMPTS = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)


def slow_hits(prompts: list[list[int]], size: int) -> int:
    """Blocks that a cache would hold, with its contents as a list, the least recent block first."""
    held: list[int] = []
    hits = 0
    for prompt in prompts:
        for block in prompt:
            if block not in held:
                break
            hits += 1
        held = [block for block in held if block not in prompt] + prompt[::-1]
        held = held[len(held) - min(size, len(held)) :]
    return hits


@given(st.lists(PROMPTS, min_size=1, max_size=20), st.integers(1, 8))
def test_hits_of_a_cache(prompts: list[list[int]], size: int) -> None:
    tokens = [10 * len(prompt) - 3 for prompt in prompts]
    numbers = traffic_numbers(list(range(len(prompts))), tokens, [1] * len(prompts), prompts, 10, [size])
    small, endless = numbers.hits
    total = sum(map(len, prompts))
    assert small.blocks == pytest.approx(slow_hits(prompts, size) / total)
    assert endless.blocks == pytest.approx(slow_hits(prompts, 10**9) / total)
    assert small.tokens <= endless.tokens <= 1


def test_numbers_of_a_trace() -> None:
    prompts = [[1, 2], [1, 3], [1, 2]]
    numbers = traffic_numbers([0.0, 2.0, 10.0], [15, 20, 15], [5, 6, 7], prompts, 10)
    assert (numbers.requests, numbers.seconds, numbers.per_s) == (3, 10.0, 0.2)
    assert (numbers.prompt_tokens.p50, numbers.answer_tokens.mean, numbers.answer_tokens.most) == (15, 6, 7)
    assert (numbers.blocks, numbers.distinct_blocks) == (6, 3)
    (endless,) = numbers.hits
    # The second prompt hits one whole block, the third both, of which the last one holds 5 tokens.
    assert (endless.blocks, endless.tokens) == (0.5, 0.5)
    assert numbers.reuse_s is not None
    assert (numbers.reuse_s.most, numbers.reuse_s.p50) == (10.0, 8.0)


def expectation(**changes: Any) -> ExpectationFacts:
    defaults = {"where": {}, "implementation": "chunk_attn", "metric": "speedup", "against": "naive", "bar": 1.5}
    return ExpectationFacts.model_validate(defaults | changes)


@pytest.fixture
def rows(facts):
    def case(name: str, us: float, **changes: Any):
        return facts(name, samples_us=((us, us),) * 3, **changes)

    return derive(
        [
            case("chunk_attn", 20.0, n_s=512),
            case("naive", 60.0, n_s=512),
            case("chunk_attn", 30.0, n_s=0),
            case("naive", 27.0, n_s=0),
            facts("xformers", n_s=0, status="unavailable", samples_us=()),
        ]
    )


@pytest.mark.parametrize(
    ("changes", "values", "verdicts"),
    [
        ({}, [0.9, 3.0], ["misses", "meets bar"]),
        ({"aim": 3.0}, [0.9, 3.0], ["misses", "reaches aim"]),
        ({"bar": None, "aim": 4.0}, [0.9, 3.0], ["misses", "misses"]),
        ({"where": {"n_s": "0.5 n_p"}}, [3.0], ["meets bar"]),
        ({"where": {"n_s": "1/2 n_p"}}, [3.0], ["meets bar"]),
        ({"where": {"n_s": ["0.5 n_p", "n_p"], "n_p": [1024]}}, [3.0], ["meets bar"]),
        ({"where": {"n_s": "n_p"}}, [], []),
        ({"where": {"n_p": {"low": 512, "high": 1024}}}, [], []),
        ({"where": {"tree": [[512, 32]]}}, [], []),
        ({"where": {"n_s": [0, 512]}}, [0.9, 3.0], ["misses", "meets bar"]),
        ({"where": {"n_s": 0, "n_p": 2048}}, [], []),
        ({"metric": "latency_ratio", "bar": 1.0, "aim": 0.5}, [30 / 27, 1 / 3], ["misses", "reaches aim"]),
        ({"metric": "roofline_fraction", "against": "roofline", "bar": 0.3}, [0.25, 0.375], ["misses", "meets bar"]),
        ({"metric": "append_us", "against": None, "bar": 2.0}, [2.0, 2.0], ["meets bar", "meets bar"]),
        ({"metric": "plan_us", "against": None, "bar": 0.4}, [0.5, 0.5], ["misses", "misses"]),
    ],
)
def test_verdicts(rows, changes: dict[str, Any], values: list[float], verdicts: list[str]) -> None:
    judged = outcomes(rows, [expectation(**changes)])
    assert [outcome.value for outcome in judged] == pytest.approx(values)
    assert [outcome.verdict for outcome in judged] == verdicts


def test_an_unmeasured_expectation_has_a_reason(rows) -> None:
    judged = outcomes(rows, [expectation(against="xformers"), expectation(implementation="nobody", where={"n_s": 0})])
    assert [outcome.verdict for outcome in judged] == ["not measured"] * 3
    assert [outcome.reason for outcome in judged] == [
        "xformers: unavailable",
        "xformers is not in this run",
        "not in this run",
    ]


def test_a_fraction_above_the_roofline_has_no_verdict(facts) -> None:
    rows = derive([facts(samples_us=((1.0, 1.0),))])
    (outcome,) = outcomes(rows, [expectation(metric="roofline_fraction", bar=0.5)])
    assert outcome.verdict == "not measured"
    assert "probe" in outcome.reason


def test_ranges_and_trees_are_selected_as_experiments_write_them(facts) -> None:
    tree = ((512, ((64, 2), (0, 30))),)
    rows = derive(
        [
            *(facts(name, n_p=(512, 1024)) for name in ("chunk_attn", "naive")),
            *(facts(name, n_s=None, tree=tree) for name in ("chunk_attn", "naive")),
        ]
    )

    def selected(**where: Any) -> list[Any]:
        return [(o.axes["n_p"], o.axes["tree"]) for o in outcomes(rows, [expectation(where=where)])]

    assert selected(n_p=[{"low": 512, "high": 1024}]) == [((512, 1024), None)]
    assert selected(n_p=[512, 1024]) == [(1024, tree)]  # two values, not a range
    assert selected(tree=[[512, [[64, 2], [0, 30]]]]) == [(1024, tree)]
