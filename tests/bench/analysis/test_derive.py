"""Derived figures: points, ratios, roofline, sharing, traffic, expectations."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.analysis.expectations import outcomes
from chunkbench.bench.analysis.points import group, varying
from chunkbench.bench.analysis.ratio import ratio
from chunkbench.bench.analysis.roofline import (
    probe_error,
)
from chunkbench.bench.analysis.sharing import sharing
from chunkbench.bench.analysis.traffic import traffic_numbers
from chunkbench.bench.store.manifest import ExpectationFacts
from tests.invented_runs import facts_of


def test_cases_of_a_point_are_a_group(facts) -> None:
    ran = facts("chunk_attn", threads=2)
    absent = facts("xformers", threads=None, status="unavailable", samples_us=())
    ((axes, members),) = group([ran, absent])
    assert (members, "threads" in axes) == ([ran, absent], False)
    swept = group([facts(name, threads=threads) for threads in (2, 1) for name in ("chunk_attn", "naive")])
    assert [axes["threads"] for axes, _ in swept] == [1, 2]
    assert varying(swept) == ["threads"]


def rounds(*means: float) -> tuple[tuple[float, float], ...]:
    return tuple((mean - 1, mean + 1) for mean in means)


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
