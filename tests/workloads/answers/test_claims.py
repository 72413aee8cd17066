"""Claims on caches whose heads keep windows, judged by rows whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.claims import Claim, claims
from chunkbench.workloads.answers.result import AnswersContext, AnswersResult
from tests.invented_facts import MakeFacts

NEEDLES = 10


def judge(*results: Any, baseline: str = "chunk_attn") -> dict[str, Claim]:
    return {claim.id: claim for claim in claims([derive(list(results), baseline)])}


@pytest.fixture
def cache(facts: MakeFacts) -> Callable[..., DecodeResult]:
    def make(name: str, kv_bytes: int, deviation: float | None = None, **axes: Any) -> DecodeResult:
        return facts(implementation=name, kv_bytes=kv_bytes, deviation=deviation, **axes)

    return make


def answers(name: str, found: int, findable: int = NEEDLES) -> AnswersResult:
    context = AnswersContext(
        context_seed=0,
        found=tuple(place < found for place in range(NEEDLES)),
        found_by_all=tuple(place < findable for place in range(NEEDLES)),
        agreement=0.5,
        deviation=0.1,
        kv_bytes=3,
        full_bytes=10,
    )
    return AnswersResult.model_validate(
        {
            **{"key": name, "experiment": "razor-answers", "implementation": name, "label": name, "device": "cpu"},
            **{"dtype": "bfloat16", "status": "ok", "n_p": 4000, "window": 256, "contexts": [context]},
        }
    )


def test_bytes_that_the_methods_own_numbers_save(cache: Callable[..., DecodeResult]) -> None:
    long = {"n_p": 32704, "n_c": 64}
    saved = judge(cache("chunk_attn", 1000, **long), cache("razor_attn", 320, 0.5, **long))["RZ-bytes"]
    assert (saved.verdict, round(saved.measured or 0, 2)) == ("does not hold", 0.68)
    assert "68.0% at 32,768 tokens" in saved.reason
    assert "0% at 4,000, 42% at 8,000, 68% at 20,000" in saved.reason
    given = judge(cache("chunk_attn", 1000, **long), cache("razor_attn", 100, 0.5, window=512, **long))["RZ-bytes"]
    assert given.verdict == "not measured"


def test_protected_heads() -> None:
    rows = [answers("retrieval_heads", 9), answers("random_heads", 3), answers("no_heads", 2)]
    judged = judge(*rows, baseline="all_heads")["RZ-heads"]
    assert (judged.verdict, round(judged.measured or 0, 2)) == ("holds", 0.6)
    rows[0] = answers("retrieval_heads", 3)
    assert judge(*rows, baseline="all_heads")["RZ-heads"].verdict == "does not hold"
    assert judge(*rows[:2], baseline="all_heads")["RZ-heads"].verdict == "not measured"


def test_what_is_lost_without_a_part() -> None:
    judged = judge(
        answers("retrieval_heads", 8), answers("retrieval_heads_plain", 4), answers("induction_heads", 8), baseline="x"
    )
    assert (judged["RZ-compensation"].verdict, judged["RZ-compensation"].measured) == ("holds", 0.5)
    assert (judged["RZ-echo"].verdict, judged["RZ-echo"].measured) == ("different here", 0.0)
    none = judge(answers("retrieval_heads", 0), answers("retrieval_heads_plain", 0), baseline="x")
    assert none["RZ-compensation"].verdict == "cannot tell"


def test_a_shared_prefix_that_stays_whole(cache: Callable[..., DecodeResult]) -> None:
    axes = {"n_p": 1000, "n_s": 960, "n_c": 64, "batch_size": 8, "window": 64}
    rows = [cache("chunk_attn", 1000, **axes), cache("razor_attn", 400, 0.5, **axes)]
    judged = judge(*rows, cache("razor_attn_own", 980, 0.2, **axes))["RZ-prefix"]
    assert judged.verdict == "holds"
    assert "98% if a shared prefix stays whole, 40% if it is compressed, too" in judged.reason
    assert judge(*rows)["RZ-prefix"].verdict == "not measured"
