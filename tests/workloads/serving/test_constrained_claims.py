"""Claims on constrained decoding, judged by rows whose numbers are known."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.bench.analysis.derive import derive
from chunkbench.report.claims import Claim, claims
from chunkbench.workloads.serving.result import ConstrainedAnswers, ServingResult
from tests.workloads.serving.made import measurement, serving_facts

FORCED = "chunk_llama_jump_retokenize"


def judge(*facts: ServingResult) -> dict[str, Claim]:
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
    judged = judge(*points, facts(FORCED, 0.1, 1))
    assert judged["FSM-throughput"].verdict == "holds"
    assert judged["FSM-throughput"].measured == 2 / 1.1
    assert "1.82 at 32 clients, 1.00 at 1 client" in judged["FSM-throughput"].reason
    slow = judge(*points[:1], facts(FORCED, 0.09))["FSM-throughput"]
    assert slow.verdict == "different here"
    assert judge(*points[:1], facts(FORCED, 0.2))["FSM-throughput"].verdict == "does not hold"


def test_the_time_of_tokenising_again() -> None:
    assert judge(facts(FORCED, 0.1))["FSM-retokenize"].verdict == "holds"
    judged = judge(facts(FORCED, 0.1, again_s=0.4))["FSM-retokenize"]
    assert (judged.verdict, judged.measured) == ("does not hold", 0.2)


def test_a_constraint_that_every_request_compiles() -> None:
    judged = judge(facts("chunk_llama_jump", 0.1), facts("chunk_llama_jump_compiled", 0.5))["FSM-preprocess"]
    assert (judged.verdict, judged.measured) == ("holds", 3.0)
    judged = judge(facts("chunk_llama_jump", 0.1), facts("chunk_llama_jump_compiled", 0.11))["FSM-preprocess"]
    assert judged.verdict == "different here"


def test_faster_than_without_a_constraint() -> None:
    def at(forced: int, latency: float) -> list[ServingResult]:
        return [facts(FORCED, latency, 8, forced), facts("unconstrained", 0.1, 8, forced)]

    judged = judge(*at(0, 0.12), *at(50, 0.09), *at(90, 0.05))["FSM-faster-than-free"]
    assert judged.verdict == "holds"
    assert "1.20 at 0%, 0.90 at 50%, 0.50 at 90%; faster from 50% of forced bytes on" in judged.reason
    assert judge(*at(0, 0.12))["FSM-faster-than-free"].verdict == "does not hold"
    assert judge(*at(90, 0.05))["FSM-throughput"].verdict == "not measured"


def test_answers_that_change() -> None:
    mask = facts("chunk_llama_mask", 0.1)
    assert judge(mask, facts(FORCED, 0.1))["FSM-same"].verdict == "holds"
    judged = judge(mask, facts(FORCED, 0.1, texts=("a", "c")))["FSM-same"]
    assert (judged.verdict, judged.measured) == ("does not hold", 0.5)
