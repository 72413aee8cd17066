"""Figures of servers, and their report."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.analysis.derive import Row, derive
from chunkbench.bench.store import Run
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.objective import goodput_per_s, objective_s, sustained_rate
from chunkbench.workloads.serving.objective import spots as line
from chunkbench.workloads.serving.result import ServerFacts, ServingResult
from tests.workloads.drawings import drawn
from tests.workloads.serving.made_servers import measurement, serving_facts

LATENCY = {
    # Nothing shared: both alike. Everything shared, at 60, 90 and 400%: vLLM gives way, ours does not.
    (0, 60): (0.1, 0.1),
    (0, 90): (0.2, 0.2),
    (1024, 60): (0.02, 0.1),
    (1024, 90): (0.03, 0.2),
    (1024, 400): (0.1, 0.6),
}


def facts(n_p: int = 1024) -> list[ServingResult]:
    """Two systems at the loads above; every server told about two moments."""
    found = []
    timeline = ((0, 1, 1_000_000), (1, 4, None))
    server = ServerFacts(sampled=False, peak_batch=4, peak_kv_bytes=3_000_000, timeline=timeline)
    for (n_s, load), latencies in LATENCY.items():
        for system, latency in zip(("chunk_llama", "vllm"), latencies, strict=True):
            told = [measurement(n, latency).model_copy(update={"server": server}) for n in range(3)]
            found.append(serving_facts(system, n_p=n_p, n_s=n_s, load=load, rate=load / 30, measurements=told))
    return found


@pytest.fixture
def run(make_run: Any) -> Run:
    made: Run = make_run(facts(), name="figure5", kind="serving", baseline="chunk_llama")
    return made


def test_what_a_reader_must_know_of_the_weights_is_said_once(make_run: Any) -> None:
    told = [fact.model_copy(update={"weights": "4-bit, dequantised"}) for fact in facts()]
    report = build(make_run(told, name="figure5", kind="serving", baseline="chunk_llama"))
    assert render(report, "table").count("weights: 4-bit, dequantised; seed 0") == 1
    assert "weights:" not in render(build(make_run(facts(), name="figure5", kind="serving")), "table")


def test_sustained_rates_stand_beside_the_papers(run: Run) -> None:
    report = build(run)
    table = report.tables[0]
    assert table.title == "Rates sustained under the objective"
    lines = [[cell.text for cell in row] for row in table.rows]
    names = list(report.columns.ids)
    ours, theirs = (4 + names.index(name) for name in ("chunk_llama", "vllm"))
    shared = next(number for number, line in enumerate(lines) if line[:2] == ["1024", "1024"])
    assert lines[shared][2] == "200"
    assert (lines[shared][ours], lines[shared][theirs]) == ("≥ 13.3", "3.00")
    assert lines[shared + 1][ours] == "4.44x"
    assert (lines[shared + 2][3].strip(), lines[shared + 2][ours]) == ("the same, paper", "1.61x")
    text = render(report, "table")
    assert "of them within the objective" in text
    assert "objective = normalized latency of the reference with nothing shared at 90%" in " ".join(text.split())


@pytest.mark.parametrize(("n_p", "words"), [(1024, "everything shared"), (1088, "a part shared")])
def test_the_headline_says_what_is_shared(make_run: Any, n_p: int, words: str) -> None:
    headline = build(make_run(facts(n_p), name="figure5", kind="serving", baseline="chunk_llama")).headline
    assert headline.endswith(f"vllm 1.00x with nothing shared; vllm 5.85x with {words}.")


def test_the_figure_has_latencies_memory_and_batches(run: Run) -> None:
    figure = drawn(run)
    latency, memory, batch = (plot for plot in figure.axes if plot.get_visible())
    assert [plot.get_ylabel() for plot in (latency, memory, batch)] == [
        "normalized latency, ms/token",
        "K/V of live requests, MB",
        "batch, sequences",
    ]
    assert any(list(line.get_ydata()) == [200.0, 200.0] for line in latency.get_lines())
    assert "objective" in [text.get_text() for text in latency.texts]
    # Moments of which the server said no bytes are left out.
    assert [list(line.get_ydata()) for line in memory.get_lines()] == [[1.0], [1.0]]
    assert [list(line.get_ydata()) for line in batch.get_lines()] == [[1, 4], [1, 4]]
    assert "n_s = 1024" in memory.get_title()
    assert "load = 90" in memory.get_title()


def test_points_with_several_prefixes_or_a_tree_are_on_no_line(make_run: Any) -> None:
    four = [fact.model_copy(update={"prompts": 4, "key": f"{fact.key} 4"}) for fact in facts() if fact.load == 90]
    tree = [
        fact.model_copy(update={"n_s": None, "tree": ((100, 2),), "key": f"{fact.key} tree"})
        for fact in facts()
        if (fact.n_s, fact.load) == (1024, 60)
    ]
    named = {"name": "figure5", "kind": "serving", "baseline": "chunk_llama"}
    without, with_others = (build(make_run(chosen, **named)) for chosen in (facts(), facts() + four + tree))
    assert [table.rows for table in without.tables[:1]] == [table.rows for table in with_others.tables[:1]]
    runs = [make_run(chosen, **named) for chosen in (facts(), facts() + four + tree)]
    counts = []
    for run in runs:
        figure = drawn(run)
        counts.append([len(line.get_ydata()) for line in figure.axes[0].get_lines()])
    assert counts[0] == counts[1]


def test_without_several_rates_there_are_memory_and_batches_of_every_point(make_run: Any) -> None:
    chosen = [fact for fact in facts() + facts(2048) if fact.load == 90]
    run = make_run(chosen, name="table4", kind="serving", baseline="chunk_llama")
    figure = drawn(run)
    labels = [plot.get_ylabel() for plot in figure.axes if plot.get_visible()]
    assert labels == ["K/V of live requests, MB"] * 4 + ["batch, sequences"] * 4


def test_a_run_with_fewer_requests_than_asked_for_says_so(make_run: Any) -> None:
    cut = [fact.model_copy(update={"asked_requests": 24}) for fact in facts()]
    report = build(make_run(cut, name="figure5", kind="serving", baseline="chunk_llama"))
    text = " ".join(render(report, "table").split())
    assert "3 arrival seeds of 2 requests (the experiment asks for 24; the budget allows no more)" in text
    assert "asks for" not in " ".join(render(build(make_run(facts(), kind="serving")), "table").split())


def test_a_run_with_fewer_arrival_seeds_than_asked_for_says_so(make_run: Any) -> None:
    run = make_run(facts(), name="figure5", kind="serving", baseline="chunk_llama", arrival_seeds=5)
    text = " ".join(render(build(run), "table").split())
    assert "3 arrival seeds (the experiment asks for 5; the budget allows as few as 3) of 2 requests" in text


def test_medians_over_seeds_and_largest_peaks() -> None:
    facts = serving_facts(
        "chunk_llama",
        measurements=[
            measurement(0, latency=0.2, peak_kv_bytes=100, peak_batch=3),
            measurement(1, latency=0.4, peak_kv_bytes=300, peak_batch=2),
            measurement(2, latency=0.3, peak_kv_bytes=200, peak_batch=4),
        ],
    )
    (row,) = derive([facts], "chunk_llama")
    assert row.derived.latency_us == pytest.approx(0.3e6)
    assert (row.derived.low_us, row.derived.high_us) == pytest.approx((0.2e6, 0.4e6))
    assert row.derived.interval_kind == "range"
    found = {name: metric.value(facts) for name, metric in METRICS.items()}
    assert (found["peak_kv_bytes"], found["peak_batch"]) == (300, 4)
    assert found["cached_share"] == 0.5
    assert found["per_token_p50"] == pytest.approx(0.3 * 10 / 2 / 9)


def test_ratios_are_formed_between_measurements_of_the_same_requests() -> None:
    """Each seed is twice as slow as the one before, for both systems: the ratio is two at every seed."""
    ours = serving_facts("chunk_llama", measurements=[measurement(n, latency=0.1 * 2**n) for n in range(3)])
    theirs = serving_facts("vllm", measurements=[measurement(n, latency=0.2 * 2**n) for n in range(3)])
    _, row = derive([ours, theirs], "chunk_llama")
    assert row.derived.ratio_to_baseline == pytest.approx(2)
    assert (row.derived.ratio_low, row.derived.ratio_high) == pytest.approx((2, 2))


def test_a_system_that_was_not_measured_has_no_numbers() -> None:
    facts = serving_facts("vllm", status="unavailable")
    assert {name for name, metric in METRICS.items() if metric.value(facts) is not None} == set()


def rates(*spots: tuple[float, float]) -> list[Row]:
    """Rows of a system at these (requests per second, normalized latency in seconds)."""
    facts = [
        serving_facts("vllm", load=n, rate=rate, measurements=[measurement(0, latency)])
        for n, (rate, latency) in enumerate(spots)
    ]
    return list(derive(facts, "vllm"))


@pytest.mark.parametrize(
    ("spots", "rate", "at_least"),
    [
        ([(1, 0.1), (2, 0.3)], 1.5, False),
        ([(2, 0.3), (1, 0.1)], 1.5, False),
        ([(1, 0.1), (2, 0.2)], 2, True),
        ([(1, 0.1), (2, 0.3), (3, 0.15), (4, 0.25)], 3.5, False),
    ],
)
def test_a_sustained_rate_lies_between_two_measured_ones(
    spots: list[tuple[float, float]], rate: float, at_least: bool
) -> None:
    found = sustained_rate(line(rates(*spots)), 0.2)
    assert found is not None
    assert (found.per_s, found.at_least) == (pytest.approx(rate), at_least)


def test_no_rate_is_sustained_where_all_are_too_slow() -> None:
    assert sustained_rate(line(rates((1, 0.3))), 0.2) is None
    assert sustained_rate([], 0.2) is None


def test_the_objective_is_the_reference_with_nothing_shared_at_90_percent() -> None:
    facts = [
        serving_facts(system, n_p=n_p, n_s=n_s, load=load, measurements=[measurement(0, latency)])
        for system, n_p, n_s, load, latency in (
            ("chunk_llama", 1024, 0, 90, 0.1),
            ("vllm", 1024, 1024, 90, 0.2),
            ("vllm", 1024, 0, 60, 0.3),
            ("vllm", 1024, 0, 90, 0.4),
            ("vllm", 2048, 0, 90, 0.8),
        )
    ]
    rows = derive(facts, "chunk_llama")
    assert objective_s(rows, 1024) == pytest.approx(0.4)
    assert objective_s(rows, 2048) == pytest.approx(0.8)
    assert objective_s(rows, 4096) is None


def test_goodput_counts_requests_within_the_objective() -> None:
    facts = serving_facts("vllm", measurements=[measurement(0, 0.2)])
    assert goodput_per_s(facts, 0.2) == METRICS["answered_per_s"].value(facts)
    assert goodput_per_s(facts, 0.19) == 0
