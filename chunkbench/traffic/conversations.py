"""Conversations of many turns: each prompt repeats all that was said before."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate

from chunkbench.bench.experiment.forest import PromptSegment
from chunkbench.traffic.arrivals import Arrivals, Lengths, due_times
from chunkbench.traffic.replayed import ReplayRequest, replay_request


@dataclass(frozen=True)
class Conversations:
    """Conversations of equally many turns.

    The prompt of a turn is the system prompt, all earlier prompts and answers of the conversation, and new text of the
    user. So a cache that keeps answers finds everything but the new text. Raises ValueError.
    """

    turns: int
    lengths: Lengths
    """Of the user's new text, and of an answer."""
    think_s: float
    """Mean pause between the due times of two turns; pauses are exponential. A turn does not wait for the answer
    before it: with a slow server it may come before that answer ends, as no client could send it."""
    system_prompt: int = 0
    """Tokens of a system prompt."""
    system_prompts: int = 1
    """Different system prompts; conversation i has number i modulo this."""

    def __post_init__(self) -> None:
        if self.turns < 1 or self.system_prompts < 1:
            raise ValueError("a conversation needs at least one turn and one system prompt")
        if not self.think_s > 0 or self.system_prompt < 0:
            raise ValueError("think_s must be above 0 and system_prompt at least 0")


def from_conversations(conversations: Conversations, rate: float, count: int, seed: int | str) -> list[ReplayRequest]:
    """The first `count` requests, by due time. Conversations start by a Poisson process.

    `rate` is in requests per second, once as many conversations end as begin. Before that, for the first
    `turns * think_s` seconds or so, fewer requests are due. Another count takes another part of the same sequence.
    Raises ValueError.
    """
    starts = due_times(Arrivals(), rate / conversations.turns, count, f"{seed} conversations")
    turns = [
        (due, number, turn)
        for number, start in enumerate(starts)
        for turn, due in enumerate(_turn_times(conversations, start, f"{seed} {number}"))
    ]
    chosen = sorted(turns)[:count]
    said = {number: _said(conversations, number, f"{seed} {number}") for number in sorted({one[1] for one in chosen})}
    return [
        replay_request(due, said[number][: 2 * turn + 2], said[number][2 * turn + 2]) for due, number, turn in chosen
    ]


def _turn_times(conversations: Conversations, start: float, seed: str) -> list[float]:
    chance = random.Random(f"pauses {seed}")
    pauses = (chance.expovariate(1 / conversations.think_s) for _ in range(conversations.turns - 1))
    return list(accumulate(pauses, initial=start))


def _said(conversations: Conversations, number: int, seed: str) -> list[PromptSegment]:
    """A whole conversation: the system prompt, then the user's text and the answer of each turn. Ids are its own."""
    chance = random.Random(f"lengths of conversation {seed}")
    said = [PromptSegment(number % conversations.system_prompts, conversations.system_prompt)]
    first = conversations.system_prompts + number * 2 * conversations.turns
    for turn in range(conversations.turns):
        user, answer = first + 2 * turn, first + 2 * turn + 1
        said.append(PromptSegment(user, conversations.lengths.prompt.draw(chance)))
        said.append(PromptSegment(answer, conversations.lengths.answer.draw(chance)))
    return said
