"""Drafts: the answers are those without drafts, whatever is drafted, and memory holds what was accepted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chunkbench.server.engine import Engine, EngineOptions, Request, Sampling
from chunkbench.server.engine import engine as engines
from chunkbench.server.engine.drafts import MOST_PATIENCE, SIZES, NgramDraft
from tests.server.engine.models import CHUNK_BYTES, VOCABULARY, answers_of, small_engine, small_model


def foretell(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[tuple[int, ...], Sequence[int]], right: float = 0.8
) -> None:
    """Draft what an engine without drafts answers, with a wrong token here and there. `answers`: prompt -> answer.
    `right`: chance of a right token."""
    chance = random.Random(3)

    def propose(_: NgramDraft, tokens: Sequence[int], most: int) -> list[int]:
        for prompt, answer in answers.items():
            known = len(tokens) - len(prompt)
            if known >= 0 and [*prompt, *answer[:known]] == tokens:
                draft = answer[known : known + most]
                return [token if chance.random() < right else token ^ 1 for token in draft]
        return []

    monkeypatch.setattr(NgramDraft, "propose", propose)


class Evens:
    """A constraint: even tokens only."""

    complete, error = False, ""

    def allow(self, bits: NDArray[np.int32]) -> None:
        bits[:] = 0x55555555

    def allows(self, token: int) -> bool:
        return token % 2 == 0

    def accept(self, token: int) -> None: ...

    def forced(self, answer: Sequence[int], most: int) -> None: ...


def requests() -> list[Request]:
    chance = random.Random(5)
    system = [chance.randrange(VOCABULARY) for _ in range(70)]
    made = []
    for n in range(10):
        prompt = chance.choice([[], system]) + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 30))]
        more: dict[str, Any] = {}
        if n == 3:
            more = {"matcher": Evens()}
        if n == 4:
            more = {"logprobs": 2}
        if n == 5:
            more = {"min_tokens": 20}
        made.append(Request(f"r{n}", prompt, chance.randrange(40, 70), **more))
    return made


def finish(engine: Engine, *requests: Request) -> tuple[dict[str, list[int]], Counter[str]]:
    """The tokens of requests that were added to the engine; numbers of drafted and accepted tokens, and of
    preemptions."""
    answers: dict[str, list[int]] = {one.id: [] for one in requests}
    counts = Counter[str]()
    while not engine.idle:
        report = engine.step()
        counts.update(drafted=report.drafted, accepted=report.accepted, preempted=report.preempted)
        for token in report.generated:
            answers[token.request].append(token.token)
    return answers, counts


@pytest.mark.parametrize("cache", ["live", "radix"])
def test_greedy_answers_are_those_without_drafts(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under preemption, beside a constraint, and with several answers of one prompt."""
    without = answers_of(small_engine(chunks=64, cache=cache), *requests())
    foretell(monkeypatch, {tuple(one.prompt): without[one.id] for one in requests()})
    monkeypatch.setattr(engines, "CHEAP_ROWS", 32)
    served = small_engine(chunks=5, chunk_size=16, max_batch=8, prompt_budget=64, cache=cache, draft_tokens=5)
    for one in requests():
        served.add(one)
    with_drafts, counts = finish(served, *requests())
    assert served.peak_kv_bytes <= 5 * CHUNK_BYTES
    assert with_drafts == without
    assert 0.3 * counts["drafted"] < counts["accepted"] < counts["drafted"]
    assert counts["preempted"] > 0
    assert served.kv_bytes == 0


def test_several_answers_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = [Request(f"t{n}", [5, 6, 7, 8] * 5, 30) for n in range(3)]
    alone = answers_of(small_engine(chunks=64), twins[0])["t0"]
    foretell(monkeypatch, {tuple(twins[0].prompt): alone})
    served = small_engine(chunks=64, draft_tokens=4)
    served.add(*twins)
    answers, counts = finish(served, *twins)
    assert list(answers.values()) == [alone] * 3
    assert counts["accepted"] > 0


def test_a_step_that_fails_is_computed_again_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [Request("a", [1, 2, 3] * 9, 25), Request("b", [4, 5, 6] * 9, 25)]
    without = answers_of(small_engine(chunks=64), *pair)
    foretell(monkeypatch, {tuple(one.prompt): without[one.id] for one in pair})
    served = small_engine(chunks=64, draft_tokens=3)
    logits, calls = served.model.logits, Counter[str]()

    def unlucky(tokens: list[int], *given: Any) -> Any:
        calls["rows"] = max(calls["rows"], len(tokens))
        calls["steps"] += 1
        if calls["steps"] % 5 == 0 and len(tokens) < 20:
            raise MemoryError("no memory for this step")
        return logits(tokens, *given)

    monkeypatch.setattr(served.model, "logits", unlucky)
    try:
        assert answers_of(served, *pair) == without
    finally:
        monkeypatch.undo()
    assert calls["rows"] > 2


def test_drawn_answers_are_those_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws of rejected tokens are taken back, so an answer depends only on its seed."""
    drawn = [Request(f"d{n}", [n, 5, 6], 30, sampling=Sampling(temperature=1.2, seed=n)) for n in range(4)]
    without = answers_of(small_engine(chunks=64), *drawn)
    foretell(monkeypatch, {tuple(one.prompt): without[one.id] for one in drawn})
    assert answers_of(small_engine(chunks=64, draft_tokens=3), *drawn) == without


def test_logits_of_a_prompt_are_found_beside_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Request("a", [1, 2, 3] * 9, 40), Request("b", [9, 8, 7, 6, 5, 4, 3] * 3, 4, prompt_logprobs=1)
    alone = answers_of(small_engine(), first)["a"]
    foretell(monkeypatch, {tuple(first.prompt): alone})
    told = []
    for drafts in (0, 4):
        served = small_engine(draft_tokens=drafts)
        served.add(first)
        for _ in range(3):
            served.step()
        served.add(second)
        while not served.idle:
            told += [one.prompt_logprobs for one in served.step().generated if one.prompt_logprobs]
    assert str(told[0]) == str(told[1])


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("budget", [7, 20])
def test_a_prompt_joins_in_the_step_that_fills_its_chunk(
    budget: int, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt goes on with the tokens that another answer gets in this step, in the same chunk."""
    prompt = [(7 * n * n + 3) % VOCABULARY for n in range(55)]
    first = Request("a", prompt, 20)
    alone = answers_of(small_engine(), first)["a"]
    second = Request("b", prompt + alone[:15], 6)
    expected = {"a": alone, "b": answers_of(small_engine(), second)["b"]}
    foretell(monkeypatch, {tuple(prompt): alone}, right=1.0)
    for after in range(3, 10):
        served = small_engine(draft_tokens=drafts, prompt_budget=budget)
        served.add(first)
        answers: dict[str, list[int]] = {"a": [], "b": []}
        joined = False
        while not served.idle:
            if len(answers["a"]) >= after and not joined:
                served.add(second)
                joined = True
            for token in served.step().generated:
                answers[token.request].append(token.token)
        assert answers == expected


@pytest.mark.parametrize("count", [1000, pytest.param(20000, marks=pytest.mark.slow)])
def test_sampled_answers_keep_the_distribution(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square of the second and third token of an answer, after drafts that are right in one of a few cases."""
    settings = Sampling(temperature=1.5, top_k=4)
    monkeypatch.setattr(engines, "CHEAP_ROWS", 64)
    counts = []
    for drafts in (0, 2):
        served = Engine(small_model(), EngineOptions(kv_bytes=64 * CHUNK_BYTES, max_batch=32, draft_tokens=drafts))
        likely = answers_of(served, Request("likely", [9, 8, 7], 3))["likely"]
        monkeypatch.setattr(NgramDraft, "propose", lambda self, tokens, most, said=likely: said[1 : 1 + most])
        drawn = []
        for n in range(count):
            sampling = Sampling(settings.temperature, seed=1000 * drafts + n, top_k=settings.top_k)
            drawn.append(Request(str(n), [9, 8, 7], 3, sampling=sampling))
            served.add(drawn[-1])
        seen, told = finish(served, *drawn)
        assert (told["accepted"] > 0) == (drafts > 0)
        counts.append(Counter(tuple(answer[1:]) for answer in seen.values()))
    cells = [pair for pair in counts[0] if counts[0][pair] + counts[1][pair] >= 10]
    statistic = sum((counts[0][pair] - counts[1][pair]) ** 2 / (counts[0][pair] + counts[1][pair]) for pair in cells)
    assert len(cells) > 8
    assert statistic < len(cells) + 4 * (2 * len(cells)) ** 0.5  # four standard deviations above the mean


def test_ngrams_are_looked_up() -> None:
    draft = NgramDraft()
    assert draft.propose([1, 2, 3, 4, 5, 6], 4) == []
    assert draft.propose([1, 2, 3, 4, 5, 6, 1, 2], 4) == [3, 4, 5, 6]
    assert draft.propose([1, 2, 3, 4, 5, 6, 1, 2, 7, 1, 2], 2) == [7, 1]  # the last occurrence
    draft = NgramDraft()
    tokens = [1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4]
    assert draft.propose(tokens, 1) == [9]  # the longer n-gram
    assert max(SIZES) == 4


def test_rejected_drafts_become_rare() -> None:
    draft, asked = NgramDraft(), 0
    for _ in range(200):
        if draft.propose([1, 2, 3, 1, 2], 2):
            asked += 1
            draft.tell(0)
    assert asked < 200 / MOST_PATIENCE + 8
    draft.tell(1)
    assert draft.propose([1, 2, 3, 1, 2], 2)


def test_what_cannot_draft_is_refused() -> None:
    with pytest.raises(ValueError, match="draft_tokens must lie between 0 and 7"):
        EngineOptions(draft_tokens=8)
