"""Reports of replays, and claims on cache managers."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store import Run
from chunkbench.bench.store.results import Result
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.claims.judgement import Judgement
from chunkbench.report.printed import PAGED_ATTENTION_SETUP, paged_attention, paper_rows
from chunkbench.workloads.replay.paged_claims import JUDGES
from chunkbench.workloads.replay.printed import REPLAYED_AS, rate_over_exact, stated_by_paged_attention
from chunkbench.workloads.replay.result import ReplayResult
from tests.invented_runs import MakeRun
from tests.workloads.made import caption, drawn, replay_facts, replay_seed, sustained

EXACT, PAGED = "contiguous_exact", "paged"


def made(make_run: MakeRun, facts: list[ReplayResult], baseline: str = EXACT) -> Run:
    names = list(dict.fromkeys(one.implementation for one in facts))
    return make_run(facts, name="mine", title="Mine", kind="replay", baseline=baseline, implementations=names)


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
    assert "Figure 15" in caption(run)
    small = made(make_run, [one.model_copy(update={"memory": 9000}) for one in facts])
    assert "Figure 15" not in caption(small)


def test_block_sizes_have_a_panel(make_run: MakeRun) -> None:
    axes: dict[str, Any] = {"traffic": "sharegpt", "rate": 135}
    facts = [replay_facts(PAGED, "mine", 0.01 * size, block_size=size, **axes) for size in (1, 16, 256)]
    run = made(make_run, facts, PAGED)
    (plot,) = (one for one in drawn(run).axes if one.get_xlabel() == "tokens of a block")
    (line,) = plot.get_lines()
    assert list(line.get_xdata()) == [1, 16, 256]
    assert list(line.get_ydata()) == pytest.approx([10, 160, 2560])
    assert plot.get_xscale() == "log"


KINDS = ("used", "reserved", "internal_fragmentation", "external_fragmentation")


def judge(id: str, *facts: Result) -> Judgement:
    return JUDGES[id](Evidence([RunRows(derive(list(facts)))]))


def rates(times: float, manager: str = "paged", experiment: str = "replay-paged", **axes: Any) -> list[ReplayResult]:
    """A manager that sustains so many times the rate of the allocator that knows all lengths."""
    base = sustained("contiguous_exact", 600, experiment, **axes)
    return [*base, *sustained(manager, round(600 * times), experiment, **axes)]


def throughput(times: float) -> list[ReplayResult]:
    return [*rates(times, traffic="sharegpt"), *sustained("contiguous_max", 300, "replay-paged", traffic="sharegpt")]


@pytest.mark.parametrize(
    "changes",
    [{"memory": 9000}, {"n_s": 80}, {"samples": 2}, {"beams": 6}, {"traffic": "alpaca"}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_setups_do_not_count(changes: dict[str, Any]) -> None:
    axes = {"traffic": "sharegpt", **changes}
    assert judge("PA-throughput", *rates(3.0, **axes)).verdict == "not measured"
    assert judge("PA-throughput", *rates(2.0, **axes), *throughput(3.0)).measured == 3.0


def test_of_several_experiments_the_one_with_most_rates_counts() -> None:
    many = [
        case
        for name, rate in (("contiguous_exact", 60), ("paged", 120))
        for case in sustained(name, rate, "mine", 4, traffic="sharegpt")
    ]
    for facts in ([*throughput(3.0), *many], [*many, *throughput(3.0)]):
        judged = judge("PA-throughput", *facts)
        assert (judged.measured, len(judged.rows)) == (2.0, 8)


@pytest.mark.parametrize(
    ("times", "end"),
    [
        (1.94, "the text says otherwise"),
        (1.96, "this agrees with the text"),
        (4.0, "this agrees with the text"),
        (4.1, "this is more than the text states"),
    ],
)
def test_throughput_is_judged_at_both_ends_of_its_range(times: float, end: str) -> None:
    assert judge("PA-throughput", *rates(times, traffic="sharegpt")).reason.endswith(end)


def test_all_printed_numbers_are_used_and_shares_of_a_system_add_up() -> None:
    model, memory = PAGED_ATTENTION_SETUP
    for row in paper_rows("paged_attention"):
        axes = {name: int(row[name]) if row[name] else None for name in ("rate", "n_s", "samples", "beams")}
        axes |= {"traffic": REPLAYED_AS.get(row["traffic"], row["traffic"]), "model": model, "memory": memory}
        assert stated_by_paged_attention(axes, row["manager"], row["quantity"]) == float(row["value"])
    named = dict.fromkeys(("rate", "samples", "beams")) | {"traffic": "alpaca", "model": model, "memory": memory}
    assert rate_over_exact(named | {"n_s": 341}, "paged_prefix") == "3.58x, translation"
    # The report asks for these quantities; the ends of rate_over_max are in the claim on throughput.
    assert {row["quantity"] for row in paper_rows("paged_attention")} == {
        *KINDS, "mean_batch", "saved", "rate_over_exact", "rate_over_exact_low", "rate_over_exact_high",
        "rate_over_max_low", "rate_over_max_high",
    }  # fmt: skip
    sums: dict[str, float] = {}
    for row in (row for row in paged_attention() if row["figure"] == "2"):
        sums[row["manager"]] = sums.get(row["manager"], 0) + float(row["value"])
    assert sums.pop("paged") < 1
    assert list(sums.values()) == pytest.approx([1.0] * 3, abs=0.0011)
