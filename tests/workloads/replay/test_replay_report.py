"""Reports of replays, and claims on cache managers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkbench.bench import workload
from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store import Run
from chunkbench.bench.store.results import DecodeResult, Result
from chunkbench.report.build import build
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.claims.judgement import Judgement
from chunkbench.report.formats import render
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

    def at(rate: int) -> str:
        facts = [replay_facts(name, "mine", seeds=[seed], traffic="sharegpt", rate=rate) for name in (EXACT, PAGED)]
        return text(made(make_run, facts))

    alone, other = at(120), at(60)
    for line in ("13.6 30.4", "38% 96%", "25% -", "37% -"):
        assert f"the same, PagedAttention (measured) {line}" in alone
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


SHAREGPT: dict[str, Any] = {"traffic": "sharegpt", "rate": 120}
ANSWERS, BLOCKS = "replay-paged-answers", "replay-paged-blocks"
KINDS = ("used", "reserved", "internal_fragmentation", "external_fragmentation")


def judge(id: str, *facts: Result) -> Judgement:
    judges = {**workload.get("replay").layout().claims, **workload.get("memory").layout().claims}
    return judges[id](Evidence([RunRows(derive(list(facts)))]))


def rates(times: float, manager: str = "paged", experiment: str = "replay-paged", **axes: Any) -> list[ReplayResult]:
    """A manager that sustains so many times the rate of the allocator that knows all lengths."""
    base = sustained("contiguous_exact", 600, experiment, **axes)
    return [*base, *sustained(manager, round(600 * times), experiment, **axes)]


def throughput(times: float) -> list[ReplayResult]:
    return [*rates(times, traffic="sharegpt"), *sustained("contiguous_max", 300, "replay-paged", traffic="sharegpt")]


def memory(kind: str, manager: str = "contiguous_max") -> Callable[[float], list[ReplayResult]]:
    def make(share: float) -> list[ReplayResult]:
        parts = dict.fromkeys(KINDS, 0) | {kind: round(1000 * share)}
        parts["used" if kind != "used" else "reserved"] += 1000 - round(1000 * share)
        return [replay_facts(manager, "replay-paged", seeds=[replay_seed(shares=list(parts.values()))], **SHAREGPT)]

    return make


def batches(times: float) -> list[ReplayResult]:
    sizes = {"paged": 10 * times, "contiguous_exact": 10.0, "contiguous_max": 5.0}
    return [
        replay_facts(name, "replay-paged", seeds=[replay_seed(mean_batch=size)], **SHAREGPT)
        for name, size in sizes.items()
    ]


def saved(**answers: int) -> Callable[[float], list[ReplayResult]]:
    def make(share: float) -> list[ReplayResult]:
        tokens = round(100_000 * share)
        seed = replay_seed(shares=(100_000 - tokens, 0, 0, 0), saved=tokens)
        return [replay_facts("paged", ANSWERS, seeds=[seed], traffic="alpaca", rate=300, **answers)]

    return make


def answers(times: float) -> list[ReplayResult]:
    one = rates(1.4, experiment=ANSWERS, traffic="alpaca")
    return [*rates(times, experiment=ANSWERS, traffic="alpaca", beams=6), *one]


def prefix(n_s: int) -> Callable[[float], list[ReplayResult]]:
    return lambda times: rates(times, "paged_prefix", "replay-paged-prefix", traffic="alpaca", n_s=n_s)


def block(largest: float) -> list[ReplayResult]:
    """Blocks of up to this size are good."""
    return [
        replay_facts("paged", BLOCKS, 0.1 if size <= largest else 0.2, block_size=size, traffic=traffic, rate=120)
        for size in (1, 8, 16, 32, 64, 128, 256)
        for traffic in ("sharegpt", "alpaca")
    ]


def recompute(times: float) -> list[ReplayResult]:
    """With preemptions at one size, and a larger ratio without any at another."""
    found = []
    for size, seconds, preemptions in ((16, 0.1 * times, 3), (32, 0.9, 0)):
        seeds = [replay_seed(preemptions=preemptions)]
        axes = {**SHAREGPT, "block_size": size}
        found.append(replay_facts("paged", BLOCKS, seconds, seeds, **axes))
        found.append(replay_facts("paged_swap", BLOCKS, 0.1, seeds, **axes))
    return found


def last_block(blocks: float) -> list[ReplayResult]:
    """A request with so many empty blocks of 16 tokens, and one that fills its block."""
    return [
        replay_facts("paged", "replay-paged", seeds=[replay_seed(shares=(100, round(16 * empty), 0, 0))], **axes)
        for empty, axes in ((blocks, SHAREGPT), (0.0, {**SHAREGPT, "rate": 60}))
    ]


JUDGED: list[tuple[str, str, Callable[[float], list[ReplayResult]], float, float]] = [
    # Claim, the experiment that it names, its rows, and a figure that agrees with the text and one that does not.
    ("PA-throughput", "replay-paged", throughput, 2.0, 1.5),
    ("PA-batches", "replay-paged", batches, 2.5, 2.6),
    ("PA-waste", "replay-paged", memory("used"), 0.23, 0.24),
    ("PA-reserved", "replay-paged", memory("reserved"), 0.15, 0.16),
    ("PA-internal", "replay-paged", memory("internal_fragmentation"), 0.55, 0.5),
    ("PA-external", "replay-paged", memory("external_fragmentation"), 0.1, 0.11),
    ("PA-used", "replay-paged", memory("used", "paged"), 0.96, 0.98),
    ("PA-samples2", ANSWERS, saved(samples=2), 0.055, 0.05),
    ("PA-samples4", ANSWERS, saved(samples=4), 0.09, 0.1),
    ("PA-samples6", ANSWERS, saved(samples=6), 0.09, 0.08),
    ("PA-beams2", ANSWERS, saved(beams=2), 0.4, 0.44),
    ("PA-beams4", ANSWERS, saved(beams=4), 0.6, 0.62),
    ("PA-beams6", ANSWERS, saved(beams=6), 0.6, 0.7),
    ("PA-answers", ANSWERS, answers, 1.5, 1.3),
    ("PA-prefix80", "replay-paged-prefix", prefix(80), 1.9, 2.0),
    ("PA-prefix341", "replay-paged-prefix", prefix(341), 4.0, 3.0),
    ("PA-chat", "replay-paged-chat", lambda times: rates(times, traffic="chat"), 2.2, 2.4),
    ("PA-block", BLOCKS, block, 128, 64),
    ("PA-recompute", BLOCKS, recompute, 1.2, 1.21),
    ("PA-last-block", "replay-paged", last_block, 0.9375, 1.0625),
]
NAMED = {id: experiment for id, experiment, *_ in JUDGED} | {
    "PA-parallel": ANSWERS, "PA-kernel": "paged-kernel",
}  # fmt: skip


@pytest.mark.parametrize(("id", "experiment", "rows", "agrees", "differs"), JUDGED, ids=[row[0] for row in JUDGED])
def test_a_replayed_figure_agrees_or_not(
    id: str, experiment: str, rows: Callable[[float], list[ReplayResult]], agrees: float, differs: float
) -> None:
    for value, end in ((agrees, "this agrees with the text"), (differs, "the text says otherwise")):
        judged = judge(id, *rows(value))
        assert (judged.verdict, judged.measured) == ("replayed", pytest.approx(value, rel=1e-3)), judged.reason
        assert judged.reason.endswith(end)
        assert (judged.low or 9) <= value * 1.001
        assert (judged.high or 0) >= value * 0.999
        assert judged.rows


def test_claims_without_rows_name_the_experiment_that_has_them() -> None:
    for id, experiment in NAMED.items():
        judged = judge(id)
        assert judged.verdict == "not measured"
        assert f"`chunkbench run {experiment}` measures" in judged.reason, id
    assert {id for id in JUDGES if id.startswith("PA-")} - NAMED.keys() == {"PA-static", "PA-batch", "PA-memory13b"}


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


def test_throughput_is_also_told_over_reservation_for_the_longest() -> None:
    reason = judge("PA-throughput", *throughput(2.0)).reason
    assert "2.00 times the rate of an allocator that knows all lengths (printed: 1.7 to 2.7)" in reason
    assert "4.00 times that of reservation for the longest (printed: 2.7 to 8)" in reason


def test_the_optimal_order_is_not_measured() -> None:
    axes: dict[str, Any] = {"traffic": "conversations", "rate": 240, "memory": 4000}
    seed = replay_seed(prompt_tokens=10_000, cached_tokens=5000)
    judged = judge(
        "RA-optimum", *(replay_facts(name, "mine", seeds=[seed], **axes) for name in ("radix_tree", "belady"))
    )
    assert judged.verdict == "not measured"
    assert "the text compares orders of the requests" in judged.reason


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


def test_prompts_and_beams_in_memory_are_told_and_not_judged() -> None:
    prompts = [
        replay_facts("paged", ANSWERS, seeds=[replay_seed(prompt_share=share)], traffic="alpaca", samples=n)
        for n, share in ((2, 0.15), (4, 0.11), (6, 0.04))
    ]
    judged = judge("PA-parallel", *prompts, *saved(beams=6)(0.5))
    assert (judged.verdict, judged.measured) == ("replayed", 0.11)
    assert "prompts are 4% to 15% of the memory in parallel sampling, and beams share 50% to 50%" in judged.reason
    assert judge("PA-parallel", *prompts).verdict == "not measured"


@pytest.mark.parametrize(
    ("over", "verdict"),
    [
        ((1.2, 1.23, 1.26), "holds"),
        ((1.1, 1.2, 1.24), "cannot tell"),
        ((1.02, 1.05, 1.1), "different here"),
        ((0.9, 0.95, 0.99), "does not hold"),
    ],
)
def test_the_paged_kernel_is_judged_at_its_worst_point(facts: Any, over: tuple[float, ...], verdict: str) -> None:
    def case(name: str, batch: int, samples: tuple[float, ...]) -> DecodeResult:
        axes = {"n_p": 256, "n_s": 0, "n_c": 8, "heads": 40, "kv_heads": 40, "batch_size": batch, "block_size": 16}
        made: DecodeResult = facts(name, **axes, samples_us=tuple((us, us) for us in samples))
        return made

    one = (100.0,) * 3
    better = [case("paged_attn_whole", 8, one), case("paged_attn", 8, (125.0,) * 3)]
    worst = [case("paged_attn_whole", 32, one), case("paged_attn", 32, tuple(100 * times for times in over))]
    judged = judge("PA-kernel", *better, *worst)
    assert (judged.verdict, judged.measured) == (verdict, pytest.approx(over[1]))
    assert f"at 2 points; {over[1]:.2f} (batch 32, 256 tokens, blocks of 16) decides" in judged.reason
    assert len(judged.rows) == 4


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
