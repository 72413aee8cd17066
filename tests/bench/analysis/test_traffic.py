"""Hits of caches against a slow count, and numbers of lengths and times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.traffic import traffic_numbers

PROMPTS = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True)


def slow_hits(prompts: list[list[int]], size: int) -> int:
    """Blocks that a cache would hold, with its contents as a list, the least recent block first."""
    held: list[int] = []
    hits = 0
    for prompt in prompts:
        for block in prompt:
            if block not in held:
                break
            hits += 1
        held = [block for block in held if block not in prompt] + prompt[::-1]
        held = held[len(held) - min(size, len(held)) :]
    return hits


@given(st.lists(PROMPTS, min_size=1, max_size=20), st.integers(1, 8))
def test_hits_of_a_cache(prompts: list[list[int]], size: int) -> None:
    tokens = [10 * len(prompt) - 3 for prompt in prompts]
    numbers = traffic_numbers(list(range(len(prompts))), tokens, [1] * len(prompts), prompts, 10, [size])
    small, endless = numbers.hits
    total = sum(map(len, prompts))
    assert small.blocks == pytest.approx(slow_hits(prompts, size) / total)
    assert endless.blocks == pytest.approx(slow_hits(prompts, 10**9) / total)
    assert small.tokens <= endless.tokens <= 1


def test_numbers_of_a_trace() -> None:
    prompts = [[1, 2], [1, 3], [1, 2]]
    numbers = traffic_numbers([0.0, 2.0, 10.0], [15, 20, 15], [5, 6, 7], prompts, 10)
    assert (numbers.requests, numbers.seconds, numbers.per_s) == (3, 10.0, 0.2)
    assert (numbers.prompt_tokens.p50, numbers.answer_tokens.mean, numbers.answer_tokens.most) == (15, 6, 7)
    assert (numbers.blocks, numbers.distinct_blocks) == (6, 3)
    (endless,) = numbers.hits
    # The second prompt hits one whole block, the third both, of which the last one holds 5 tokens.
    assert (endless.blocks, endless.tokens) == (0.5, 0.5)
    assert numbers.reuse_s is not None
    assert (numbers.reuse_s.most, numbers.reuse_s.p50) == (10.0, 8.0)


def test_a_trace_that_says_nothing_of_sharing() -> None:
    numbers = traffic_numbers([0.0, 0.0], [15, 20], [5, 6], [(), ()], 0, [10])
    assert (numbers.per_s, numbers.hits, numbers.reuse_s, numbers.blocks) == (None, (), None, 0)
