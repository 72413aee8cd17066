"""What reports and figures of replays say, by rows whose numbers are known."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.store import Run
from chunkbench.report import build, render
from chunkbench.workloads.replay.result import ReplayResult
from tests.invented_runs import MakeRun
from tests.workloads.drawings import caption, drawn
from tests.workloads.replay.made import replay_facts, replay_seed, sustained

EXACT, PAGED = "contiguous_exact", "paged"


def made(make_run: MakeRun, facts: list[ReplayResult], baseline: str = EXACT) -> Run:
    names = list(dict.fromkeys(one.implementation for one in facts))
    return make_run(facts, name="mine", title="Mine", kind="replay", baseline=baseline, implementations=names)


def text(run: Run) -> str:
    return " ".join(render(build(run), "table").split())


def two_rates(**axes: Any) -> list[ReplayResult]:
    """A rate of 10 and of 25 requests per second."""
    return [*sustained(EXACT, 600, "mine", **axes), *sustained(PAGED, 1500, "mine", **axes)]


@pytest.mark.parametrize(
    ("baseline", "axes", "printed"),
    [
        (EXACT, {"traffic": "sharegpt"}, "1.7 to 2.7x"),
        (EXACT, {"traffic": "alpaca", "beams": 6}, "2.30x"),
        (EXACT, {"traffic": "alpaca", "beams": 4}, ""),
        (EXACT, {"traffic": "sharegpt", "memory": 16_000}, ""),
        (PAGED, {"traffic": "sharegpt"}, ""),
    ],
)
def test_sustained_rates_of_traffic(make_run: MakeRun, baseline: str, axes: dict[str, Any], printed: str) -> None:
    shown = text(made(make_run, two_rates(**axes), baseline))
    assert "Rates sustained below 100 ms/token in the replay" in shown
    answers = f"{axes['beams']} beams" if "beams" in axes else "1"
    rates = "10.0 25.0" if baseline == EXACT else "25.0 10.0"  # the baseline comes first
    assert f"{axes['traffic']} {answers} 0 requests per second {rates}" in shown
    assert ("over contiguous_exact - 2.50x" in shown) == (baseline == EXACT)
    table = shown[shown.index("Rates sustained") : shown.index("Replayed latency")]
    assert ("the same, PagedAttention (measured)" in table) == bool(printed)
    assert printed in table


def test_rates_that_are_sustained_throughout_are_bounds_and_have_no_ratio(make_run: MakeRun) -> None:
    fast = [replay_facts(PAGED, "mine", 0.05, traffic="alpaca", rate=rate) for rate in (600, 1200)]
    slow = sustained(EXACT, 600, "mine", traffic="alpaca")
    assert "requests per second 10.0 ≥ 20.0 the same, PagedAttention" in text(made(make_run, [*slow, *fast]))
    shown = text(made(make_run, [*fast, *slow], PAGED))
    assert "requests per second ≥ 20.0 10.0 Replayed latency" in shown


def test_printed_numbers_stand_at_their_points_alone(make_run: MakeRun) -> None:
    seed = replay_seed(mean_batch=20.0, shares=(900, 0, 100, 0))
    alone, other = (
        text(made(make_run, [replay_facts(name, "mine", seeds=[seed], traffic="sharegpt", rate=rate)
                             for name in (EXACT, PAGED)]))
        for rate in (120, 60)
    )  # fmt: skip
    lines = ["13.6 30.4", "38% 96%", "25% -", "37% -"]
    for line in lines:
        assert f"the same, PagedAttention (measured) {line}" in alone
        assert f"(measured) {line}" not in other
    assert "mean batch 20.0 20.0" in other
    assert "PagedAttention (measured)" not in other


def test_answers_have_a_panel_with_hollow_labels(make_run: MakeRun) -> None:
    facts = [
        replay_facts(name, "mine", seeds=[replay_seed(saved=saved)], traffic="alpaca", rate=rate, samples=samples)
        for name, saved in ((EXACT, 0), (PAGED, 64))
        for samples in (2, 4)
        for rate in (300, 600)
    ]
    run = made(make_run, facts)
    (plot,) = (one for one in drawn(run).axes if one.get_title() == "parallel sampling, alpaca")
    assert plot.get_ylabel() == "memory saved by sharing, %"
    hollow = [line for line in plot.get_lines() if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in hollow] == [[2, 4]]
    assert list(hollow[0].get_ydata()) == pytest.approx([6.09, 8.53])
    ours = [line for line in plot.get_lines() if line.get_markerfacecolor() != "none"]
    assert [sorted(set(line.get_ydata())) for line in ours] == [[0.0], [pytest.approx(100 * 64 / 1064)]]
    assert "labels of PagedAttention's Figure 15, measured there" in caption(run)
    small = made(make_run, [one.model_copy(update={"memory": 9000}) for one in facts])
    assert "Figure 15" not in caption(small)


def test_block_sizes_have_a_panel(make_run: MakeRun) -> None:
    facts = [
        replay_facts(PAGED, "mine", 0.01 * size, traffic="sharegpt", rate=135, block_size=size) for size in (1, 16, 256)
    ]
    run = made(make_run, facts, PAGED)
    (plot,) = (one for one in drawn(run).axes if one.get_xlabel() == "tokens of a block")
    (line,) = plot.get_lines()
    assert list(line.get_xdata()) == [1, 16, 256]
    assert list(line.get_ydata()) == pytest.approx([10, 160, 2560])
    assert plot.get_xscale() == "log"
