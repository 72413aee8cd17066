"""Several answers to one prompt: forks of one computed prompt, which give what each answer gives alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from chunkbench.server.engine import Request, RequestRefused, Sampling
from tests.server.engine.models import CHUNK_BYTES, VOCABULARY, answers_of, run_groups, small_engine

CHUNK = 64


def group_of(name: str, prompt: list[int], tokens: int, count: int, temperature: float = 2.0) -> list[Request]:
    return [
        Request(f"{name}.{index}", prompt, tokens, Sampling(temperature=temperature, seed=index))
        for index in range(count)
    ]


@pytest.mark.parametrize("length", [1, 40, 64, 130])
def test_each_answer_is_that_of_a_request_of_its_own(length: int) -> None:
    group = group_of("a", [n % VOCABULARY for n in range(length)], 20, 4)
    served = small_engine()
    served.add(*group)
    first = served.step()
    assert (first.batch, first.prompt_tokens) == (1, length)
    assert [made.request for made in first.generated] == [request.id for request in group]
    assert served.running == 4
    shared, own = length // CHUNK, length % CHUNK
    assert served.step().kv_bytes == (shared + 4) * CHUNK_BYTES, own
    alone = {key: tokens for one in group for key, tokens in answers_of(small_engine(), one).items()}
    assert run_groups(small_engine(), [group]) == (alone, 0)
    assert len({tuple(tokens) for tokens in alone.values()}) == 4


def test_without_sharing_every_answer_computes_the_prompt() -> None:
    group = group_of("a", list(range(100)), 5, 3)
    served = small_engine(attention="no-sharing")
    served.add(*group)
    assert served.step().prompt_tokens == 300
    assert run_groups(small_engine(attention="no-sharing"), [group]) == run_groups(small_engine(), [group])


def test_a_group_is_admitted_whole() -> None:
    served = small_engine(max_batch=4)
    served.add(*group_of("a", [1, 2, 3], 3, 3))
    served.add(*group_of("b", [1, 2, 4], 3, 2))
    batches = []
    while not served.idle:
        batches.append((served.step().batch, served.running))
    assert batches == [(1, 3), (3, 3), (3, 0), (1, 2), (2, 2), (2, 0)]


@pytest.mark.parametrize(
    ("request_", "answers", "reason"),
    [
        (Request("a", [1], 4), 5, r"n must be at most 4, not 5.*--max-batch"),
        (Request("a", [1] * 200, 4), 4, r"holds 384 tokens: too few for 4 answers to a prompt of 200 tokens"),
    ],
)
def test_groups_that_never_fit_are_refused(request_: Request, answers: int, reason: str) -> None:
    served = small_engine(chunks=6, max_batch=4)
    with pytest.raises(RequestRefused, match=reason) as refused:
        served.add(*[request_] * answers)
    assert refused.value.field == "n"
    assert served.idle


@pytest.mark.parametrize("cache", ["live", "radix"])
def test_groups_beside_each_other_in_little_memory(cache: Any) -> None:
    """Preempted, dropped before and after the prompt, first answers dropped: all others give their own answers."""
    chance, preempted = random.Random(3), 0
    for _ in range(2):
        system = [chance.randrange(VOCABULARY) for _ in range(70)]
        groups, gone = [], dict[int, list[str]]()
        for number in range(6):
            own = [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 57))]
            sizes = chance.randrange(20, 70), chance.randrange(1, 5)
            groups.append(group_of(f"g{number}", chance.choice([[], system]) + own, *sizes, chance.choice([0.0, 2.0])))
            for request in groups[-1]:
                if chance.random() < 0.2:
                    gone.setdefault(chance.randrange(30), []).append(request.id)
        served = small_engine(chunks=5, max_batch=8, prompt_budget=60, cache=cache)
        answers, more = run_groups(served, groups, gone)
        preempted += more
        undisturbed = small_engine(max_batch=1)
        alone = answers_of(undisturbed, *[one for group in groups for one in group])
        dropped = {name for names in gone.values() for name in names}
        for name, tokens in answers.items():
            assert tokens == (alone[name][: len(tokens)] if name in dropped else alone[name])
    assert preempted


def test_a_prompt_that_cannot_be_computed_fails_all_its_answers() -> None:
    served = small_engine()

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    group = group_of("a", [1, 2, 3], 3, 3)
    served.add(*group)
    logits = served.model.logits
    try:
        served.model.logits = broken  # type: ignore[method-assign, assignment]
        failed = served.step().failed
    finally:
        served.model.logits = logits  # type: ignore[method-assign]
    assert [(failure.request, str(failure)) for failure in failed] == [
        (one.id, "MemoryError: no room") for one in group
    ]
    assert served.idle
    assert served.kv_bytes == 0
    assert run_groups(served, [[replace(one, id=f"again {one.id}") for one in group]])


def test_a_last_piece_of_one_token_beside_forks_that_joined_later() -> None:
    served = small_engine(prompt_budget=7)
    twins = [Request(f"a{n}", [1, 2, 3, 4, 5], 20) for n in range(2)]
    answers, _ = run_groups(served, [twins, [Request("b", list(range(10, 20)), 5)]])
    assert [len(answers[name]) for name in ("a0", "a1", "b")] == [20, 20, 5]
