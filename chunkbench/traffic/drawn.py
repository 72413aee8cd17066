"""Requests for a server from traces that keep lengths and ids of blocks instead of tokens."""

from __future__ import annotations

import random

from chunkbench.traffic.request import PlannedRequest
from chunkbench.traffic.trace import Trace, TraceRequest


def draw_traffic(
    trace: Trace, count: int, vocabulary: int, seed: int | str, longest: int | None = None
) -> list[PlannedRequest]:
    """The first `count` requests of a trace with at most `longest` tokens, with drawn token ids; due from 0 s on.

    A turn of a conversation that has a delay is sent so long after the answer before it.

    Blocks with one id get the same tokens, other blocks others, as far as the vocabulary goes. A trace that says
    nothing about sharing gets prompts that share nothing. Raises ValueError if no request is short enough.
    """
    fitting = trace.first(count, longest)
    start = fitting[0].due
    turn_before: dict[int, int] = {}
    plan = []
    for number, request in enumerate(fitting):
        prompt = _prompt(request, number, trace.block_tokens, vocabulary, seed)
        due, after = request.due - start, None
        if request.session is not None:
            if request.delay is not None and request.session in turn_before:
                due, after = request.delay, turn_before[request.session]
            turn_before[request.session] = number
        plan.append(PlannedRequest(due, prompt, request.answer_tokens, after))
    return plan


def _prompt(request: TraceRequest, number: int, block_tokens: int, vocabulary: int, seed: int | str) -> tuple[int, ...]:
    if not request.blocks:
        return _tokens(f"{seed} request {number}", number, request.prompt_tokens, vocabulary)
    blocks = (_tokens(f"{seed} block {block}", block, block_tokens, vocabulary) for block in request.blocks)
    return tuple(token for block in blocks for token in block)[: request.prompt_tokens]


def _tokens(purpose: str, number: int, count: int, vocabulary: int) -> tuple[int, ...]:
    """Drawn token ids that begin with the digits of a number, so that those of another number differ."""
    digits: list[int] = []
    while number or not digits:
        number, digit = divmod(number, vocabulary)
        digits.append(digit)
    drawn = random.Random(f"tokens {purpose}").choices(range(vocabulary), k=count)
    return (*digits, len(digits) % vocabulary, *drawn)[:count]
