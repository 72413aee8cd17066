"""What a load sends before the clock, and where a ladder of loads stops."""

from __future__ import annotations

import pytest

from chunkbench.traffic import Chat, Prompt
from chunkbench.traffic.ladder import Step, saturated
from chunkbench.traffic.request_result import RequestResult, load_numbers
from chunkbench.traffic.shared_prefixes import shared_prefixes

SYSTEM = {"role": "system", "content": "s"}


def asked(*messages: str) -> Chat:
    return Chat((SYSTEM, *({"role": "user", "content": text} for text in messages)))


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([(*range(20), 90), (*range(20), 91), (*range(30, 50), 90), (*range(20), 92), (*range(30, 50), 1)], [20, 20]),
        ([(*range(40), 90), (*range(40), 91), (*range(20), 91)], [40]),
        ([tuple(range(40))] * 2 + [tuple(range(100, 116))] * 3, [16, 40]),
        ([asked("a", "b"), asked("a", "c"), asked("d")], [2]),
        (["x" * 70 + "a", "x" * 70 + "b", (1, 2)], [70]),
    ],
)
def test_shared_prefixes(prompts: list[Prompt], expected: list[int]) -> None:
    """The longest ones, those of most prompts first."""
    found = shared_prefixes(prompts, 9)
    assert [len(one.messages if isinstance(one, Chat) else one) for one in found] == expected
    assert shared_prefixes(prompts, 1) == found[:1]


def test_prompts_without_a_shared_prefix() -> None:
    with pytest.raises(ValueError, match="share no prefix of 16 tokens"):
        shared_prefixes([(*range(15), 90), (*range(15), 91)], 1)


@pytest.mark.parametrize(
    ("step", "ends", "best", "expected"),
    [
        (Step(None, 8), [1, 2, 3], 0.95, ""),
        (Step(None, 8), [1, 2, 3], 0.96, "saturated: with clients: 8, 1 requests/s are answered, with fewer 0.96"),
        (Step(2.0), [1.5, 2.5, 3.7], 0, ""),
        (Step(2.0), [1.5, 2.5, 3.8], 0, "at 2 requests/s answers come at 87% of the rate at which requests are due"),
        (Step(2.0), [], 0, "no request was answered at 2 requests/s"),
    ],
)
def test_where_a_server_is_saturated(step: Step, ends: list[float], best: float, expected: str) -> None:
    """Three requests, due at 0, 1 and 2 s."""
    ended = [
        RequestResult(due=due, sent=due, first=due, last=last, prompt_tokens=10, asked_tokens=5, tokens=5)
        for due, last in enumerate(ends)
    ]
    assert expected in saturated(step, ended, load_numbers(ended), best)
    assert bool(expected) == bool(saturated(step, ended, load_numbers(ended), best))
