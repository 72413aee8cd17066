"""Claims on servers, and on answers that follow constraints."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chunkbench.bench.analysis.derive import derive
from chunkbench.report.claims import Claim, claims
from chunkbench.workloads.serving.result import ConstrainedAnswers, ServerFacts, ServingResult
from tests.workloads.serving.made_servers import measurement, serving_facts


def judge(*facts: ServingResult) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims([derive(list(facts), "chunk_llama")])}


def pair(ours: float, theirs: float, kv: tuple[int, int] = (10, 100), batch: tuple[int, int] = (6, 10), **axes: int):  # type: ignore[no-untyped-def]
    """Rows of both systems with these normalized latencies (seconds per token), peak K/V bytes and peak batches."""
    rate = axes.pop("rate", 1)
    sides = zip(("chunk_llama", "vllm"), (ours, theirs), kv, batch, strict=True)
    return [
        serving_facts(
            system,
            **axes,
            rate=rate,
            measurements=[measurement(n, latency, peak_kv, peak_batch) for n in range(3)],
        )
        for system, latency, peak_kv, peak_batch in sides
    ]


def test_table_4_holds() -> None:
    judged = judge(*pair(0.1, 0.1), *pair(0.1, 0.2, n_s=1024))
    for id in ("T4-kv", "T4-batch", "T4-noregress"):
        assert judged[id].verdict == "holds", judged[id].reason
    assert judged["T4-kv"].measured == 0.9
    assert judged["T4-batch"].measured == 0.4
    assert judged["T4-noregress"].measured == 1.0
    assert judged["F5-1024"].verdict == "not measured"
    assert len(judged["T4-kv"].rows) == 2


def test_the_worst_point_decides() -> None:
    small = pair(0.1, 0.1, kv=(50, 100), batch=(10, 10), n_p=2048, n_s=2048)
    judged = judge(*pair(0.1, 0.1), *pair(0.12, 0.1, n_p=2048), *pair(0.1, 0.2, n_s=1024), *small)
    assert judged["T4-kv"].verdict == "different here"
    assert judged["T4-kv"].measured == 0.5
    assert judged["T4-batch"].verdict == "does not hold"
    assert judged["T4-noregress"].verdict == "does not hold"
    assert "1.20 at n_p = 2048, load 80%" in judged["T4-noregress"].reason


def test_table_4_is_not_judged_by_rates_above_capacity() -> None:
    above = [*pair(0.3, 0.1, load=150), *pair(0.1, 0.2, n_s=1024, load=400, kv=(90, 100), batch=(10, 10))]
    judged = judge(*pair(0.1, 0.1), *pair(0.1, 0.2, n_s=1024), *above)
    for id in ("T4-kv", "T4-batch", "T4-noregress"):
        assert judged[id].verdict == "holds", judged[id].reason


def test_figure_5_compares_sustained_rates() -> None:
    """The objective is 0.2 s/token. Ours meets it up to 4 requests/s, vLLM up to 2."""
    shared = [
        facts
        for load, rate, ours, theirs in ((60, 1, 0.1, 0.1), (120, 2, 0.1, 0.2), (240, 4, 0.2, 0.4))
        for facts in pair(ours, theirs, n_s=1024, load=load, rate=rate)
    ]
    judged = judge(*pair(0.1, 0.2, load=90), *shared)
    assert judged["F5-1024"].verdict == "holds"
    assert judged["F5-1024"].measured == 2.0
    assert judged["F5-1024"].bound == "at least"
    assert "at least 4 against 2 requests/s below 200 ms/token" in judged["F5-1024"].reason
    assert judged["F5-2048"].verdict == "not measured"


def test_figure_5_cannot_tell_where_vllm_meets_the_objective_at_all_rates() -> None:
    shared = [facts for load in (60, 120) for facts in pair(0.1, 0.1, n_s=1024, load=load, rate=load)]
    judged = judge(*pair(0.1, 0.2, load=90), *shared)["F5-1024"]
    assert judged.verdict == "cannot tell"
    assert judged.measured is None


def test_figure_5_without_a_rate_that_meets_the_objective() -> None:
    shared = [facts for load in (60, 120) for facts in pair(0.1, 0.5, n_s=1024, load=load, rate=load)]
    judged = judge(*pair(0.1, 0.2, load=90), *shared)
    assert judged["F5-1024"].verdict == "different here"
    assert "vLLM does not meet 200 ms/token at any measured rate" in judged["F5-1024"].reason


def with_tree(*shares: float, system: str = "chunk_llama_radix", **axes: int) -> ServingResult:
    """A row whose tree took these shares of the steps' time, one for each arrival seed."""
    servers = [ServerFacts(sampled=False, step_s=0.02, tree_s=0.02 * share) for share in shares]
    seeds = [measurement(n, 0.1).model_copy(update={"server": server}) for n, server in enumerate(servers)]
    return serving_facts(system, measurements=seeds, **axes)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.001, 0.0034, 0.002), "holds"),
        ((0.001, 0.0036, 0.002), "cannot tell"),
        ((0.004, 0.006, 0.005), "different here"),
    ],
)
def test_the_tree_is_judged_by_its_share_of_the_steps(shares: tuple[float, ...], verdict: str) -> None:
    """A point with a smaller share, and systems without retention, change nothing."""
    better, live = with_tree(0.0005, n_s=1024), with_tree(0.5, system="chunk_llama", load=90)
    judged = judge(with_tree(*shares), better, live)["RA-bookkeeping"]
    assert judged.verdict == verdict
    middle = sorted(shares)[1]
    assert (judged.measured, judged.low, judged.high) == pytest.approx((middle, min(shares), max(shares)))
    assert f"{middle:.2%} at n_p = 1024, n_s = 0, load = 80, 0.05% at n_p = 1024, n_s = 1024" in judged.reason


def test_the_tree_is_not_judged_by_runs_of_older_versions() -> None:
    judged = judge(*pair(0.1, 0.1), serving_facts("chunk_llama_radix", measurements=[measurement(0, 0.1)]))
    assert judged["RA-bookkeeping"].verdict == "not measured"
    assert "chunkbench run table4" in judged["RA-bookkeeping"].reason


FORCED = "chunk_llama_jump_retokenize"


def judge_answers(*facts: ServingResult) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims([derive(list(facts), "chunk_llama_mask")])}


def facts(
    system: str,
    latency: float,
    clients: int = 32,
    forced: int | None = None,
    texts: Sequence[str] = ("a", "b"),
    again_s: float = 0.01,
) -> ServingResult:
    """A system whose two requests take 1 + 10 `latency` seconds together."""
    work = {"told": 2, "sampled": 9, "retokenize_s": again_s}
    constrained = ConstrainedAnswers(regex="[ab]", valid=2, cut=0, invalid=0, work=work, texts=tuple(texts))
    measured = [measurement(n, latency).model_copy(update={"constrained": constrained}) for n in range(3)]
    made = serving_facts(system, measurements=measured)
    axes = {"load": None, "clients": clients, "forced": forced, "key": f"{system} {clients} {forced}"}
    return made.model_copy(update=axes)


def test_the_largest_number_of_clients_decides() -> None:
    points = [facts("chunk_llama_mask", 0.1), facts(FORCED, 0.01), facts("chunk_llama_mask", 0.1, 1)]
    judged = judge_answers(*points, facts(FORCED, 0.1, 1))
    assert judged["FSM-throughput"].verdict == "holds"
    assert judged["FSM-throughput"].measured == 2 / 1.1
    assert "1.82 at 32 clients, 1.00 at 1 client" in judged["FSM-throughput"].reason
    slow = judge_answers(*points[:1], facts(FORCED, 0.09))["FSM-throughput"]
    assert slow.verdict == "different here"
    assert judge_answers(*points[:1], facts(FORCED, 0.2))["FSM-throughput"].verdict == "does not hold"


def test_the_time_of_tokenising_again() -> None:
    assert judge_answers(facts(FORCED, 0.1))["FSM-retokenize"].verdict == "holds"
    judged = judge_answers(facts(FORCED, 0.1, again_s=0.4))["FSM-retokenize"]
    assert (judged.verdict, judged.measured) == ("does not hold", 0.2)


def test_a_constraint_that_every_request_compiles() -> None:
    judged = judge_answers(facts("chunk_llama_jump", 0.1), facts("chunk_llama_jump_compiled", 0.5))["FSM-preprocess"]
    assert (judged.verdict, judged.measured) == ("holds", 3.0)
    judged = judge_answers(facts("chunk_llama_jump", 0.1), facts("chunk_llama_jump_compiled", 0.11))["FSM-preprocess"]
    assert judged.verdict == "different here"


def test_faster_than_without_a_constraint() -> None:
    def at(forced: int, latency: float) -> list[ServingResult]:
        return [facts(FORCED, latency, 8, forced), facts("unconstrained", 0.1, 8, forced)]

    judged = judge_answers(*at(0, 0.12), *at(50, 0.09), *at(90, 0.05))["FSM-faster-than-free"]
    assert judged.verdict == "holds"
    assert "1.20 at 0%, 0.90 at 50%, 0.50 at 90%; faster from 50% of forced bytes on" in judged.reason
    assert judge_answers(*at(0, 0.12))["FSM-faster-than-free"].verdict == "does not hold"
    assert judge_answers(*at(90, 0.05))["FSM-throughput"].verdict == "not measured"


def test_answers_that_change() -> None:
    mask = facts("chunk_llama_mask", 0.1)
    assert judge_answers(mask, facts(FORCED, 0.1))["FSM-same"].verdict == "holds"
    judged = judge_answers(mask, facts(FORCED, 0.1, texts=("a", "c")))["FSM-same"]
    assert (judged.verdict, judged.measured) == ("does not hold", 0.5)
