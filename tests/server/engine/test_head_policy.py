"""The engine with heads that keep a window only."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chunkbench.attention.windows import HeadPolicy
from chunkbench.server.engine import Engine, EngineOptions, Request
from tests.server.engine.models import VOCABULARY, answers_of, small_model

CHUNK_BYTES = small_model().token_bytes * 16
ALL, SOME, NONE = ((True, True),) * 2, ((True, False), (False, False)), ((False, False),) * 2


def engine(full: tuple[tuple[bool, ...], ...] | None, chunks: int = 200, window: int = 32, **options: Any) -> Engine:
    compress = options.pop("compress", "own")
    policy = None if full is None else HeadPolicy(full, window, compress=compress)
    chosen = EngineOptions(kv_bytes=CHUNK_BYTES * chunks, chunk_size=16, policy=policy, **options)
    return Engine(small_model(), chosen)


def requests(count: int = 4, prompt: int = 120, tokens: int = 60) -> list[Request]:
    rng = random.Random(5)
    return [Request(str(n), [rng.randrange(VOCABULARY) for _ in range(prompt)], tokens) for n in range(count)]


def test_nothing_changes_while_nothing_is_lost() -> None:
    expected = answers_of(engine(None), *requests())
    assert answers_of(engine(ALL), *requests()) == expected
    assert answers_of(engine(NONE, window=400), *requests()) == expected


@pytest.mark.parametrize("cache", ["live", "radix"])
@pytest.mark.parametrize("compress", ["own", "all"])
def test_windows_hold_fewer_bytes_and_lose_no_request(cache: str, compress: str) -> None:
    whole, windows = engine(None, cache=cache), engine(SOME, cache=cache, compress=compress)
    expected, answers = answers_of(whole, *requests()), answers_of(windows, *requests())
    assert [len(answer) for answer in answers.values()] == [60] * 4
    assert [answer[0] for answer in answers.values()] == [answer[0] for answer in expected.values()]
    assert answers != expected
    assert windows.kv_bytes == 0
    busy = engine(SOME, cache=cache, compress=compress)
    for request in requests():
        busy.add(request)
    while busy.step().prompt_tokens:
        pass
    lost = 4 * (120 // 16 - 1 - 2)  # of each prompt all chunks but the sinks and the window
    sums = 3 * 2 * 32 * 4
    assert busy.kv_bytes == 4 * 8 * CHUNK_BYTES - lost * (CHUNK_BYTES * 3 // 4 - sums)


def test_later_prompts_are_computed_exactly_behind_what_others_lost() -> None:
    """`own` shares no chunk that window heads lost, so an answer begins as it would alone."""
    served = engine(NONE, cache="radix")
    first, again = (answers_of(served, *requests(1))["0"] for _ in range(2))
    assert first == again
    shared = engine(NONE, cache="radix", compress="all")
    answers_of(shared, *requests(1))
    shared.add(requests(1)[0])
    report = shared.step()
    assert report.prompt_tokens < 120 - 5 * 16  # here the prefix is shared, with what is left of it


def test_more_sequences_fit_into_the_same_memory() -> None:
    batches = []
    for full in (None, NONE):
        served = engine(full, chunks=32, max_batch=16)
        answers = answers_of(served, *requests(10))
        assert [len(answer) for answer in answers.values()] == [60] * 10
        batches.append(served.peak_batch)
    assert batches[1] > batches[0]
